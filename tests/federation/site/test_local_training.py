"""Batches are made beside training, in the same order and to the same bits."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import small_image_job
from torch import nn

from fedshift.data.samples import Samples
from fedshift.federation.site import local_training
from fedshift.methods.base import Run
from fedshift.tasks import machine
from fedshift.tasks.kinds import build_task


def test_what_is_made_ahead_comes_in_order_and_one_at_a_time() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        assert threading.current_thread() is not threading.main_thread()
        return number

    for number in local_training.ahead(make, ((n,) for n in range(6))):
        assert len(made) <= number + 3
    assert made == list(range(6))
    assert list(local_training.ahead(make, iter(()))) == []


def test_an_error_while_making_a_batch_is_raised_where_the_batch_is_wanted() -> None:
    def make(number: int) -> int:
        return 1 // (2 - number)

    batches = local_training.ahead(make, ((n,) for n in range(4)))
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(batches)


def test_batches_and_epochs_are_the_same_with_a_free_core_and_without(
    three_image_sites: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_image_job("fedavg", "schedule.local_epochs=3", "schedule.batch_size=7")
    data = build_task(job).open(three_image_sites["A"], "A")
    threads: set[str] = set()
    inner = type(data).train_batch

    def train_batch(self: Samples, index: np.ndarray, *, seeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        threads.add(threading.current_thread().name)
        return inner(self, index, seeds=seeds)  # type: ignore[arg-type]

    monkeypatch.setattr(type(data), "train_batch", train_batch)

    def batches(cores: int, *, in_threads: bool = True, step: int = 0) -> list[tuple[int, torch.Tensor]]:
        threads.clear()
        data.in_threads = in_threads
        monkeypatch.setattr(machine, "cores", lambda: cores)
        run = Run(0, "A", 1, 1, ("A",), nn.Linear(1, 1), nn.functional.cross_entropy, 3)
        run.step = step
        return [(run.epoch, x) for x, _ in local_training.batches(data, run, job.task.schedule)]

    alone = batches(1)
    assert threads == {"MainThread"} and {epoch for epoch, _ in alone} == {0, 1, 2}
    beside = batches(2)
    assert threads == {"batches_0"}
    later = batches(2, in_threads=False, step=2)
    assert threads == {"MainThread"}
    for (epoch, x), (same_epoch, same_x) in [*zip(alone, beside, strict=True), *zip(alone[2:], later, strict=True)]:
        assert epoch == same_epoch and torch.equal(x, same_x)
