"""Each party has its share of a server's connections and threads, and no more.

NVFlare 2.9: a server's connections, threads and memory are shared by all parties without a limit for each.
Cost: one site uses up the server's sockets, threads, memory or processor, and no other site is heard.
Instead: a party has `CONNECTIONS`, of which the most silent is closed for another, and each has one name. `THREADS`
work on its frames at a time, and on no more than `RATE` a second after the first `BURST`; up to `WAITING` bytes of
others wait, and then the connection that brings more is closed.
Fixed in NVFlare when: connections, queued frames and threads have limits for each certificate.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from flare_armour.patches.patch import Patch, find
from flare_armour.patches.refusals import REFUSALS

log = logging.getLogger("fedshift")

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
ENDPOINT = f"{SFM}.sfm_endpoint:SfmEndpoint"
PATCH = Patch(
    name="party_shares",
    without="one site can use up the server's connections, threads and memory",
    replaces={
        f"{MANAGER}.handle_new_connection": "7cad25839b31",
        f"{MANAGER}.process_frame": "7855d0bc8483",
        f"{ENDPOINT}.add_connection": "86720d188118",
        "nvflare.fuel.f3.drivers.aio_http_driver:WsConnection": "65780ac33024",
    },
    calls={
        f"{MANAGER}.process_frame_task": "self, sfm_conn, frame",
        "nvflare.fuel.f3.cellnet.identity:is_mtls_connection": "params",
    },
)


def apply() -> None:
    """Replace what takes a connection, a name and a frame. Connections within a machine stay as they are."""
    manager, endpoint = find(MANAGER), find(ENDPOINT)
    error = find("nvflare.fuel.f3.comm_error:CommError")
    original_new, original_frame, original_add = (
        manager.handle_new_connection,
        manager.process_frame,
        endpoint.add_connection,
    )

    def handle_new_connection(self: Any, connection: Any) -> None:
        original_new(self, connection)
        party = party_of_connection(connection)
        with self.lock:
            new = self.sfm_conns.get(connection.name)
            if party is None or new is None:
                return
            new.fedshift_party, new.last_activity = party, time.time()
            own = [one for one in self.sfm_conns.values() if getattr(one, "fedshift_party", None) == party]
        for one in sorted(own, key=lambda one: one.last_activity)[:-CONNECTIONS]:
            one.fedshift_party = None
            REFUSALS.tell(
                party, "connections", f"has more than {CONNECTIONS} connections: its most silent one is closed"
            )
            end(one.conn)

    def add_connection(self: Any, sfm_conn: Any) -> None:
        before = sfm_conn.sfm_endpoint
        if hasattr(sfm_conn, "fedshift_party") and before not in (None, self) and _name(before) != _name(self):
            end(sfm_conn.conn)
            raise error(error.BAD_DATA, "a connection has named itself already")
        original_add(self, sfm_conn)

    def process_frame(self: Any, sfm_conn: Any, frame: Any) -> None:
        party = getattr(sfm_conn, "fedshift_party", None)
        if party is None:
            if not hasattr(sfm_conn, "fedshift_party"):  # else it has been closed
                original_frame(self, sfm_conn, frame)
            return
        share = self.__dict__.setdefault("fedshift_shares", {}).setdefault(party, _Share())
        taken = share.take(sfm_conn, frame)
        if taken is None:
            what = f"has sent more than {WAITING} bytes faster than they can be worked on: a connection is closed"
            REFUSALS.tell(party, "frames", what)
            sfm_conn.fedshift_party = None
            end(sfm_conn.conn)
        elif taken:
            try:
                self.frame_mgr_executor.submit(_work, self, share, sfm_conn, frame)
            except RuntimeError:
                log.debug("a frame came after the end")

    manager.handle_new_connection, manager.process_frame = handle_new_connection, process_frame
    endpoint.add_connection = add_connection


@dataclass
class _Share:
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

    def done(self, frame: Any) -> tuple[Any, Any] | None:
        """The frame that this thread goes on with."""
        with self.lock:
            self.held -= _size(frame)
            if self.waiting:
                return self.waiting.popleft()
            self.running -= 1
            return None

    def pause(self) -> float:
        """Seconds to wait before the next frame is worked on."""
        with self.lock:
            now = time.monotonic()
            self.allowed = min(BURST, self.allowed + (now - self.since) * RATE) - 1
            self.since = now
            return max(-self.allowed / RATE, 0.0)


def _size(frame: Any) -> int:
    return max(len(frame), LEAST)


def _work(manager: Any, share: _Share, sfm_conn: Any, frame: Any) -> None:
    following: tuple[Any, Any] | None = (sfm_conn, frame)
    while following is not None:
        try:
            pause = share.pause()
            if pause and not manager.stopped:
                time.sleep(pause)
            manager.process_frame_task(*following)
        finally:
            following = share.done(following[1])


def party_of_connection(connection: Any) -> str | None:
    """Whose certificate it has; None for a connection within this machine, or one that this process has made."""
    passive = find("nvflare.fuel.f3.drivers.connector_info:Mode.PASSIVE")
    mtls = find("nvflare.fuel.f3.cellnet.identity:is_mtls_connection")
    connector = connection.connector
    if connector.mode != passive or not mtls(connector.params):
        return None
    key = find("nvflare.fuel.f3.drivers.driver_params:DriverParams.PEER_CN").value
    return str(connection.get_conn_properties().get(key))


def _name(endpoint: Any) -> str:
    return str(endpoint.endpoint.name)


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
