"""The threads in which messages are handled. What NVFlare's streams make of it is in test_incoming_streams.py."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from nvflare.fuel.f3.cellnet.defs import CellChannel

from flare_armour.patches.message_shares import THREADS, WAITING, MessageShares

from .wires import until


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
        for number in range(THREADS + WAITING):
            assert shares.takes(stream("UCL").task)
            shares.submit(work, number, stream("UCL"))
        assert not shares.takes(stream("UCL").task) and shares.takes(stream("HK").task)
        shares.submit(lambda *_: handled.append(-1), 0, stream("HK"))
        until(lambda: handled == [-1])
        goes_on.set()
        until(lambda: len(done) == THREADS + WAITING + 1)
        assert sorted(handled) == [-1, *range(THREADS + WAITING)]
        assert shares.takes(stream("UCL").task) and not shares._shares


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
