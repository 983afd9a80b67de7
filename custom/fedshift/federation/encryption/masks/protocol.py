"""What sites and server must agree on: names of arrays, the threshold, and what a share is of."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from fedshift.federation.encryption.masks.agreement import NONCE, TAG
from fedshift.federation.encryption.masks.shamir import SHARE_BYTES
from fedshift.federation.site.privacy.noise import fingerprint
from fedshift.schema.messages import Arrays, Broadcast

MASKS = "masks"
"""Name of the protocol's arrays among those of methods."""
KEY, KEYS = "key", "key."
"""A site's key in its answer; in a round's message, followed by the site."""
VECTOR = "masks.vector"
"""Name of the masked vector, (N,) int64, in an update's weights."""
SHARES, HASHES = "shares", "hashes"
"""Encrypted shares, (n, bytes) uint8 by receiver; hashes of all shares and secrets, (n, n + 1, 16) uint8."""
DIGEST, MEMBERS, SEALED = "digest", "members", "sealed"
"""A question to unmask: the round's digest, (32,) uint8; U as numbers of sites with keys, int64; SHARES of U."""
OPENED = "opened"
"""Its answer: the site's share of b_i, then of each s_id, (|U|, 1 + n - |U|, 33) uint8."""
HASH_BYTES = 16
LONGEST_KEY = 16384
"""Bytes of a site's key with its certificate, at most."""


FEWEST = 2
"""Sites in a sum, whatever a policy says: a sum over one is that site's update."""


def threshold(n: int) -> int:
    """Shares that rebuild a secret, of n: so many that 2t > n with some to spare."""
    return max(FEWEST, ceil(2 * n / 3))


def helpers_needed(n: int, least: int) -> int:
    """How many of the other sites must help a dishonest server to lay one site's update open, at least.

    Args:
        n: sites of the job; the server may send the keys of fewer.
        least: the fewest sites in a sum, by the site's policy; at most ``n``.
    """
    return min(_helpers_among(keys, least) for keys in range(least, n + 1))


def _helpers_among(n: int, least: int) -> int:
    """The same with the keys of n sites; see the head of `fedshift.federation.encryption.masks` for the ways."""
    t = threshold(n)
    left_out = n - max(t, least)  # most sites that an honest one lets the server leave out of a sum
    for helpers in range(n - 1):
        honest = n - helpers
        # Shares of a pair's seed come from the honest sites that were told of a sum with the one and without the other.
        wanted = (honest - 1) * (t - helpers)
        given = min(left_out, honest - 1) + (honest - 1) * min(left_out, honest - 2)
        two_groups = left_out >= 1 and helpers >= 2 * t - n
        if helpers >= t or wanted <= given or two_groups:
            return helpers
    return n - 1


def digest_of(broadcast: Broadcast) -> bytes:
    """32 bytes that stand for a round's whole message."""
    return bytes.fromhex(fingerprint(broadcast, b"fedshift masks"))


def sealed_bytes(n: int) -> int:
    """Length of a site's shares for one receiver, encrypted."""
    return NONCE + n * SHARE_BYTES + TAG


def hash_of(content: bytes, secret: int, receiver: int | None = None) -> bytes:
    """Of a share of a site's secret number ``secret`` for a receiver, or of the secret itself."""
    place = f"{secret} {'' if receiver is None else receiver} ".encode()
    return hashlib.blake2b(place + content, digest_size=HASH_BYTES).digest()


def as_array(content: bytes) -> np.ndarray:
    """Bytes as they travel, uint8."""
    return np.frombuffer(bytearray(content), np.uint8)


def form_fault(arrays: Arrays, expected: dict[str, tuple[type, tuple[int, ...]]]) -> tuple[str, str] | None:
    """What is wrong with the names, types and shapes of arrays: name and reason; None if nothing is."""
    for name in sorted({*map(str, arrays)} ^ expected.keys()):
        return name, "is missing" if name in expected else "is not expected"
    for name, (dtype, shape) in expected.items():
        array = arrays[name]
        if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
            form = f"{array.dtype} {array.shape}" if type(array) is np.ndarray else type(array).__name__
            return name, f"is {form}, not {np.dtype(dtype)} {shape}"
    return None


@dataclass(frozen=True)
class Question:
    """A question to unmask the sum over ``members``, as numbers of the round's sites with keys."""

    round: int
    digest: bytes
    members: tuple[int, ...]
    sealed: np.ndarray
    """(|U|, n, bytes) uint8: the shares that each member has encrypted for each site."""

    def broadcast(self, sites: Sequence[str]) -> Broadcast:
        """The message to ``sites``."""
        arrays = {
            DIGEST: as_array(self.digest),
            MEMBERS: np.array(self.members, np.int64),
            SEALED: np.ascontiguousarray(self.sealed),
        }
        return Broadcast(self.round, 0, {}, {MASKS: arrays}, tuple(sites))

    @classmethod
    def read(cls, broadcast: Broadcast, n: int) -> Question:
        """Read one in a round with ``n`` sites with keys.

        Raises:
            ValueError: it is none; the reason continues "the server's question …".
        """
        arrays = broadcast.arrays.get(MASKS, {})
        members = np.asarray(arrays.get(MEMBERS, ()))
        shapes: dict[str, tuple[type, tuple[int, ...]]] = {
            DIGEST: (np.uint8, (32,)),
            MEMBERS: (np.int64, (members.size,)),
            SEALED: (np.uint8, (members.size, n, sealed_bytes(n))),
        }
        fault = form_fault(arrays, shapes)
        if fault is not None:
            raise ValueError(f"has {fault[0]!r}, which {fault[1]}")
        numbers = tuple(members.tolist())
        if numbers != tuple(sorted({*numbers})) or not all(0 <= number < n for number in numbers):
            raise ValueError("names sites twice, out of order, or that have no key")
        return cls(broadcast.round, arrays[DIGEST].tobytes(), numbers, arrays[SEALED])
