"""What is sent ahead is shared among the clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from flare_armour import patches
from flare_armour.patches import send_window
from flare_armour.patches.send_window import AHEAD, LEAST

patches.install()


@pytest.fixture(autouse=True)
def afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other test has limits."""
    monkeypatch.setattr(send_window, "_clients", None)


def sending(size: int) -> Any:
    """What FLARE makes for a message that it sends."""
    stream = SimpleNamespace(get_size=lambda: size, headers={})
    return TxTask(SimpleNamespace(), 1 << 20, "channel", "topic", "to", {}, stream, False, False, False)


@pytest.mark.parametrize("size", [8_388_608, 31_000_000, 1_000_000_000])
@pytest.mark.parametrize("clients", [1, 6, 20, 200, 5000])
def test_what_is_sent_ahead_is_a_client_s_share(clients: int, size: int) -> None:
    whole = sending(size)
    send_window.limit(clients=clients)
    task = sending(size)
    share = max(AHEAD, size / 4) / clients
    assert task.window_size == min(whole.window_size, max(int(share), 2 * LEAST))
    assert len(task.buffer) == task.chunk_size <= task.window_size / 2
    assert task.ack_interval <= task.window_size / 2, "it would wait for ever for what is not acknowledged"


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_a_short_message_needs_no_large_buffer(size: int) -> None:
    send_window.limit(clients=4)
    assert len(sending(size).buffer) == max(size, 1)


@pytest.mark.parametrize("size", [1, 100, 5000, 70_000, 8_388_608, 1_000_000_000])
@pytest.mark.parametrize("clients", [1, 6, 200])
def test_no_receiver_warns_of_too_many_chunks(clients: int, size: int, caplog: pytest.LogCaptureFixture) -> None:
    send_window.limit(clients=clients)
    task = sending(size)
    headers = {StreamHeaderKey.CHUNK_SIZE: task.chunk_size, StreamHeaderKey.WINDOW_SIZE: task.window_size}
    receiving = RxTask(1, "HK", SimpleNamespace())
    receiving._update_sender_flow_control(Message({**headers, StreamHeaderKey.ACK_INTERVAL: task.ack_interval}))
    assert not caplog.records
