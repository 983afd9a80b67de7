"""What is sent ahead is shared among the clients.

NVFlare 2.9: a sender may be 64 MB ahead of what the receiver has acknowledged, for every client and in each direction.
``streaming_window_size`` in ``comm_config.json`` changes that, the same for every model and number of clients.
Cost: with models of less than 64 MB the server holds a whole model for each client.
Instead: all clients of a job share a quarter of the message, or 8 MB if that is more.
Fixed in NVFlare when: its window is for all clients together.
"""

from __future__ import annotations

from typing import Any

from flare_armour.patches.patch import Patch, find

AHEAD = 8 * 1024 * 1024
"""Bytes on their way to all clients together, or from them; or a quarter of a message if that is more."""
LEAST = 64 * 1024
"""Bytes that are sent to a client at a time, at least."""
MOST_CHUNKS = 1000
"""Chunks in a window. Of more than 1023, every receiver warns that they might come out of sequence."""
TASK = "nvflare.fuel.f3.streaming.byte_streamer:TxTask"
PATCH = Patch(
    name="send_window",
    without="the server may hold up to 64 MB more for each client",
    replaces={f"{TASK}.__init__": "39caac31cdc7"},
)

_clients: int | None = None


def limit(*, clients: int) -> None:
    """From now on this process sends no more ahead than one client's share among so many."""
    global _clients
    _clients = clients


def apply() -> None:
    """Replace ``TxTask.__init__``. Nothing changes before `limit` is called."""
    task = find(TASK)
    original = task.__init__

    def init(
        self: Any,
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
            original(self, cell, chunk_size, channel, topic, target, headers, stream, *others)
            return
        window = max(max(AHEAD, stream.get_size() // 4) // _clients, 2 * LEAST)
        # NVFlare allocates a buffer of the chunk's size.
        chunk = min(chunk_size, window // 2, max(stream.get_size(), 1))
        window = min(window, MOST_CHUNKS * chunk)
        original(self, cell, chunk, channel, topic, target, headers, stream, *others)
        if self.window_size > window:
            self.window_size = window
            self.ack_interval = min(self.ack_interval, max(window // 2, 1))

    task.__init__ = init
