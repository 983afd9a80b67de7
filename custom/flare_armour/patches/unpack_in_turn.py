"""A server unpacks sites' answers one after another.

NVFlare 2.9: every answer is unpacked in a thread of its own as soon as its first bytes arrive, and is handled in the
background while others are being unpacked.
Cost: where all sites answer at once, the server holds all their answers in memory, one model each.
Instead: an answer is unpacked when all its bytes are there and the answer before it has been handled.
Fixed in NVFlare when: the number of answers that are unpacked at the same time is a setting.
"""

from __future__ import annotations

import concurrent.futures
import copy
import threading
from functools import partial
from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames

from flare_armour.patches.patch import Patch, find

HANDLER = "nvflare.fuel.f3.streaming.blob_streamer:BlobHandler"
ADAPTER = "nvflare.fuel.f3.cellnet.cell:Adapter"
TOPIC = "nvflare.fuel.f3.streaming.stream_const:StreamHeaderKey.TOPIC"
PATCH = Patch(
    name="unpack_in_turn",
    without="the server needs more memory when many sites answer at once",
    replaces={
        f"{HANDLER}._run_blob_cb": "6d60dda753b0",
        f"{ADAPTER}.call": "a874a0e1bfaa",
        f"{ADAPTER}.__init__": "e622139aefd1",
    },
)

_TURN = threading.Lock()


def apply() -> None:
    """Replace ``BlobHandler._run_blob_cb``; adapters that were registered before are covered too."""
    handler_class, adapter_class, topic = find(HANDLER), find(ADAPTER), find(TOPIC)
    original = handler_class._run_blob_cb

    def run(self: Any, future: Any, *others: Any) -> None:
        adapter = getattr(self.blob_cb, "__self__", None)
        if isinstance(adapter, adapter_class) and future.headers.get(topic) == ServerCommandNames.SUBMIT_UPDATE:
            self = copy.copy(self)
            self.blob_cb = partial(_call_in_turn, adapter)
        original(self, future, *others)

    handler_class._run_blob_cb = run


def _call_in_turn(adapter: Any, future: Any, *args: Any, **kwargs: Any) -> Any:
    """``Adapter.call``, once the whole answer has arrived and no other is being handled."""

    def handle(*args: Any, **kwargs: Any) -> Any:
        response = adapter.cb(*args, **kwargs)
        if isinstance(response, concurrent.futures.Future):
            concurrent.futures.wait([response])
        return response

    waiting = copy.copy(adapter)
    waiting.cb = handle
    future.result()
    with _TURN:
        return waiting.call(future, *args, **kwargs)
