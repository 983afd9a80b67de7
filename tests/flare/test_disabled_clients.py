"""A disabled site in a round: left out with what it has sent, in the words of the results, and not waited for."""

from __future__ import annotations

from pathlib import Path

from conftest import small_image_job

from fedshift.federation.server.coordinator import Coordinator
from fedshift.flare.disabled_clients import KEY, DisabledClients
from fedshift.flare.round_answers import RoundAnswers
from flare_armour.disabled_sites import Disabling

TOLD = Disabling("admin@hub.org", "2026-01-02 03:04:05 UTC")


class Taking:
    """Passes on to a coordinator, as the aggregator does, for clients that host one site each."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def accept(self, shareable: object, fl_ctx: object) -> bool:
        raise NotImplementedError

    def refuse(self, client: str, key: str, reason: str) -> None:
        raise NotImplementedError

    def take_out(self, client: str, key: str, reason: str) -> None:
        if client in self._coordinator.invited:
            self._coordinator.take_out(client, key, reason)


def test_it_is_left_out_once_a_round_and_the_round_of_the_first_time_is_told(tmp_path: Path) -> None:
    coordinator = Coordinator(small_image_job("fedavg", "federation.min_sites=2"), tmp_path)
    answers, disabled = RoundAnswers(), dict[str, Disabling]()
    clients = DisabledClients(coordinator, answers, lambda: disabled)
    coordinator.open(0)
    answers.open(frozenset("ABC"), Taking(coordinator))
    clients.leave_out()
    assert not answers.answered
    disabled["C"] = TOLD
    for _ in range(3):
        clients.leave_out()
    said = "by admin@hub.org since 2026-01-02 03:04:05 UTC (round 0)"
    assert answers.answered == {"C"} and coordinator.rejected == {"C": f"{KEY}: {said}"}
    assert [fault.reason for fault in coordinator.record.current.rejected] == [said]
    assert not coordinator.hopeless and clients.names == {"C"}
    answers.close()
    coordinator.record.close_round(coordinator.invited, {})

    coordinator.open(1)
    again = DisabledClients(coordinator, answers, lambda: disabled)  # the server's process was started again
    answers.open(frozenset("AB"), Taking(coordinator))
    again.leave_out()
    assert coordinator.rejected == {"C": f"{KEY}: {said}"}, "since the same round"
    disabled["B"] = TOLD
    again.leave_out()
    assert coordinator.hopeless, "one site is left, and two are needed"
