"""Arrays that FLARE carries come out as they went in, and what nobody packed ends nothing."""

from __future__ import annotations

import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.f3.cellnet.cell import Adapter
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamFuture
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.buffer_list import ConsumableBufferList

from fedshift.flare import transport

ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "number": np.asarray(3.5),
    "counter": np.asarray(7, np.int64),
    "nothing": np.empty((0, 4), np.float32),
    "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "flags": np.array([True, False]),
    "names": np.array(["BIDMC", "HK"]),
    "bytes": np.frombuffer(b"\x00\xff", np.uint8),
    "big end first": np.array([1, 2], ">i4"),
    "special": np.array([np.nan, -0.0, np.inf, 5e-324]),
}

MAGIC = b"\x93NUMPY\x01\x00"


def headed(text: str) -> bytes:
    return MAGIC + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_keeps_type_shape_and_bits(name: str) -> None:
    array = ARRAYS[name]
    found = transport.unpack(transport.pack(array))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable


def test_importing_the_wire_mends_flare() -> None:
    array, flare = ARRAYS["matrix"], NumpyArrayDecomposer()
    packed = flare.native_decompose(array)
    transport._read_header.cache_clear()
    np.testing.assert_array_equal(flare.native_recompose(packed), array)
    assert transport._read_header.cache_info().misses == 1
    assert str(ConsumableBufferList([b"x" * 1000, b"y"])) == "<message in 2 pieces>"


@pytest.mark.parametrize("name", ARRAYS)
def test_flare_reads_what_we_packed_and_we_what_flare_packed(name: str) -> None:
    """A server's process may get an answer before it has loaded the job."""
    array, file = ARRAYS[name], io.BytesIO()
    np.save(file, array)
    for found in (transport.unpack(file.getvalue()), np.load(io.BytesIO(transport.pack(array)), allow_pickle=False)):
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no array",
        MAGIC + b"\x00\x00",
        MAGIC + b"\x08\x00 broken ",
        headed("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}") + b"short",
        headed("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}") + bytes(8),
        headed("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + bytes(8),
        headed("{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,)}") + bytes(8),
        headed("__import__('os').abort()"),
        headed(" " * 60_000),
        transport.pack(np.zeros(3))[:-1],
    ],
)
def test_what_nobody_packed_is_an_empty_array(data: bytes) -> None:
    found = transport.unpack(data)
    assert (found.size, found.dtype) == (0, np.uint8)


def test_python_objects_are_not_sent() -> None:
    with pytest.raises(TypeError, match="object"):
        transport.pack(np.array([None, "x"], object))


def test_finished_messages_are_forgotten_by_one_thread() -> None:
    """FLARE starts a thread for each, which waits a minute."""
    before, done = waiting_threads(), threading.Event()
    later = transport.Later()
    for _ in range(50):
        later.after(60, lambda: None)
    assert waiting_threads() == before + 1
    order: list[int] = []
    later.after(0.05, lambda: order.append(2))
    later.after(0, lambda: order.append(1))
    later.after(0.1, done.set)
    assert done.wait(10)
    assert order == [1, 2]


def waiting_threads() -> int:
    return sum(thread.name == "fedshift later" for thread in threading.enumerate())


def test_a_message_that_came_whole_is_forgotten_when_its_time_has_come() -> None:
    task = RxTask(1, "site-1", cast(Any, None), reliable=True)
    RxTask.rx_task_map["site-1", 1] = task
    task._schedule_remove_task(0.01)
    task._schedule_remove_task(60)  # FLARE asks more than once
    deadline = time.monotonic() + 10
    while ("site-1", 1) in RxTask.rx_task_map:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert isinstance(RxTask._schedule_remove_task, FunctionType)
    assert RxTask._schedule_remove_task.__module__ == transport.__name__


def test_what_is_shared_is_packed_once() -> None:
    array = np.arange(6, dtype=np.float32)
    message = {"DXO": {"data": {"weights": DXO(DataKind.WEIGHTS, data={"conv": array})}}}
    assert transport.pack(array) is not transport.pack(array)
    transport.share(message, clients=3)
    packed = transport.pack(array)
    assert transport.pack(array) is packed
    assert transport.pack(array) is packed
    assert transport.pack(array) is not packed, "all have got it: nothing is kept for a fourth"
    np.testing.assert_array_equal(transport.unpack(packed), array)
    transport.share(message, clients=3)
    packed = transport.pack(array)
    transport.share({}, clients=3)
    assert transport.pack(array) is not packed, "it is forgotten with the next message"
    assert transport.pack(array) is not transport.pack(array)


@pytest.mark.parametrize("topic", [ServerCommandNames.SUBMIT_UPDATE, ServerCommandNames.GET_TASK])
def test_answers_are_unpacked_one_after_another(topic: str) -> None:
    """Also where FLARE works on them in the background, and by what it had registered before this was mended."""
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
        future = StreamFuture(number, {StreamHeaderKey.TOPIC: topic, StreamHeaderKey.STREAM_REQ_ID: number + 1})
        future.set_result(b"")
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


LARGE = transport.APART // 4


@pytest.mark.parametrize("array", [np.arange(LARGE, dtype=np.float32).reshape(2, -1), np.zeros(LARGE, np.int64)])
def test_what_is_laid_out_is_sent_from_where_it_lies(array: np.ndarray) -> None:
    laid = transport.laid_out(array)
    assert (laid.dtype, laid.shape, laid.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not np.shares_memory(laid, array) and laid.flags.writeable
    assert transport.laid_out(laid) is laid, "once is enough"
    view = laid.view()
    view.flags.writeable = False  # as in a task
    packed = transport.pack(view)
    assert isinstance(packed, memoryview) and packed.readonly
    assert bytes(packed) == transport.pack(array) and np.shares_memory(np.frombuffer(packed, np.uint8), laid)
    laid[...] = 5
    assert (transport.unpack(bytes(packed)) == 5).all()


def test_a_part_or_another_shape_of_what_is_laid_out_is_packed_anew() -> None:
    laid = transport.laid_out(np.arange(2 * LARGE, dtype=np.float32).reshape(2, -1))
    for other in (laid[:1], laid[:, ::2], laid.T, laid.reshape(-1), laid.view(np.int32)):
        found = transport.unpack(transport.pack(other))
        assert (found.dtype, found.shape, found.tobytes()) == (other.dtype, other.shape, other.tobytes())


@pytest.mark.parametrize("name", ARRAYS)
def test_small_arrays_stay_where_they_are(name: str) -> None:
    assert transport.laid_out(ARRAYS[name]) is ARRAYS[name]


def test_flare_carries_what_is_laid_out() -> None:
    """As it is sent: in pieces, which are not copied into one block."""
    arrays = {"conv": transport.laid_out(np.random.default_rng(0).normal(size=(300, 301)).astype(np.float32))}
    fobs.register(NumpyArrayDecomposer)
    found = fobs.loads(fobs.dumps(arrays))
    np.testing.assert_array_equal(found["conv"], arrays["conv"])
