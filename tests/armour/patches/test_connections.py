"""What a connection may take of a process: frames, handshakes, and a party's share."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.connection import ConnState
from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
from nvflare.fuel.f3.endpoint import Endpoint, EndpointMonitor, EndpointState
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from armour.conftest import Lower
from armour.patches.wires import OUTSIDE, WITHIN, Wire, until
from flare_armour import patches
from flare_armour.patches import connections
from flare_armour.patches.connections import (
    AT_ONCE,
    BURST,
    CONNECTIONS,
    LARGEST_HANDSHAKE,
    LARGEST_OF_SITES,
    LEAST,
    MOST_VALUES,
    RATE,
    THIS_MACHINE,
    THREADS,
    fault_of_frame,
)

patches.install()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, SocketConnection]]:
    sender, receiver = socket.socketpair()
    with sender, receiver:
        yield sender, SocketConnection(receiver, SimpleNamespace(), secure=False)  # type: ignore[arg-type]


def frame(length: int, content: bytes = b"") -> bytes:
    prefix = bytearray(PREFIX_LEN)
    Prefix(length=length).to_buffer(prefix, 0)
    return bytes(prefix) + content


@pytest.mark.parametrize("size", [0, 1, 1_048_576, AT_ONCE - PREFIX_LEN, 2 * AT_ONCE + 5])
def test_a_frame_of_any_size_is_read_as_it_was_sent(ends: tuple[socket.socket, SocketConnection], size: int) -> None:
    sender, connection = ends
    sent = frame(PREFIX_LEN + size, os.urandom(size))
    following = frame(PREFIX_LEN + 3, b"abc")
    thread = threading.Thread(target=sender.sendall, args=(sent + following,))
    thread.start()
    assert bytes(connection.read_frame()) == sent
    assert bytes(connection.read_frame()) == following
    thread.join()


@pytest.mark.parametrize("length", [0, PREFIX_LEN - 1, 1001])
def test_a_frame_that_declares_what_none_has_is_refused(
    ends: tuple[socket.socket, SocketConnection], length: int, lower: Lower
) -> None:
    lower(connections, LARGEST_FRAME=1000)
    sender, connection = ends
    sender.sendall(frame(length))
    with pytest.raises(CommError) as raised:
        connection.read_frame()
    assert raised.value.code == CommError.BAD_DATA


def test_a_frame_takes_no_more_memory_at_a_time_than_a_part_of_it(
    ends: tuple[socket.socket, SocketConnection], lower: Lower
) -> None:
    lower(connections, AT_ONCE=1000)
    sender, connection = ends
    sizes = list[int]()
    read_into = connection.read_into
    connection.read_into = lambda buffer, *rest: sizes.append(len(buffer)) or read_into(buffer, *rest)  # type: ignore[method-assign]
    sender.sendall(frame(5000, b"x" * 2500))
    sender.shutdown(socket.SHUT_WR)
    with pytest.raises(CommError) as raised:
        connection.read_frame()
    assert raised.value.code == CommError.CLOSED
    assert sizes == [PREFIX_LEN + 1000 * number for number in range(4)], "it ends in its third part"


def test_web_sockets_have_a_lower_limit() -> None:
    assert aio_http_driver.MAX_FRAME_SIZE == LARGEST_OF_SITES


NAMES = {"endpoint_name": "HK", "timestamp": 1.5, "fqcn": "HK"}
"""What NVFlare's handshake has."""


def handshake(kind: int, content: bytes, *, headers: int = 0) -> bytes:
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
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.manager.stop()


