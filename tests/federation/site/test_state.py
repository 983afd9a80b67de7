"""State files: repeatable tasks, bounded space, nothing half-written."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_image_site, small_image_job
from errors import raises

from fedshift.federation.site import local_training
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.site.state import AnswerStore, SiteState, StateStore, fingerprint
from fedshift.federation.tensors import read_weights
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.seeding import derive_seed, generator
from fedshift.tasks.kinds import build_task


def mark(value: int) -> SiteState:
    return SiteState(methods={"m": {"value": torch.tensor(value)}})


def value_of(state: SiteState | None) -> int:
    assert state is not None
    return int(state.methods["m"]["value"])


def test_a_round_starts_from_the_last_finished_one_before_it(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "A")
    assert store.before(1) is None
    store.write(1, mark(1), best_round=0)
    store.write(2, mark(2), best_round=0)
    assert value_of(store.before(3)) == 2
    assert value_of(store.before(2)) == 1, "round 2 again starts from where it started before"
    store.write(5, mark(5), best_round=0)
    assert value_of(store.before(5)) == 2, "rounds that the site missed do not matter"


def names(folder: Path) -> list[int]:
    return sorted(int(path.stem[-6:]) for path in folder.iterdir())


def test_three_rounds_and_the_best_are_kept(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    for round_ in range(10):
        # As in a job: round 3 is known to be the best from the broadcast of round 5 on.
        store.write(round_, mark(round_), best_round=3 if round_ >= 5 else 0)
    assert names(tmp_path) == [3, 7, 8, 9]
    assert value_of(store.before(3 + 1)) == 3


def test_a_site_that_missed_the_best_round_keeps_what_it_had_by_then(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    for round_ in (5, 6, 9, 10, 11):
        store.write(round_, mark(round_), best_round=7 if round_ >= 9 else 0)
    assert names(tmp_path) == [6, 9, 10, 11]


def test_a_repeated_task_leaves_later_rounds_alone(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    for round_ in (1, 2, 3):
        store.write(round_, mark(round_), best_round=0)
    store.write(0, mark(0), best_round=0)
    assert names(tmp_path) == [0, 1, 2, 3]


def truncate(path: Path, left: int = 100) -> None:
    path.write_bytes(path.read_bytes()[:left])


@pytest.mark.parametrize("left", [0, 4, 100, 400])
def test_a_truncated_file_is_set_aside_and_the_one_before_it_used(
    left: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = StateStore(tmp_path)
    store.write(1, mark(1), best_round=0)
    store.write(2, mark(2), best_round=0)
    truncate(tmp_path / "round_000002.pt", left)
    assert value_of(store.before(3)) == 1
    assert "round_000002.pt cannot be read" in caplog.text
    assert "round_000002.damaged" in caplog.text
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["round_000001.pt"], "it is not tried again"


def test_without_a_whole_file_there_is_no_state(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.write(1, mark(1), best_round=0)
    truncate(tmp_path / "round_000001.pt")
    assert store.before(2) is None


def test_a_state_that_cannot_be_written_leaves_the_former_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateStore(tmp_path)
    store.write(1, mark(1), best_round=0)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises("no-space", naming="round_000002.pt"):
        store.write(2, mark(2), best_round=0)
    assert [path.name for path in tmp_path.iterdir()] == ["round_000001.pt"]
    assert value_of(store.before(3)) == 1


def test_seeds_depend_on_all_four_coordinates() -> None:
    base = (0, "A", 1, "order")
    others = [(1, "A", 1, "order"), (0, "B", 1, "order"), (0, "A", 2, "order"), (0, "A", 1, "noise")]
    seeds = {derive_seed(*c) for c in (base, *others)}
    assert len(seeds) == 5 and all(0 <= s < 2**63 for s in seeds)
    first = torch.rand(3, generator=generator(*base))
    assert torch.equal(first, torch.rand(3, generator=generator(*base)))


# --- the last answer --------------------------------------------------------------------------------


TASK = Broadcast(
    round=2,
    best_round=1,
    weights={"w": np.arange(3, dtype=np.float32), "n": np.array(4)},
    arrays={"fedrdn": {"means": np.ones((2, 1))}},
)
ANSWER = Update(
    site="A",
    round=2,
    n_samples=7,
    n_steps=3,
    weights={"w": np.array([1.0, 2.0, 3.0], np.float32), "n": np.array(5)},
    metrics={"train_loss": 0.5},
    arrays={"fedrdn": {"mean": np.array([0.25])}},
)


def test_the_same_task_gets_the_same_answer(tmp_path: Path) -> None:
    AnswerStore(tmp_path / "A").keep(fingerprint(TASK), ANSWER)
    again = AnswerStore(tmp_path / "A").find(fingerprint(replace(TASK, sites=("A", "B"))))
    assert again is not None
    assert again.weights["n"].shape == () and again.weights["n"].dtype == np.int64
    np.testing.assert_array_equal(again.weights["w"], ANSWER.weights["w"])
    np.testing.assert_array_equal(again.arrays["fedrdn"]["mean"], ANSWER.arrays["fedrdn"]["mean"])
    assert replace(again, weights={}, arrays={}) == replace(ANSWER, weights={}, arrays={})


@pytest.mark.parametrize(
    "other",
    [
        replace(TASK, round=3),
        replace(TASK, best_round=2),
        replace(TASK, weights={**TASK.weights, "w": np.array([0.0, 1.0, 2.5], np.float32)}),
        replace(TASK, weights={**TASK.weights, "n": np.array(5)}),
        replace(TASK, arrays={"fedrdn": {"means": np.full((2, 1), 2.0)}}),
        replace(TASK, arrays={}),
    ],
)
def test_another_task_is_not_known(other: Broadcast, tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    store.keep(fingerprint(TASK), ANSWER)
    assert store.find(fingerprint(other)) is None
    assert AnswerStore(tmp_path).find(fingerprint(other)) is None, "nor by a process that has to read the file"


def test_another_policy_or_other_data_know_no_earlier_answer(tmp_path: Path) -> None:
    AnswerStore(tmp_path).keep(fingerprint(TASK, "train: true"), ANSWER)
    assert AnswerStore(tmp_path).find(fingerprint(TASK, "train: false")) is None
    assert AnswerStore(tmp_path).find(fingerprint(TASK, "train: true")) is not None


@pytest.mark.parametrize("left", [0, 1, 30, 200])
def test_a_truncated_answer_is_no_answer(left: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = AnswerStore(tmp_path)
    store.keep(fingerprint(TASK), ANSWER)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:left])
    assert store.find(fingerprint(TASK)) is None
    assert "answer.pt cannot be read" in caplog.text


def test_a_site_does_not_train_a_round_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_image_site(tmp_path / "data", "A")
    job = small_image_job("fedavg", sites=("A",))

    def site() -> Site:
        return Site(job, "A", data, SiteOptions(tmp_path / "state", keep_answers=True))

    first = site()
    first.statistics()
    task = Broadcast(round=1, best_round=0, weights=read_weights(build_task(job).network()))
    answer = first.train(task)

    def no_training(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(local_training, "train", no_training)
    again = site().train(task)
    assert again.metrics == answer.metrics
    for key, value in answer.weights.items():
        np.testing.assert_array_equal(again.weights[key], value)
    with pytest.raises(AssertionError, match="trained again"):
        site().train(replace(task, weights={key: value * 2 for key, value in task.weights.items()}))
