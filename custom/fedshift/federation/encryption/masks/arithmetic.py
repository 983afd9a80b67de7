"""The arithmetic of masks: sums that wrap around, streams from seeds, and Shamir's secret sharing.

Numbers are whole steps of 2⁻³² in 64 bits, whose sums are exact and wrap around. Masks are streams of such numbers from
seeds. Shamir's secret sharing (CACM 1979) is of 32 bytes: any ``threshold`` shares rebuild them, fewer say nothing. It
is over the integers modulo 2²⁵⁶ + 297, the smallest prime above 2²⁵⁶: share number x is the value at x of a polynomial
of degree ``threshold`` − 1, whose value at 0 is the secret.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

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
        """The secret.

        Raises:
            ValueError: these are no shares of one secret of 32 bytes.
        """
        values = [int.from_bytes(share, "big") for share in shares]
        total = sum(f * value for f, value in zip(self._factors, values, strict=True)) % PRIME
        if total >= 2 ** (8 * SECRET_BYTES):
            raise ValueError("no shares of one secret")
        return total.to_bytes(SECRET_BYTES, "big")
