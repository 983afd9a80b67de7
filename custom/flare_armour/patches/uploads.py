"""What a console uploads is bounded, and does not stay.

NVFlare 2.9: a console's upload has no limit, and stays in the server's temporary folder.
Cost: whoever has a console can fill the server's disk, and every submitted job stays on it twice.
Instead: an upload may have as many bytes as a job. `MOST_OPEN` may be incomplete; the most silent one is ended where
another needs its place. A file is deleted when its command is done, and when it is not complete.
Fixed in NVFlare when: the size of an upload is a setting, and ``submit_job`` removes the file.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.shareable import ReturnCode
from nvflare.apis.streaming import StreamContextKey

from flare_armour.patches.patch import Patch, find

LARGEST = 200_000_000
"""Bytes of an upload, and of a job."""
MOST_OPEN = 8
"""Incomplete uploads, of all consoles together."""

STREAMER = "nvflare.app_common.streamers.file_streamer"
CONSUMER = f"{STREAMER}:_ChunkConsumer"
RUNNER = "nvflare.private.stream_runner"
PATCH = Patch(
    name="uploads",
    without="whoever has a console can fill the server's disk",
    replaces={
        f"{CONSUMER}.__init__": "106a533d3655",
        f"{CONSUMER}.consume": "34967c1dd252",
        f"{CONSUMER}.finalize": "fdc06e5ba5cb",
        f"{STREAMER}:_ChunkConsumerFactory": "938ea7a579f6",
        # Not replaced: what ends an upload.
        f"{RUNNER}:_ConsumerInfo.stream_done": "04dea8fd7b23",
        f"{RUNNER}:ObjectStreamer._handle_request": "2800d0bd86fc",
    },
)


def apply() -> None:
    """Replace how a file is received, and delete it when NVFlare gives its receiver back."""
    consumer, factory = find(CONSUMER), find(f"{STREAMER}:_ChunkConsumerFactory")
    data_key = find(f"{STREAMER}:KEY_DATA")
    original_init, original_consume, original_finalize = consumer.__init__, consumer.consume, consumer.finalize
    uploads = _Uploads()

    def init(self: Any, stream_ctx: Any, dest_dir: str) -> None:
        original_init(self, stream_ctx, dest_dir)
        uploads.begin(self)

    def consume(self: Any, shareable: Any, stream_ctx: Any, fl_ctx: Any) -> Any:
        for other in uploads.more(self, stream_ctx, len(shareable.get(data_key) or b"")):
            other[StreamContextKey.END_STREAM](ReturnCode.TASK_ABORTED, fl_ctx)
        goes_on, answer = original_consume(self, shareable, stream_ctx, fl_ctx)
        self.fedshift_complete = not goes_on
        return goes_on, answer

    def finalize(self: Any, stream_ctx: Any, fl_ctx: Any) -> None:
        original_finalize(self, stream_ctx, fl_ctx)
        uploads.end(self)
        if not getattr(self, "fedshift_complete", False):
            _delete(self)  # before the command that would take it

    consumer.__init__, consumer.consume, consumer.finalize = init, consume, finalize
    factory.return_consumer = lambda self, consumer, stream_ctx, fl_ctx: _delete(consumer)


class _Uploads:
    """Those that are incomplete: when the latest piece came, and NVFlare's context of the stream."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Any, tuple[float, Any]] = {}

    def begin(self, upload: Any) -> None:
        with self._lock:
            self._open[upload] = time.monotonic(), None

    def more(self, upload: Any, stream_ctx: Any, size: int) -> list[Any]:
        """Note a piece before it is written; returns the contexts of uploads that have to end for this one.

        Raises:
            ValueError: the upload would become too large. NVFlare then ends it.
        """
        if upload.received_size + size > LARGEST:
            raise ValueError(f"an upload has more than {LARGEST} bytes")
        with self._lock:
            self._open[upload] = time.monotonic(), stream_ctx
            by_age = sorted(self._open.values(), key=lambda one: one[0])
        return [context for _, context in by_age[:-MOST_OPEN] if context is not None]

    def end(self, upload: Any) -> None:
        with self._lock:
            self._open.pop(upload, None)


def _delete(upload: Any) -> None:
    Path(upload.file.name).unlink(missing_ok=True)
