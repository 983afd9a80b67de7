"""What another party may take of a process by its connections: memory, sockets, threads.

NVFlare 2.9: a frame takes the memory that it declares, up to 2 GB. What a connection says of itself, and headers of
frames, have no limit of their own, and are kept beyond their connection. A server's connections, threads and memory are
shared by all parties without a limit for each.
Cost: one party can take much of a process's memory, or use up the server's sockets and threads, so that no other site
is heard.
Instead: a frame may have 256 MB, or 32 MB where sites connect by web sockets, and a large one grows in memory as it
comes in. A handshake has `LARGEST_HANDSHAKE` bytes and `MOST_VALUES` plain values, and headers have `LARGEST_HEADERS`;
a connection that brings more is closed before anything is decoded. What was kept of a name is deleted when its last
connection ends. A party has `CONNECTIONS`, of which the most silent is closed for another, and each has one name.
`THREADS` work on its frames at a time, and on no more than `RATE` a second after the first `BURST`; up to `WAITING`
bytes of others wait, and then the connection that brings more is closed.
Fixed in NVFlare when: a frame takes no more memory than has come in of it; frames, handshakes, headers, connections,
queued frames and threads have limits for each certificate; ``close_connection`` removes the endpoint.
"""

from __future__ import annotations

import importlib
import logging
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack  # type: ignore[import-untyped]
from nvflare.fuel.f3.cellnet.identity import is_mtls_connection
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from flare_armour.log_limits import REFUSALS
from flare_armour.patch import Patch

log = logging.getLogger("flare_armour")

LARGEST_FRAME = 256 * 1024 * 1024
"""Bytes of a frame. Messages that are streamed come in frames of 1 MB; a job's folder is sent as one frame."""
LARGEST_OF_SITES = 32 * 1024 * 1024
"""Bytes of a frame that comes to a server by a web socket (``http``). NVFlare's clients take 4 MB."""
AT_ONCE = 4 * 1024 * 1024
"""Bytes of a frame that are allocated at a time."""
LARGEST_HANDSHAKE = 2048
"""Bytes of a handshake's content. NVFlare's has a cell's name twice and the time."""
MOST_VALUES = 8
"""Values in a handshake."""
LARGEST_HEADERS = 16 * 1024
"""Bytes of a message's headers. NVFlare's have about 2 kB."""
THIS_MACHINE = "a process of this machine"
"""In place of a certificate's name."""
CONNECTIONS = 16
"""Of one party: one for itself and one for each of its job processes."""
THREADS = 25
"""Of NVFlare's 100, on the frames of one party."""
WAITING = 256 * 1024 * 1024
"""Bytes of one party's frames that are worked on or wait. A sender waits for acknowledgements long before."""
LEAST = 4096
"""Bytes that a frame counts as at least."""
RATE, BURST = 300.0, 1000
"""Frames of one party a second, and how many more after it has been silent. A model comes in frames of up to 1 MB, so
that an honest party is stopped by its line before."""

SFM = "nvflare.fuel.f3.sfm"
MANAGER = f"{SFM}.conn_manager:ConnManager"
DRIVERS = {"socket_conn": LARGEST_FRAME, "aio_conn": LARGEST_FRAME, "aio_http_driver": LARGEST_OF_SITES}
"""Modules in which ``MAX_FRAME_SIZE`` is looked up for each frame or each connection."""


def lower_frame_limits() -> None:
    for driver, largest in DRIVERS.items():
        module: Any = importlib.import_module(f"nvflare.fuel.f3.drivers.{driver}")
        module.MAX_FRAME_SIZE = largest


PATCH = Patch(
    name="connections",
    kind="protects",
    without="one site can use up the server's connections, threads and memory",
    also=lower_frame_limits,
    sources={
        "nvflare.fuel.f3.drivers.socket_conn:SocketConnection.read_into": "0d6729b8bbe1",
        "nvflare.fuel.f3.drivers.aio_http_driver:WsConnection": "65780ac33024",
        f"{MANAGER}.get_dict_payload": "796285fd04ee",
        f"{SFM}.sfm_conn:SfmConnection.send_handshake": "cc8ab51fb5f3",
    },
    calls={
        f"{MANAGER}.process_frame_task": "self, sfm_conn, frame",
        "nvflare.fuel.f3.cellnet.identity:is_mtls_connection": "params",
    },
)


