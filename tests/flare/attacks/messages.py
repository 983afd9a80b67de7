"""Answers that are none: what cannot be decoded, is too large, never ends, or holds what no answer may hold."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

from nvflare.apis.fl_constant import ReturnCode, ServerCommandNames
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs.datum import Datum

from ..undecodable import undecodable
from .hostile import Hostile, Scene

NUMBERS = itertools.count(10_000)
"""Of streams, none of which are the attacks' of another module."""
CONTENT = b"left by a hostile site"
"""Of a file that a message holds."""
MANY = 200
"""Streams that are left open."""


def _answer(hostile: Hostile, scene: Scene, content: bytes, *, last: bool = True, size: int | None = None) -> None:
    origin = f"{hostile.name}.{scene.job_id}"
    headers = {StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS, MessageHeaderKey.PAYLOAD_ENCODING: Encoding.BYTES}
    hostile.chunk(
        CellChannel.SERVER_COMMAND,
        ServerCommandNames.SUBMIT_UPDATE,
        content,
        number=next(NUMBERS),
        last=last,
        size=size,
        to=scene.server_job,
        origin=origin,
        headers=headers,
    )


def answers_what_cannot_be_decoded(hostile: Hostile, scene: Scene) -> None:
    """The end of the server's job process, with one message."""
    for content in undecodable().values():
        _answer(hostile, scene, content)


def answers_with_a_code_that_ends_the_job(hostile: Hostile, scene: Scene) -> None:
    """The end of the job, with one return code."""
    for code in (ReturnCode.RUN_MISMATCH, ReturnCode.TASK_UNKNOWN, ReturnCode.UNSAFE_JOB):
        _answer(hostile, scene, bytes(fobs.dumps(make_reply(code))))


def declares_three_gigabytes(hostile: Hostile, scene: Scene) -> None:
    """Three gigabytes of the server's memory, for ten bytes."""
    _answer(hostile, scene, b"ten bytes ", last=False, size=3 << 30)


def leaves_streams_open(hostile: Hostile, scene: Scene) -> None:
    """All threads that read streams, so that nobody else's answer is read."""
    for _ in range(MANY):
        _answer(hostile, scene, b"ten bytes ", last=False, size=1000)


def sends_a_file(hostile: Hostile, scene: Scene) -> None:
    """A file on the server's disk, for ever."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "content"
        path.write_bytes(CONTENT)
        _answer(hostile, scene, bytes(fobs.dumps({"x": Datum.file_datum(str(path))})))


def refers_to_nobody(hostile: Hostile, scene: Scene) -> None:
    """The server waits for a cell that is not there, and with it everybody whose answer is decoded next."""
    for dot in (1, 2, 3):
        reference = '{"fqcn": "nobody.x", "ref_id": "1"}'
        _answer(hostile, scene, bytes(fobs.dumps({"x": Datum.text_datum(reference, dot=dot)})))


def sends_messages_within_messages(hostile: Hostile, scene: Scene) -> None:
    """Processor time: each message looks through all that it holds."""
    inner = Shareable()
    for _ in range(100):
        outer = Shareable()
        outer["inner"], inner = inner, outer
    _answer(hostile, scene, bytes(fobs.dumps(inner)))


ATTACKS = (
    answers_what_cannot_be_decoded,
    answers_with_a_code_that_ends_the_job,
    declares_three_gigabytes,
    leaves_streams_open,
    sends_a_file,
    refers_to_nobody,
    sends_messages_within_messages,
)
