"""A frame takes no more memory than has come in of it.

NVFlare 2.9: a frame takes the memory that it declares, up to 2 GB.
Cost: another party can take much of a process's memory.
Instead: a frame may have 256 MB, or 32 MB where sites connect by web sockets, and a large one grows in memory as it
comes in.
Fixed in NVFlare when: a frame takes no more memory than has come in of it, and ``net_utils.MAX_FRAME_SIZE`` is a
setting.
"""

from __future__ import annotations

import importlib
from typing import Any

from flare_armour.patches.patch import Patch, find

LARGEST = 256 * 1024 * 1024
"""Bytes of a frame. Messages that are streamed come in frames of 1 MB; a job's folder is sent as one frame."""
LARGEST_OF_SITES = 32 * 1024 * 1024
"""Bytes of a frame that comes to a server by a web socket (``http``). NVFlare's clients take 4 MB."""
AT_ONCE = 4 * 1024 * 1024
"""Bytes of a frame that are allocated at a time."""
CONNECTION = "nvflare.fuel.f3.drivers.socket_conn:SocketConnection"
PATCH = Patch(
    name="frame_size",
    without="another party can take much of a process's memory",
    replaces={f"{CONNECTION}.read_frame": "527795094831", f"{CONNECTION}.read_into": "0d6729b8bbe1"},
)
DRIVERS = {"socket_conn": LARGEST, "aio_conn": LARGEST, "aio_http_driver": LARGEST_OF_SITES}
"""Modules in which ``MAX_FRAME_SIZE`` is looked up for each frame or each connection."""


def apply() -> None:
    """Lower the limit, and replace how frames are read."""
    for driver, largest in DRIVERS.items():
        module: Any = importlib.import_module(f"nvflare.fuel.f3.drivers.{driver}")
        module.MAX_FRAME_SIZE = largest
    connection, error = find(CONNECTION), find("nvflare.fuel.f3.comm_error:CommError")
    prefix, length = find("nvflare.fuel.f3.sfm.prefix:Prefix"), find("nvflare.fuel.f3.sfm.prefix:PREFIX_LEN")

    def read_frame(self: Any) -> bytearray:
        frame = bytearray(length)
        self.read_into(frame, 0, length)
        whole = prefix.from_bytes(frame).length
        if not length <= whole <= LARGEST:
            raise error(error.BAD_DATA, f"a frame declares {whole} bytes, allowed are {length} to {LARGEST}")
        while len(frame) < whole:
            start = len(frame)
            frame.extend(bytes(min(AT_ONCE, whole - start)))
            self.read_into(frame, start, len(frame) - start)
        return frame

    connection.read_frame = read_frame
