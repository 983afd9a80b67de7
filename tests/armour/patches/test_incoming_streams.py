"""Streams from other parties: what is refused, whose are closed, and what slow and busy honest parties are allowed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler
from nvflare.fuel.f3.streaming.byte_receiver import ByteReceiver, RxTask
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_const import STREAM_ERROR_TOPIC, StreamDataType, StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError

from armour.conftest import Lower
from flare_armour import patches
from flare_armour.patches import incoming_streams, messages
from flare_armour.patches.incoming_streams import LOOK, MOST_OPEN, SILENCE, allow
from flare_armour.patches.stream_shares import THREADS, WAITING

patches.install()
ALLOWED = 1000
LARGE = 1_000_000
"""Bytes beside which headers are nothing."""
NUMBERS = itertools.count(1)


class Cell:
    """What a receiver needs of a cell; ``told`` has the senders that were told of an error, and which."""

    def __init__(self) -> None:
        self.my_info = SimpleNamespace(fqcn="server.job")
        self.told: list[tuple[str, str]] = []

    def register_request_cb(self, **_: object) -> None:
        """The test calls it itself."""

    def fire_and_forget(self, channel: str, topic: str, to: str, message: Message, **_: object) -> dict[str, str]:
        if topic == STREAM_ERROR_TOPIC:
            self.told.append((to, message.get_header(StreamHeaderKey.ERROR_MSG)))
        return {}


class Receiver:
    """A party's process that takes messages for one topic."""

    def __init__(self) -> None:
        self.cell, self.taken = Cell(), list[bytes]()
        self._receiver = ByteReceiver(self.cell)
        handler = BlobHandler(lambda future: self.taken.append(b"".join(future.result())))
        self._receiver.register_callback(
            CellChannel.SERVER_COMMAND, ServerCommandNames.SUBMIT_UPDATE, handler.handle_blob_cb
        )

    def piece(
        self,
        origin: str,
        stream: int,
        payload: bytes,
        *,
        number: int = 0,
        size: int | None = None,
        last: bool = False,
        **others: object,
    ) -> RxTask | None:
        """One piece of a stream comes in; returns the stream, if there is one now."""
        headers = {
            MessageHeaderKey.ORIGIN: origin,
            StreamHeaderKey.STREAM_ID: stream,
            StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND,
            StreamHeaderKey.TOPIC: ServerCommandNames.SUBMIT_UPDATE,
            StreamHeaderKey.SIZE: len(payload) if size is None else size,
            StreamHeaderKey.SEQUENCE: number,
            StreamHeaderKey.DATA_TYPE: StreamDataType.FINAL if last else StreamDataType.CHUNK,
            StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
            **others,
        }
        self._receiver._data_handler(Message(headers, payload))
        return RxTask.rx_task_map.get((origin, stream))

    def took(self, content: bytes) -> bool:
        """Whether a message has been taken, or is soon."""
        return wait(lambda: content in self.taken)


