"""Connections with the kit's certificate and without NVFlare: one more than a party may have, and what they say."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import aiohttp
import msgpack  # type: ignore[import-untyped]
from nvflare.fuel.f3.drivers.aio_http_driver import WS_PATH
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from flare_armour.patches.connections import LARGEST_HANDSHAKE

from .hostile import CONNECTIONS, Hostile, Scene

WAIT = 3.0
"""Seconds for the server to close what it closes."""


def opens_more_connections(hostile: Hostile, scene: Scene) -> None:
    """Two more than it may have."""

    async def attack(session: aiohttp.ClientSession) -> None:
        sockets = [await connect(hostile, session) for _ in range(CONNECTIONS + 2)]
        still_open = sum(await asyncio.gather(*(is_open(one) for one in sockets)))
        assert still_open <= CONNECTIONS, f"{still_open} connections are open"

    asyncio.run(with_session(attack))


def names_itself_twice(hostile: Hostile, scene: Scene) -> None:
    """Over one connection."""
    names = [{HandshakeKeys.ENDPOINT_NAME: f"{hostile.name}.{number}"} for number in (1, 2)]
    asyncio.run(with_session(lambda session: says_and_is_closed(hostile, session, *names)))


def says_much_of_itself(hostile: Hostile, scene: Scene) -> None:
    """More than a handshake has."""
    name = {HandshakeKeys.ENDPOINT_NAME: f"{hostile.name}.3", "x": "x" * LARGEST_HANDSHAKE}
    asyncio.run(with_session(lambda session: says_and_is_closed(hostile, session, name)))


async def says_and_is_closed(hostile: Hostile, session: aiohttp.ClientSession, *said: dict[str, str]) -> None:
    connection = await connect(hostile, session)
    for words in said:
        content = msgpack.packb(words)
        frame = bytearray(PREFIX_LEN)
        Prefix(length=PREFIX_LEN + len(content), type=Types.HELLO).to_buffer(frame, 0)
        await connection.send_bytes(bytes(frame) + content)
    assert not await is_open(connection), "the connection is open"


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


ATTACKS = (names_itself_twice, says_much_of_itself, opens_more_connections)
