"""When a round ends although not every site has answered."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType

NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class RoundDeadline:
    """A job's rule for the end of a round. Times are seconds since the round was opened.

    A round ends when every client has answered, or at ``timeout``. It ends earlier if ``min_sites`` answers were
    usable and the other clients have had as long again as those took, plus ``grace``. Clients that did not answer in
    the last round get the task but are not waited for, so that a dead client delays one round and not all. ``awaited``
    clients do other work than the rest, such as scoring all images of a held-out site: they have until ``timeout``.

    Where models travel in pieces (`flare_armour.pieces`), all this is counted from the latest piece of a client that
    is waited for, as that of a slow line is no dead one; but pieces put the end off by no more than ``transfer``.
    """

    clients: frozenset[str]
    min_sites: int
    timeout: float
    grace: float
    awaited: frozenset[str] = frozenset()
    transfer: float = 0.0

    def deadline(
        self,
        *,
        answered: Set[str],
        usable: int,
        quorum_after: float | None,
        silent_before: Set[str],
        moved: Mapping[str, float] = NONE,
    ) -> float:
        """When the round ends if no further answer arrives; 0 if it is over already.

        Args:
            answered: clients that have answered, usably or not.
            usable: how many sites' answers were usable.
            quorum_after: when the number of usable answers reached ``min_sites``.
            silent_before: clients that did not answer in the last round.
            moved: when the latest piece of a client came in or went out.
        """
        missing = self.clients - answered
        if not missing:
            return 0.0
        last = max((when for client, when in moved.items() if client in missing), default=0.0)
        latest = self.timeout + min(last, self.transfer)
        if usable < self.min_sites or quorum_after is None:
            return latest
        silent = silent_before - moved.keys()
        if (missing & self.awaited) - silent:
            return latest
        if missing <= silent:
            return 0.0
        put_off = min(max(last - quorum_after, 0.0), self.transfer)
        return min(2 * quorum_after + put_off + self.grace, latest)
