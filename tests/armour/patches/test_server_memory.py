"""What a server holds of messages, and gives back."""

from __future__ import annotations

import io
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from nvflare.apis.controller_spec import Task
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.f3.cellnet.cell import Adapter
from nvflare.fuel.f3.cellnet.defs import Encoding
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler, BlobStream, BlobTask
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamFuture
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.buffer_list import BufferList, ConsumableBufferList

from flare_armour import patches
from flare_armour.patches import server_memory
from flare_armour.patches.server_memory import AHEAD, LARGE, LEAST, PIECE, spool_class

patches.install()


@pytest.fixture(autouse=True)
def afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other test has limits, or is a server."""
    monkeypatch.setattr(server_memory, "_PROCESS", server_memory._Process())


def sending(size: int) -> Any:
    """What FLARE makes for a message that it sends."""
    stream = SimpleNamespace(get_size=lambda: size, headers={})
    return TxTask(SimpleNamespace(), 1 << 20, "channel", "topic", "to", {}, stream, False, False, False)


@pytest.mark.parametrize("size", [8_388_608, 31_000_000, 1_000_000_000])
@pytest.mark.parametrize("clients", [1, 6, 20, 200, 5000])
def test_what_is_sent_ahead_is_a_client_s_share(clients: int, size: int) -> None:
    whole = sending(size)
    server_memory.share_window(clients=clients)
    task = sending(size)
    share = max(AHEAD, size / 4) / clients
    assert task.window_size == min(whole.window_size, max(int(share), 2 * LEAST))
    assert len(task.buffer) == task.chunk_size <= task.window_size / 2
    assert task.ack_interval <= task.window_size / 2, "it would wait for ever for what is not acknowledged"


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_a_short_message_needs_no_large_buffer(size: int) -> None:
    server_memory.share_window(clients=4)
    assert len(sending(size).buffer) == max(size, 1)


@pytest.mark.parametrize("size", [1, 100, 5000, 70_000, 8_388_608, 1_000_000_000])
@pytest.mark.parametrize("clients", [1, 6, 200])
def test_no_receiver_warns_of_too_many_chunks(clients: int, size: int, caplog: pytest.LogCaptureFixture) -> None:
    server_memory.share_window(clients=clients)
    task = sending(size)
    headers = {StreamHeaderKey.CHUNK_SIZE: task.chunk_size, StreamHeaderKey.WINDOW_SIZE: task.window_size}
    receiving = RxTask(1, "HK", SimpleNamespace())
    receiving._update_sender_flow_control(Message({**headers, StreamHeaderKey.ACK_INTERVAL: task.ack_interval}))
    assert not caplog.records


flare_decomposers.register()


@pytest.mark.parametrize("topic", [ServerCommandNames.SUBMIT_UPDATE, ServerCommandNames.GET_TASK])
def test_answers_are_unpacked_one_after_another(topic: str) -> None:
    """Also if NVFlare handles them in the background, and by adapters registered before the patch was applied."""
    pool, at_once, most, replies = ThreadPoolExecutor(8), [0], [0], FakeCell()

    def work() -> Message:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.05)
        at_once[0] -= 1
        return Message({}, b"")

    adapter = Adapter(lambda request: pool.submit(work), SimpleNamespace(fqcn="server"), replies)
    handler = BlobHandler(adapter.call)
    futures = []
    for number in range(4):
        headers = {StreamHeaderKey.TOPIC: topic, StreamHeaderKey.STREAM_REQ_ID: number + 1}
        future = StreamFuture(number, {**headers, StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS})
        future.set_result(fobs.dumps(Shareable()))
        futures.append(future)
    with ThreadPoolExecutor(4) as callers:
        list(callers.map(lambda future: handler._run_blob_cb(future, SimpleNamespace(), (), {}), futures))
    pool.shutdown()
    assert (most[0] == 1) is (topic == ServerCommandNames.SUBMIT_UPDATE)
    assert sorted(replies.answered) == [1, 2, 3, 4]


class FakeCell:
    """What an adapter needs of a cell."""

    decode_pass_through_channels: frozenset[str] = frozenset()
    decode_pass_through_topics: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.answered: list[int] = []

    def get_fobs_context(self, props: object = None) -> dict[str, object]:
        return {}

    def send_blob(self, channel: str, topic: str, to: str, message: Message, *others: object, **named: object) -> Any:
        self.answered.append(message.get_header(StreamHeaderKey.STREAM_REQ_ID))
        return StreamFuture(0)


Spool = spool_class()


def is_spool(buffer: object) -> bool:
    return type(buffer).__name__ == Spool.__name__


def receiving(content: bytes | int, topic: str = ServerCommandNames.SUBMIT_UPDATE) -> BlobTask:
    """What FLARE makes for a message of so many bytes when its first piece has come."""
    size = content if isinstance(content, int) else len(content)
    headers = {StreamHeaderKey.TOPIC: topic, StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS}
    stream = BlobStream(b"" if isinstance(content, int) else content, headers)
    stream.size = size
    return BlobTask(StreamFuture(1, headers), stream, preserve_chunks=True)


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, 3 * PIECE + 5])
def test_what_comes_in_pieces_of_any_size_is_read_as_it_was(size: int, tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8).tobytes()
    spooled = Spool(tmp_path)
    for start in range(0, size, 100_003):
        spooled.append(memoryview(content)[start : start + 100_003])
    assert list(spooled) == [] and not list(tmp_path.iterdir()), "in a file without a name"
    spooled.load()
    assert BufferList(spooled).read_bytes(0, size) == content
    assert max(len(piece) for piece in spooled) <= PIECE


def test_flare_reads_a_spooled_message(tmp_path: Path) -> None:
    """By the way that a message takes: read in order, and released behind."""
    arrays = {f"layer {i}": np.random.default_rng(i).normal(size=(300, 301)).astype(np.float32) for i in range(8)}
    arrays["large"] = np.arange(2_000_000, dtype=np.float32)
    fobs.register(NumpyArrayDecomposer)
    server_memory.spool_to(tmp_path)
    task = receiving(fobs.dumps(arrays))
    BlobHandler(lambda future: None)._read_stream(task)
    message = task.future.result(timeout=1)
    assert is_spool(message)
    found = fobs.loads(message)
    assert {key: value.tobytes() for key, value in found.items()} == {k: v.tobytes() for k, v in arrays.items()}


def test_only_large_answers_to_a_server_wait_on_disk(tmp_path: Path) -> None:
    assert type(receiving(LARGE).buffer) is ConsumableBufferList, "a site keeps what it gets in memory"
    server_memory.spool_to(tmp_path)
    assert is_spool(receiving(LARGE).buffer)
    assert type(receiving(LARGE - 1).buffer) is ConsumableBufferList
    assert type(receiving(LARGE, topic=ServerCommandNames.GET_TASK).buffer) is ConsumableBufferList


def test_an_answer_waits_in_memory_where_nothing_can_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server_memory.spool_to(tmp_path / "gone")
    assert type(receiving(LARGE).buffer) is ConsumableBufferList
    assert "an answer waits in memory" in caplog.text and "gone" in caplog.text


def test_a_broadcast_is_packed_once_for_its_clients() -> None:
    array = np.arange(6, dtype=np.float32)
    message = DXO(DataKind.WEIGHTS, data={"conv": array}).to_shareable()

    def pack() -> bytes:
        packed: bytes = NumpyArrayDecomposer().native_decompose(array)
        return packed

    server_memory.share_broadcast(Task("train", data=message), clients=3)
    first = pack()
    assert pack() is first and pack() is first
    assert pack() is not first, "all have got it: nothing is kept for a fourth"
    np.testing.assert_array_equal(np.load(io.BytesIO(first)), array)
    server_memory.share_broadcast(Task("train", data=message), clients=3)
    second = pack()
    server_memory.share_broadcast(Task("train", data=Shareable()), clients=3)
    assert pack() is not second, "it is forgotten with the next message"


CODE = """
import numpy as np, psutil
from flare_armour.patches import server_memory

