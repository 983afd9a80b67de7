"""More connections and names than one party may have, by web sockets with the kit's certificate and without NVFlare."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import aiohttp
import msgpack  # type: ignore[import-untyped]
from nvflare.fuel.f3.drivers.aio_http_driver import WS_PATH
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from flare_armour.patches.connections import CONNECTIONS

from .hostile import Hostile, Scene

MANY = 200
"""Connections that are opened, and names that are taken."""
WAIT = 3.0
"""Seconds for the server to close what it closes."""


def opens_many_connections(hostile: Hostile, scene: Scene) -> None:
    """The server's sockets and memory, until it takes no other site's connection."""

    async def attack(session: aiohttp.ClientSession) -> None:
        sockets = [await connect(hostile, session) for _ in range(MANY)]
        still_open = sum(await asyncio.gather(*(is_open(one) for one in sockets)))
        assert still_open <= CONNECTIONS, f"{still_open} connections are open"

    asyncio.run(with_session(attack))


def takes_many_names(hostile: Hostile, scene: Scene) -> None:
    """The server's memory, and its lists of who is connected, by one connection."""

    async def attack(session: aiohttp.ClientSession) -> None:
        connection = await connect(hostile, session)
        for number in range(MANY):
            content = msgpack.packb({HandshakeKeys.ENDPOINT_NAME: f"{hostile.name}.{number}"})
            frame = bytearray(PREFIX_LEN)
            Prefix(length=PREFIX_LEN + len(content), type=Types.HELLO).to_buffer(frame, 0)
            try:
                await connection.send_bytes(bytes(frame) + content)
            except ConnectionError:
                break
        assert not await is_open(connection), "one connection has many names"

    asyncio.run(with_session(attack))


async def with_session(attack: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await attack(session)


async def connect(hostile: Hostile, session: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
    startup = hostile.kit.folder / "startup"
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    context.check_hostname = False
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    return await session.ws_connect(f"https://{hostile.kit.host}:{hostile.kit.port}/{WS_PATH}", ssl=context)


async def is_open(connection: aiohttp.ClientWebSocketResponse) -> bool:
    """Whether the server has not closed it; what it says is read."""
    while True:
        try:
            said = await asyncio.wait_for(connection.receive(), WAIT)
        except TimeoutError:
            return True
        if said.type != aiohttp.WSMsgType.BINARY:
            return False


ATTACKS = (opens_many_connections, takes_many_names)
