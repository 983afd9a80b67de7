"""A site that is interrupted within a round goes on to the same bits, and rounds that end by the clock.

``tests/methods/test_every_method.py`` interrupts the sites of every method.
"""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import first_round, make_image_site, make_site, small_image_job, small_job
from errors import raises
from volumesites import blob_job, make_volume_site

from fedshift.federation.in_process import PooledSite, run_in_process
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site import checkpoint
from fedshift.federation.site.checkpoint import FILE
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.methods import fedavg
from fedshift.reporting.table import departure_notes
from fedshift.schema.errors import Stopped
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.policy import Policy
from fedshift.tasks.kinds.classification import Images

OFTEN = "schedule.checkpoint_minutes=1e-9"
"""After every step."""
DP = Policy.parse({"dp_sgd": {"epsilon": 8, "delta": 1e-3, "clip": 0.5}}, where="a site's policy")
GROUPS = "network.name=monai.BasicUNet", "network.options.features=[4, 4, 4, 4, 4, 4]"


def stop_after(steps: int) -> Callable[[], bool]:
    asked = iter(range(steps))
    return lambda: next(asked, None) is None


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Tensors and plain values of nested mappings and sequences, by their path."""
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            yield from leaves(inner, f"{path}/{key}")
    else:
        yield path, value


def assert_same(one: object, other: object) -> None:
    ours, theirs = dict(leaves(one)), dict(leaves(other))
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        if isinstance(value, torch.Tensor | np.ndarray):
            np.testing.assert_array_equal(np.asarray(value), np.asarray(theirs[path]), err_msg=path, strict=True)
        else:
            assert value == theirs[path], path


class Trial:
    """One site's first round, from the same message as often as wanted, each time by a new site."""

    def __init__(self, job: JobSpec, data: Path, folder: Path, policy: Policy | None = None) -> None:
        federation = job.federation.model_copy(update={"min_sites": 1})
        job = job.model_copy(update={"federation": federation})
        self._job, self._data, self._folder, self._policy = job, data, folder, policy
        self.broadcast = first_round(Coordinator(job, folder / "server"), {data.name: self.site("first")})

    def site(self, name: str) -> Site:
        state = self._folder / name
        return Site(self._job, self._data.name, self._data, SiteOptions(state, policy=self._policy, device="cpu"))

    def train(self, name: str, *, after: tuple[int, ...] = ()) -> Update:
        """The answer of a site that is interrupted ``after`` so many steps, and again after so many more."""
        if name != "first":
            shutil.copytree(self._folder / "first", self._folder / name)  # with the secret that noise comes from
        for steps in after:
            with pytest.raises(Stopped):
                self.site(name).train(self.broadcast, stop=stop_after(steps))
            assert self.file(name).is_file()
        return self.site(name).train(self.broadcast)

    def file(self, name: str) -> Path:
        return self._folder / name / self._data.name / FILE

    def same(self, one: str, other: str) -> None:
        """State files of both are equal."""
        states = [self._folder / name / self._data.name / "round_000001.pt" for name in (one, other)]
        assert_same(*(torch.load(path, weights_only=True) for path in states))


def content(update: Update) -> dict[str, Any]:
    metrics = {key: value for key, value in update.metrics.items() if key != "seconds"}
    return {**vars(update), "metrics": metrics}


def slices(folder: Path) -> Path:
    return make_site(folder, "HK", cases=5)


def pictures(folder: Path) -> Path:
    return make_image_site(folder, "A")


def volumes(folder: Path) -> Path:
    return make_volume_site(folder, "A", cases=6)


