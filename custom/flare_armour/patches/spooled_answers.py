"""Large answers wait for their turn on disk.

NVFlare 2.9: collects the pieces of a message in a list in memory until the message is complete.
Cost: where all sites answer at once, the server holds all their answers in memory, one model each.
Instead: at a server, the pieces of an answer of 8 MB or more are written to an unnamed file in the job's folder. They
are mapped into memory piece by piece when the answer is unpacked (`flare_armour.patches.unpack_in_turn`).
Fixed in NVFlare when: ``BlobTask`` can write what it receives to a file.
"""

from __future__ import annotations

import logging
import mmap
import tempfile
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames

from flare_armour.patches.patch import Patch, find

log = logging.getLogger("fedshift")

LARGE = 8 * 1024 * 1024
"""Bytes from which an answer waits on disk."""
PIECE = 4 * 1024 * 1024
"""Bytes that are mapped at a time. Linux allows a process about 65,000 mappings, for all answers together."""
BLOB = "nvflare.fuel.f3.streaming.blob_streamer"
TOPIC = "nvflare.fuel.f3.streaming.stream_const:StreamHeaderKey.TOPIC"
LIST = "nvflare.fuel.utils.buffer_list"
PATCH = Patch(
    name="spooled_answers",
    without="the server holds a model in memory for every site that answers at the same time",
    replaces={
        f"{BLOB}:BlobTask.__init__": "140292a4b150",
        f"{BLOB}:BlobHandler._read_stream": "6fde167784eb",
        f"{LIST}:ConsumableBufferList": "3a72f255775b",
        f"{LIST}:BufferList": "2a90cb745f90",
    },
)

_folder: Path | None = None


def spool_to(folder: Path) -> None:
    """From now on, large answers to this process wait in files in ``folder``."""
    global _folder
    _folder = folder


def is_server() -> bool:
    """Whether `spool_to` has been called in this process."""
    return _folder is not None


def apply() -> None:
    """Replace ``BlobTask.__init__``. Nothing changes before `spool_to` is called."""
    task, topic, spool = find(f"{BLOB}:BlobTask"), find(TOPIC), spool_class()
    original = task.__init__

    def init(self: Any, future: Any, stream: Any, *args: Any, **kwargs: Any) -> None:
        original(self, future, stream, *args, **kwargs)
        submits = (stream.headers or {}).get(topic) == ServerCommandNames.SUBMIT_UPDATE
        if _folder is None or not self.preserve_chunks or not submits or self.size < LARGE:
            return
        try:
            spooled = spool(_folder)
        except OSError as error:
            log.warning("an answer waits in memory, because nothing can be written to %s: %s", _folder, error)
            return
        set_result = future.set_result

        def complete(result: Any) -> None:
            spooled.load()
            set_result(result)

        self.buffer, future.set_result = spooled, complete

    task.__init__ = init


def spool_class() -> type[Any]:
    """NVFlare's list of a message's pieces, kept in a file.

    It is empty until `load` is called, and then holds memory that is mapped from the file, which NVFlare reads and
    releases in order.
    """

    class Spool(find(f"{LIST}:ConsumableBufferList")):  # type: ignore[misc]
        def __init__(self, folder: Path) -> None:
            """Raises OSError if the file cannot be made."""
            super().__init__()
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  closed by `load`
            self._size = 0

        def append(self, piece: Any) -> None:
            """Write a piece that has arrived; raises OSError if it cannot be written."""
            self._size += self._file.write(piece)

        def load(self) -> None:
            """Map the file, once the message is complete."""
            self._file.flush()
            for start in range(0, self._size, PIECE):
                length = min(PIECE, self._size - start)
                mapped = mmap.mmap(self._file.fileno(), length, access=mmap.ACCESS_READ, offset=start)
                super().append(memoryview(mapped))
            self._file.close()

    return Spool
