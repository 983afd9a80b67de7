"""The threads in which messages are handled. What NVFlare's streams make of it is in test_incoming_streams.py."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from fedshift.flare.patches.message_shares import THREADS, WAITING, MessageShares

from .wires import until


def stream(party: str) -> Any:
    return SimpleNamespace(task=SimpleNamespace(party=party))


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
            assert not shares.is_full("UCL")
            shares.submit(work, number, stream("UCL"))
        assert shares.is_full("UCL") and not shares.is_full("HK")
        shares.submit(lambda *_: handled.append(-1), 0, stream("HK"))
        until(lambda: handled == [-1])
        goes_on.set()
        until(lambda: len(done) == THREADS + WAITING + 1)
        assert sorted(handled) == [-1, *range(THREADS + WAITING)]
        assert not shares.is_full("UCL") and not shares._shares
