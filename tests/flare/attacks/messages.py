"""An answer larger than the server's lowered bound, and more incomplete ones than a party may have."""

from __future__ import annotations

import itertools

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from flare_armour.patches.incoming_streams import MOST_OPEN

from .hostile import Hostile, Scene

NUMBERS = itertools.count(10_000)
"""Of streams, none of which are those of another module."""
LARGE = 1_000_000
"""Bytes that no answer of the job may have."""


def _answer(hostile: Hostile, scene: Scene, *, size: int) -> None:
    hostile.chunk(
        CellChannel.SERVER_COMMAND,
        ServerCommandNames.SUBMIT_UPDATE,
        b"ten bytes ",
        number=next(NUMBERS),
        last=False,
        size=size,
        to=scene.server_job,
        origin=f"{hostile.name}.{scene.job_id}",
        headers={
            StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
            MessageHeaderKey.PAYLOAD_ENCODING: Encoding.BYTES,
        },
    )


def declares_more_than_an_answer_may_have(hostile: Hostile, scene: Scene) -> None:
    """It is left out of the round."""
    _answer(hostile, scene, size=LARGE)


def leaves_answers_incomplete(hostile: Hostile, scene: Scene) -> None:
    """Two more than it may have."""
    for _ in range(MOST_OPEN + 2):
        _answer(hostile, scene, size=100)


ATTACKS = (declares_more_than_an_answer_may_have, leaves_answers_incomplete)
