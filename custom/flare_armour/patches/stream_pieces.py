"""The headers of a piece of a stream, and what they take in memory."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from flare_armour.patches.patch import find
from flare_armour.patches.refusals import PERSON, party_of

LONGEST = 200
"""Characters of a request's id that are kept. NVFlare's has 36."""


class Piece(SimpleNamespace):
    """A piece's headers, which have the right types."""

    origin: str
    party: str
    stream: int
    channel: str
    topic: str
    declared: int
    length: int
    headers: int
    """Bytes that they take in memory."""
    gives_up: bool


class Keys:
    """Reads the headers of a piece."""

    def __init__(self) -> None:
        self._key = find("nvflare.fuel.f3.streaming.stream_const:StreamHeaderKey")
        self._origin = find("nvflare.fuel.f3.cellnet.defs:MessageHeaderKey.ORIGIN")

    def read(self, message: Any) -> Piece | None:
        """None if a header has not the type that NVFlare gives it."""
        key, get = self._key, message.get_header
        origin, stream = get(self._origin), get(key.STREAM_ID)
        gives_up = bool(get(key.ERROR_MSG))  # a sender that gives up does not say of what
        channel, topic = ("", "") if gives_up else (get(key.CHANNEL), get(key.TOPIC))
        declared, number = get(key.SIZE, 0), get(key.SEQUENCE, 0)
        if not all(isinstance(text, str) for text in (origin, channel, topic)):
            return None
        if not all(type(value) is int and value >= 0 for value in (stream, declared, number)):
            return None
        return Piece(
            origin=origin,
            party=party_of(origin, get(PERSON)),
            stream=stream,
            channel=channel,
            topic=topic,
            declared=declared,
            length=len(message.payload or b""),
            headers=_memory(message.headers),
            gives_up=gives_up,
        )

    def kept(self, headers: dict[str, Any] | None) -> dict[str, Any]:
        """Of an ended stream's headers what an error to its sender needs, where it is as NVFlare writes it."""
        optional, request = ((headers or {}).get(key) for key in (self._key.OPTIONAL, self._key.STREAM_REQ_ID))
        kept: dict[str, Any] = {self._key.OPTIONAL: optional is True}
        if isinstance(request, str) and len(request) <= LONGEST:
            kept[self._key.STREAM_REQ_ID] = request
        return kept


def _memory(headers: Any) -> int:
    """Bytes that decoded headers take, with the containers in them."""
    size, open_ = 0, [headers]
    while open_:
        value = open_.pop()
        size += sys.getsizeof(value)
        if isinstance(value, dict):
            open_.extend(value)
            open_.extend(value.values())
        elif isinstance(value, list | tuple):
            open_.extend(value)
    return size
