"""Experiment trackers: the points that TensorBoard gets, sent to MLflow or Weights & Biases as well.

A tracker works in a thread of its own, so a slow or broken one never holds up a run. Where it sends to is the choice of
who starts the server's process, by the tracker's own environment variables, and never a job's.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from fedshift.schema.errors import ConfigError
from fedshift.schema.job import Tracking

log = logging.getLogger("fedshift")

Scalar = tuple[str, int, float]
"""Tag, round, value."""
EXPERIMENT = "fedshift"
RUN_ID = "mlflow_run_id"
"""File in a run's folder: MLflow's name for the run, so that one that is resumed goes on there."""
STORE = "mlflow.db"
"""MLflow's store in a run's folder, if ``$MLFLOW_TRACKING_URI`` names no other."""
MOST_WAITING = 1000
"""Updates that wait for a slow tracker before it is given up."""
BATCH = 500
"""Points in a message; MLflow takes up to 1000."""
END = 60.0
"""Seconds that the end of a run waits for what is still to be sent."""


class Sink(Protocol):
    """Something that takes points. All its methods are called in one thread, `open` first."""

    def open(self) -> None:
        """Connect."""
        ...

    def write(self, points: Sequence[Scalar]) -> None:
        """Send points; those of a resumed run come again from round 1."""
        ...

    def close(self, *, finished: bool) -> None:
        """The run has ended."""
        ...


class Tracker(threading.Thread):
    """Passes points to a sink, in the background. A sink that fails is given up with a warning; the run goes on."""

    def __init__(self, name: str, sink: Sink) -> None:
        """Start the thread; ``name`` is for messages."""
        super().__init__(name=f"tracker {name}", daemon=True)
        self._what, self._sink = name, sink
        self._waiting: queue.Queue[list[Scalar] | bool] = queue.Queue(maxsize=MOST_WAITING)
        self._failed = False
        self.start()

    def send(self, points: Sequence[Scalar]) -> None:
        """Have points sent soon."""
        self._put(list(points))

    def close(self, *, finished: bool) -> None:
        """Wait until all is sent, but not for ever."""
        self._put(finished)
        self.join(timeout=END)
        if self.is_alive():
            log.warning("%s did not take the last points within %g s", self._what, END)

    def run(self) -> None:
        """What the thread does."""
        try:
            self._sink.open()
            while not isinstance(points := self._waiting.get(), bool):
                self._sink.write(points)
            self._sink.close(finished=points)
        except Exception as error:  # of any library, about anything
            self._failed = True
            log.warning("nothing more is sent to %s: %s: %s", self._what, type(error).__name__, error)

    def _put(self, what: list[Scalar] | bool) -> None:
        if self._failed:
            return
        try:
            self._waiting.put_nowait(what)
        except queue.Full:
            self._failed = True
            log.warning("nothing more is sent to %s: it takes the points too slowly", self._what)


def make_trackers(tracking: Tracking, *, job: str, folder: Path) -> list[Tracker]:
    """The trackers of a run in ``folder``, beside TensorBoard.

    Raises:
        ConfigError: the tracker's package is not installed here.
    """
    if tracking == "tensorboard":
        return []
    if importlib.util.find_spec(tracking) is None:
        raise ConfigError(
            "not-installed",
            f"the job has federation.tracking={tracking}, which is not installed where the run is coordinated: "
            f"pip install 'fedshift[{tracking}]', or make the job without",
        )
    sink = MLflow(job=job, folder=folder) if tracking == "mlflow" else WandB(job=job, folder=folder)
    return [Tracker(tracking, sink)]


class MLflow:
    """A run of MLflow's experiment ``fedshift``, in ``$MLFLOW_TRACKING_URI`` or a SQLite file in the run's folder."""

    def __init__(self, *, job: str, folder: Path) -> None:
        """``job`` names the run, ``folder`` is fedshift's own."""
        self._job, self._folder = job, folder.absolute()
        self._client: Any = None
        self._run_id = ""
        self._sent_steps: dict[str, set[int]] | None = None

    def open(self) -> None:
        """Begin a run, or go on with that of an interrupted one."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would tell its makers of every run
        from mlflow import MlflowClient

        store = f"sqlite:///{(self._folder / STORE).as_posix()}"
        self._client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or store)
        note = self._folder / RUN_ID
        if note.is_file():
            self._run_id, self._sent_steps = note.read_text(encoding="utf-8").strip(), {}
            self._client.update_run(self._run_id, status="RUNNING")
            return
        existing = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = existing.experiment_id if existing else self._client.create_experiment(EXPERIMENT)
        self._run_id = self._client.create_run(experiment, run_name=self._job).info.run_id
        note.write_text(self._run_id + "\n", encoding="utf-8")

    def write(self, points: Sequence[Scalar]) -> None:
        """Send the points that MLflow does not have yet."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        new = (Metric(_key(tag), value, now, round_) for tag, round_, value in points if self._is_new(tag, round_))
        while batch := list(islice(new, BATCH)):
            self._client.log_batch(self._run_id, metrics=batch)

    def close(self, *, finished: bool) -> None:
        """Say whether the run has got to its end."""
        self._client.set_terminated(self._run_id, status="FINISHED" if finished else "KILLED")

    def _is_new(self, tag: str, round_: int) -> bool:
        if self._sent_steps is None:
            return True
        if tag not in self._sent_steps:
            self._sent_steps[tag] = {m.step for m in self._client.get_metric_history(self._run_id, _key(tag))}
        return round_ not in self._sent_steps[tag]


class WandB:
    """A run of the Weights & Biases project ``fedshift``: offline, in the run's folder, unless ``$WANDB_MODE`` differs.

    ``wandb sync`` sends an offline run. The round is the horizontal axis.
    """

    def __init__(self, *, job: str, folder: Path) -> None:
        """``job`` names the run, ``folder`` is fedshift's own."""
        self._job, self._folder = job, folder.absolute()
        self._run: Any = None
        self._defined: set[str] = set()

    def open(self) -> None:
        """Begin a run. One that is resumed begins anew, as an offline run cannot be asked what it has."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        settings = wandb.Settings(
            mode=os.environ.get("WANDB_MODE") or "offline",
            silent=True,
            host=EXPERIMENT,
            console="off",
            # Only the points leave: nothing of the machine, of the code, or of what it prints.
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(project=EXPERIMENT, name=self._job, dir=str(self._folder), settings=settings)

    def write(self, points: Sequence[Scalar]) -> None:
        """Send points, those of a round together."""
        for tag in {tag for tag, _, _ in points} - self._defined:
            self._run.define_metric(tag, step_metric="round")
            self._defined.add(tag)
        for number in sorted({round_ for _, round_, _ in points}):
            of_round = {tag: value for tag, round_, value in points if round_ == number}
            self._run.log({**of_round, "round": number})

    def close(self, *, finished: bool) -> None:
        """Say whether the run has got to its end."""
        self._run.finish(exit_code=0 if finished else 1)


def _key(tag: str) -> str:
    """A tag as MLflow accepts it."""
    return re.sub(r"[^\w ./-]", "_", tag)
