"""Honest requests, some more than the server's lowered bounds allow."""

from __future__ import annotations

import itertools

from nvflare.apis.fl_constant import FLContextKey, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils import fobs

from flare_armour.patches.stream_shares import THREADS

from .hostile import HEADERS, WAITING, Hostile, Scene

NUMBERS = itertools.count(20_000)
"""Of streams, none of which are those of another module."""


def asks_for_tasks(hostile: Hostile, scene: Scene) -> None:
    """Many times as many as are handled and may wait at a time."""
    for _ in range(20 * (THREADS + WAITING)):
        _ask(hostile, scene, {})


def sends_long_headers(hostile: Hostile, scene: Scene) -> None:
    """Longer than they may be."""
    _ask(hostile, scene, {"x": "x" * HEADERS})


def _ask(hostile: Hostile, scene: Scene, headers: dict[str, object]) -> None:
    context = FLContext()
    context.set_prop(FLContextKey.CURRENT_RUN, scene.job_id, private=False, sticky=True)
    request = Shareable()
    request.set_peer_context(context)
    hostile.chunk(
        CellChannel.SERVER_COMMAND,
        ServerCommandNames.GET_TASK,
        bytes(fobs.dumps(request)),
        number=next(NUMBERS),
        to=scene.server_job,
        origin=f"{hostile.name}.{scene.job_id}",
        headers={
            StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
            MessageHeaderKey.PAYLOAD_ENCODING: Encoding.BYTES,
            **headers,
        },
    )


ATTACKS = (sends_long_headers, asks_for_tasks)
