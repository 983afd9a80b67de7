"""What masks are made with: sums that wrap around, streams from seeds, Shamir's secret sharing, and the sites' keys.

Numbers are whole steps of 2⁻³² in 64 bits, whose sums are exact and wrap around. Masks are streams of such numbers from
seeds. Shamir's secret sharing (CACM 1979) is of 32 bytes: any ``threshold`` shares rebuild them, fewer say nothing. It
is over the integers modulo 2²⁵⁶ + 297, the smallest prime above 2²⁵⁶: share number x is the value at x of a polynomial
of degree ``threshold`` − 1, whose value at 0 is the secret. Keys are made for one job, signed with the kit's key, and
agreed on in pairs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import Field, ValidationError

from fedshift.schema.names import Name
from fedshift.schema.strict import Strict

STEPS = 2.0**32
"""Steps of 1."""
BLOCK = 1 << 17
"""Numbers that are masked at a time."""
PRIME = 2**256 + 297
SECRET_BYTES, SHARE_BYTES = 32, 33


def largest(n_sites: int) -> float:
    """The largest absolute value that a site may send if the sum over so many sites must not wrap around."""
    return 2.0**62 / STEPS / n_sites


def encode(values: np.ndarray) -> np.ndarray:
    """Round float64 numbers to steps, int64. They must not be beyond `largest`."""
    return np.rint(values * STEPS).astype(np.int64)


def decode(steps: np.ndarray) -> np.ndarray:
    """Steps, int64, as float64."""
    return steps.astype(np.float64) / STEPS


def add_stream(vector: np.ndarray, seed: bytes, *, subtract: bool = False) -> None:
    """Add the stream of a seed (32 bytes) to a vector (N,) uint64, modulo 2⁶⁴ and in place, or subtract it.

    The stream is AES-256 in counter mode, little-endian. A seed is used for one vector only, so it needs no nonce.
    """
    cipher = Cipher(algorithms.AES256(seed), modes.CTR(bytes(16))).encryptor()
    zeros = bytes(8 * BLOCK)
    for start in range(0, len(vector), BLOCK):
        part = vector[start : start + BLOCK]
        stream = np.frombuffer(cipher.update(zeros[: 8 * len(part)]), "<u8")
        (np.subtract if subtract else np.add)(part, stream, out=part)


def draw(seed: bytes, count: int, length: int) -> list[int]:
    """``count`` whole numbers of ``length`` bytes each from a seed that is used for nothing else."""
    content = Cipher(algorithms.AES256(seed), modes.CTR(bytes(16))).encryptor().update(bytes(count * length))
    return [int.from_bytes(content[n * length : (n + 1) * length], "big") for n in range(count)]


def split(secret: bytes, coefficients: Sequence[int], points: Sequence[int]) -> list[bytes]:
    """The shares of a secret of 32 bytes at ``points``, different and not 0.

    ``coefficients``: of the powers 1, 2, …; as many as the threshold less one, uniform below ``PRIME``, and secret.
    """
    if len(secret) != SECRET_BYTES or not all(0 < x < PRIME for x in points) or len({*points}) < len(points):
        raise ValueError("a secret has 32 bytes, and points are different and not 0")
    shares = []
    for x in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value + coefficient) * x % PRIME
        shares.append(((value + int.from_bytes(secret, "big")) % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


class Rebuilder:
    """Rebuilds secrets from the shares at certain points."""

    def __init__(self, points: Sequence[int]) -> None:
        """``points``: x of each share; as many as the threshold."""
        self._factors = []
        for x in points:
            above = below = 1
            for other in points:
                if other != x:
                    above, below = above * other % PRIME, below * (other - x) % PRIME
            self._factors.append(above * pow(below, -1, PRIME) % PRIME)

    def secret(self, shares: Sequence[bytes]) -> bytes:
        """The secret; ValueError if these are no shares of one secret of 32 bytes."""
        values = [int.from_bytes(share, "big") for share in shares]
        total = sum(f * value for f, value in zip(self._factors, values, strict=True)) % PRIME
        if total >= 2 ** (8 * SECRET_BYTES):
            raise ValueError("no shares of one secret")
        return total.to_bytes(SECRET_BYTES, "big")


# --- keys -----------------------------------------------------------------------------------------------

NONCE, TAG = 12, 16
"""Bytes that encryption adds to a message."""


class Checker(Protocol):
    """Whoever has the certificate of the project's owner."""

    def check(self, site: str, content: bytes, signature: bytes, certificate: str) -> None:
        """Check what a site has signed; ValueError, whose reason continues "the key of site X …", if it has not."""
        ...


