"""A request for a task waits until there is one, and no longer than it should."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from armour.conftest import Lower
from armour.patches.wires import until
from flare_armour.patches import task_requests
from flare_armour.patches.task_requests import AGAIN, HOLD, MANY, MOST, NONE, PAUSE, PAUSE_AGAIN, TaskRequests

TASK = ("train", "id", {})


class Runner:
    """NVFlare's server runner, as far as it hands out tasks."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(task_request_interval=0.1)
        self.answer: Any = NONE
        self.asked = 0

    def _try_to_get_task(self, client: Any, fl_ctx: Any, timeout: float | None = None) -> Any:
        self.asked += 1
        return self.answer

    def task(self, client: str = "HK") -> Any:
        """What a client gets that asks for a task, by what `TaskRequests.attach` has put in place."""
        return self._try_to_get_task(SimpleNamespace(name=client), None)


def attach(clients: int) -> tuple[TaskRequests, Runner]:
    context, runner = FLContext(), Runner()
    context.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
    held = TaskRequests()
    held.attach(context, clients=clients)
    return held, runner


@pytest.fixture
def attached() -> tuple[TaskRequests, Runner]:
    return attach(MOST)


def ask(runner: Runner, client: str = "HK") -> tuple[threading.Thread, list[Any]]:
    tasks: list[Any] = []
    thread = threading.Thread(target=lambda: tasks.append(runner.task(client)))
    thread.start()
    return thread, tasks


def test_an_open_task_is_handed_out_at_once(attached: tuple[TaskRequests, Runner]) -> None:
    _, runner = attached
    runner.answer = TASK
    assert runner.task() == TASK
    assert runner.asked == 1
    assert runner.config.task_request_interval == PAUSE


def test_a_request_waits_until_a_task_is_opened(attached: tuple[TaskRequests, Runner]) -> None:
    held, runner = attached
    thread, tasks = ask(runner)
    until(lambda: runner.asked == 1)
    thread.join(0.05)
    assert not tasks
    runner.answer = TASK
    held.notify()
    thread.join(10)
    assert tasks == [TASK]
    assert runner.asked == 2


def test_a_task_for_others_leaves_it_waiting(attached: tuple[TaskRequests, Runner]) -> None:
    held, runner = attached
    thread, tasks = ask(runner)
    until(lambda: runner.asked == 1)
    held.notify()
    until(lambda: runner.asked == 2)
    assert not tasks
    held.close()
    thread.join(10)
    assert tasks == [NONE]


def test_it_waits_no_longer_than_its_limit(attached: tuple[TaskRequests, Runner], lower: Lower) -> None:
    _, runner = attached
    lower(task_requests, HOLD=0.05)
    assert runner.task() == NONE


def test_too_many_clients_do_not_wait_and_ask_less_often_the_more_there_are() -> None:
    _, runner = attach(MOST + 1)
    began = time.monotonic()
    assert runner.task() == NONE
    assert time.monotonic() - began < HOLD / 2
    assert runner.config.task_request_interval == pytest.approx((MOST + 1) / MANY)
    _, runner = attach(1000)
    assert runner.config.task_request_interval == pytest.approx(1000 / MANY)


def test_nobody_waits_once_it_is_closed(attached: tuple[TaskRequests, Runner]) -> None:
    held, runner = attached
    held.close()
    began = time.monotonic()
    assert runner.task() == NONE
    assert time.monotonic() - began < HOLD / 2


def test_of_one_client_one_request_waits_and_the_newest(attached: tuple[TaskRequests, Runner]) -> None:
    held, runner = attached
    honest, tasks = ask(runner)
    until(lambda: runner.asked == 1)
    threads = [ask(runner, "UCL") for _ in range(5)]
    until(lambda: sum(not told for _, told in threads) == 1)
    assert all(told == [NONE] for _, told in threads if told) and not tasks
    runner.answer = TASK
    held.notify()
    for thread, _ in [(honest, tasks), *threads]:
        thread.join(10)
    assert tasks == [TASK] and sum(told == [TASK] for _, told in threads) == 1


@pytest.mark.parametrize("clients", [MOST, MOST + 1])
def test_an_open_task_is_given_to_one_client_so_often(
    clients: int, lower: Lower, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimpleNamespace(now=0.0)
    lower(task_requests, time=SimpleNamespace(monotonic=lambda: clock.now))
    held, runner = attach(clients)
    runner.answer = TASK
    tasks = [runner.task("UCL") for _ in range(10 * AGAIN)]
    assert tasks == [TASK] * AGAIN + [NONE] * 9 * AGAIN and runner.asked == AGAIN
    assert runner.task("HK") == TASK
    (record,) = caplog.records
    assert record.getMessage().startswith("'UCL' ")
    clock.now += PAUSE_AGAIN
    assert [runner.task("UCL"), runner.task("UCL")] == [TASK, NONE]
    held.notify()  # another task
    assert runner.task("UCL") == TASK
