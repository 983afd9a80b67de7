"""Trackers get what TensorBoard gets, and never hold up a run. MLflow and Weights & Biases are the real ones."""

from __future__ import annotations

import importlib.util
import logging
import re
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import small_job
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedshift.reporting import trackers as module
from fedshift.reporting.events import FOLDER, Events
from fedshift.reporting.trackers import EXPERIMENT, STORE, Scalar, Tracker, make_trackers
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import Final, FinalScores, Results, RoundRecord, SiteRound, new_results


def grown(results: Results, rounds: range, events: Events) -> None:
    """A run's results round by round: scores come a round later."""
    for number in rounds:
        if results.rounds:
            results.rounds[-1].sites["HK"].val = {"dice": number / 10}
        results.rounds.append(RoundRecord(round=number, sites={"HK": SiteRound(train_loss=1 / number)}))
        events.update(results)


def finish(results: Results, events: Events) -> None:
    scores = FinalScores(round=3, sites={"HK": {"test": {"dice": 0.7}}})
    results.final = Final(best=scores, last=scores)
    events.update(results)


def drawn(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's points."""
    read = EventAccumulator(str(folder / FOLDER))
    read.Reload()
    return {tag: [(e.step, pytest.approx(e.value)) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader")  # MLflow's
def test_mlflow_gets_what_tensorboard_gets_also_of_a_run_that_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="no MLflow: pip install 'fedshift[dev]'")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    job = small_job("fedavg")
    results = new_results(job, metric="dice")
    events = Events(tmp_path, trackers=make_trackers("mlflow", job=job.name, folder=tmp_path))
    grown(results, range(1, 4), events)
    events.close()
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / STORE}")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert [run.info.status for run in client.search_runs([experiment.experiment_id])] == ["KILLED"]

    events = Events(tmp_path, trackers=make_trackers("mlflow", job=job.name, folder=tmp_path))
    events.update(results)
    grown(results, range(4, 6), events)
    finish(results, events)
    events.close()
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (job.name, "FINISHED")
    assert run.data.params == {}
    sent = {tag: client.get_metric_history(run.info.run_id, tag) for tag in run.data.metrics}
    assert {tag: [(m.step, m.value) for m in history] for tag, history in sent.items()} == drawn(tmp_path)
    assert len(sent["train_loss/HK"]) == 5 and "test_best/dice/mean" in sent


@pytest.mark.slow
def test_weights_and_biases_gets_the_points_offline_and_nothing_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="no wandb: pip install 'fedshift[dev]'")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "machine-of-the-hub")
    job = small_job("fedavg")
    results = new_results(job, metric="dice")
    events = Events(tmp_path, trackers=make_trackers("wandb", job=job.name, folder=tmp_path))
    grown(results, range(1, 4), events)
    finish(results, events)
    events.close()
    (record,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    # wandb's service writes in a process of its own, sometimes a moment after the run is finished.
    sent, end = (b"val/dice/HK", b"train_loss/mean", b"test_last/dice/mean", job.name.encode()), time.monotonic() + 30
    while not all(word in (content := record.read_bytes()) for word in sent) and time.monotonic() < end:
        time.sleep(0.05)
    for word in sent:
        assert word in content
    for word in (b"machine-of-the-hub", str(Path.cwd()).encode(), b"torch=="):
        assert word not in content


def test_one_that_fails_or_is_slow_does_not_hold_up_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release, got = threading.Event(), []

    class Slow:
        def open(self) -> None:
            release.wait(20)

        def write(self, points: Sequence[Scalar]) -> None:
            got.extend(points)
            raise OSError("no route to host")

        def close(self, *, finished: bool) -> None:
            raise AssertionError("it has failed before")

    monkeypatch.setattr(module, "MOST_WAITING", 3)
    results = new_results(small_job("fedavg"), metric="dice")
    full, broken = Tracker("full", Slow()), Tracker("broken", Slow())
    events = Events(tmp_path, trackers=[full, broken])
    with caplog.at_level(logging.WARNING, logger="fedshift"):
        grown(results, range(1, 10), events)
        assert "sent to full: " in caplog.text
        release.set()
        events.close()
    assert "OSError: no route" in caplog.text
    assert len(drawn(tmp_path)["train_loss/HK"]) == 9


def test_a_tracker_that_is_not_installed_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert make_trackers("tensorboard", job="a", folder=tmp_path) == []
    for name in ("mlflow", "wandb"):
        with pytest.raises(ConfigError, match=re.escape(f"pip install 'fedshift[{name}]'")):
            make_trackers(name, job="a", folder=tmp_path)  # type: ignore[arg-type]
    assert small_job("fedavg", "federation.tracking=mlflow").federation.tracking == "mlflow"
