"""The open round: answers that come too early, too late, twice or never, disabled sites, and when it ends."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import small_image_job
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedshift.federation.server.coordinator import Coordinator
from fedshift.flare import codec
from fedshift.flare.round_answers import DISABLED, DisabledClients, RoundAnswers, RoundDeadline
from fedshift.schema.errors import ConfigError
from flare_armour.disabled_sites import Disabling

# --- who has answered -----------------------------------------------------------------------------------


class Taken:
    """Stands in for the aggregator and counts; takes clients out of a coordinator's round if it has one."""

    def __init__(self, error: Exception | None = None, coordinator: Coordinator | None = None) -> None:
        self.taken = 0
        self.refused: list[tuple[str, str, str]] = []
        self._error, self._coordinator = error, coordinator

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        self.taken += 1
        if self._error is not None:
            raise self._error
        return True

    def refuse(self, client: str, key: str, reason: str) -> None:
        self.refused.append((client, key, reason))

    def take_out(self, client: str, key: str, reason: str) -> None:
        assert self._coordinator is not None
        if client in self._coordinator.invited:
            self._coordinator.take_out(client, key, reason)


def opened(aggregator: Taken, *clients: str) -> RoundAnswers:
    answers = RoundAnswers()
    answers.open(frozenset(clients or ("HK", "UCL")), aggregator)
    return answers


def receive(answers: RoundAnswers) -> ClientTask:
    """An answer of HK."""
    client_task = ClientTask(Client("HK", ""), Task(codec.TRAIN, Shareable()))
    client_task.result = Shareable()
    answers.receive(client_task, FLContext())
    return client_task


def test_an_answer_is_counted_and_not_kept() -> None:
    aggregator = Taken()
    answers = opened(aggregator)
    client_task = receive(answers)
    assert aggregator.taken == 1 and answers.answered == {"HK"}
    assert client_task.result is None


def test_an_answer_after_the_end_of_its_round_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    aggregator = Taken()
    answers = opened(aggregator)
    answers.close()
    with caplog.at_level(logging.WARNING, "fedshift"):
        receive(answers)
    assert aggregator.taken == 0 and not answers.answered
    (line,) = caplog.messages
    assert "site HK" in line and "stale" in line


def test_who_did_not_answer_is_silent_in_the_next_round_unless_it_is_only_slow() -> None:
    aggregator = Taken()
    answers = opened(aggregator, "HK", "UCL", "BMC")
    receive(answers)
    answers.close()
    assert answers.note_silent(moved={"BMC"}) == {"UCL", "BMC"}
    assert answers.silent == {"UCL"}, "a part of BMC's model has come"
    answers.open(frozenset({"HK"}), aggregator)
    assert answers.note_silent(moved=set()) == {"HK"}
    assert answers.silent == {"HK", "UCL"}, "UCL was not asked this time"
    answers.open(frozenset({"HK"}), aggregator)
    answers.close()
    receive(answers)
    assert answers.silent == {"UCL"}, "HK was slow, not dead"


def test_an_error_that_no_quorum_mends_reaches_the_course_of_the_job() -> None:
    answers = opened(Taken(ConfigError("phantom-mixed", "kinds are mixed")))
    receive(answers)
    assert isinstance(answers.fault, ConfigError)


def test_an_answer_that_cannot_be_decoded_leaves_its_client_out_of_the_round() -> None:
    """Once, whatever else the client sends; who was not asked is not left out."""
    aggregator = Taken()
    answers = opened(aggregator)
    for sender in ("HK.job", "HK.job", "BMC.job", "", "."):
        answers.unusable(sender, "cannot be decoded")
    answers.leave_out_unusable()
    assert aggregator.refused == [("HK", "answer", "cannot be decoded")]
    assert answers.answered == {"HK"}
    receive(answers)
    assert aggregator.taken == 0


@pytest.mark.parametrize("when", ["after its answer", "before the round"])
def test_it_leaves_nobody_out_who_has_answered_and_counts_for_its_round_only(when: str) -> None:
    aggregator = Taken()
    answers = opened(aggregator)
    if when == "after its answer":
        receive(answers)
        answers.unusable("HK.job", "cannot be decoded")
    else:
        answers.close()
        answers.unusable("HK.job", "cannot be decoded")
        answers.open(frozenset({"HK"}), aggregator)
    answers.leave_out_unusable()
    assert not aggregator.refused


# --- who is disabled ------------------------------------------------------------------------------------


