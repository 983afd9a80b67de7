"""The console's two commands, and what the gate then drops. Real processes: tests/flare/test_deployed_disabled.py."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ReservedTopic, RunProcessKey, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageType, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.private.fed.server import training_cmds
from nvflare.private.fed.server.training_cmds import TrainingCommandModule

from armour.conftest import Enforce, Lower
from flare_armour.disabled_sites import DISABLED
from flare_armour.guard import disabling, rules
from flare_armour.guard.rules import Message
from flare_armour.pieces.wire import CHANNEL, FETCH, SEND

OWNER, JOB = "admin@hub.org", "3f509f41-3a7e-406e-88f6-69672abb2e34"


@pytest.fixture(autouse=True)
def kit(tmp_path: Path) -> Iterator[Path]:
    """Of this process, a server's."""
    DISABLED.use(tmp_path)
    yield tmp_path
    DISABLED._path = None


class Engine:
    """NVFlare's, with one job at HK and UCL; notes what is done, and who was disabled then."""

    def __init__(self) -> None:
        clients = {site: Client(site, site) for site in ("HK", "UCL")}
        self.run_processes = {JOB: {RunProcessKey.PARTICIPANTS: dict(clients)}}
        self.clients = [clients["HK"]]
        self.done: list[tuple[Any, ...]] = []
        self.job_runner = self

    def get_clients(self) -> list[Client]:
        return self.clients

    def new_context(self) -> Any:
        return nullcontext(FLContext())

    def abort_client_run(self, job_id: str, names: list[str], context: Any) -> None:
        self.done.append(("abort", *names, sorted(DISABLED.all())))

    def disable_clients(self, names: list[str]) -> dict[str, Any]:
        self.done.append(("disable", *names, sorted(DISABLED.all())))
        return {}

    def enable_clients(self, names: list[str]) -> dict[str, Any]:
        self.done.append(("enable", *names, sorted(DISABLED.all())))
        return {}


@pytest.fixture
def engine(enforce: Enforce, lower: Lower) -> Engine:
    lower(training_cmds, ServerEngineInternalSpec=Engine)
    enforce(disabling.PATCH)
    return Engine()


def typed(engine: Engine, name: str, *sites: str) -> None:
    conn = Connection(props={ConnProps.USER_NAME: OWNER})
    conn.app_ctx = engine
    getattr(TrainingCommandModule(), name)(conn, [name, *sites])


def test_a_site_is_out_before_anything_else_is_done_and_in_after_all(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "flare_armour"):
        typed(engine, "disable_client", "HK", "UCL", "BMC")
        typed(engine, "enable_client", "HK")
    every = ["BMC", "HK", "UCL"]
    assert engine.done == [
        ("abort", "HK", every),  # UCL is not connected, BMC has no part
        ("disable", *("HK", "UCL", "BMC"), every),
        ("enable", "HK", every),
    ]
    assert sorted(DISABLED.all()) == ["BMC", "UCL"]
    assert [f"abled by {OWNER}: " in text for text in caplog.messages] == [True, True]


def message(origin: str, destination: str, channel: str, topic: str, *, me: str, **more: Any) -> Message:
    outside = origin if origin.partition(".")[0] != me.partition(".")[0] else destination
    peer = origin if me == "server" and origin.startswith("server.") else outside.partition(".")[0]
    seen = {"kind": MessageType.REQ, "inner": ("", ""), "gives_up": False, "client": "", "client_type": "", "asked": ""}
    return Message(
        me=me,
        peer=peer if me == "server" else "server",
        certified=True,
        person="HK",
        origin=origin,
        destination=destination,
        channel=channel,
        topic=topic,
        **{**seen, **more},
    )


BETWEEN_JOBS = [
    (f"HK.{JOB}", f"server.{JOB}", CellChannel.SERVER_COMMAND, ServerCommandNames.GET_TASK),
    (f"HK.{JOB}", f"server.{JOB}", CellChannel.SERVER_COMMAND, ServerCommandNames.SUBMIT_UPDATE),
    (f"HK.{JOB}", f"server.{JOB}", CHANNEL, SEND),
    (f"HK.{JOB}", f"server.{JOB}", CHANNEL, FETCH),
    (f"HK.{JOB}", f"server.{JOB}", CellChannel.AUX_COMMUNICATION, ReservedTopic.JOB_HEART_BEAT),
    (f"server.{JOB}", f"HK.{JOB}", CellChannel.AUX_COMMUNICATION, ReservedTopic.END_RUN),
]


@pytest.mark.parametrize(
    ("origin", "destination", "channel", "topic", "me"),
    [
        (*sent, me)
        for sent in BETWEEN_JOBS
        for me in ("server", f"server.{JOB}")
        if me != sent[0]  # it would be its own
    ],
)
def test_nothing_of_a_disabled_sites_job_passes_in_either_direction(
    origin: str, destination: str, channel: str, topic: str, me: str
) -> None:
    asked = message(origin, destination, channel, topic, me=me)
    answer = message(destination, origin, channel, topic, me="server", kind=MessageType.REPLY)
    for seen in (asked, answer):
        assert rules.refusal(seen) is None and disabling.refusal(seen) is None
    DISABLED.add(["UCL"], by=OWNER)
    assert disabling.refusal(asked) is None, "another is disabled"
    DISABLED.add(["HK"], by=OWNER)
    for seen in (asked, answer):
        assert str(disabling.refusal(seen)).startswith(f"site HK is disabled {DISABLED.all()['HK']}")
    DISABLED.remove(["HK"])
    assert disabling.refusal(asked) is None


@pytest.mark.parametrize("topic", [CellChannelTopic.Register, CellChannelTopic.HEART_BEAT])
def test_nvflare_tells_a_disabled_site_that_it_is(topic: str) -> None:
    DISABLED.add(["HK"], by=OWNER)
    assert disabling.refusal(message("HK", "server", CellChannel.SERVER_MAIN, topic, me="server")) is None


def test_a_site_says_in_its_log_why_the_server_refuses_it(caplog: pytest.LogCaptureFixture) -> None:
    disabling.REFUSED.clear()
    for text in ("Client 'HK' is disabled", "Client 'HK' is disabled", *(f"another\n{n}" for n in range(100))):
        disabling.note_refusal(make_reply(ReturnCode.UNAUTHENTICATED, text))
    disabling.note_refusal(make_reply(ReturnCode.OK, ""))
    assert "\"Client 'HK' is disabled\"" in caplog.messages[0]
    assert len(caplog.messages) == disabling.MOST and not any("\n" in text for text in caplog.messages)


def test_a_name_that_begins_like_a_disabled_one_is_another() -> None:
    DISABLED.add(["H"], by=OWNER)
    seen = SimpleNamespace(origin=f"HK.{JOB}", destination=f"server.{JOB}")
    assert disabling.refusal(seen) is None  # type: ignore[arg-type]
