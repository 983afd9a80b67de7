"""Batches are made beside training, in the same order and to the same bits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_site, small_image_job, small_job
from torch import Tensor, nn

from fedshift.data.samples import Samples
from fedshift.federation.site import local_training
from fedshift.federation.site.local_training import score_beside
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.tensors import read_weights
from fedshift.methods.base import Run
from fedshift.schema.messages import Broadcast
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


NET = nn.Linear(1, 1)


def numbers(made: list[int], *, fail_at: int = -1) -> Iterator[Tensor]:
    for number in range(6):
        assert threading.current_thread() is threading.main_thread()
        if number == fail_at:
            raise MemoryError
        made.append(number)
        yield torch.tensor(number)


@pytest.fixture
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 2)


@pytest.mark.usefixtures("_two_cores")
def test_predictions_are_scored_in_order_while_the_next_one_is_made() -> None:
    made: list[int] = []
    beside = threading.Barrier(2)

    def score(predicted: Iterator[Tensor]) -> list[int]:
        assert threading.current_thread() is not threading.main_thread()
        assert torch.get_num_threads() == 1
        read = []
        for batch in predicted:
            assert len(made) <= int(batch) + 2, "one is ahead, and no more"
            read.append(int(batch))
            if int(batch) == 2:
                beside.wait(20)
        return read

    def predicted() -> Iterator[Tensor]:
        for batch in numbers(made):
            if int(batch) == 3:
                beside.wait(20)
            yield batch

    assert score_beside(predicted(), score, NET) == made == list(range(6))
    assert score_beside(iter(()), list, NET) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("scores")]


@pytest.mark.usefixtures("_two_cores")
@pytest.mark.parametrize("read", [0, 1, 3])
def test_scores_that_fail_or_end_early_end_the_predictions(read: int) -> None:
    made: list[int] = []

    def fail(predicted: Iterator[Tensor]) -> None:
        for _ in range(read):
            next(predicted)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        score_beside(numbers(made), fail, NET)
    assert len(made) <= read + 2
    assert score_beside(numbers(made), lambda predicted: read, NET) == read
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("scores")]


@pytest.mark.usefixtures("_two_cores")
@pytest.mark.parametrize("number", [0, 3])
def test_an_error_of_the_network_is_raised_and_not_that_predictions_are_missing(number: int) -> None:
    def score(predicted: Iterator[Tensor]) -> None:
        for _ in zip(range(6), predicted, strict=True):
            pass

    with pytest.raises(MemoryError):
        score_beside(numbers([], fail_at=number), score, NET)


def test_scores_are_the_same_with_a_free_core_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(
        small_job("fedavg"),
        "BIDMC",
        make_site(tmp_path / "data", "BIDMC", cases=8, depth=9),
        SiteOptions(tmp_path / "state"),
    )
    broadcast, seen = Broadcast(2, 1, read_weights(site.network)), []
    for cores in (1, 2):
        monkeypatch.setattr(machine, "cores", lambda cores=cores: cores)
        with site.loaded(broadcast) as model:
            seen.append((model.scores("val"), model.evaluate("test"), model.confidences()))
    assert seen[0] == seen[1] and seen[0][0] and seen[0][1].distributions
