"""Frames are read as they come in, in parts."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from flare_armour import patches
from flare_armour.patches import frame_size
from flare_armour.patches.frame_size import AT_ONCE, LARGEST_OF_SITES

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


@pytest.mark.parametrize("length", [0, PREFIX_LEN - 1, 1001])
def test_a_frame_that_declares_what_none_has_is_refused(
    ends: tuple[socket.socket, SocketConnection], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_size, "LARGEST", 1000)
    sender, connection = ends
    sender.sendall(frame(length))
    with pytest.raises(CommError) as raised:
        connection.read_frame()
    assert raised.value.code == CommError.BAD_DATA


def test_a_frame_takes_no_more_memory_at_a_time_than_a_part_of_it(
    ends: tuple[socket.socket, SocketConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_size, "AT_ONCE", 1000)
    sender, connection = ends
    taken = list[int]()
    read_into = SocketConnection.read_into
    monkeypatch.setattr(
        SocketConnection,
        "read_into",
        lambda self, buffer, *rest: taken.append(len(buffer)) or read_into(self, buffer, *rest),
    )
    sender.sendall(frame(5000, b"x" * 2500))
    sender.shutdown(socket.SHUT_WR)
    with pytest.raises(CommError) as raised:
        connection.read_frame()
    assert raised.value.code == CommError.CLOSED
    assert taken == [PREFIX_LEN + 1000 * number for number in range(4)], "it ends in its third part"


def test_web_sockets_have_a_lower_limit() -> None:
    assert aio_http_driver.MAX_FRAME_SIZE == LARGEST_OF_SITES
