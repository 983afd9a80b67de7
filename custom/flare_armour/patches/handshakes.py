"""What is decoded of a frame before anybody has looked at it is small, and is forgotten with its connection.

NVFlare 2.9: what a connection says of itself, and headers of frames, have no limit of their own, and are kept beyond
their connection.
Cost: a party can take memory of the server for good.
Instead: a handshake has `LARGEST` bytes and `MOST` plain values, and headers have `LARGEST_HEADERS`; a connection that
brings more is closed before anything is decoded. What was kept of a name is deleted when its last connection ends.
Fixed in NVFlare when: both have a limit, and ``close_connection`` removes the endpoint.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgpack  # type: ignore[import-untyped]

from flare_armour.patches.party_shares import end, party_of_connection
from flare_armour.patches.patch import Patch, find
from flare_armour.patches.refusals import REFUSALS

LARGEST = 2048
"""Bytes of a handshake's content. NVFlare's has a cell's name twice and the time."""
MOST = 8
"""Values in a handshake."""
LARGEST_HEADERS = 16 * 1024
"""Bytes of a message's headers. NVFlare's have about 2 kB."""
HERE = "a process of this machine"
"""In place of a certificate's name."""

SFM = "nvflare.fuel.f3.sfm"
MANAGER = f"{SFM}.conn_manager:ConnManager"
RECEIVER = f"{SFM}.conn_manager:SfmFrameReceiver"
PATCH = Patch(
    name="handshakes",
    without="another party can take memory of a process for good",
    replaces={
        f"{RECEIVER}.process_frame": "2fb71b6360f9",
        f"{MANAGER}.close_connection": "41ca5d7a99eb",
        # Not replaced: what is decoded and kept.
        f"{MANAGER}.get_dict_payload": "796285fd04ee",
        f"{SFM}.sfm_conn:SfmConnection.send_handshake": "cc8ab51fb5f3",
    },
)


def apply() -> None:
    """Replace what takes every frame, and what ends a connection."""
    manager, receiver = find(MANAGER), find(RECEIVER)
    original_frame, original_close = receiver.process_frame, manager.close_connection

    def process_frame(self: Any, frame: Any) -> None:
        reason = fault(frame)
        if reason is None:
            original_frame(self, frame)
            return
        connection = self.conn.conn
        REFUSALS.tell(party_of_connection(connection) or HERE, "handshake", f"{reason}: the connection is closed")
        end(connection)

    def close_connection(self: Any, connection: Any) -> None:
        sfm_conn = self.sfm_conns.get(connection.name)
        original_close(self, connection)
        ended = None if sfm_conn is None else sfm_conn.sfm_endpoint
        if ended is None:
            return
        with ended.lock:  # in which a new connection takes the same name
            name = ended.endpoint.name
            if not ended.connections and self.sfm_endpoints.get(name) is ended:
                self.sfm_endpoints.pop(name)

    receiver.process_frame, manager.close_connection = process_frame, close_connection


def fault(frame: Any) -> str | None:
    """Why a frame must not be decoded, or None; completes the sentence "UCL ..."."""
    length, types, prefixes = _parts_of_frames()
    if len(frame) < length:
        return None  # NVFlare refuses it
    prefix = prefixes.from_bytes(frame)
    if prefix.header_len > LARGEST_HEADERS:
        return f"has sent a message with {prefix.header_len} bytes of headers, allowed are {LARGEST_HEADERS}"
    if prefix.type not in (types.HELLO, types.READY):
        return None
    if len(frame) - length > LARGEST:
        return f"has sent a handshake of {len(frame) - length} bytes, allowed are {LARGEST}"
    return None if _is_plain(bytes(frame[length + prefix.header_len :])) else "has sent a handshake of other contents"


@cache
def _parts_of_frames() -> tuple[int, Any, Any]:
    """How long a prefix is, the types of frames, and the class of prefixes: this is asked for every frame."""
    return find(f"{SFM}.prefix:PREFIX_LEN"), find(f"{SFM}.constants:Types"), find(f"{SFM}.prefix:Prefix")


def _is_plain(content: bytes) -> bool:
    try:
        said = msgpack.unpackb(content, max_map_len=MOST, max_array_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException):
        return False
    return isinstance(said, dict) and all(
        isinstance(key, str) and isinstance(value, str | int | float | None) for key, value in said.items()
    )
