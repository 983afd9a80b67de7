"""The gate before NVFlare's own cells, in this process: what gets to a handler, and what is dropped and told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import StatsPoolManager
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_const import STREAM_ACK_TOPIC, STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey

from armour.conftest import Enforce, Lower
from flare_armour import patch
from flare_armour.guard import gate
from flare_armour.log_limits import TOPICS
from flare_armour.patch import NotAsExpectedError

REPLACED = "_process_received_msg"
"""What the gate replaces in NVFlare's `CoreCell`."""
JOB = "3f509f41-3a7e-406e-88f6-69672abb2e34"
OVER_TLS = SimpleNamespace(
    connector=SimpleNamespace(params={"scheme": "grpc", "secure": True}), get_conn_properties=lambda: {"peer_cn": "N/A"}
)


class Party:
    """A cell without connections, and what came through to its handlers."""

    def __init__(self, name: str) -> None:
        self.cell = CoreCell(name, "tcp://localhost:1", secure=False, credentials={})
        self.done: list[tuple[str, str]] = []
        self.passed_on: list[str] = []
        for channel in (CellChannel.CLIENT_MAIN, CellChannel.SERVER_MAIN, STREAM_CHANNEL):
            self.cell.register_request_cb(channel, "*", self._do)
        self.cell._forward = lambda endpoint, origin, destination, kind, message: self.passed_on.append(destination)

    def _do(self, message: Message) -> None:
        self.done.append((message.get_header(MessageHeaderKey.ORIGIN), message.get_header(MessageHeaderKey.TOPIC)))

    def gets(self, peer: str, channel: str, topic: str, **headers: Any) -> Message:
        """A message over a connection whose other end has this name."""
        message = Message({}, None)
        message.add_headers(
            {
                MessageHeaderKey.ORIGIN: peer,
                MessageHeaderKey.DESTINATION: self.cell.get_fqcn(),
                MessageHeaderKey.MSG_TYPE: MessageType.REQ,
                MessageHeaderKey.CHANNEL: channel,
                MessageHeaderKey.TOPIC: topic,
                **headers,
            }
        )
        self.cell.process_message(Endpoint(peer), OVER_TLS, 1, message)
        return message


@pytest.fixture
def parties(enforce: Enforce, lower: Lower) -> Iterator[dict[str, Party]]:
    lower(CoreCell, ALL_CELLS={})
    lower(StatsPoolManager, pools={})
    enforce(gate.gate())
    yield {name: Party(name) for name in ("server", "HK")}


def test_an_order_is_taken_from_the_server_only(parties: dict[str, Party], caplog: pytest.LogCaptureFixture) -> None:
    site = parties["HK"]
    site.gets("server", CellChannel.CLIENT_MAIN, "admin")
    assert site.done == [("server", "admin")] and not caplog.records
    with caplog.at_level(logging.WARNING):
        site.gets("UCL", CellChannel.CLIENT_MAIN, "admin")
        site.gets("server", CellChannel.CLIENT_MAIN, "admin", **{MessageHeaderKey.ORIGIN: "UCL"})
    assert len(site.done) == 1
    first, second = caplog.messages
    assert " UCL (admin/admin " in first and " server (admin/admin " in second and " UCL)" in second


def test_a_sender_is_told_by_its_certificate_whatever_names_it_takes(
    parties: dict[str, Party], caplog: pytest.LogCaptureFixture, lower: Lower
) -> None:
    lower(OVER_TLS, get_conn_properties=lambda: {"peer_cn": "UCL"})
    for number in range(TOPICS + 5):
        parties["server"].gets(f"UCL.{number}", "made up", "x", **{MessageHeaderKey.ORIGIN: f"HK.{number}"})
    assert len(caplog.messages) == TOPICS + 1
    assert all(" UCL (" in text for text in caplog.messages)


def test_the_server_passes_nothing_on_from_site_to_site(parties: dict[str, Party]) -> None:
    server = parties["server"]
    job = {MessageHeaderKey.ORIGIN: f"UCL.{JOB}", MessageHeaderKey.DESTINATION: f"server.{JOB}"}
    server.gets("UCL", CellChannel.SERVER_COMMAND, "get_task", **job)
    assert server.passed_on == [f"server.{JOB}"]
    for kind in (MessageType.REQ, MessageType.REPLY, MessageType.RETURN):
        headers = {MessageHeaderKey.DESTINATION: "HK", MessageHeaderKey.MSG_TYPE: kind}
        server.gets("UCL", CellChannel.CLIENT_MAIN, "admin", **headers)
    assert len(server.passed_on) == 1


