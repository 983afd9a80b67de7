"""Messages between two ranks of a site: tensors and plain values, over a socket that nobody else has."""

from __future__ import annotations

import io
import socket
import struct
from typing import Any

import torch

LENGTH = struct.Struct(">Q")


class Channel:
    """One end of it. A rank that is gone shows as `EOFError` or `ConnectionError`, one that stands still as
    `TimeoutError`.
    """

    def __init__(self, end: socket.socket, *, seconds: float | None = None) -> None:
        """``seconds`` to wait for a message, or for one to be taken; None for ever."""
        end.settimeout(seconds)
        self._end = end

    def send(self, content: dict[str, Any] | None = None) -> None:
        """None is the shortest message."""
        data = b""
        if content is not None:
            buffer = io.BytesIO()
            torch.save(content, buffer)
            data = buffer.getvalue()
        self._end.sendall(LENGTH.pack(len(data)) + data)

    def receive(self) -> dict[str, Any] | None:
        """The next message, with its tensors on the processor."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        if not length:
            return None
        content: dict[str, Any] = torch.load(io.BytesIO(self._exactly(length)), map_location="cpu", weights_only=True)
        return content

    def close(self) -> None:
        self._end.close()

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        missing = memoryview(data)
        while missing:
            count = self._end.recv_into(missing)
            if not count:
                raise EOFError
            missing = missing[count:]
        return data