@PATCH.replaces("nvflare.fuel.f3.drivers.socket_conn:SocketConnection.read_frame", "527795094831")
def _read_frame(_: Any, self: Any) -> bytearray:
    frame = bytearray(PREFIX_LEN)
    self.read_into(frame, 0, PREFIX_LEN)
    whole = Prefix.from_bytes(frame).length
    if not PREFIX_LEN <= whole <= LARGEST_FRAME:
        text = f"a frame declares {whole} bytes, allowed are {PREFIX_LEN} to {LARGEST_FRAME}"
        raise CommError(CommError.BAD_DATA, text)
    while len(frame) < whole:
        start = len(frame)
        frame.extend(bytes(min(AT_ONCE, whole - start)))
        self.read_into(frame, start, len(frame) - start)
    return frame


@PATCH.replaces(f"{SFM}.conn_manager:SfmFrameReceiver.process_frame", "2fb71b6360f9")
def _look_at_frame(original: Callable[..., None], self: Any, frame: Any) -> None:
    reason = fault_of_frame(frame)
    if reason is None:
        original(self, frame)
        return
    connection = self.conn.conn
    REFUSALS.add(party_of_connection(connection) or THIS_MACHINE, "handshake", f"{reason}: the connection is closed")
    end(connection)


def fault_of_frame(frame: Any) -> str | None:
    """Why a frame must not be decoded, or None; completes the sentence "UCL ..."."""
    if len(frame) < PREFIX_LEN:
        return None  # NVFlare refuses it
    prefix = Prefix.from_bytes(frame)
    if prefix.header_len > LARGEST_HEADERS:
        return f"has sent a message with {prefix.header_len} bytes of headers, allowed are {LARGEST_HEADERS}"
    if prefix.type not in (Types.HELLO, Types.READY):
        return None
    if len(frame) - PREFIX_LEN > LARGEST_HANDSHAKE:
        return f"has sent a handshake of {len(frame) - PREFIX_LEN} bytes, allowed are {LARGEST_HANDSHAKE}"
    return (
        None if _is_plain(bytes(frame[PREFIX_LEN + prefix.header_len :])) else "has sent a handshake of other contents"
    )


def _is_plain(content: bytes) -> bool:
    try:
        values = msgpack.unpackb(content, max_map_len=MOST_VALUES, max_array_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException):
        return False
    return isinstance(values, dict) and all(
        isinstance(key, str) and isinstance(value, str | int | float | None) for key, value in values.items()
    )


@PATCH.replaces(f"{MANAGER}.close_connection", "41ca5d7a99eb")
def _forget_name(original: Callable[..., None], self: Any, connection: Any) -> None:
    sfm_conn = self.sfm_conns.get(connection.name)
    original(self, connection)
    ended = None if sfm_conn is None else sfm_conn.sfm_endpoint
    if ended is None:
        return
    with ended.lock:  # in which a new connection takes the same name
        name = ended.endpoint.name
        if not ended.connections and self.sfm_endpoints.get(name) is ended:
            self.sfm_endpoints.pop(name)


@PATCH.replaces(f"{MANAGER}.handle_new_connection", "7cad25839b31")
def _count_connections(original: Callable[..., None], self: Any, connection: Any) -> None:
    """Those within a machine do not count."""
    original(self, connection)
    party = party_of_connection(connection)
    with self.lock:
        new = self.sfm_conns.get(connection.name)
        if party is None or new is None:
            return
        new.armour_party, new.last_activity = party, time.time()
        theirs = [other for other in self.sfm_conns.values() if getattr(other, "armour_party", None) == party]
    for silent in sorted(theirs, key=lambda other: other.last_activity)[:-CONNECTIONS]:
        silent.armour_party = None
        REFUSALS.add(party, "connections", f"has more than {CONNECTIONS} connections: its most silent one is closed")
        end(silent.conn)


