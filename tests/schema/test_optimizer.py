"""The optimiser's options: learning rates by their formulas, what changes training, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_image_site, small_image_job
from torch import Tensor

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.site import local_training
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.optimizer import LearningRateSpec, OptimizerSpec
from fedshift.schema.results import LAST
from fedshift.tasks.kinds import build_task


def rates(rounds: int, **options: Any) -> list[float]:
    return [LearningRateSpec(**options).at(round_, rounds) for round_ in range(1, rounds + 1)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 1, 1, 1]),
        ({"warm_up": 3}, [1 / 4, 2 / 4, 3 / 4, 1]),
        ({"name": "step", "every": 2, "factor": 0.5}, [1, 1, 0.5, 0.5]),
        ({"name": "cosine"}, [(1 + math.cos(math.pi * i / 4)) / 2 for i in range(4)]),
        ({"name": "cosine", "last": 0.2}, [0.2 + 0.4 * (1 + math.cos(math.pi * i / 4)) for i in range(4)]),
        ({"name": "polynomial", "power": 2}, [1, 9 / 16, 4 / 16, 1 / 16]),
        ({"name": "polynomial", "power": 1, "warm_up": 2}, [1 / 3, 2 / 3, 1, 1 / 2]),
    ],
)
def test_the_learning_rate_of_a_round_is_its_formulas(options: dict[str, Any], expected: list[float]) -> None:
    assert rates(4, **options) == pytest.approx(expected)


def test_before_the_first_and_after_the_last_round_it_is_theirs() -> None:
    spec = OptimizerSpec(name="sgd", lr=0.5, lr_schedule={"name": "polynomial", "power": 1, "warm_up": 1})
    assert [spec.at(round_, 4).lr for round_ in (0, 1, 4, 5)] == pytest.approx([0.25, 0.25, 0.5 / 3, 0.5 / 3])
    plain = OptimizerSpec(name="sgd", lr=0.5)
    assert plain.at(3, 4) is plain


REFUSED = [
    ("lr_schedule.name=step", "'every' is missing"),
    ("lr_schedule.every=2", "'every' is an option of step, not of constant"),
    ("lr_schedule.name=cosine lr_schedule.factor=0.5", "'factor' is an option of step, not of cosine"),
    ("lr_schedule.name=cosine lr_schedule.power=2", "'power' is an option of polynomial, not of cosine"),
    ("lr_schedule.last=0.1", "'last' is an option of cosine and polynomial, not of constant"),
    ("lr_schedule.warm_up=2", "warm_up is 2, and must end within the 2 rounds"),
    ("nesterov=true", "'nesterov' needs sgd with a momentum above 0"),
    ("name=adam nesterov=true", "'nesterov' needs sgd"),
    ("name=adam momentum=0.9", "'momentum' is an option of sgd, not of adam"),
    ("betas=[0.5,0.9]", "'betas' is an option of adam and adamw, not of sgd"),
    ("name=adam betas=[0.5,1]", "betas"),
    ("clip_norm=0", "clip_norm"),
]


def small(options: str) -> JobSpec:
    return small_image_job("fedavg", *(f"optimizer.{option}" for option in options.split()))


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_an_option_that_would_change_nothing_is_refused(options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(options)


@pytest.fixture(scope="module")
def end(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tensor]:
    """The last model's first weights after a job with these options, each run once."""
    torch.set_num_threads(1)
    data = {"A": make_image_site(tmp_path_factory.mktemp("data"), "A", images=36)}

    @cache
    def finished(options: str) -> Tensor:
        folder = tmp_path_factory.mktemp("run")
        texts = (f"optimizer.{option}" for option in options.split())
        job = small_image_job("fedavg", "schedule.rounds=3", "network.options.width=2", *texts, sites=("A",))
        run_in_process(job, data, folder)
        weights: Tensor = read_model_file(folder / LAST)["weights"]["block1.0.weight"]
        return weights

    return finished


@pytest.mark.parametrize(
    ("without", "option"),
    [
        ("", "lr_schedule.warm_up=1"),
        ("", "lr_schedule.name=cosine"),
        ("", "lr_schedule.name=polynomial"),
        ("", "lr_schedule.name=step lr_schedule.every=1"),
        ("lr_schedule.name=step lr_schedule.every=1", "lr_schedule.factor=0.5"),
        ("lr_schedule.name=polynomial", "lr_schedule.power=3"),
        ("lr_schedule.name=cosine", "lr_schedule.last=0.5"),
        ("", "clip_norm=0.01"),
        ("momentum=0.5", "nesterov=true"),
        ("name=adam lr=0.01", "betas=[0.5,0.9]"),
        ("name=adam lr=0.01", "clip_norm=0.01"),
        ("name=adam lr=0.01 weight_decay=0.1", "name=adamw"),
    ],
)
def test_an_option_changes_training(without: str, option: str, end: Callable[[str], Tensor]) -> None:
    kept = [text for text in without.split() if text.partition("=")[0] != option.partition("=")[0]]
    before, after = end(without), end(" ".join([*kept, *option.split()]))
    assert not torch.equal(before, after)


def test_a_limit_that_no_gradient_meets_changes_no_bit(end: Callable[[str], Tensor]) -> None:
    assert torch.equal(end(""), end("clip_norm=1e6"))


def test_the_learning_rate_is_the_rounds_with_a_state_that_was_kept(tmp_path: Path) -> None:
    """The optimiser's state on disk holds the learning rate of the round that wrote it."""
    seen: list[float] = []
    original = local_training.train

    def note(*args: Any) -> tuple[int, float]:
        seen.append(args[3].lr)
        return original(*args)

    data = {"A": make_image_site(tmp_path, "A", images=18)}
    options = ("optimizer.momentum=0.5", "optimizer.lr_schedule.name=polynomial", "optimizer.lr_schedule.power=1")
    job = small_image_job("pfedavg", *options, "schedule.rounds=4", sites=("A",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_training, "train", note)
        run_in_process(job, data, tmp_path / "run")
    fine_tuned = seen[4:]
    assert seen[:4] == pytest.approx([0.05, 0.0375, 0.025, 0.0125])
    assert fine_tuned, "it starts from a selected round, with the learning rate of the next"
    assert all(rate in [pytest.approx(other) for other in seen[:4]] for rate in fine_tuned)


def test_the_gradient_of_a_batch_is_scaled_down_to_the_norm(tmp_path: Path) -> None:
    """One step of plain SGD moves the weights by at most lr times the norm."""
    data = {"A": make_image_site(tmp_path, "A", images=18)}
    moved = []
    for options in (("optimizer.clip_norm=0.1",), ()):
        job = small_image_job("fedavg", "schedule.rounds=1", "schedule.local_steps=1", *options, sites=("A",))
        first = dict(build_task(job).network().named_parameters())
        folder = tmp_path / f"run{len(moved)}"
        run_in_process(job, data, folder)
        last = read_model_file(folder / LAST)["weights"]
        change = torch.cat([(last[key] - value.detach()).flatten() for key, value in first.items()])
        moved.append(float(change.norm()))
    assert moved[0] == pytest.approx(0.05 * 0.1, rel=1e-3) and moved[1] > 2 * moved[0]


def test_options_at_their_default_are_not_written() -> None:
    assert set(small("").dump()["task"]["optimizer"]) == {"name", "lr", "weight_decay", "momentum", "keep"}
    told = small("lr_schedule.name=cosine clip_norm=2").dump()["task"]["optimizer"]
    assert told["clip_norm"] == 2 and told["lr_schedule"]["name"] == "cosine" and "betas" not in told
