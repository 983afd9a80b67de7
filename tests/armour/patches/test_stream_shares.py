"""A party's share of the threads in which messages are handled and sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.f3.cellnet.defs import CellChannel
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.blob_streamer import BlobStream
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_types import StreamError

from armour.patches.wires import until
from flare_armour.patches.stream_shares import MOST_OUTGOING, THREADS, WAITING, MessageShares


def stream(party: str, channel: str = CellChannel.SERVER_COMMAND) -> Any:
    return SimpleNamespace(task=SimpleNamespace(party=party, channel=channel))


def test_each_party_has_its_share_and_what_waits_is_handled_in_turn() -> None:
    handled, done, goes_on = list[int](), list[Any](), threading.Event()

    def work(number: int, _: Any) -> None:
        goes_on.wait(10)
        handled.append(number)
        if number % 2:
            raise ValueError(number)  # costs no thread

    with ThreadPoolExecutor(8) as pool:
        shares = MessageShares(pool, lambda task: str(task.party), done.append)
        theirs = [stream("UCL") for _ in range(THREADS + WAITING)]
        assert all(shares.takes(each.task) for each in theirs), "they come at the same time"
        assert not shares.takes(stream("UCL").task)
        for number, each in enumerate(theirs):
            shares.submit(work, number, each)
        other = stream("HK")
        assert not shares.takes(stream("UCL").task) and shares.takes(other.task)
        shares.submit(lambda *_: handled.append(-1), 0, other)
        until(lambda: handled == [-1])
        goes_on.set()
        until(lambda: len(done) == THREADS + WAITING + 1)
        assert sorted(handled) == [-1, *range(THREADS + WAITING)]
        late = stream("UCL").task
        assert shares.takes(late)
        shares.give_back(late)
        assert not shares._shares


def test_an_answer_for_which_requests_of_its_party_wait_is_handled() -> None:
    answered, done = threading.Event(), list[Any]()
    with ThreadPoolExecutor(THREADS + 1) as pool:
        shares = MessageShares(pool, lambda task: str(task.party), done.append)
        for _ in range(THREADS + WAITING):
            shares.submit(lambda *_: answered.wait(10), 0, stream("server"))
        answer = stream("server", CellChannel.RETURN_ONLY)
        assert shares.takes(answer.task)
        shares.submit(lambda *_: answered.set(), 0, answer)
        until(lambda: len(done) == THREADS + WAITING + 1)
    assert answer.task in done


class Line:
    """A cell whose messages nobody acknowledges."""

    def __init__(self) -> None:
        self.my_info = type("Info", (), {"fqcn": "server.job"})
        self.sent = threading.Semaphore(0)

    def register_request_cb(self, **_: object) -> None:
        """Nothing comes."""

    def add_error_handler(self, *_: object) -> None:
        """Nothing comes back."""

    def fire_and_forget(self, channel: str, topic: str, to: str, message: Message, **_: object) -> dict[str, str]:
        self.sent.release()
        return {}


@pytest.fixture
def streamer() -> Iterator[Any]:
    yield ByteStreamer(Line())  # type: ignore[arg-type]
    for task in list(ByteStreamer.tx_task_map.values()):
        task.stop(StreamError("the test ends"), notify=False)


def test_the_oldest_of_too_many_is_given_up_and_other_parties_are_not_concerned(
    streamer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def send(target: str) -> Any:
        return streamer.send("channel", "topic", target, {}, BlobStream(b"x" * 10, {}), reliable=True)

    other = send("HK.job")
    with caplog.at_level("WARNING", logger="flare_armour"):
        futures = [send("UCL.job") for _ in range(MOST_OUTGOING + 2)]
    assert [future.done() for future in futures] == [True] * 2 + [False] * MOST_OUTGOING
    assert not other.done()
    with pytest.raises(StreamError):
        futures[0].result(timeout=1)
    (record,) = caplog.records
    assert record.getMessage().startswith("'UCL' ")
