"""Frames are read as they come in, and what is only declared takes no memory."""

from __future__ import annotations

import os
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from flare_armour import patches
from flare_armour.patches.frame_size import AT_ONCE, LARGEST, LARGEST_OF_SITES

patches.install()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, SocketConnection]]:
    sender, receiver = socket.socketpair()
    with sender, receiver:
        yield sender, SocketConnection(receiver, SimpleNamespace(), secure=False)  # type: ignore[arg-type]


def frame(length: int, content: bytes = b"") -> bytes:
    prefix = bytearray(PREFIX_LEN)
    Prefix(length=length).to_buffer(prefix, 0)
    return bytes(prefix) + content


@pytest.mark.parametrize("size", [0, 1, 1_048_576, AT_ONCE - PREFIX_LEN, 2 * AT_ONCE + 5])
def test_a_frame_of_any_size_is_read_as_it_was_sent(ends: tuple[socket.socket, SocketConnection], size: int) -> None:
    sender, connection = ends
    sent = frame(PREFIX_LEN + size, os.urandom(size))
    following = frame(PREFIX_LEN + 3, b"abc")
    thread = threading.Thread(target=sender.sendall, args=(sent + following,))
    thread.start()
    assert bytes(connection.read_frame()) == sent
    assert bytes(connection.read_frame()) == following
    thread.join()


@pytest.mark.parametrize("length", [0, PREFIX_LEN - 1, LARGEST + 1, 2**32 - 1])
def test_a_frame_that_declares_what_none_has_is_refused(
    ends: tuple[socket.socket, SocketConnection], length: int
) -> None:
    sender, connection = ends
    sender.sendall(frame(length))
    with pytest.raises(CommError, match=f"declares {length} bytes"):
        connection.read_frame()


def test_what_is_declared_and_not_sent_takes_no_memory(ends: tuple[socket.socket, SocketConnection]) -> None:
    sender, connection = ends
    sender.sendall(frame(LARGEST, b"ten bytes "))
    sender.shutdown(socket.SHUT_WR)
    tracemalloc.start()
    with pytest.raises(CommError) as raised:
        connection.read_frame()
    assert raised.value.code == CommError.CLOSED
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * AT_ONCE


def test_web_sockets_have_a_lower_limit() -> None:
    assert aio_http_driver.MAX_FRAME_SIZE == LARGEST_OF_SITES
