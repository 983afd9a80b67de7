"""Keys of sites: made for one job, signed with the kit's key, and agreed on in pairs."""

from __future__ import annotations

import json
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import Field, ValidationError

from fedshift.schema.names import Name
from fedshift.schema.strict import Strict

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