STEPS = ("schedule.local_steps=5", "optimizer.name=adam", "optimizer.lr=0.01")
CASES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], JobSpec], Policy | None]] = {
    "pictures, epochs, SGD with momentum": (
        pictures,
        lambda _: small_image_job("augmentation", OFTEN, "schedule.local_epochs=2", "optimizer.momentum=0.9"),
        None,
    ),
    "slices, augmented, Adam, bf16": (
        slices,
        lambda _: small_job("fedfa", OFTEN, *STEPS, "schedule.precision=bf16", "data.augmentation=rot90-flip"),
        None,
    ),
    "patches of volumes, augmented": (
        volumes,
        lambda folder: blob_job(folder, OFTEN, "data.dims=3", "data.patch=[8, 16, 16]", "data.augmentation=strong"),
        None,
    ),
    "a model of its own beside it": (
        pictures,
        lambda _: small_image_job("fedbn", OFTEN, "evaluation.local=true", "schedule.local_steps=6"),
        None,
    ),
    "DP-SGD": (slices, lambda _: small_job("fedavg", OFTEN, *STEPS, *GROUPS), DP),
}


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_site_goes_on_to_the_same_bits(case: str, tmp_path: Path) -> None:
    make, job, policy = CASES[case]
    trial = Trial(job(tmp_path), make(tmp_path / "data"), tmp_path / "states", policy)
    undisturbed, again = trial.train("one"), trial.train("two", after=(2, 1))
    assert undisturbed.n_steps > 3
    assert_same(content(undisturbed), content(again))
    trial.same("one", "two")
    assert not trial.file("two").exists(), "the round is over"


