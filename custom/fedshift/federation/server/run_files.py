"""Files in the server's folder of a run: models, state, and updates that wait until their round is closed.

A crash between any two calls leaves a run that can be resumed. On a full disk the run waits until there is space, and
says so.
"""

from __future__ import annotations

import errno
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from fedshift.federation.model_files import add_guarantee, add_references, add_thresholds, read_model, write_model_file
from fedshift.federation.server.run_record import RunRecord
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.server.update_check import Change
from fedshift.federation.tensors import read_tensors, to_arrays, to_tensors, write_tensors
from fedshift.methods.method_set import MethodSet, without
from fedshift.schema.errors import AFTER_AN_END, ConfigError, DiskFull
from fedshift.schema.messages import MethodArrays, Update, Weights
from fedshift.schema.results import BEST, FILE_NAME, LAST
from fedshift.tasks.starting import base_weights

log = logging.getLogger("fedshift")

STATE_FILE, FORMER_STATE_FILE = "server_state.pt", "former_server_state.pt"
NEXT_BEST = "next_best_global_model.pt"
"""A new best model, until the saved state names its round."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a full disk and of a used-up quota."""
INTERVAL = 2.0
"""Seconds between two attempts to write."""

T = TypeVar("T")


class FreeDisk:
    """Writes files of a run, and waits for space if there is none."""

    def __init__(
        self,
        folder: Path,
        *,
        patience: float,
        stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``patience``: seconds to wait before the run ends; no longer once ``stopped`` says that it was stopped."""
        self._folder, self._patience, self._stopped = folder, patience, stopped
        self._clock, self._sleep, self.waited = clock, sleep, 0.0
        """``waited``: seconds that the run has waited so far."""

    def write(self, what: str, write: Callable[[], T]) -> T:
        """Call ``write`` until there is space for what it writes; it leaves nothing behind when it fails.

        Raises:
            DiskFull: there was no space for too long, or the run was stopped meanwhile.
            OSError: the files cannot be written for another reason.
        """
        try:
            return write()
        except OSError as error:
            return self._wait(what, write, error)

    def _wait(self, what: str, write: Callable[[], T], error: OSError) -> T:
        """Try again until there is space, after the ``error`` of the first attempt."""
        since = self._clock()
        if error.errno not in FULL:
            raise error
        log.warning(
            "the disk of %s is full, so that %s cannot be written: the run waits for up to %.0f s until there is room",
            *(self._folder, what, self._patience),
        )
        while self._clock() < since + self._patience and not self._stopped():
            self._sleep(INTERVAL)
            try:
                written = write()
            except OSError as again:
                if again.errno not in FULL:
                    raise
                continue
            self.waited += self._clock() - since
            log.warning("there is room in %s again: the run goes on", self._folder)
            return written
        raise DiskFull(
            "disk-full",
            f"the disk of {self._folder} is full, {what} could not be written: make room; {AFTER_AN_END}",
        )


@dataclass
class ServerState:
    """The server's state after a closed round."""

    round: int
    weights: Weights
    methods: MethodArrays
    medians: dict[str, float] = field(default_factory=dict)
    """`fedshift.federation.server.outliers.medians` of the rounds so far."""
    ended: int | None = None
    """The round after which the run ends, once patience is over."""
    job: dict[str, Any] = field(default_factory=dict)
    best_round: int = 0
    results: str = ""
    """Content of ``results.json`` after this round."""


class RunFiles:
    """Writes and reads the files of a run. What writes raises as `FreeDisk.write`, what reads ConfigError."""

    def __init__(
        self, methods: MethodSet, folder: Path, record: RunRecord, disk: FreeDisk, *, weights: Path | None = None
    ) -> None:
        """``folder`` is made if it does not exist; ``record`` is for the models' headers and the state.

        ``weights``: as of `fedshift.federation.server.coordinator.Coordinator`.
        """
        self._weights = weights
        self._job, self._folder, self._record, self._spool = methods.job, folder, record, folder / "updates"
        self._personal, self._training_only, self.disk = methods.personal, methods.training_only, disk
        folder.mkdir(parents=True, exist_ok=True)

    def remove_run(self) -> None:
        """Delete what an earlier run left, first of all its state, so that it can't be resumed by mistake."""
        for name in (STATE_FILE, FORMER_STATE_FILE, NEXT_BEST, BEST, LAST, FILE_NAME):
            (self._folder / name).unlink(missing_ok=True)

    def write_results(self) -> None:
        """Write ``results.json``."""
        self.disk.write(FILE_NAME, lambda: self._record.results.write(self._folder))

    # --- updates ----------------------------------------------------------------------------------

    def store_update(self, update: Update, change: Change) -> SpooledUpdate:
        """Write an accepted update to disk; ``change`` is the result of its check."""
        path = self._spool / f"{self._job.task.sites.index(update.site):04d}.arrays"
        return self.disk.write(f"the update of site {update.site}", lambda: SpooledUpdate(update, path, change))

    def discard_updates(self) -> None:
        """Delete the sites' updates: nobody may read a single one after they were combined or the run ended."""
        shutil.rmtree(self._spool, ignore_errors=True)

    # --- state ------------------------------------------------------------------------------------

    def save_state(self, state: ServerState) -> None:
        """Save everything up to the end of a round. A new best model that the state names then replaces the former.

        Job, best round and results are filled in. The previous file is kept in case this one is damaged later.
        """
        state.job, state.best_round = self._job.dump(), self._record.selection.best
        state.results = self._record.results.model_dump_json(by_alias=True)
        self.disk.write("the state", lambda: self._write_state(state))

    def _write_state(self, state: ServerState) -> None:
        path, next_best = self._folder / STATE_FILE, self._folder / NEXT_BEST
        methods = {name: to_tensors(arrays) for name, arrays in state.methods.items()}
        if path.is_file():
            path.replace(self._folder / FORMER_STATE_FILE)
        write_tensors(vars(state) | {"weights": to_tensors(state.weights), "methods": methods}, path)
        if next_best.is_file():
            next_best.replace(self._folder / BEST)

    def load_state(self) -> ServerState | None:
        """The state after the last closed round of this job, if there is one."""
        state = load_state(self._folder)
        if state is not None and _without_hosts(state.job) != _without_hosts(self._job.dump()):
            raise ConfigError(
                "other-job", f"{self._folder} holds the state of another job: name another folder or start anew"
            )
        return state

    # --- models -----------------------------------------------------------------------------------

    def save_model(self, name: str, round_: int, weights: Weights, arrays: MethodArrays) -> None:
        """Write the model of a round to ``name``, with what is known of it so far in its header."""
        record, results, sites = self._record, self._record.results, self._job.task.sites
        score, statistics = record.selection.mean(round_), results.statistics
        kinds = {results.data[site].kind for site in sites if site in results.data}
        trained = record.trained_sites(round_)
        write = partial(
            write_model_file,
            self._folder / name,
            job=self._job,
            round_=round_,
            weights=weights,
            methods=without(arrays, self._training_only),
            personal=sorted(self._personal),
            scores={} if score is None else {f"val_{results.job.metric}": score},
            kind="phantom" if "phantom" in kinds else "patients" if "patients" in kinds else "images",
            sites=[site for site in sites if site in trained],
            lineage=results.job.lineage,
            statistics=[] if statistics is None else [site for site in sites if site not in statistics.absent],
            initial_weights=results.job.initial_weights,
            encrypted=self._encrypted,
            base=self._base,
        )
        self.disk.write(name, write)

    @property
    def _encrypted(self) -> bool:
        return self._job.federation.encryption == "ckks"

    @cached_property
    def _base(self) -> dict[str, Tensor] | None:
        """What adapters are merged into; None if the job has none, or the server cannot read them."""
        if self._job.task.network.adapters is None or self._encrypted:
            return None
        return base_weights(self._job, weights=self._weights)

    def add_reported(self, name: str, round_: int, *, own_models: bool) -> None:
        """Add to the model of a round what sites have reported of their scans, which thresholds they have chosen, and
        what it promises (``own_models``: as of `RunRecord.guarantee`).

        Its file is left as it is if there is nothing.
        """
        guarantee = self._record.guarantee(round_, own_models=own_models)
        if guarantee is not None:
            self.disk.write(name, lambda: add_guarantee(self._folder / name, guarantee))
        references, thresholds = self._record.references(round_), self._record.thresholds(round_)
        if references:
            self.disk.write(name, lambda: add_references(self._folder / name, references))
        specific = self._record.specific_thresholds(round_)
        if thresholds or specific:
            self.disk.write(name, lambda: add_thresholds(self._folder / name, thresholds=thresholds, specific=specific))

    def read_best(self, round_: int) -> tuple[Weights, MethodArrays]:
        """Weights and methods' arrays of the best model, which is that of ``round_``."""
        return read_model(self._folder / BEST, round_=round_)

    def recover_best(self, round_: int) -> bool:
        """After a restart: whether the model of the best round is there, under its final or its temporary name.

        A candidate of the round that was interrupted is deleted.
        """
        whole = next((name for name in (NEXT_BEST, BEST) if round_ and self._holds(name, round_)), None)
        if whole is not None:
            (self._folder / whole).replace(self._folder / BEST)
        elif round_:
            log.error("the model of round %d, the best so far, is lost: the best is chosen from later rounds", round_)
        (self._folder / NEXT_BEST).unlink(missing_ok=True)
        return whole is not None

    def _holds(self, name: str, round_: int) -> bool:
        try:
            read_model(self._folder / name, round_=round_)
        except ConfigError as error:
            log.debug("%s", error)
            return False
        return True


def load_state(folder: Path) -> ServerState | None:
    """Read the newest readable state in a folder: the last one, or else that of the round before. None if none exists.

    Raises:
        ConfigError: there are state files and none can be read.
    """
    paths = [path for path in (folder / STATE_FILE, folder / FORMER_STATE_FILE) if path.is_file()]
    for path in paths:
        try:
            return _read_state(path)
        except ConfigError as error:
            if path == paths[-1]:
                raise
            log.error("%s; the state of the round before is used", str(error).partition(":")[0])
    return None


def _read_state(path: Path) -> ServerState:
    content = read_tensors(path, "start the run anew")
    try:
        state = ServerState(**content)
        state.weights = to_arrays(content["weights"])
        state.methods = {name: to_arrays(tensors) for name, tensors in content["methods"].items()}
    except (TypeError, KeyError, AttributeError):
        raise ConfigError(
            "file-damaged", f"{path} is not the state of a run of this version: start the run anew"
        ) from None
    return state


def _without_hosts(job: dict[str, Any]) -> dict[str, Any]:
    """A job without how its sites are divided among processes, which changes no number."""
    divided = {"hosts", "shares"}
    return {**job, "federation": {key: value for key, value in job["federation"].items() if key not in divided}}
