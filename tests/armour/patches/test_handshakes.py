"""What a connection says of itself, and what is kept of it, with NVFlare's own manager of connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from nvflare.fuel.f3.connection import ConnState
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.endpoint import Endpoint, EndpointMonitor, EndpointState
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from flare_armour import patches
from flare_armour.once_a_minute import OnceAMinute
from flare_armour.patches import handshakes, refusals
from flare_armour.patches.handshakes import HERE, LARGEST, MOST, fault

from .wires import OUTSIDE, WITHIN, Wire, until

patches.install()
NAMES = {"endpoint_name": "HK", "timestamp": 1.5, "fqcn": "HK"}
"""What NVFlare's handshake has."""


def frame(kind: int, content: bytes, *, headers: int = 0) -> bytes:
    prefix = bytearray(PREFIX_LEN)
    Prefix(length=PREFIX_LEN + len(content), header_len=headers, type=kind).to_buffer(prefix, 0)
    return bytes(prefix) + content


class Seen(EndpointMonitor):  # type: ignore[misc]
    def __init__(self) -> None:
        self.states = list[tuple[str, int]]()

    def state_change(self, endpoint: Endpoint) -> None:
        self.states.append((endpoint.name, endpoint.state))


class Server:
    def __init__(self) -> None:
        self.manager, self.seen = ConnManager(Endpoint("server")), Seen()
        self.manager.add_endpoint_monitor(self.seen)

    def connects(self, person: str, params: dict[str, Any] = OUTSIDE, mode: Mode = Mode.PASSIVE) -> Wire:
        wire = Wire(person, params, mode)
        wire.state = ConnState.CONNECTED
        self.manager.state_change(wire)
        return wire

    def loses(self, wire: Wire) -> None:
        wire.state = ConnState.CLOSED
        self.manager.state_change(wire)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(refusals.REFUSALS, "_told", OnceAMinute())
    server = Server()
    yield server
    server.manager.stop()


@pytest.mark.parametrize("kind", [Types.HELLO, Types.READY])
@pytest.mark.parametrize(
    "content",
    [
        msgpack.packb({**NAMES, "x": "y" * LARGEST}),
        msgpack.packb({**NAMES, "x": []}),
        msgpack.packb({**NAMES, "x": {}}),
        msgpack.packb({**NAMES, "x": b"bytes"}),
        msgpack.packb({**NAMES, 7: "x"}),
        msgpack.packb({str(number): 0 for number in range(MOST + 1)}),
        msgpack.packb(["HK"]),
        b"",
    ],
    ids=["long", "a list", "a mapping", "bytes", "a number for a name", "many values", "no mapping", "nothing"],
)
def test_a_handshake_has_few_plain_values(
    server: Server, kind: int, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    wire = server.connects("HK")
    with caplog.at_level("WARNING", logger="fedshift"):
        wire.process_frame(frame(kind, content))
    assert wire.closed and not server.manager.sfm_endpoints
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("'HK' has sent ")


@pytest.mark.parametrize(("params", "mode"), [(WITHIN, Mode.PASSIVE), (OUTSIDE, Mode.ACTIVE)])
def test_so_has_one_without_a_certificate_and_the_server_s(
    server: Server, params: dict[str, Any], mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    wire = server.connects("", params, mode)
    with caplog.at_level("WARNING", logger="fedshift"):
        wire.process_frame(frame(Types.HELLO, msgpack.packb("x" * LARGEST)))
    assert wire.closed and HERE in caplog.text


def test_nvflare_s_own_handshake_is_taken(server: Server) -> None:
    wire = server.connects("HK")
    wire.process_frame(frame(Types.HELLO, msgpack.packb(NAMES)))
    until(lambda: bool(server.manager.sfm_endpoints))
    assert not wire.closed
    assert server.manager.sfm_endpoints["HK"].endpoint.properties == {"timestamp": 1.5, "fqcn": "HK"}


def test_headers_have_so_many_bytes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "LARGEST_HEADERS", 10)
    assert fault(frame(Types.DATA, b"x" * 3_000, headers=10)) is None
    wire = server.connects("HK")
    wire.process_frame(frame(Types.DATA, b"x" * 11, headers=11))
    assert wire.closed


def test_nothing_is_kept_of_a_name_whose_connections_have_ended(server: Server) -> None:
    for number in range(3):
        name = f"HK.{number}"
        wire = server.connects("HK")
        wire.process_frame(frame(Types.HELLO, msgpack.packb({**NAMES, "endpoint_name": name})))
        until(lambda name=name: (name, EndpointState.READY) in server.seen.states)  # type: ignore[misc]
        server.loses(wire)
        assert (name, EndpointState.DISCONNECTED) in server.seen.states
    assert not server.manager.sfm_endpoints and not server.manager.sfm_conns


def test_a_party_that_connects_anew_before_its_old_connection_has_ended_keeps_its_name(server: Server) -> None:
    first, second = server.connects("HK"), server.connects("HK")
    for wire in (first, second):
        wire.process_frame(frame(Types.HELLO, msgpack.packb(NAMES)))
        until(lambda wire=wire: server.manager.sfm_conns[wire.name].sfm_endpoint is not None)  # type: ignore[misc]
    server.loses(first)
    assert set(server.manager.sfm_endpoints) == {"HK"}
    server.loses(second)
    assert not server.manager.sfm_endpoints
