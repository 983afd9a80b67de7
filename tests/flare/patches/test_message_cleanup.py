"""Received messages are forgotten by one thread."""

from __future__ import annotations

import threading
import time
from types import FunctionType
from typing import Any, cast

from nvflare.fuel.f3.streaming.byte_receiver import RxTask

from fedshift.flare import patches
from fedshift.flare.patches import message_cleanup

patches.install()


def test_finished_messages_are_forgotten_by_one_thread() -> None:
    """NVFlare starts a thread for each, which waits for a minute."""
    before, done = waiting_threads(), threading.Event()
    scheduler = message_cleanup.Scheduler()
    for _ in range(50):
        scheduler.after(60, lambda: None)
    assert waiting_threads() == before + 1
    order: list[int] = []
    scheduler.after(0.05, lambda: order.append(2))
    scheduler.after(0, lambda: order.append(1))
    scheduler.after(0.1, done.set)
    assert done.wait(10)
    assert order == [1, 2]


def waiting_threads() -> int:
    return sum(thread.name == "fedshift cleanup" for thread in threading.enumerate())


def test_a_message_that_came_whole_is_forgotten_when_its_time_has_come() -> None:
    task = RxTask(1, "site-1", cast(Any, None), reliable=True)
    RxTask.rx_task_map["site-1", 1] = task
    task._schedule_remove_task(0.01)
    task._schedule_remove_task(60)  # NVFlare asks more than once
    deadline = time.monotonic() + 10
    while ("site-1", 1) in RxTask.rx_task_map:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert isinstance(RxTask._schedule_remove_task, FunctionType)
    assert RxTask._schedule_remove_task.__module__ == message_cleanup.__name__
