"""Files in the server's folder of a run: models, state, and updates that wait until their round is closed."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from fedshift.federation.model_files import add_references, read_model, write_model_file
from fedshift.federation.server.run_record import RunRecord
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.server.state_files import FORMER_STATE_FILE, STATE_FILE, ServerState, load_state, save_state
from fedshift.federation.server.update_check import Change
from fedshift.methods.method_set import MethodSet, without
from fedshift.schema.errors import ConfigError
from fedshift.schema.messages import MethodArrays, Update, Weights
from fedshift.schema.results import BEST, FILE_NAME, LAST

log = logging.getLogger("fedshift")

NEXT_BEST = "next_best_global_model.pt"
"""A new best model, until the saved state names its round."""


class RunFiles:
    """Writes and reads them. A crash between any two calls leaves a run that can be resumed."""

    def __init__(self, methods: MethodSet, folder: Path, record: RunRecord) -> None:
        """Make the folder if it does not exist.

        Args:
            methods: the job's methods.
            folder: the run's folder.
            record: the run's record, for the models' headers and the state.
        """
        self._job, self._folder, self._record = methods.job, folder, record
        self._personal, self._training_only = methods.personal, methods.training_only
        self._spool = folder / "updates"
        folder.mkdir(parents=True, exist_ok=True)

    def remove_run(self) -> None:
        """Delete what an earlier run left, first of all its state, so that it can't be resumed by mistake."""
        for name in (STATE_FILE, FORMER_STATE_FILE, NEXT_BEST, BEST, LAST, FILE_NAME):
            (self._folder / name).unlink(missing_ok=True)

    # --- updates ----------------------------------------------------------------------------------

    def store_update(self, update: Update, change: Change) -> SpooledUpdate:
        """Write an accepted update to disk; ``change`` is the result of its check."""
        path = self._spool / f"{self._job.task.sites.index(update.site):04d}.arrays"
        return SpooledUpdate(update, path, change)

    def discard_updates(self) -> None:
        """Delete the sites' updates: nobody may read a single one after they were combined or the run ended."""
        shutil.rmtree(self._spool, ignore_errors=True)

    # --- state ------------------------------------------------------------------------------------

    def save_state(
        self, round_: int, weights: Weights, methods: MethodArrays, medians: dict[str, float], *, ended: int | None
    ) -> None:
        """Save everything up to the end of a round. A new best model that the state names then replaces the former."""
        save_state(
            self._folder,
            ServerState(
                job=self._job.dump(),
                round=round_,
                best_round=self._record.selection.best,
                weights=weights,
                methods=methods,
                results=self._record.results.model_dump_json(by_alias=True),
                medians=medians,
                ended=ended,
            ),
        )
        self._confirm_best()

    def load_state(self) -> ServerState | None:
        """The state after the last closed round, if there is one.

        Raises:
            ConfigError: it is another job's, or can't be read.
        """
        state = load_state(self._folder)
        if state is not None and _without_hosts(state.job) != _without_hosts(self._job.dump()):
            raise ConfigError(f"{self._folder} holds the state of another job: name another folder or start anew")
        return state

    # --- models -----------------------------------------------------------------------------------

    def save_model(self, name: str, round_: int, weights: Weights, arrays: MethodArrays) -> None:
        """Write the model of a round to ``name``, with what is known of it so far in its header."""
        record, results = self._record, self._record.results
        score, statistics = record.selection.mean(round_), results.statistics
        kinds = {results.data[site].kind for site in self._job.task.sites if site in results.data}
        write_model_file(
            self._folder / name,
            job=self._job,
            round_=round_,
            weights=weights,
            methods=without(arrays, self._training_only),
            personal=sorted(self._personal),
            scores={} if score is None else {f"val_{results.job.metric}": score},
            kind=next((kind for kind in ("phantom", "patients") if kind in kinds), "images"),
            sites=[site for site in self._job.task.sites if site in record.trained_sites(round_)],
            lineage=results.job.lineage,
            statistics=[] if statistics is None else [s for s in self._job.task.sites if s not in statistics.absent],
            initial_weights=results.job.initial_weights,
            encrypted=self._job.federation.encryption == "ckks",
        )

    def add_references(self, name: str, round_: int) -> None:
        """Add what sites have told of their scans to the model file of a round; leave it as it is if none has.

        Raises:
            ConfigError: the file is lost or damaged.
        """
        references = self._record.references(round_)
        if references:
            add_references(self._folder / name, references)

    def read_best(self, round_: int) -> tuple[Weights, MethodArrays]:
        """Weights and methods' arrays of the best model, which is that of ``round_``.

        Raises:
            ConfigError: the file is lost, damaged or another round's.
        """
        return read_model(self._folder / BEST, round_=round_)

    def recover_best(self, round_: int) -> bool:
        """After a restart: whether the model of the best round is there, under its final or its temporary name.

        A candidate of the round that was interrupted is deleted.
        """
        found = False
        for name in (NEXT_BEST, BEST) if round_ else ():
            try:
                read_model(self._folder / name, round_=round_)
            except ConfigError as error:
                log.debug("%s", error)
                continue
            (self._folder / name).replace(self._folder / BEST)
            found = True
            break
        (self._folder / NEXT_BEST).unlink(missing_ok=True)
        if round_ and not found:
            log.error("the model of round %d, the best so far, is lost: the best is chosen from later rounds", round_)
        return found

    def _confirm_best(self) -> None:
        waiting = self._folder / NEXT_BEST
        if waiting.is_file():
            waiting.replace(self._folder / BEST)


def _without_hosts(job: dict[str, Any]) -> dict[str, Any]:
    """A job without how its sites are divided among processes, which changes no number."""
    divided = {"hosts", "shares"}
    return {**job, "federation": {key: value for key, value in job["federation"].items() if key not in divided}}