@pytest.mark.parametrize("kind", [Types.HELLO, Types.READY])
@pytest.mark.parametrize(
    "content",
    [
        msgpack.packb({**NAMES, "x": "y" * LARGEST_HANDSHAKE}),
        msgpack.packb({**NAMES, "x": []}),
        msgpack.packb({**NAMES, "x": {}}),
        msgpack.packb({**NAMES, "x": b"bytes"}),
        msgpack.packb({**NAMES, 7: "x"}),
        msgpack.packb({str(number): 0 for number in range(MOST_VALUES + 1)}),
        msgpack.packb(["HK"]),
        b"",
    ],
    ids=["long", "a list", "a mapping", "bytes", "a number for a name", "many values", "no mapping", "nothing"],
)
def test_a_handshake_has_few_plain_values(
    server: Server, kind: int, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    wire = server.connects("HK")
    with caplog.at_level("WARNING", logger="flare_armour"):
        wire.process_frame(handshake(kind, content))
    assert wire.closed and not server.manager.sfm_endpoints
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("'HK' has sent ")


@pytest.mark.parametrize(("params", "mode"), [(WITHIN, Mode.PASSIVE), (OUTSIDE, Mode.ACTIVE)])
def test_so_has_one_without_a_certificate_and_the_server_s(
    server: Server, params: dict[str, Any], mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    wire = server.connects("", params, mode)
    with caplog.at_level("WARNING", logger="flare_armour"):
        wire.process_frame(handshake(Types.HELLO, msgpack.packb("x" * LARGEST_HANDSHAKE)))
    assert wire.closed and THIS_MACHINE in caplog.text


def test_nvflare_s_own_handshake_is_taken(server: Server) -> None:
    wire = server.connects("HK")
    wire.process_frame(handshake(Types.HELLO, msgpack.packb(NAMES)))
    until(lambda: bool(server.manager.sfm_endpoints))
    assert not wire.closed
    assert server.manager.sfm_endpoints["HK"].endpoint.properties == {"timestamp": 1.5, "fqcn": "HK"}


def test_headers_have_so_many_bytes(server: Server, lower: Lower) -> None:
    lower(connections, LARGEST_HEADERS=10)
    assert fault_of_frame(handshake(Types.DATA, b"x" * 3_000, headers=10)) is None
    wire = server.connects("HK")
    wire.process_frame(handshake(Types.DATA, b"x" * 11, headers=11))
    assert wire.closed


def test_nothing_is_kept_of_a_name_whose_connections_have_ended(server: Server) -> None:
    for number in range(3):
        name = f"HK.{number}"
        wire = server.connects("HK")
        wire.process_frame(handshake(Types.HELLO, msgpack.packb({**NAMES, "endpoint_name": name})))
        until(lambda name=name: (name, EndpointState.READY) in server.seen.states)  # type: ignore[misc]
        server.loses(wire)
        assert (name, EndpointState.DISCONNECTED) in server.seen.states
    assert not server.manager.sfm_endpoints and not server.manager.sfm_conns


def test_a_party_that_connects_anew_before_its_old_connection_has_ended_keeps_its_name(server: Server) -> None:
    first, second = server.connects("HK"), server.connects("HK")
    for wire in (first, second):
        wire.process_frame(handshake(Types.HELLO, msgpack.packb(NAMES)))
        until(lambda wire=wire: server.manager.sfm_conns[wire.name].sfm_endpoint is not None)  # type: ignore[misc]
    server.loses(first)
    assert set(server.manager.sfm_endpoints) == {"HK"}
    server.loses(second)
    assert not server.manager.sfm_endpoints


class Sharing(Server):
    """What it does with a frame takes as long as `busy` is held."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = threading.Event()
        self.worked_on: list[bytes] = []
        self.begun: list[bytes] = []
        self.manager.process_frame_task = self._work

    def _work(self, sfm_conn: Any, frame: bytes) -> None:
        self.begun.append(frame)
        self.busy.wait(20)
        self.worked_on.append(frame)

    def names(self, wire: Wire, name: str) -> None:
        self.manager.update_endpoint(self.manager.sfm_conns[wire.name], {HandshakeKeys.ENDPOINT_NAME: name})


@pytest.fixture
def sharing() -> Iterator[Sharing]:
    sharing = Sharing()
    yield sharing
    sharing.busy.set()
    sharing.manager.stop()


def test_a_party_has_so_many_connections_and_the_most_silent_is_closed(sharing: Sharing) -> None:
    other = sharing.connects("HK")
    wires = [sharing.connects("UCL") for _ in range(CONNECTIONS)]
    assert not any(wire.closed for wire in wires)
    wires[0].process_frame(b"speaks")
    more = [sharing.connects("UCL")]
    assert [wire.closed for wire in wires] == [False, True] + [False] * (CONNECTIONS - 2)
    more += [sharing.connects("UCL") for _ in range(3)]
    assert sum(not wire.closed for wire in (*wires, *more)) == CONNECTIONS and not other.closed


@pytest.mark.parametrize(("params", "mode"), [(WITHIN, Mode.PASSIVE), (OUTSIDE, Mode.ACTIVE)])
def test_connections_within_a_machine_and_those_that_it_makes_are_not_counted(
    sharing: Sharing, params: dict[str, Any], mode: Mode
) -> None:
    wires = [sharing.connects("N/A", params, mode) for _ in range(CONNECTIONS + 5)]
    assert not any(wire.closed for wire in wires)


def test_a_connection_has_one_name(sharing: Sharing) -> None:
    wire = sharing.connects("UCL")
    sharing.names(wire, "UCL")
    assert not wire.closed
    with pytest.raises(CommError):
        sharing.names(wire, "UCL.other")
    assert wire.closed and set(sharing.manager.sfm_endpoints) == {"UCL"}


def test_one_party_does_not_take_all_threads(sharing: Sharing) -> None:
    hostile, honest = sharing.connects("UCL"), sharing.connects("HK")
    frames = [b"%d" % number for number in range(THREADS + 2)]
    for frame in frames:
        hostile.process_frame(frame)
    until(lambda: len(sharing.begun) == THREADS)
    honest.process_frame(b"honest")
    until(lambda: b"honest" in sharing.begun)
    assert len(sharing.begun) == THREADS + 1
    sharing.busy.set()
    until(lambda: len(sharing.worked_on) == len(frames) + 1)
    assert set(sharing.worked_on) == {*frames, b"honest"}


def test_frames_that_wait_have_so_many_bytes(sharing: Sharing, lower: Lower) -> None:
    lower(connections, WAITING=(THREADS + 2) * LEAST)
    hostile, honest = sharing.connects("UCL"), sharing.connects("HK")
    for _ in range(THREADS + 2):
        hostile.process_frame(b"ten bytes ")
    assert not hostile.closed
    hostile.process_frame(b"ten bytes ")
    assert hostile.closed
    hostile.process_frame(b"more")
    honest.process_frame(b"honest")
    sharing.busy.set()
    until(lambda: len(sharing.worked_on) == THREADS + 3)
    assert b"more" not in sharing.worked_on and b"honest" in sharing.worked_on


def test_a_fault_in_a_frame_does_not_cost_a_thread(sharing: Sharing) -> None:
    sharing.busy.set()
    work = sharing._work

    def fails(sfm_conn: Any, frame: bytes) -> None:
        work(sfm_conn, frame)
        raise ValueError

    sharing.manager.process_frame_task = fails
    wire = sharing.connects("UCL")
    for number in range(THREADS + 2):
        wire.process_frame(b"%d" % number)
    until(lambda: len(sharing.worked_on) == THREADS + 2)


def test_a_flood_of_one_party_is_worked_on_at_a_rate_and_others_are_not_slowed(sharing: Sharing, lower: Lower) -> None:
    sharing.busy.set()
    pauses = list[float]()
    clock = SimpleNamespace(monotonic=lambda: 0.0, time=time.time, sleep=pauses.append)  # no time passes
    lower(connections, time=clock, BURST=20)
    hostile, honest = sharing.connects("UCL"), sharing.connects("HK")
    for number in range(25):
        hostile.process_frame(b"%d" % number)
    honest.process_frame(b"honest")
    until(lambda: len(sharing.worked_on) == 26)
    assert len(pauses) == 5 and max(pauses) == pytest.approx(5 / RATE)


def test_a_party_that_was_silent_is_worked_on_at_once(sharing: Sharing) -> None:
    share = connections.Share()
    assert not any(share.pause(1000.0) for _ in range(BURST))
    assert share.pause(1000.0) == pytest.approx(1 / RATE)
    later = 1000.0 + (BURST + 1) / RATE
    assert not any(share.pause(later) for _ in range(BURST)) and share.pause(later) > 0