def test_a_disabled_site_is_left_out_once_a_round_since_the_round_that_it_was_first_seen_in(tmp_path: Path) -> None:
    coordinator = Coordinator(small_image_job("fedavg", "federation.min_sites=2"), tmp_path)
    aggregator, disabled = Taken(coordinator=coordinator), dict[str, Disabling]()
    answers = RoundAnswers()
    clients = DisabledClients(coordinator, answers, lambda: disabled)
    coordinator.open(0)
    answers.open(frozenset("ABC"), aggregator)
    clients.leave_out()
    assert not answers.answered
    by_admin = Disabling("admin@hub.org", "2026-01-02 03:04:05 UTC")
    disabled["C"] = by_admin
    for _ in range(3):
        clients.leave_out()
    reason = f"{by_admin} (round 0)"
    assert answers.answered == {"C"} and coordinator.rejected == {"C": f"{DISABLED}: {reason}"}
    assert [fault.reason for fault in coordinator.record.current.rejected] == [reason]
    assert not coordinator.hopeless and clients.names == {"C"}
    answers.close()
    coordinator.record.close_round(coordinator.invited, {})

    coordinator.open(1)
    again = DisabledClients(coordinator, answers, lambda: disabled)  # the server's process was started again
    answers.open(frozenset("AB"), aggregator)
    again.leave_out()
    assert coordinator.rejected == {"C": f"{DISABLED}: {reason}"}, "since the same round"
    disabled["B"] = by_admin
    again.leave_out()
    assert coordinator.hopeless, "one site is left, and two are needed"


# --- when a round ends ----------------------------------------------------------------------------------

RULE = RoundDeadline(frozenset("ABCD"), min_sites=3, timeout=100.0, grace=5.0)
HELD_OUT = replace(RULE, clients=frozenset("ABCDE"), awaited=frozenset("E"))
"""E scores all of its images, and has all the time there is."""
PIECES = replace(RULE, transfer=50.0)


@pytest.mark.parametrize(
    ("rule", "answered", "usable", "quorum_after", "silent_before", "moved", "end"),
    [
        (RULE, "", 0, None, "", {}, 100.0),
        (RULE, "AB", 2, None, "", {}, 100.0),
        (RULE, "ABC", 2, None, "", {}, 100.0),  # three answers, one of them refused: the fourth is needed
        (RULE, "ABCD", 2, None, "", {}, 0.0),  # nobody is left to wait for
        (RULE, "ABC", 3, 10.0, "", {}, 25.0),  # as long again as the quorum took, and the grace
        (RULE, "ABC", 3, 80.0, "", {}, 100.0),  # but never beyond the timeout
        (RULE, "ABC", 3, 10.0, "D", {}, 0.0),  # a site that said nothing last time is not waited for
        (RULE, "ABC", 3, 10.0, "C", {}, 25.0),
        (RULE, "ABCD", 4, 10.0, "D", {}, 0.0),
        (HELD_OUT, "ABC", 3, 10.0, "", {}, 100.0),
        (HELD_OUT, "ABCD", 3, 10.0, "", {}, 100.0),
        (HELD_OUT, "ABCE", 3, 10.0, "", {}, 25.0),
        (HELD_OUT, "ABCDE", 3, 10.0, "", {}, 0.0),
        (HELD_OUT, "ABCD", 3, 10.0, "E", {}, 0.0),  # a dead one is not waited for again
        (PIECES, "AB", 2, None, "", {}, 100.0),
        (PIECES, "AB", 2, None, "", {"C": 30.0}, 130.0),  # the timeout counts from the latest piece
        (PIECES, "AB", 2, None, "", {"C": 90.0}, 150.0),  # but no more than the transfer may take is added
        (PIECES, "AB", 2, None, "", {"A": 30.0}, 100.0),  # a site that has answered is not waited for
        (PIECES, "ABC", 3, 10.0, "", {"D": 5.0}, 25.0),  # as without pieces: the quorum took longer
        (PIECES, "ABC", 3, 10.0, "", {"D": 22.0}, 37.0),  # from the latest piece as long again, and the grace
        (PIECES, "ABC", 3, 10.0, "", {"D": 999.0}, 75.0),  # in all no longer than the transfer may take
        (PIECES, "ABC", 3, 10.0, "D", {"D": 22.0}, 37.0),  # whose pieces come is not dead
        (PIECES, "ABC", 3, 10.0, "D", {}, 0.0),
    ],
)
def test_the_end_of_a_round(
    rule: RoundDeadline,
    answered: str,
    usable: int,
    quorum_after: float | None,
    silent_before: str,
    moved: dict[str, float],
    end: float,
) -> None:
    deadline = rule.deadline(
        answered=set(answered),
        usable=usable,
        quorum_after=quorum_after,
        silent_before=set(silent_before),
        moved=moved,
    )
    assert deadline == end
