"""Large answers wait in a file, and what is sent ahead is shared out among the clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.f3.cellnet.defs import Encoding
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler, BlobStream, BlobTask
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamFuture
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.buffer_list import BufferList, ConsumableBufferList

from fedshift.flare import server_memory, transport
from fedshift.flare.server_memory import AHEAD, LARGE, LEAST, PIECE, Spooled

transport.mend()


@pytest.fixture(autouse=True)
def afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No other test has limits."""
    monkeypatch.setattr(server_memory, "_folder", None)
    monkeypatch.setattr(server_memory, "_clients", None)
    yield


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
    spooled = Spooled(tmp_path)
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
    server_memory.spare(tmp_path)
    task = receiving(fobs.dumps(arrays))
    BlobHandler(lambda future: None)._read_stream(task)
    message = task.future.result(timeout=1)
    assert type(message) is Spooled
    found = fobs.loads(message)
    assert {key: value.tobytes() for key, value in found.items()} == {k: v.tobytes() for k, v in arrays.items()}


def test_only_large_answers_to_a_server_wait_on_disk(tmp_path: Path) -> None:
    assert type(receiving(LARGE).buffer) is ConsumableBufferList, "a site keeps what it gets in memory"
    server_memory.spare(tmp_path)
    assert type(receiving(LARGE).buffer) is Spooled
    assert type(receiving(LARGE - 1).buffer) is ConsumableBufferList
    assert type(receiving(LARGE, topic=ServerCommandNames.GET_TASK).buffer) is ConsumableBufferList


def test_an_answer_waits_in_memory_where_nothing_can_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server_memory.spare(tmp_path / "gone")
    assert type(receiving(LARGE).buffer) is ConsumableBufferList
    assert "an answer waits in memory" in caplog.text and "gone" in caplog.text


def sending(size: int) -> Any:
    """What FLARE makes for a message that it sends."""
    stream = SimpleNamespace(get_size=lambda: size, headers={})
    return TxTask(SimpleNamespace(), 1 << 20, "channel", "topic", "to", {}, stream, False, False, False)


@pytest.mark.parametrize("size", [LARGE, 31_000_000, 1_000_000_000])
@pytest.mark.parametrize("clients", [1, 6, 20, 200, 5000])
def test_what_is_sent_ahead_is_a_client_s_share(clients: int, size: int) -> None:
    whole = sending(size)
    server_memory.limit(clients=clients)
    task = sending(size)
    share = max(AHEAD, size / 4) / clients
    assert task.window_size == min(whole.window_size, max(int(share), 2 * LEAST))
    assert len(task.buffer) == task.chunk_size <= task.window_size / 2
    assert task.ack_interval <= task.window_size / 2, "it would wait for ever for what is not acknowledged"


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_a_short_message_needs_no_large_buffer(size: int) -> None:
    server_memory.limit(clients=4)
    assert len(sending(size).buffer) == max(size, 1)


def test_a_server_reads_arrays_where_they_lie_in_the_message(tmp_path: Path) -> None:
    packed = bytes(transport.pack(np.arange(6, dtype=np.float32)))
    assert not np.shares_memory(transport.unpack(packed), np.frombuffer(packed, np.uint8)), "a site's it may change"
    server_memory.spare(tmp_path)
    found = transport.unpack(packed)
    assert np.shares_memory(found, np.frombuffer(packed, np.uint8)) and not found.flags.writeable
