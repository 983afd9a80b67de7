"""A task that comes again is answered as before; any other is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import make_image_site, small_image_job

from fedshift.federation.site import local_training
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.site.state import AnswerStore, fingerprint
from fedshift.federation.tensors import read_weights
from fedshift.schema.messages import Broadcast, Update
from fedshift.tasks.kinds import build_task

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
