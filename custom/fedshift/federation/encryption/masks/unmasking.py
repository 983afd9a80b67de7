"""One round's question for shares, and what its answers rebuild."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedshift.federation.encryption.masks.protocol import MASKS, OPENED, Question, form_fault, hash_of, threshold
from fedshift.federation.encryption.masks.shamir import SHARE_BYTES, Rebuilder
from fedshift.federation.server.update_check import Rejected
from fedshift.schema.errors import AFTER_AN_END, QuorumError
from fedshift.schema.messages import Update


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
        """Check and keep a site's shares.

        Raises:
            Rejected: they are not what the sites have given out.
        """
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
                f"round {self.question.round}: the sum of {', '.join(self.members)} stays masked: {len(used)} sites "
                f"gave their shares, {self.threshold} needed; without {', '.join(missing)}; mend these "
                f"sites; {AFTER_AN_END}"
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
                        f"round {self.question.round}: the shares that site {site} has given out do not rebuild its "
                        "mask: the sum stays masked; start the run again without this site"
                    ) from None
                seeds.append((member, secret, seed))
        return seeds
