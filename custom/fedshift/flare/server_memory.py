"""What a server holds in memory hardly grows with the number of sites.

FLARE collects a message's pieces in a list until it is whole. Here those of a large answer are written to a file
without a name in the job's folder, from where they are read, piece by piece, when it is the answer's turn (`spare`).
And FLARE sends as much as 64 MB ahead, to each client and from each, which the server holds if it is not fast enough:
what is on its way to all clients together, or from them, is limited (`limit`).

These parts of FLARE are not public; pyproject.toml holds nvflare to one minor version.
"""

from __future__ import annotations

import logging
import mmap
import tempfile
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.streaming.blob_streamer import BlobTask
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils.buffer_list import ConsumableBufferList

from fedshift.flare.freed import give_back_blocks

log = logging.getLogger("fedshift")

LARGE = 8 * 1024 * 1024
"""Bytes from which a message is large."""
AHEAD = 8 * 1024 * 1024
"""Bytes on their way to all clients together, or from them; or a quarter of a message if that is more."""
LEAST = 64 * 1024
"""Bytes that are sent to a client at a time, at least."""
PIECE = 4 * 1024 * 1024
"""Bytes of a file that are mapped in a piece: a process may have 65,000 of them on Linux, for all answers together."""

_folder: Path | None = None
_clients: int | None = None


def spare(folder: Path) -> None:
    """From now on, in this process: large answers wait in files in ``folder``, and freed memory is the system's."""
    global _folder
    _folder = folder
    give_back_blocks()


def spared() -> bool:
    """Whether `spare` has been called in this process."""
    return _folder is not None


def limit(*, clients: int) -> None:
    """From now on, what this process sends ahead is its share among so many clients."""
    global _clients
    _clients = clients


def mend() -> None:
    """For this process; once is enough. Without `spare` and `limit` nothing changes."""
    BlobTask.__init__ = _receive
    TxTask.__init__ = _send


_RECEIVE, _SEND = BlobTask.__init__, TxTask.__init__


def _receive(self: BlobTask, future: Any, stream: Any, *args: Any, **kwargs: Any) -> None:
    _RECEIVE(self, future, stream, *args, **kwargs)
    topic = (stream.headers or {}).get(StreamHeaderKey.TOPIC)
    if _folder is None or not self.preserve_chunks or topic != ServerCommandNames.SUBMIT_UPDATE or self.size < LARGE:
        return
    try:
        spooled = Spooled(_folder)
    except OSError as error:
        log.warning("an answer waits in memory, as %s cannot be written to: %s", _folder, error)
        return
    told = future.set_result

    def whole(result: Any) -> None:
        spooled.load()
        told(result)

    self.buffer, future.set_result = spooled, whole


def _send(
    self: TxTask,
    cell: Any,
    chunk_size: int,
    channel: str,
    topic: str,
    target: str,
    headers: dict[str, Any],
    stream: Any,
    *others: Any,
) -> None:
    if _clients is None:
        _SEND(self, cell, chunk_size, channel, topic, target, headers, stream, *others)
        return
    window = max(max(AHEAD, stream.get_size() // 4) // _clients, 2 * LEAST)
    piece = min(chunk_size, window // 2, max(stream.get_size(), 1))  # FLARE makes a buffer of that size
    _SEND(self, cell, piece, channel, topic, target, headers, stream, *others)
    if self.window_size > window:
        self.window_size = window
        self.ack_interval = min(self.ack_interval, window // 2)


class Spooled(ConsumableBufferList):
    """The pieces of a message: none until `load`, then memory that is mapped from a file, as FLARE reads them."""

    def __init__(self, folder: Path) -> None:
        """Makes the file.

        Raises:
            OSError: it cannot be made.
        """
        super().__init__()
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  closed by `load`
        self._size = 0

    def append(self, piece: Any) -> None:
        """What has come.

        Raises:
            OSError: it cannot be written.
        """
        self._size += self._file.write(piece)

    def load(self) -> None:
        """Once all is there. A piece comes into memory when FLARE reads it, and is given back as soon as it has."""
        self._file.flush()
        for start in range(0, self._size, PIECE):
            length = min(PIECE, self._size - start)
            super().append(memoryview(mmap.mmap(self._file.fileno(), length, access=mmap.ACCESS_READ, offset=start)))
        self._file.close()
