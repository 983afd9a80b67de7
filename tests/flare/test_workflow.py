"""What NVFlare tells the server's workflow while a round is open."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from armour.pieces.messages import answer as large_answer
from armour.pieces.messages import ends, read_answer, same, site, weights
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ServerCommandKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedshift.flare import codec
from fedshift.flare.workflow import FedshiftWorkflow
from flare_armour.pieces.array_files import file_of, take_out
from flare_armour.protected import ServerProtection

from .test_round_answers import Taken


def workflow_with(*clients: str) -> FedshiftWorkflow:
    """In a round that asks these clients."""
    workflow = FedshiftWorkflow()
    workflow.answers.open(frozenset(clients), Taken())
    return workflow


def happens(workflow: FedshiftWorkflow, event: str, key: str, value: Any) -> None:
    context = FLContext()
    context.set_prop(key, value, private=True, sticky=False)
    workflow.handle_event(event, context)


def test_an_answer_to_a_task_that_flare_no_longer_knows_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    workflow = workflow_with("HK")
    workflow.process_result_of_unknown_task(Client("HK", ""), codec.TRAIN, "id", Shareable(), FLContext())
    assert "site HK" in caplog.text and "stale" in caplog.text
    assert not workflow.answers.answered


@pytest.mark.parametrize(("name", "logged"), [("HK", True), ("UCL", False), (None, False)])
def test_a_second_answer_in_a_round_is_logged(name: str | None, logged: bool, caplog: pytest.LogCaptureFixture) -> None:
    workflow = workflow_with("HK", "UCL")
    answer = ClientTask(Client("HK", ""), Task(codec.TRAIN, Shareable()))
    answer.result = Shareable()
    workflow.answers.receive(answer, FLContext())
    result = Shareable()
    result.set_header(ServerCommandKey.FL_CLIENT, name and Client(name, ""))
    happens(workflow, EventType.BEFORE_PROCESS_SUBMISSION, FLContextKey.TASK_RESULT, result)
    assert ("site HK" in caplog.text and "more than once" in caplog.text) is logged


def test_a_job_that_too_few_sites_run_says_which_do_not() -> None:
    """FLARE stops it, as it does for one that an administrator aborts."""
    workflow = workflow_with("BMC", "HK", "UCL")
    for name in ("HK", "UCL", "BMC"):
        happens(workflow, EventType.CLIENT_DISCONNECTED, FLContextKey.DISCONNECTED_CLIENT_NAME, name)
    happens(workflow, EventType.CLIENT_RECONNECTED, FLContextKey.RECONNECTED_CLIENT_NAME, "BMC")
    reason = workflow.answers.why_stopped(2, "round 1")
    assert "round 1" in reason and "too few sites" in reason and "HK, UCL " in reason
    assert "from outside" in workflow.answers.why_stopped(1, "round 1")


def test_an_answer_that_came_in_pieces_has_its_arrays_before_filters_see_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For the client that FLARE has authenticated, and no other."""
    server, line = ends(tmp_path)
    workflow = workflow_with("HK")
    workflow.protection = ServerProtection(server)
    message = large_answer()
    site(tmp_path, line).send(message, "the update")
    for client in ("UCL", "HK"):
        message.set_header(ServerCommandKey.FL_CLIENT, Client(client, ""))
        happens(workflow, EventType.BEFORE_TASK_RESULT_FILTER, FLContextKey.TASK_RESULT, message)
        assert (file_of(message) is None) is (client == "HK")
    assert same(read_answer(message).weights, weights())
    unsent = large_answer()
    take_out(unsent, tmp_path / "file")
    server.open(Shareable(), ("HK",), place="round 2")
    unsent.set_header(ServerCommandKey.FL_CLIENT, Client("HK", ""))
    with caplog.at_level(logging.WARNING, "flare_armour"):
        happens(workflow, EventType.BEFORE_TASK_RESULT_FILTER, FLContextKey.TASK_RESULT, unsent)
    assert "site HK" in caplog.text and "not come whole" in caplog.text
