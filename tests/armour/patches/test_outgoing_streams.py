"""Answers to a party that acknowledges nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.blob_streamer import BlobStream
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_types import StreamError

from flare_armour import patches
from flare_armour.once_a_minute import OnceAMinute
from flare_armour.patches import refusals
from flare_armour.patches.outgoing_streams import MOST_OPEN

patches.install()


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
def streamer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(refusals.REFUSALS, "_told", OnceAMinute())
    yield ByteStreamer(Line())  # type: ignore[arg-type]
    for task in list(ByteStreamer.tx_task_map.values()):
        task.stop(StreamError("the test ends"), notify=False)


def test_the_oldest_of_too_many_is_given_up_and_other_parties_are_not_concerned(
    streamer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def send(target: str) -> Any:
        return streamer.send("channel", "topic", target, {}, BlobStream(b"x" * 10, {}), reliable=True)

    other = send("HK.job")
    with caplog.at_level("WARNING", logger="fedshift"):
        futures = [send("UCL.job") for _ in range(MOST_OPEN + 2)]
    assert [future.done() for future in futures] == [True] * 2 + [False] * MOST_OPEN
    assert not other.done()
    with pytest.raises(StreamError):
        futures[0].result(timeout=1)
    (record,) = caplog.records
    assert record.getMessage().startswith("'UCL' ")