@pytest.mark.parametrize("key", ["ORIGIN", "DESTINATION", "MSG_TYPE", "CHANNEL", "TOPIC"])
@pytest.mark.parametrize("value", [None, 1, ["UCL"], b"UCL"])
def test_a_malformed_message_is_dropped_and_nothing_is_raised(
    key: str, value: object, parties: dict[str, Party]
) -> None:
    parties["server"].gets("UCL", CellChannel.SERVER_MAIN, "heart_beat", **{getattr(MessageHeaderKey, key): value})
    assert not parties["server"].done and not parties["server"].passed_on


def test_only_whom_a_stream_goes_to_acknowledges_it(parties: dict[str, Party], lower: Lower) -> None:
    lower(gate, refusal=lambda seen, asks: None)
    lower(ByteStreamer, tx_task_map={7: SimpleNamespace(target=f"HK.{JOB}")})
    server = parties["server"]
    for origin, number in ((f"UCL.{JOB}", 7), (f"HK.{JOB}", 7), (f"UCL.{JOB}", 8)):
        headers = {MessageHeaderKey.ORIGIN: origin, StreamHeaderKey.STREAM_ID: number}
        server.gets("UCL", STREAM_CHANNEL, STREAM_ACK_TOPIC, **headers)
    assert server.done == [(f"HK.{JOB}", STREAM_ACK_TOPIC), (f"UCL.{JOB}", STREAM_ACK_TOPIC)]


def test_a_site_does_not_say_which_error_its_stream_ends_with(parties: dict[str, Party]) -> None:
    headers = {
        MessageHeaderKey.ORIGIN: f"UCL.{JOB}",
        MessageHeaderKey.DESTINATION: f"server.{JOB}",
        StreamHeaderKey.ERROR_TYPE: "any",
    }
    message = parties["server"].gets("UCL", STREAM_CHANNEL, STREAM_ACK_TOPIC, **headers)
    assert parties["server"].passed_on and message.get_header(StreamHeaderKey.ERROR_TYPE) is None


def test_a_plain_message_does_not_pass_for_a_streamed_task(parties: dict[str, Party]) -> None:
    headers = {MessageHeaderKey.ORIGIN: "UCL", StreamHeaderKey.TOPIC: "get_task"}
    message = parties["server"].gets("UCL", CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT, **headers)
    assert message.get_header(StreamHeaderKey.TOPIC) is None
    headers = {MessageHeaderKey.ORIGIN: f"UCL.{JOB}", MessageHeaderKey.DESTINATION: f"server.{JOB}"}
    streamed = {StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND, StreamHeaderKey.TOPIC: "get_task"}
    message = parties["server"].gets("UCL", STREAM_CHANNEL, STREAM_DATA_TOPIC, **headers, **streamed)
    assert message.get_header(StreamHeaderKey.TOPIC) == "get_task"


def test_another_nvflare_is_refused(lower: Lower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(patch.SKIP, "gate")  # which leaves out patches that do not protect
    lower(CoreCell, process_message=lambda self, endpoint, connection, app_id, message: None)
    before = getattr(CoreCell, REPLACED)
    with pytest.raises(NotAsExpectedError, match=r"gate .*CoreCell\.process_message"):
        gate.gate().enforce()
    assert getattr(CoreCell, REPLACED) is before


def test_a_consoles_message_says_whose_connection_it_came_over(parties: dict[str, Party], lower: Lower) -> None:
    lower(OVER_TLS, get_conn_properties=lambda: {"peer_cn": "other@hub.org"})
    lower(gate, refusal=lambda seen, asks: None)
    console = "_admin_3f509f41-3a7e-406e-88f6-69672abb2e34"
    message = parties["server"].gets(console, CellChannel.SERVER_MAIN, "x", **{gate.PERSON: "lead@hub.org"})
    assert message.get_header(gate.PERSON) == "other@hub.org"
