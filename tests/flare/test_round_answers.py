"""Answers that come too early, too late, twice or never, seen from the server."""

from __future__ import annotations

import logging

import pytest
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedshift.flare import codec
from fedshift.flare.round_answers import RoundAnswers
from fedshift.schema.errors import ConfigError


class Taken:
    """Stands in for the aggregator and counts."""

    def __init__(self, error: Exception | None = None) -> None:
        self.taken = 0
        self.refused: list[tuple[str, str, str]] = []
        self._error = error

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        self.taken += 1
        if self._error is not None:
            raise self._error
        return True

    def refuse(self, client: str, key: str, reason: str) -> None:
        self.refused.append((client, key, reason))


def opened(aggregator: Taken, *clients: str) -> RoundAnswers:
    answers = RoundAnswers()
    answers.open(frozenset(clients or ("HK", "UCL")), aggregator)
    return answers


def answer() -> ClientTask:
    client_task = ClientTask(Client("HK", ""), Task(codec.TRAIN, Shareable()))
    client_task.result = Shareable()
    return client_task


def test_an_answer_is_counted_and_not_kept() -> None:
    aggregator, client_task = Taken(), answer()
    answers = opened(aggregator)
    answers.receive(client_task=client_task, fl_ctx=FLContext())
    assert aggregator.taken == 1 and answers.answered == {"HK"}
    assert client_task.result is None


def test_an_answer_after_the_end_of_its_round_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    aggregator = Taken()
    answers = opened(aggregator)
    answers.close()
    with caplog.at_level(logging.WARNING, "fedshift"):
        answers.receive(client_task=answer(), fl_ctx=FLContext())
    assert aggregator.taken == 0 and not answers.answered
    (said,) = caplog.messages
    assert said == "site HK answered a train task after its round had ended: left out as stale"


def test_who_did_not_answer_is_silent_in_the_next_round_unless_it_is_only_slow() -> None:
    aggregator = Taken()
    answers = opened(aggregator, "HK", "UCL", "BMC")
    answers.receive(client_task=answer(), fl_ctx=FLContext())
    answers.close()
    assert answers.note_silent(moved={"BMC"}) == {"UCL", "BMC"}
    assert answers.silent == {"UCL"}, "a part of BMC's model has come"
    answers.open(frozenset({"HK"}), aggregator)
    assert answers.note_silent(moved=set()) == {"HK"}
    assert answers.silent == {"HK", "UCL"}, "UCL was not asked this time"
    answers.open(frozenset({"HK"}), aggregator)
    answers.close()
    answers.receive(client_task=answer(), fl_ctx=FLContext())
    assert answers.silent == {"UCL"}, "HK was slow, not dead"


def test_an_error_that_no_quorum_mends_reaches_the_course_of_the_job() -> None:
    answers = opened(Taken(ConfigError("phantom-mixed", "kinds are mixed")))
    answers.receive(client_task=answer(), fl_ctx=FLContext())
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
    answers.receive(client_task=answer(), fl_ctx=FLContext())
    assert aggregator.taken == 0


def test_it_leaves_nobody_out_who_has_answered() -> None:
    aggregator = Taken()
    answers = opened(aggregator)
    answers.receive(client_task=answer(), fl_ctx=FLContext())
    answers.unusable("HK.job", "cannot be decoded")
    answers.leave_out_unusable()
    assert aggregator.taken == 1 and not aggregator.refused


def test_what_could_not_be_decoded_before_a_round_leaves_nobody_out_of_it() -> None:
    aggregator = Taken()
    answers = opened(aggregator)
    answers.close()
    answers.unusable("HK.job", "cannot be decoded")
    answers.open(frozenset({"HK"}), aggregator)
    answers.leave_out_unusable()
    assert not aggregator.refused
