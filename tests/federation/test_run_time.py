"""How long a job takes: a measured step, a trial of one round, and what a run makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import make_image_site, small_image_job

from fedshift.federation.run_time import Step, Trial, measure_step, one_round_of, run_trial, seconds_of
from fedshift.schema.job import JobSpec


def test_activations_are_those_that_the_backward_pass_keeps() -> None:
    small = measure_step(small_image_job("fedavg"), "cpu")
    large = measure_step(small_image_job("fedavg", "network.options.width=8"), "cpu")
    assert large.activations > 1.5 * small.activations and large.network > small.network


def test_a_trial_is_a_run_of_one_round(tmp_path: Path) -> None:
    data = {site: make_image_site(tmp_path, site) for site in "ABC"}
    trial = run_trial(one_round_of(small_image_job("fedavg")), data, device="cpu")
    assert trial.round > 0 and 0 < trial.rest < 60


def seconds(job: JobSpec, counts: Mapping[str, Mapping[str, int]], step: Step, trial: Trial | None) -> float:
    """A job's rounds, of these images."""
    return seconds_of(job, counts, step, trial)[0]


@pytest.mark.parametrize("trial", [None, Trial(round=1.0, rest=1.0)])
def test_models_of_single_sites_take_as_long_again_to_train(trial: Trial | None) -> None:
    plain, local = (
        small_image_job("fedavg", "schedule.rounds=10", *options) for options in ((), ("evaluation.local=true",))
    )
    counts = {site: {"train": 1000, "val": 10, "test": 10} for site in "ABC"}
    step = Step(train=1.0, evaluate=0.001, activations=1, network=1)
    once, twice = (seconds(job, counts, step, trial) for job in (plain, local))
    assert twice == pytest.approx(2 * once, rel=0.01)


def test_rounds_that_end_by_the_clock_take_no_longer() -> None:
    counts = {site: {"train": 100, "val": 0, "test": 0} for site in "ABC"}
    step = Step(train=1.0, evaluate=0.001, activations=1, network=1)
    jobs = [small_image_job("fedavg", "schedule.local_steps=100", *more) for more in ((), ("schedule.minutes=1",))]
    plain, clock = (seconds(job, counts, step, None) for job in jobs)
    assert plain - clock == pytest.approx(2 * 3 * (100 * 8 - 60), rel=0.1), "two rounds of three sites"
