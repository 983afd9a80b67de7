"""What NVFlare tells the server's workflow while a round is open."""

from __future__ import annotations

import logging
from pathlib import Path

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
from flare_armour.pieces.server_end import ServerEnd
from flare_armour.protected import ServerProtection


class Takes:
    """Stands in for the aggregator."""

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        return True

    def refuse(self, client: str, key: str, reason: str) -> None: ...


def workflow_with(*clients: str, pieces: ServerEnd | None = None) -> FedshiftWorkflow:
    """In a round that asks these clients."""
    workflow = FedshiftWorkflow()
    workflow._protection = ServerProtection(pieces)
    workflow.answers.open(frozenset(clients), Takes())
    return workflow


def test_an_answer_to_a_task_that_flare_no_longer_knows_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    workflow = workflow_with("HK")
    workflow.process_result_of_unknown_task(Client("HK", ""), codec.TRAIN, "id", Shareable(), FLContext())
    assert "site HK answered a train task after its round had ended: left out as stale" in caplog.messages
    assert not workflow.answers.answered


@pytest.mark.parametrize(("name", "said"), [("HK", True), ("UCL", False), (None, False)])
def test_a_second_answer_in_a_round_is_logged(name: str | None, said: bool, caplog: pytest.LogCaptureFixture) -> None:
    workflow = workflow_with("HK", "UCL")
    answer = ClientTask(Client("HK", ""), Task(codec.TRAIN, Shareable()))
    answer.result = Shareable()
    workflow.answers.receive(answer, FLContext())
    result, context = Shareable(), FLContext()
    result.set_header(ServerCommandKey.FL_CLIENT, name and Client(name, ""))
    context.set_prop(FLContextKey.TASK_RESULT, result, private=True, sticky=False)
    workflow.handle_event(EventType.BEFORE_PROCESS_SUBMISSION, context)
    assert ("site HK answered the open round more than once" in caplog.text) is said


def test_a_job_that_too_few_sites_run_says_which_do_not() -> None:
    """FLARE stops it, as it does for one that an administrator aborts."""
    workflow = workflow_with("BMC", "HK", "UCL")
    for name in ("HK", "UCL", "BMC"):
        context = FLContext()
        context.set_prop(FLContextKey.DISCONNECTED_CLIENT_NAME, name)
        workflow.handle_event(EventType.CLIENT_DISCONNECTED, context)
    context = FLContext()
    context.set_prop(FLContextKey.RECONNECTED_CLIENT_NAME, "BMC")
    workflow.handle_event(EventType.CLIENT_RECONNECTED, context)
    said = workflow.answers.why_stopped(2, "round 1")
    assert said.startswith(
        "the run was stopped during round 1: too few sites run their part of the job, HK, UCL do not"
    )
    assert workflow.answers.why_stopped(1, "round 1").startswith("the run was stopped from outside during round 1")


def test_an_answer_that_came_in_pieces_has_its_arrays_before_filters_see_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For the client that FLARE has authenticated, and no other."""
    server, line = ends(tmp_path)
    workflow = workflow_with("HK", pieces=server)
    message, context = large_answer(), FLContext()
    site(tmp_path, line).send(message, "the update")
    context.set_prop(FLContextKey.TASK_RESULT, message, private=True, sticky=False)
    for client in ("UCL", "HK"):
        message.set_header(ServerCommandKey.FL_CLIENT, Client(client, ""))
        workflow.handle_event(EventType.BEFORE_TASK_RESULT_FILTER, context)
        assert (file_of(message) is None) is (client == "HK")
    assert same(read_answer(message).weights, weights())
    unsent = large_answer()
    take_out(unsent, tmp_path / "file")
    server.open(Shareable(), ("HK",), place="round 2")
    unsent.set_header(ServerCommandKey.FL_CLIENT, Client("HK", ""))
    context.set_prop(FLContextKey.TASK_RESULT, unsent, private=True, sticky=False)
    with caplog.at_level(logging.WARNING, "flare_armour"):
        workflow.handle_event(EventType.BEFORE_TASK_RESULT_FILTER, context)
    assert "the answer of site HK cannot be used: its arrays have not come whole" in caplog.text