@pytest.mark.parametrize("method", ["all", "groupdro"])
def test_a_centralised_reference_goes_on_too(method: str, three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job(method, OFTEN, "schedule.local_steps=5")
    broadcast = Coordinator(job, tmp_path / "server").open(1)

    def trained(state: str, *after: int) -> Update:
        for steps in after:
            with pytest.raises(Stopped):
                trained_for(steps, state)
        return trained_for(99, state)

    def trained_for(steps: int, state: str) -> Update:
        site = PooledSite(job, three_image_sites, SiteOptions(tmp_path / state))
        return site.train(broadcast, stop=stop_after(steps))

    assert_same(content(trained("one")), content(trained("two", 2, 1)))


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    job = small_image_job("fedavg", OFTEN, "schedule.local_steps=5")
    return Trial(job, pictures(tmp_path / "data"), tmp_path / "states")


def interrupted(trial: Trial, name: str, *, after: int) -> None:
    with pytest.raises(Stopped):
        trial.site(name).train(trial.broadcast, stop=stop_after(after))


def test_no_step_is_made_twice_and_no_image_of_an_earlier_one_is_read(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(trial, "first", after=3)
    site, read = trial.site("first"), list[np.ndarray]()
    own = Images.train_batch

    def train_batch(self: Images, index: np.ndarray, *, seeds: torch.Tensor) -> Any:
        read.append(index)
        return own(self, index, seeds=seeds)

    monkeypatch.setattr(Images, "train_batch", train_batch)
    update = site.train(trial.broadcast)
    assert (update.n_steps, len(read)) == (5, 2)
    assert "site A, round 1" in caplog.text and "step 3 of 5" in caplog.text


def test_another_task_does_not_go_on_from_it(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    interrupted(trial, "first", after=3)
    weights = {key: value + np.asarray(1, value.dtype) for key, value in trial.broadcast.weights.items()}
    other = Broadcast(1, 0, weights)
    again = trial.site("first").train(other)
    assert "goes on after" not in caplog.text
    assert_same(content(trial.site("second").train(other)), content(again))


def test_with_other_settings_it_is_another_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = pictures(tmp_path / "data")
    trials = [
        Trial(
            small_image_job("fedavg", OFTEN, "schedule.local_steps=5", f"optimizer.lr={lr}"), data, tmp_path / "states"
        )
        for lr in (0.05, 0.01)
    ]
    assert_same(trials[0].broadcast.weights, trials[1].broadcast.weights)
    interrupted(trials[0], "first", after=3)
    trials[1].site("first").train(trials[1].broadcast)
    assert "goes on after" not in caplog.text


def test_it_does_not_outlive_the_rounds(trial: Trial) -> None:
    """The last round may have been closed without the site."""
    interrupted(trial, "first", after=3)
    trial.site("first").validate(Broadcast(2, 0, trial.broadcast.weights))
    assert not trial.file("first").exists()


def test_a_damaged_file_is_named_and_the_round_begun_anew(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    undisturbed = trial.train("one")
    interrupted(trial, "first", after=3)
    trial.file("first").write_bytes(trial.file("first").read_bytes()[:500])
    assert_same(content(trial.site("first").train(trial.broadcast)), content(undisturbed))
    assert f"{FILE} cannot be read" in caplog.text


def test_training_goes_on_if_it_cannot_be_written(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    assert trial.site("first").train(trial.broadcast).n_steps == 5
    assert f"{FILE} cannot be written" in caplog.text


@pytest.mark.parametrize("option", ["schedule.checkpoint_minutes=null", "schedule.batch_size=8"])
def test_nothing_is_written_in_a_short_round_or_if_it_is_off(option: str, tmp_path: Path) -> None:
    """The second option is a job's default: every ten minutes."""
    job = small_image_job("fedavg", option)
    trial = Trial(job, pictures(tmp_path / "data"), tmp_path / "states")
    interrupted(trial, "first", after=2)
    assert not trial.file("first").exists()


def test_a_method_may_say_that_it_cannot_go_on(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedavg, "Client", type("Client", (fedavg.Client,), {"resumable": False}))
    undisturbed = trial.train("one")
    interrupted(trial, "first", after=3)
    assert not trial.file("first").exists()
    assert_same(content(trial.site("first").train(trial.broadcast)), content(undisturbed))


# --- rounds that end by the clock ------------------------------------------------------------------------


def by_clock(tmp_path: Path, *, every: float, minutes: float, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """A site whose batches take ``every`` seconds of a clock that else stands still."""
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    job = small_image_job("fedavg", OFTEN, "schedule.local_steps=50", f"schedule.minutes={minutes}")
    own = Site.train

    def train(site: Site, broadcast: Broadcast, *, stop: Callable[[], bool] = lambda: False) -> Update:
        def tick() -> bool:
            now[0] += every
            return stop()

        return own(site, broadcast, stop=tick)

    monkeypatch.setattr(Site, "train", train)
    return Trial(job, pictures(tmp_path / "data"), tmp_path / "states")


def test_a_round_ends_after_so_many_minutes_and_the_update_says_how_many_steps_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trial = by_clock(tmp_path, every=20, minutes=1, monkeypatch=monkeypatch)
    update = trial.site("first").train(trial.broadcast)
    assert (update.n_steps, update.n_samples) == (2, 36)
    assert "schedule.minutes (1)" in caplog.text and "step 2 of 50" in caplog.text


@pytest.mark.parametrize("methods", ["fednova", "scaffold", "fedsgd", "fedprox"])
def test_what_depends_on_steps_uses_the_true_number(
    methods: str, three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    """A round that ends at once is a round of one step, though more were planned."""
    # With one planned step no weight moves before the gradient, and the option would be refused.
    variant = ("fedprox.variant=released",) if methods == "fedprox" else ()
    runs = {}
    for name, options in (("clock", ("schedule.minutes=1e-9", *variant)), ("steps", ("schedule.local_steps=1",))):
        job = small_image_job(methods, *options)
        runs[name] = run_in_process(job, three_image_sites, tmp_path / name)
    for record in runs["clock"].results.rounds:
        assert {site: told.steps for site, told in record.sites.items()} == {"A": 1, "B": 1, "C": 1}
        assert not record.rejected
    assert_same(*(runs[name].model.weights for name in ("clock", "steps")))
    assert (runs["clock"].results.job.minutes, runs["steps"].results.job.minutes) == (1e-9, None)
    assert "schedule.minutes" in str(departure_notes(runs["clock"].results.job))


def test_a_round_makes_one_step_at_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = by_clock(tmp_path, every=1000, minutes=1, monkeypatch=monkeypatch)
    assert trial.site("first").train(trial.broadcast).n_steps == 1


def test_with_dp_sgd_it_is_refused(tmp_path: Path) -> None:
    job = small_job("fedavg", *STEPS, *GROUPS, "schedule.minutes=5")
    trial = Trial(small_job("fedavg", *STEPS, *GROUPS), slices(tmp_path / "data"), tmp_path / "states")
    site = Site(job, "HK", tmp_path / "data" / "prostate" / "HK", SiteOptions(tmp_path / "private", policy=DP))
    with raises("cannot-protect", naming=("HK", "DP-SGD", "schedule.minutes", "schedule.local_steps")):
        site.train(trial.broadcast)


def test_minutes_before_an_interruption_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = by_clock(tmp_path, every=10, minutes=1, monkeypatch=monkeypatch)
    interrupted(trial, "first", after=4)
    assert trial.site("first").train(trial.broadcast).n_steps == 5