class Identity(Checker, Protocol):
    """Who a site is: what its kit lets it sign, and how it checks what others have signed."""

    def sign(self, content: bytes) -> tuple[bytes, str]:
        """The signature, and the site's certificate as PEM."""
        ...


class SiteKey(Strict):
    """A site's public key as it travels. ``signature`` and ``certificate`` are empty where there are no kits."""

    site: Name
    public: str = Field(pattern="^[0-9a-f]{64}$")
    signature: str = ""
    certificate: str = Field(default="", max_length=8192)

    @classmethod
    def make(cls, site: str, public: bytes, *, run: str, identity: Identity | None) -> SiteKey:
        """Sign a site's key for a run."""
        if identity is None:
            return cls(site=site, public=public.hex())
        signature, certificate = identity.sign(_signed(site, public.hex(), run))
        return cls(site=site, public=public.hex(), signature=signature.hex(), certificate=certificate)

    @classmethod
    def read(cls, content: bytes) -> SiteKey:
        """Read a key as it travels; ValueError if it is none."""
        try:
            return cls.model_validate_json(content)
        except ValidationError:
            raise ValueError("is none") from None

    def verify(self, site: str, *, run: str, checker: Checker | None) -> None:
        """Check that it is the key of ``site`` in this run; the signature where there is somebody to check it.

        Raises:
            ValueError: it is not; the reason continues "the key of site X …".
        """
        if self.site != site:
            raise ValueError(f"is one of site {self.site}")
        if checker is not None:
            checker.check(site, _signed(site, self.public, run), bytes.fromhex(self.signature), self.certificate)


def _signed(site: str, public: str, run: str) -> bytes:
    return json.dumps(["fedshift masks: key", run, site, public]).encode()


class Pair:
    """What a site and another one know, and nobody else; or a site alone, with its own secret."""

    def __init__(self, secret: bytes) -> None:
        """``secret``: 32 bytes."""
        self._secret = secret

    @classmethod
    def agreed(cls, private: bytes, public: bytes) -> Pair:
        """What the owner of ``private`` and that of ``public`` agree on, X25519.

        Raises:
            ValueError: the public key is one of the few with which everybody knows the result.
        """
        try:
            return cls(X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public)))
        except ValueError:
            raise ValueError("is one with which everybody could read") from None

    def seed(self, *purpose: str) -> bytes:
        """32 bytes that belong to a purpose: HKDF-SHA-256."""
        info = json.dumps(purpose).encode()
        return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(self._secret)

    def encrypt(self, content: bytes, nonce: bytes, *purpose: str) -> bytes:
        """AES-256-GCM under the purpose's own key; ``nonce`` (12 bytes) belongs to this content only."""
        about = json.dumps(purpose).encode()
        return nonce + AESGCM(self.seed(*purpose)).encrypt(nonce, content, about)

    def decrypt(self, content: bytes, *purpose: str) -> bytes:
        """What was encrypted; ValueError if it was not, or was changed since."""
        try:
            return AESGCM(self.seed(*purpose)).decrypt(content[:NONCE], content[NONCE:], json.dumps(purpose).encode())
        except InvalidTag:
            raise ValueError("was changed, or made in reply to another message") from None


def new_private_key() -> bytes:
    """32 bytes."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """32 bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
