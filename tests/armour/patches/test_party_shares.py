"""What one party takes of a server's connections, names, threads and memory, with NVFlare's own manager of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.connection import ConnState
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys

from flare_armour import patches
from flare_armour.patches import party_shares
from flare_armour.patches.party_shares import BURST, CONNECTIONS, LEAST, RATE, THREADS

from .wires import OUTSIDE, WITHIN, Wire, until

patches.install()


class Server:
    """The part of a server that has connections. What it does with a frame takes as long as `busy` is held."""

    def __init__(self) -> None:
        self.manager = ConnManager(Endpoint("server"))
        self.busy = threading.Event()
        self.worked_on: list[bytes] = []
        self.begun: list[bytes] = []
        self.manager.process_frame_task = self._work

    def _work(self, sfm_conn: Any, frame: bytes) -> None:
        self.begun.append(frame)
        self.busy.wait(20)
        self.worked_on.append(frame)

    def connects(self, person: str, params: dict[str, Any] = OUTSIDE, mode: Mode = Mode.PASSIVE) -> Wire:
        wire = Wire(person, params, mode)
        wire.state = ConnState.CONNECTED
        self.manager.state_change(wire)
        return wire

    def names(self, wire: Wire, name: str) -> None:
        self.manager.update_endpoint(self.manager.sfm_conns[wire.name], {HandshakeKeys.ENDPOINT_NAME: name})


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.busy.set()
    server.manager.stop()


def test_a_party_has_so_many_connections_and_the_most_silent_is_closed(server: Server) -> None:
    other = server.connects("HK")
    wires = [server.connects("UCL") for _ in range(CONNECTIONS)]
    assert not any(wire.closed for wire in wires)
    wires[0].process_frame(b"speaks")
    more = [server.connects("UCL")]
    assert [wire.closed for wire in wires] == [False, True] + [False] * (CONNECTIONS - 2)
    more += [server.connects("UCL") for _ in range(3)]
    assert sum(not wire.closed for wire in (*wires, *more)) == CONNECTIONS and not other.closed


@pytest.mark.parametrize(("params", "mode"), [(WITHIN, Mode.PASSIVE), (OUTSIDE, Mode.ACTIVE)])
def test_connections_within_a_machine_and_those_that_it_makes_are_not_counted(
    server: Server, params: dict[str, Any], mode: Mode
) -> None:
    wires = [server.connects("N/A", params, mode) for _ in range(CONNECTIONS + 5)]
    assert not any(wire.closed for wire in wires)


def test_a_connection_has_one_name(server: Server) -> None:
    wire = server.connects("UCL")
    server.names(wire, "UCL")
    assert not wire.closed
    with pytest.raises(CommError):
        server.names(wire, "UCL.other")
    assert wire.closed and set(server.manager.sfm_endpoints) == {"UCL"}


def test_one_party_does_not_take_all_threads(server: Server) -> None:
    hostile, honest = server.connects("UCL"), server.connects("HK")
    frames = [b"%d" % number for number in range(THREADS + 2)]
    for frame in frames:
        hostile.process_frame(frame)
    until(lambda: len(server.begun) == THREADS)
    honest.process_frame(b"honest")
    until(lambda: b"honest" in server.begun)
    assert len(server.begun) == THREADS + 1
    server.busy.set()
    until(lambda: len(server.worked_on) == len(frames) + 1)
    assert set(server.worked_on) == {*frames, b"honest"}


def test_frames_that_wait_have_so_many_bytes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party_shares, "WAITING", (THREADS + 2) * LEAST)
    hostile, honest = server.connects("UCL"), server.connects("HK")
    for _ in range(THREADS + 2):
        hostile.process_frame(b"ten bytes ")
    assert not hostile.closed
    hostile.process_frame(b"ten bytes ")
    assert hostile.closed
    hostile.process_frame(b"more")
    honest.process_frame(b"honest")
    server.busy.set()
    until(lambda: len(server.worked_on) == THREADS + 3)
    assert b"more" not in server.worked_on and b"honest" in server.worked_on


def test_a_fault_in_a_frame_does_not_cost_a_thread(server: Server) -> None:
    server.busy.set()
    work = server._work

    def fails(sfm_conn: Any, frame: bytes) -> None:
        work(sfm_conn, frame)
        raise ValueError

    server.manager.process_frame_task = fails
    wire = server.connects("UCL")
    for number in range(THREADS + 2):
        wire.process_frame(b"%d" % number)
    until(lambda: len(server.worked_on) == THREADS + 2)


def test_a_flood_of_one_party_is_worked_on_at_a_rate_and_others_are_not_slowed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(party_shares, "BURST", 20)
    server.busy.set()
    pauses = list[float]()
    clock = SimpleNamespace(monotonic=lambda: 0.0, time=time.time, sleep=pauses.append)  # no time passes
    monkeypatch.setattr(party_shares, "time", clock)
    hostile, honest = server.connects("UCL"), server.connects("HK")
    for number in range(25):
        hostile.process_frame(b"%d" % number)
    honest.process_frame(b"honest")
    until(lambda: len(server.worked_on) == 26)
    assert len(pauses) == 5 and max(pauses) == pytest.approx(5 / RATE)


def test_a_party_that_was_silent_is_worked_on_at_once(server: Server) -> None:
    share = party_shares._Share()
    assert not any(share.pause() for _ in range(BURST))
    assert share.pause() > 0
    share.since -= BURST / RATE  # so long ago
    assert not any(share.pause() for _ in range(BURST - 1))