@PATCH.replaces(f"{SFM}.sfm_endpoint:SfmEndpoint.add_connection", "86720d188118")
def _keep_name(original: Callable[..., None], self: Any, sfm_conn: Any) -> None:
    before = sfm_conn.sfm_endpoint
    named = None if before is None else before.endpoint.name
    if hasattr(sfm_conn, "armour_party") and named not in (None, self.endpoint.name):
        end(sfm_conn.conn)
        raise CommError(CommError.BAD_DATA, "a connection has named itself already")
    original(self, sfm_conn)


@PATCH.replaces(f"{MANAGER}.process_frame", "7855d0bc8483")
def _share_threads(original: Callable[..., None], self: Any, sfm_conn: Any, frame: Any) -> None:
    party = getattr(sfm_conn, "armour_party", None)
    if party is None:
        if not hasattr(sfm_conn, "armour_party"):  # else it has been closed
            original(self, sfm_conn, frame)
        return
    share = self.__dict__.setdefault("armour_shares", {}).setdefault(party, Share())
    needs_thread = share.take(sfm_conn, frame)
    if needs_thread is None:
        what = f"has sent more than {WAITING} bytes faster than they can be worked on: a connection is closed"
        REFUSALS.add(party, "frames", what)
        sfm_conn.armour_party = None
        end(sfm_conn.conn)
    elif needs_thread:
        try:
            self.frame_mgr_executor.submit(_work, self, share, sfm_conn, frame)
        except RuntimeError:
            log.debug("a frame came after the end")


@dataclass
class Share:
    """What is worked on, and what waits, of one party."""

    running: int = 0
    held: int = 0
    waiting: deque[tuple[Any, Any]] = field(default_factory=deque)
    lock: threading.Lock = field(default_factory=threading.Lock)
    allowed: float = BURST
    """Frames that may be worked on now; below 0 they wait."""
    since: float = -math.inf
    """When ``allowed`` was computed."""

    def take(self, sfm_conn: Any, frame: Any) -> bool | None:
        """True if a thread has to begin with this frame, False if it waits, None if there is no room for it."""
        with self.lock:
            if self.held + _size(frame) > WAITING:
                return None
            self.held += _size(frame)
            if self.running >= THREADS:
                self.waiting.append((sfm_conn, frame))
                return False
            self.running += 1
            return True

    def end_frame(self, frame: Any) -> tuple[Any, Any] | None:
        """The frame that this thread goes on with."""
        with self.lock:
            self.held -= _size(frame)
            if self.waiting:
                return self.waiting.popleft()
            self.running -= 1
            return None

    def pause(self, now: float) -> float:
        """Seconds to wait, from ``now`` on, before the next frame is worked on."""
        with self.lock:
            self.allowed = min(BURST, self.allowed + (now - self.since) * RATE) - 1
            self.since = now
            return max(-self.allowed / RATE, 0.0)


def _size(frame: Any) -> int:
    return max(len(frame), LEAST)


def _work(manager: Any, share: Share, sfm_conn: Any, frame: Any) -> None:
    following: tuple[Any, Any] | None = (sfm_conn, frame)
    while following is not None:
        try:
            pause = share.pause(time.monotonic())
            if pause and not manager.stopped:
                time.sleep(pause)
            manager.process_frame_task(*following)
        finally:
            following = share.end_frame(following[1])


def party_of_connection(connection: Any) -> str | None:
    """Whose certificate it has; None for a connection within this machine, or one that this process has made."""
    connector = connection.connector
    if connector.mode != Mode.PASSIVE or not is_mtls_connection(connector.params):
        return None
    return str(connection.get_conn_properties().get(DriverParams.PEER_CN.value))


def end(connection: Any) -> None:
    """Close it, also if the other end does not answer a web socket's goodbye."""
    web_socket = getattr(connection, "websocket", None)
    plain = web_socket.get_extra_info("socket") if web_socket is not None else None
    if plain is not None:
        try:
            plain.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("a connection was closed already")
    connection.close()
