"""Leaves sites out of a running job that the project's admin has disabled (`flare_armour.disabled_sites`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedshift.federation.server.coordinator import Coordinator
from fedshift.flare.round_answers import RoundAnswers
from flare_armour.disabled_sites import Disabling

KEY = "disabled"
"""What ``results.json`` names in place of a part of the answer."""


class DisabledClients:
    """Who is disabled, and since which round of this job."""

    def __init__(
        self, coordinator: Coordinator, answers: RoundAnswers, disabled: Callable[[], Mapping[str, Disabling]]
    ) -> None:
        """``disabled`` gives the clients that are disabled now."""
        self._coordinator, self._answers, self._disabled = coordinator, answers, disabled
        self._rounds: dict[tuple[str, Disabling], int] = {}

    @property
    def names(self) -> frozenset[str]:
        """Clients that are disabled now."""
        return frozenset(self._disabled())

    def leave_out(self) -> None:
        """Leave those that are disabled now out of the open round: with the answer that they have given to it, too."""
        for client, told in self._disabled().items():
            reason = f"{told} (round {self._since(client, told)})"
            self._answers.leave_out(client, KEY, reason)

    def _since(self, client: str, told: Disabling) -> int:
        """The round that was open when this was first seen, also by an earlier process of the job."""
        if (client, told) not in self._rounds:
            results = self._coordinator.results
            records = [*([results.statistics] if results.statistics else []), *results.rounds]
            found = (r.round for r in records for f in r.rejected if f.key == KEY and str(told) in f.reason)
            self._rounds[client, told] = next(found, self._coordinator.round)
        return self._rounds[client, told]