def megabytes():
    return psutil.Process().memory_info().rss / 1e6

def hold():
    return [np.ones(8192) for _ in range(3200)]  # 64 KB each, which come from glibc's heap

made = hold()
full = megabytes()
kept = made[::40]
del made
before = megabytes()
every, server_memory.EVERY = server_memory.EVERY, 0.0
server_memory.release()
server_memory.EVERY = every
after = megabytes()
made = hold()
del made
server_memory.release()  # too soon
print(full, before, after, megabytes())
server_memory.EVERY = 0.0
server_memory.release()
print(megabytes())
"""
"""In a process of its own: what other tests have freed would be given back too."""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="another C library than glibc: run it on Linux with glibc"
)
def test_what_was_freed_between_what_was_not_is_given_back_now_and_then() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    full, before, after, soon, late = map(float, done.stdout.split())
    assert full - before < 60, "glibc keeps it"
    assert before - after > 120
    assert soon - after > 100, "not again at once"
    assert late - after < 40


CYCLES = """
import gc, weakref
from flare_armour.patches import server_memory

class Message:
    def __init__(self):
        self.stream = self

gc.disable()  # as if Python had not looked for them yet
server_memory.release()
sent = weakref.ref(Message())
assert sent() is not None
server_memory.release()
assert sent() is not None, "too soon"
server_memory.EVERY = 0.0
server_memory.release()
assert sent() is None
"""


def test_messages_that_hold_each_other_are_let_go() -> None:
    done = subprocess.run([sys.executable, "-c", CYCLES], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
