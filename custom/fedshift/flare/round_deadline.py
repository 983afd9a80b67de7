"""When a round ends although not every site has answered."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass


@dataclass(frozen=True)
class RoundDeadline:
    """A job's rule for the end of a round. Times are seconds since the round was opened.

    A round ends when every client has answered, or at ``timeout``. It ends earlier if ``min_sites`` answers were
    usable and the other clients have had as long again as those took, plus ``grace``. Clients that did not answer in
    the last round get the task but are not waited for, so that a dead client delays one round and not all. ``awaited``
    clients do other work than the rest, such as scoring all images of a held-out site: they have until ``timeout``.
    """

    clients: frozenset[str]
    min_sites: int
    timeout: float
    grace: float
    awaited: frozenset[str] = frozenset()

    def deadline(
        self, *, answered: Set[str], usable: int, quorum_after: float | None, silent_before: Set[str]
    ) -> float:
        """When the round ends if no further answer arrives; 0 if it is over already.

        Args:
            answered: clients that have answered, usably or not.
            usable: how many sites' answers were usable.
            quorum_after: when the number of usable answers reached ``min_sites``.
            silent_before: clients that did not answer in the last round.
        """
        missing = self.clients - answered
        if not missing:
            return 0.0
        if usable < self.min_sites or quorum_after is None:
            return self.timeout
        if (missing & self.awaited) - silent_before:
            return self.timeout
        if missing <= silent_before:
            return 0.0
        return min(2 * quorum_after + self.grace, self.timeout)
