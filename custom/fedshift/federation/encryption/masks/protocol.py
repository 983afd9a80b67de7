"""What sites and server must agree on: names of arrays, the threshold, what a share is of, how to unmask."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from fedshift.federation.encryption.masks.primitives import NONCE, SHARE_BYTES, TAG, Rebuilder
from fedshift.federation.server.update_check import Rejected
from fedshift.federation.site.privacy.noise import fingerprint
from fedshift.schema.errors import AFTER_AN_END, QuorumError
from fedshift.schema.messages import Arrays, Broadcast, Update

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
        # Shares of a pair's seed come from the honest sites that were asked for a sum with one and without the other.
        wanted = (honest - 1) * (t - helpers)
        available = min(left_out, honest - 1) + (honest - 1) * min(left_out, honest - 2)
        two_groups = left_out >= 1 and helpers >= 2 * t - n
        if helpers >= t or wanted <= available or two_groups:
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
    odd = sorted({*map(str, arrays)} ^ expected.keys())
    if odd:
        return odd[0], "is missing" if odd[0] in expected else "is not expected"
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


@dataclass
class Unmasking:
    """A round's question to its sites, and their answers."""

    sites: tuple[str, ...]
    """Those with a key in the round: seeds and shares are numbered in this order."""
    question: Question
    hashes: Mapping[str, np.ndarray]
    """`HASHES` of the members' updates."""
    answers: dict[str, np.ndarray] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def members(self) -> tuple[str, ...]:
        """The sites in the sum."""
        return tuple(self.sites[number] for number in self.question.members)

    @property
    def dropped(self) -> tuple[int, ...]:
        """Numbers of sites with keys that are not in the sum."""
        return tuple(number for number in range(len(self.sites)) if number not in self.question.members)

    @property
    def threshold(self) -> int:
        """How many answers it takes."""
        return threshold(len(self.sites))

    def secrets(self, member: int) -> tuple[int, ...]:
        """Numbers of a member's secrets that are rebuilt: its own mask's, and those of the sites that dropped out."""
        return (member, *self.dropped)

    def add(self, update: Update) -> None:
        """Check and keep a site's shares; Rejected if they are not what the sites have given out."""
        if update.site not in self.members:
            raise Rejected("site", "is not in the sum")
        if update.site in self.answers:
            raise Rejected("site", "has answered already")
        if update.round != self.question.round:
            raise Rejected("round", f"an answer of round {update.round} came in round {self.question.round}")
        if update.weights or update.packed or update.metrics or update.arrays.keys() != {MASKS}:
            raise Rejected(OPENED, "comes with what was not asked for")
        shape = (len(self.question.members), 1 + len(self.dropped), SHARE_BYTES)
        fault = form_fault(update.arrays[MASKS], {OPENED: (np.uint8, shape)})
        if fault is not None:
            raise Rejected(*fault)
        opened, receiver = update.arrays[MASKS][OPENED], self.sites.index(update.site)
        for row, member in enumerate(self.question.members):
            promised = self.hashes[self.sites[member]]
            for column, secret in enumerate(self.secrets(member)):
                share = opened[row, column].tobytes()
                if hash_of(share, secret, receiver) != promised[secret, receiver].tobytes():
                    raise Rejected(OPENED, f"holds another share than the one that site {self.sites[member]} gave it")
        self.answers[update.site] = opened

    def seeds(self) -> list[tuple[int, int, bytes]]:
        """The seeds of the masks that are left in the sum: member, whom it shares it with (or itself), seed.

        Raises:
            QuorumError: too few answers, or a site has given out shares of nothing.
        """
        used = [site for site in self.sites if site in self.answers][: self.threshold]
        if len(used) < self.threshold:
            missing = [
                f"{site} ({self.refused.get(site, 'no answer')})" for site in self.members if site not in self.answers
            ]
            raise QuorumError(
                "stays-masked",
                f"round {self.question.round}: the sum of {', '.join(self.members)} stays masked: {len(used)} sites "
                f"gave their shares, {self.threshold} needed; without {', '.join(missing)}; mend these "
                f"sites; {AFTER_AN_END}",
            )
        rebuilder = Rebuilder([self.sites.index(site) + 1 for site in used])
        seeds = []
        for row, member in enumerate(self.question.members):
            for column, secret in enumerate(self.secrets(member)):
                site = self.sites[member]
                try:
                    seed = rebuilder.secret([self.answers[other][row, column].tobytes() for other in used])
                    if hash_of(seed, secret) != self.hashes[site][secret, len(self.sites)].tobytes():
                        raise ValueError
                except ValueError:
                    raise QuorumError(
                        "stays-masked",
                        f"round {self.question.round}: the shares that site {site} has given out do not rebuild its "
                        "mask: the sum stays masked; start the run again without this site",
                    ) from None
                seeds.append((member, secret, seed))
        return seeds
