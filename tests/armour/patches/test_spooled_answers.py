"""Large answers to a server wait in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.f3.cellnet.defs import Encoding
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler, BlobStream, BlobTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamFuture
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.buffer_list import BufferList, ConsumableBufferList

from flare_armour import patches
from flare_armour.patches import spooled_answers
from flare_armour.patches.spooled_answers import LARGE, PIECE, spool_class

patches.install()
Spool = spool_class()


@pytest.fixture(autouse=True)
def afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No other test is a server."""
    monkeypatch.setattr(spooled_answers, "_folder", None)
    yield


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
    spooled_answers.spool_to(tmp_path)
    task = receiving(fobs.dumps(arrays))
    BlobHandler(lambda future: None)._read_stream(task)
    message = task.future.result(timeout=1)
    assert is_spool(message)
    found = fobs.loads(message)
    assert {key: value.tobytes() for key, value in found.items()} == {k: v.tobytes() for k, v in arrays.items()}


def test_only_large_answers_to_a_server_wait_on_disk(tmp_path: Path) -> None:
    assert type(receiving(LARGE).buffer) is ConsumableBufferList, "a site keeps what it gets in memory"
    spooled_answers.spool_to(tmp_path)
    assert is_spool(receiving(LARGE).buffer)
    assert type(receiving(LARGE - 1).buffer) is ConsumableBufferList
    assert type(receiving(LARGE, topic=ServerCommandNames.GET_TASK).buffer) is ConsumableBufferList


def test_an_answer_waits_in_memory_where_nothing_can_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spooled_answers.spool_to(tmp_path / "gone")
    assert type(receiving(LARGE).buffer) is ConsumableBufferList
    assert "an answer waits in memory" in caplog.text and "gone" in caplog.text
