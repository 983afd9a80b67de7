"""A question for work waits until there is some, and no longer than it should."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedshift.flare import handout
from fedshift.flare.handout import HOLD, MANY, MOST, PAUSE, Handout

TASK, NONE = ("train", "id", {}), ("", "", None)


class Runner:
    """FLARE's server, as far as it hands out tasks."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(task_request_interval=0.1)
        self.answer: Any = NONE
        self.asked = 0

    def _try_to_get_task(self, client: Any, fl_ctx: Any, timeout: float | None = None) -> Any:
        self.asked += 1
        return self.answer


def attach(clients: int) -> tuple[Handout, Runner]:
    context, runner = FLContext(), Runner()
    context.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
    held = Handout()
    held.attach(context, clients=clients)
    return held, runner


@pytest.fixture
def attached() -> tuple[Handout, Runner]:
    return attach(MOST)


def ask(runner: Runner) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(runner._try_to_get_task("client", None)))
    thread.start()
    return thread, found


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_task_that_is_there_is_given_at_once(attached: tuple[Handout, Runner]) -> None:
    _, runner = attached
    runner.answer = TASK
    assert runner._try_to_get_task("client", None) == TASK
    assert runner.asked == 1
    assert runner.config.task_request_interval == PAUSE


def test_a_question_waits_for_the_bell(attached: tuple[Handout, Runner]) -> None:
    held, runner = attached
    thread, found = ask(runner)
    until(lambda: runner.asked == 1)
    thread.join(0.05)
    assert not found
    runner.answer = TASK
    held.ring()
    thread.join(10)
    assert found == [TASK]
    assert runner.asked == 2


def test_a_bell_for_others_is_no_answer(attached: tuple[Handout, Runner]) -> None:
    held, runner = attached
    thread, found = ask(runner)
    until(lambda: runner.asked == 1)
    held.ring()
    until(lambda: runner.asked == 2)
    assert not found
    held.close()
    thread.join(10)
    assert found == [NONE]


def test_it_is_sent_away_in_the_end(attached: tuple[Handout, Runner], monkeypatch: pytest.MonkeyPatch) -> None:
    _, runner = attached
    monkeypatch.setattr(handout, "HOLD", 0.05)
    assert runner._try_to_get_task("client", None) == NONE


def test_too_many_do_not_wait_and_ask_the_less_often_the_more_there_are() -> None:
    _, runner = attach(MOST + 1)
    began = time.monotonic()
    assert runner._try_to_get_task("client", None) == NONE
    assert time.monotonic() - began < HOLD / 2
    assert runner.config.task_request_interval == pytest.approx((MOST + 1) / MANY)
    _, runner = attach(1000)
    assert runner.config.task_request_interval == pytest.approx(1000 / MANY)


def test_nobody_waits_after_the_end(attached: tuple[Handout, Runner]) -> None:
    held, runner = attached
    held.close()
    began = time.monotonic()
    assert runner._try_to_get_task("client", None) == NONE
    assert time.monotonic() - began < HOLD / 2