def wait(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


def is_open(task: RxTask | None) -> bool:
    return task is not None and not (task.completed or task.failed)


@pytest.fixture
def receiver(lower: Lower) -> Iterator[Receiver]:
    lower(incoming_streams, PROCESS=incoming_streams._Process())
    allow(lambda channel, topic: ALLOWED)
    yield Receiver()
    for task in list(RxTask.rx_task_map.values()):
        task.stop(StreamError("the test is over"), notify=False)
        task._remove_task()


@pytest.fixture
def clock(lower: Lower) -> SimpleNamespace:
    """Seconds, as the patch sees them."""
    now = SimpleNamespace(seconds=time.monotonic())
    lower(incoming_streams, time=SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def test_a_message_in_pieces_in_any_order_is_taken(receiver: Receiver) -> None:
    stream = next(NUMBERS)
    receiver.piece("HK.job", stream, b"c" * 300, number=2, size=900, last=True)
    receiver.piece("HK.job", stream, b"a" * 300, number=0, size=900)
    receiver.piece("HK.job", stream, b"b" * 300, number=1, size=900)
    assert receiver.took(b"a" * 300 + b"b" * 300 + b"c" * 300)


def test_a_message_that_declares_too_much_is_refused_before_anything_is_kept(receiver: Receiver) -> None:
    for number in (0, 5):
        assert receiver.piece("HK.job", next(NUMBERS), b"x" * 10, number=number, size=ALLOWED + 1) is None
    assert [sender for sender, _ in receiver.cell.told] == ["HK.job", "HK.job"]
    assert all(f"{ALLOWED + 1}" in error and f"{ALLOWED}" in error for _, error in receiver.cell.told)


@pytest.mark.parametrize("first", [0, 1], ids=["in order", "without its first piece"])
def test_a_message_that_brings_more_than_it_declares_is_stopped(receiver: Receiver, first: int) -> None:
    stream = next(NUMBERS)
    for number in range(6):
        task = receiver.piece("HK.job", stream, b"x" * 200, number=first + number, size=0)
    assert task is not None and task.failed
    assert task.received_offset + sum(len(piece) for _, piece in task.out_seq_chunks.values()) <= ALLOWED
    assert f"{ALLOWED}" in str(task.error)


def test_who_sends_too_large_an_answer_is_reported(receiver: Receiver) -> None:
    told = list[tuple[str, str]]()
    messages.listen(lambda sender, fault: told.append((sender, fault)))
    try:
        receiver.piece("HK.job", next(NUMBERS), b"x" * 10, size=ALLOWED + 1)
        receiver.piece("HK.job", next(NUMBERS), b"x" * 10, size=ALLOWED + 1, **{StreamHeaderKey.TOPIC: "other"})
    finally:
        messages.listen(None)
    ((sender, fault),) = told
    assert sender == "HK.job" and f"{ALLOWED + 1}" in fault


def test_many_incomplete_streams_stop_nobody_else(receiver: Receiver) -> None:
    for _ in range(MOST_OPEN + 2):
        receiver.piece("UCL.job", next(NUMBERS), b"x" * 10, size=500)
    tasks = [task for (origin, _), task in RxTask.rx_task_map.items() if origin == "UCL.job"]
    assert sum(map(is_open, tasks)) <= MOST_OPEN
    receiver.piece("HK.job", next(NUMBERS), b"good", last=True)
    assert receiver.took(b"good")


def test_the_most_silent_stream_gives_way_to_a_new_one_of_its_party(receiver: Receiver, clock: Any) -> None:
    streams = [next(NUMBERS) for _ in range(MOST_OPEN)]
    for stream in streams:
        clock.seconds += 1
        receiver.piece("HK.job", stream, b"x" * 10, size=100)
    other = receiver.piece("UCL.job", next(NUMBERS), b"x", size=100)
    clock.seconds += 1
    receiver.piece("HK.job", streams[0], b"x" * 10, number=1, size=100)  # the oldest is not the most silent
    receiver.piece("HK", next(NUMBERS), b"x" * 10, size=100)
    open_ones = [is_open(RxTask.rx_task_map.get(("HK.job", stream))) for stream in streams]
    assert open_ones == [True, False] + [True] * (MOST_OPEN - 2)
    assert is_open(other)


def test_a_party_s_incomplete_streams_hold_two_messages_at_most(receiver: Receiver, lower: Lower) -> None:
    lower(incoming_streams, USUAL=LARGE)
    allow(lambda channel, topic: LARGE)
    tasks = [receiver.piece("HK.job", next(NUMBERS), b"x" * 10, size=LARGE * 9 // 10) for _ in range(4)]
    assert [is_open(task) for task in tasks] == [False, False, True, True]


def test_a_small_message_leaves_a_large_one_of_its_party_alone(receiver: Receiver, lower: Lower) -> None:
    """A site says that it lives while it sends its model."""
    lower(incoming_streams, USUAL=10)
    allow(lambda channel, topic: LARGE if topic == ServerCommandNames.SUBMIT_UPDATE else 10)
    large = receiver.piece("HK.job", next(NUMBERS), b"x" * 10, size=LARGE * 9 // 10)
    for _ in range(3):
        receiver.piece("HK.job", next(NUMBERS), b"x", last=True, **{StreamHeaderKey.TOPIC: "heartbeat"})
    assert is_open(large) and not any("refused" in error for _, error in receiver.cell.told)


def test_a_silent_stream_is_closed_and_a_slow_one_is_not(receiver: Receiver, clock: Any) -> None:
    silent, slow = next(NUMBERS), next(NUMBERS)
    receiver.piece("UCL.job", silent, b"x", number=3, size=500)
    for number in range(6):
        task = receiver.piece("HK.job", slow, b"y", number=number, size=6, last=number == 5)
        assert task is None or not task.failed
        clock.seconds += SILENCE - LOOK
    receiver.piece("HK.job", next(NUMBERS), b"z", last=True)
    assert not is_open(RxTask.rx_task_map.get(("UCL.job", silent)))
    assert receiver.took(b"y" * 6)


def test_the_stream_of_a_sender_that_gives_up_is_closed(receiver: Receiver) -> None:
    """NVFlare's message for that has neither channel nor topic."""
    stream = next(NUMBERS)
    task = receiver.piece("HK.job", stream, b"x", size=500)
    assert task is not None and is_open(task)
    lacks = {StreamHeaderKey.CHANNEL: None, StreamHeaderKey.TOPIC: None, StreamHeaderKey.SEQUENCE: 0}
    receiver.piece("HK.job", stream, b"", **lacks, **{StreamHeaderKey.ERROR_MSG: "cut"})  # type: ignore[arg-type]
    assert task.failed and "cut" in str(task.error)


def test_a_process_that_ends_waits_for_no_stream(receiver: Receiver) -> None:
    """Nor does it begin to."""
    stream = next(NUMBERS)
    task = receiver.piece("UCL.job", stream, b"x", size=500)
    assert task is not None
    future = task.stream_future
    ByteStreamer.shutdown()
    with pytest.raises(StreamError, match="this process ends"):
        future.result(timeout=5)
    assert receiver.piece("UCL.job", next(NUMBERS), b"x", size=500) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {StreamHeaderKey.SIZE: -1},
        {StreamHeaderKey.SIZE: "3"},
        {StreamHeaderKey.SIZE: 1.5},
        {StreamHeaderKey.SEQUENCE: -1},
        {StreamHeaderKey.SEQUENCE: None},
        {StreamHeaderKey.SEQUENCE: True},
        {StreamHeaderKey.STREAM_ID: ["x"]},
        {StreamHeaderKey.TOPIC: {"x": 1}},
        {MessageHeaderKey.ORIGIN: 7},
    ],
    ids=str,
)
def test_a_piece_with_other_headers_is_dropped(receiver: Receiver, wrong: dict[str, object]) -> None:
    before = dict(RxTask.rx_task_map)
    receiver.piece("HK.job", next(NUMBERS), b"x", **wrong)  # type: ignore[arg-type]
    assert dict(RxTask.rx_task_map) == before


def test_a_simulated_site_has_no_limit_and_a_party_s_process_without_a_job_one(
    receiver: Receiver, lower: Lower
) -> None:
    lower(incoming_streams, LARGEST=LARGE)
    allow(None)
    assert is_open(receiver.piece("HK.job", next(NUMBERS), b"x", size=LARGE + 1))
    patches.protect()
    assert receiver.piece("HK.job", next(NUMBERS), b"x", size=LARGE + 1) is None
    assert is_open(receiver.piece("HK.job", next(NUMBERS), b"x", size=LARGE))


def test_headers_that_take_much_memory_are_refused_by_the_certificate_s_name(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, lower: Lower
) -> None:
    lower(incoming_streams, MOST_HEADERS=5000)
    with caplog.at_level("WARNING", logger="flare_armour"):
        for _ in range(3):
            assert receiver.piece("UCL.job", next(NUMBERS), b"x", size=500, h="x" * 5000) is None
    (line,) = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert line.startswith("'UCL' ")


def test_headers_count_in_a_party_s_share(receiver: Receiver, lower: Lower) -> None:
    """Two messages of 40 kB are allowed, and headers take 30."""
    lower(incoming_streams, USUAL=40_000)
    headers = {"h": "x" * 30_000}
    allow(lambda channel, topic: 40_000)
    tasks = [receiver.piece("UCL.job", next(NUMBERS), b"x", size=2, **headers) for _ in range(4)]
    assert [is_open(task) for task in tasks] == [False] * 2 + [True] * 2


@pytest.mark.parametrize("reliable", [True, False])
def test_of_an_ended_stream_nothing_is_kept_that_it_has_declared(receiver: Receiver, reliable: bool) -> None:
    tasks = list[RxTask]()
    for number in range(6):
        headers = {StreamHeaderKey.RELIABLE: reliable, StreamHeaderKey.RETRY_TIMEOUT: 30.0, "h": ["x"] * 300}
        headers[StreamHeaderKey.STREAM_REQ_ID] = "id" if number % 3 else ["x"] * 300
        stream, content = next(NUMBERS), b"%d" % number
        receiver.piece("HK.job", stream, content, size=2 * len(content), **headers)
        task = RxTask.rx_task_map[("HK.job", stream)]
        if number % 2:
            receiver.piece("HK.job", stream, content, number=1, size=2 * len(content), last=True, **headers)
            assert receiver.took(2 * content)
        else:
            task.stop(StreamError("its sender is gone"))
        tasks.append(task)
    assert wait(lambda: all("h" not in (task.headers or {}) for task in tasks))
    assert {str(task.headers.get(StreamHeaderKey.STREAM_REQ_ID)) for task in tasks if task.headers} == {"id", "None"}
    assert not any(task.chunks or task.out_seq_chunks for task in tasks)
    assert wait(lambda: all(task.stream_future is None for task in tasks))


def test_few_ended_streams_are_remembered(receiver: Receiver, lower: Lower) -> None:
    lower(incoming_streams, MOST_KEPT=4)
    for _ in range(8):
        receiver.piece("HK.job", next(NUMBERS), b"x", last=True, **{StreamHeaderKey.RELIABLE: True})
    receiver.piece("HK.job", next(NUMBERS), b"y", last=True)
    assert receiver.took(b"y")
    assert len([key for key in RxTask.rx_task_map if key[0] == "HK.job"]) <= 5


def test_streams_that_do_not_say_how_long_they_are_have_one_share_too(receiver: Receiver, lower: Lower) -> None:
    lower(incoming_streams, USUAL=LARGE)
    allow(lambda channel, topic: LARGE)
    streams = [next(NUMBERS) for _ in range(4)]
    for number in range(9):
        for stream in streams:
            receiver.piece("UCL.job", stream, b"x" * (LARGE // 10), number=number, size=0)
    came = [task.received_offset for (origin, _), task in RxTask.rx_task_map.items() if is_open(task)]
    assert sum(came) <= 2 * LARGE


class Busy(Receiver):
    """A process whose messages are all handled until `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on, self.begun = threading.Event(), list[str]()
        handler = BlobHandler(self._handle)
        self._receiver.register_callback(
            CellChannel.SERVER_COMMAND, ServerCommandNames.GET_TASK, handler.handle_blob_cb
        )

    def _handle(self, future: Any) -> None:
        self.begun.append(future.headers[MessageHeaderKey.ORIGIN])
        self.goes_on.wait(60)

    def asks(self, origin: str) -> None:
        self.piece(origin, next(NUMBERS), b"x", last=True, **{StreamHeaderKey.TOPIC: ServerCommandNames.GET_TASK})


def test_requests_that_wait_hold_the_threads_of_their_own_party_only(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    busy, many = Busy(), THREADS + 2 * WAITING
    with caplog.at_level("WARNING", logger="flare_armour"):
        for _ in range(many):
            busy.asks("UCL.job")
        for site in ("HK", "BIDMC"):
            busy.asks(f"{site}.job")
        assert wait(lambda: {"HK.job", "BIDMC.job"} <= set(busy.begun))
    assert busy.begun.count("UCL.job") == THREADS
    (line,) = [record.getMessage() for record in caplog.records if record.name == "flare_armour"]
    assert line.startswith("'UCL' ") and f"{WAITING}" in line
    assert wait(lambda: len(busy.cell.told) == many - THREADS - WAITING), (
        "each is refused by a thread that may come late"
    )
    assert {sender for sender, _ in busy.cell.told} == {"UCL.job"}
    busy.goes_on.set()
    assert wait(lambda: busy.begun.count("UCL.job") >= THREADS + WAITING)


def test_messages_that_wait_count_in_a_party_s_share(receiver: Receiver, lower: Lower) -> None:
    """Complete ones too: a party has two of the largest in all."""
    lower(incoming_streams, USUAL=LARGE)
    allow(lambda channel, topic: LARGE)
    busy = Busy()
    for _ in range(5):
        size = LARGE * 9 // 10
        headers = {StreamHeaderKey.TOPIC: ServerCommandNames.GET_TASK}
        busy.piece("UCL.job", next(NUMBERS), b"x" * size, last=True, **headers)
    assert sum("waits" in error for _, error in busy.cell.told) == 3
    busy.goes_on.set()


def test_answers_that_are_given_away_before_they_are_complete_do_not_count(receiver: Receiver, lower: Lower) -> None:
    """NVFlare gives an answer to who waits for it as soon as its first piece is there."""
    lower(incoming_streams, USUAL=LARGE)
    allow(lambda channel, topic: LARGE)
    futures = list[Any]()
    receiver._receiver.register_callback(CellChannel.RETURN_ONLY, "*", BlobHandler(futures.append).handle_blob_cb)
    headers = {StreamHeaderKey.CHANNEL: CellChannel.RETURN_ONLY, StreamHeaderKey.RELIABLE: True}
    for number in range(10):
        stream, half = next(NUMBERS), b"x" * (LARGE * 4 // 10)
        receiver.piece("server.job", stream, half, size=2 * len(half), **headers)
        assert wait(lambda number=number: len(futures) == number + 1)  # type: ignore[misc]
        task = receiver.piece("server.job", stream, half, number=1, size=2 * len(half), last=True, **headers)
        assert len(b"".join(futures[-1].result(10))) == 2 * len(half)
        assert task is not None and wait(lambda task=task: task.stream_future is None)  # type: ignore[misc]
    assert not receiver.cell.told
