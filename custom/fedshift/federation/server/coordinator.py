"""The server's side of a job: its sequence of rounds, and what happens when one opens, gets answers and closes.

Nothing here sends messages. Whoever does (one process, FLARE's workflow) takes each request of
`Coordinator.requests` to the invited sites and hands in their answers.

Accepted updates wait on disk and are combined tensor by tensor in site order. So memory doesn't grow with the number of
sites, and the sum doesn't depend on the order of arrival.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from fedshift.federation import refusals
from fedshift.federation.server.clipping import Limits, exceeded, usual_limits
from fedshift.federation.server.global_model import GlobalModel
from fedshift.federation.server.inbound import Inbound
from fedshift.federation.server.quorum import Quorum
from fedshift.federation.server.room import Room
from fedshift.federation.server.run_files import NEXT_BEST, RunFiles
from fedshift.federation.server.run_record import RunRecord
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.server.update_check import Rejected
from fedshift.methods.method_set import MethodSet
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import BY_CLOCK, JobSpec
from fedshift.schema.messages import Broadcast, Scores, SiteInfo, Update
from fedshift.schema.results import BEST, LAST, Rejection, Results
from fedshift.tasks.kinds import build_task

log = logging.getLogger("fedshift")


@dataclass(frozen=True)
class Request:
    """What the server asks of the invited sites: a task and the message that goes with it."""

    task: Literal["statistics", "train", "unmask", "validate"]
    broadcast: Broadcast


class Coordinator:
    """A job at the server. `requests` is the whole run; ``open`` and ``close`` are one round of it."""

    def __init__(
        self,
        job: JobSpec,
        folder: Path,
        *,
        on_progress: Callable[[Coordinator], None] | None = None,
        on_reject: Callable[[Rejection, int], None] = lambda rejection, round_: None,
        lay_out: Callable[[np.ndarray], np.ndarray] = lambda array: array,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make the initial model.

        Args:
            job: the resolved job.
            folder: where results, models and waiting updates go.
            on_progress: called whenever there is something new to show.
            on_reject: called for each rejected answer, with its round.
            lay_out: moves an array of weights to the place in memory from which it is sent.
            stopped: whether the run was stopped from outside while it waits for room on a full disk.
        """
        self.job = job
        self.folder = folder
        self.round = 0
        """The open round, or else the last one: 0 is the statistics round, ``rounds`` + 1 the final evaluation."""
        self.next_round = 0
        """The round after the last closed one."""
        self._on_progress = on_progress or (lambda coordinator: None)
        self._on_reject = on_reject
        self._lay_out = lay_out
        self._room = Room(folder, patience=job.federation.round_timeout, stopped=stopped)
        self._task = build_task(job)
        self.metric = self._task.metric
        self.quorum = Quorum(job)
        self.record = RunRecord(job, metric=self.metric)
        methods = MethodSet(job, self._task.network())  # not kept, because it has a second copy of the weights
        refusals.check(methods)
        self.own_models = methods.scores_own_model
        self.files = RunFiles(methods, folder, self.record)
        self.model = self._make_model(methods)
        self.inbound = self._make_inbound(methods)
        self._updates: dict[str, SpooledUpdate] = {}
        self._down_bytes = 0
        self._scored_round = 0
        self._ended: int | None = None

    # --- what can be asked of it ------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """Training rounds of the job, or fewer once the run is known to end early."""
        return self.job.task.schedule.rounds if self._ended is None else self._ended

    @property
    def results(self) -> Results:
        """The record of the run so far."""
        return self.record.results

    @property
    def invited(self) -> tuple[str, ...]:
        """Sites asked in the open round."""
        return self.quorum.invited(self.round)

    @property
    def answered(self) -> list[str]:
        """Sites whose answer to the open round was accepted, in order of arrival."""
        return self.record.answered

    @property
    def rejected(self) -> dict[str, str]:
        """Sites rejected in the open round, with the reason."""
        return self.record.rejected

    @property
    def waited(self) -> float:
        """Seconds that the run has waited for room on a full disk; they do not count for a round's deadline."""
        return self._room.waited

    @property
    def needed(self) -> int:
        """Minimum usable answers for the open round. Sampling sites doesn't change how many may fail."""
        return self.quorum.needed(self.round)

    @property
    def usable(self) -> int:
        """Answers to the open round so far that count towards the quorum."""
        return self.quorum.usable(self.answered)

    @property
    def hopeless(self) -> bool:
        """Whether so many sites were rejected that the open round can't reach its quorum."""
        return self.quorum.is_out_of_reach(self.round, answered=self.answered, rejected=self.rejected)

    @property
    def best_round(self) -> int:
        """The round with the best model so far; 0 if none was scored yet."""
        return self.record.selection.best

    def mean_score(self, round_: int) -> float | None:
        """Mean validation score of a round's model over the sites that reported one; None if no site did."""
        return self.record.selection.mean(round_)

    def site_scores(self, round_: int) -> dict[str, float]:
        """Validation score of a round's model at each site that reported one."""
        return self.record.selection.validation(round_)

    # --- the run ----------------------------------------------------------------------------------

    def requests(self) -> Iterator[Request]:
        """The job's requests in order: statistics, the training rounds, evaluation of the last and of the best model.

        For each request: send it to the ``invited`` sites, pass what they report of themselves to `register` and their
        answers to `accept` or `add_scores` (or `reject` a site that failed), then take the next request, which closes
        the round. With masks, each training round has a second request (`open_unmasking`). Evaluation of the best model
        is left out if it is the last one. After `resume` the requests begin with the round after the last closed one.

        Raises:
            QuorumError: a round had too few usable answers.
            ConfigError: the starting weights don't fit, or no site has validation data.
        """
        while self.next_round <= self.rounds:
            yield Request("train" if self.next_round else "statistics", self.open(self.next_round))
            question = self.open_unmasking()
            if question is not None:
                yield Request("unmask", question)
                del question
            self.close()
        yield Request("validate", self.open(self.rounds + 1))
        self.close_last()
        best = self.open_best()
        if best is not None:
            yield Request("validate", best)
        self.finish()

    def start_anew(self) -> None:
        """Delete what an earlier run left in this folder."""
        self.files.remove_run()

    def resume(self) -> int:
        """Go on from the last round that was closed in this folder. Returns it; -1 if there is none.

        Raises:
            ConfigError: the state in the folder is another job's, or damaged.
        """
        state = self.files.load_state()
        if state is None:
            return -1
        self.round, self.next_round, self.inbound.medians = state.round, state.round + 1, state.medians
        self.model.restore(state.weights, state.methods)
        self.record.restore(state.results)
        if self.files.recover_best(state.best_round):
            self.record.selection.best = state.best_round
        if state.ended is not None:
            self._end_after(state.ended)
        return state.round

    def open(self, round_: int) -> Broadcast:
        """Begin a round and make its message. The statistics round sends no weights.

        Raises:
            ConfigError: round 0 needs a file of starting weights that is missing or doesn't fit.
        """
        if round_ == 0:
            self._load_starting_weights()
        self.round = round_
        self._updates = {}
        self._scored_round = round_ - 1
        self.record.open_round(round_)
        if round_ == 0:
            broadcast = Broadcast(round=0, best_round=0, weights={}, sites=self.invited)
        else:
            broadcast = self.model.broadcast(
                round_, best_round=self.best_round, sites=self.invited, is_final=round_ > self.rounds
            )
        self.inbound.forget_model()
        self._down_bytes = payload_bytes(broadcast)
        self._on_progress(self)
        return broadcast

    def open_unmasking(self) -> Broadcast | None:
        """A further question to the sites before a round is closed: with masks, for what unmasks the sum."""
        return None

    def register(self, info: SiteInfo) -> None:
        """Record a site's data and machine, which it reports with its first answer.

        Raises:
            Rejected: the site's data have changed, or the job would mix simulated and real data.
        """
        self.record.add_site(info)

    def accept(self, update: Update) -> bool:
        """Check an update and store it until the round is closed; False if it was rejected.

        Raises:
            DiskFull: it could not be stored.
        """
        try:
            if update.site in self.job.task.held_out:
                raise Rejected("site", "is held out: it scores the final models and takes no part in training")
            if update.site not in self.job.task.sites:
                raise Rejected("site", f"is not one of {', '.join(self.job.task.sites)}")
            if update.site not in self.invited:
                raise Rejected("site", "was not drawn for this round")
            if update.site in self._updates:
                raise Rejected("site", "has answered this round already")
            if update.site not in self.results.data:
                raise Rejected("info", "the site has not said what its data are")
            n_samples = self.results.data[update.site].n["train"]
            bytes_up = payload_bytes(update)
            update, change = self.inbound.check_update(update, round_=self.round, n_samples=n_samples)
        except Rejected as fault:
            self.reject(update.site, fault.key, fault.reason)
            return False
        except Exception as error:  # a malformed update must not end the job
            log.exception("the update of site %s cannot be checked", update.site)
            self.reject(update.site, "update", f"cannot be checked ({type(error).__name__})")
            return False
        what = f"the update of site {update.site}"
        self._updates[update.site] = self._room.write(what, lambda: self.files.store_update(update, change))
        self.record.add_update(update, bytes_up=bytes_up, bytes_down=self._down_bytes)
        self._on_progress(self)
        return True

    def reject(self, site: str, key: str, reason: str) -> None:
        """Leave a site out of the open round; ``key`` names the part of its answer that is at fault."""
        rejection = self.record.add_rejection(site, key, reason)
        self._on_reject(rejection, self.round)
        self._on_progress(self)

    def take_out(self, site: str, key: str, reason: str) -> None:
        """Leave a site out of the open round that may not take part, with the update that it has sent.

        Scores of the final evaluation that it has sent stay.
        """
        if site in self._updates:
            self._reject_accepted(site, Rejected(key, reason))
        elif site not in self.answered:
            self.reject(site, key, reason)

    def close(self) -> None:
        """End a round: reject outliers, select among earlier models, combine the updates, save everything.

        Raises:
            QuorumError: too few usable updates, so that the model stays as it was; or the new model is not finite.
            ConfigError: no site has validation data.
        """
        self.record.stop_clock()
        if self.round == 0:
            self._reject_mixed_data()
        self._reject_outliers()
        self.record.close_round(self.invited)
        stored = [self._updates[s] for s in self.job.task.sites if s in self._updates]
        if self.round:
            for update in stored:
                self.record.add_validation(update.site, self.round - 1, dict(update.metrics))
        self._require(len(stored), f"round {self.round}" if self.round else "the statistics round")
        self.record.warn_of_mixed_precision()
        if self.round == 0:
            self._require_validation_data()
        if self.round > 1:
            self._select(self.round - 1)
            self._end_if_patience_is_over()
        self.model.combine(stored, self.round, limits=self._limits(stored), is_last=self.round == self.rounds)
        self.inbound.forget_model()
        if self.round:
            self.record.current.contributions = self.model.contributions(self.round)
            self._save_model(LAST, self.round)
        for update in stored:
            update.close()
        self.discard_waiting()
        self._write_results()
        self._save_state(self.round)
        self.next_round = self.round + 1
        self._on_progress(self)

    def discard_waiting(self) -> None:
        """Delete the sites' stored updates: nobody may read them after they were combined or the run ended."""
        self.files.discard_updates()

    def add_scores(self, scores: Scores) -> bool:
        """Check and record a site's scores from the final evaluation; False if they were rejected."""
        try:
            if scores.site not in self.job.task.everyone:
                raise Rejected("site", f"is not one of {', '.join(self.job.task.everyone)}")
            if scores.site in self.answered:
                raise Rejected("site", "has answered already")
            known = self.results.data.get(scores.site)
            self.inbound.check_scores(scores, round_=self._scored_round, counts={} if known is None else known.n)
        except Rejected as fault:
            self.reject(scores.site, fault.key, fault.reason)
            return False
        self.record.add_scores(scores)
        self._on_progress(self)
        return True

    def close_last(self) -> None:
        """End the evaluation of the last model, and with it the selection of the best one.

        Raises:
            QuorumError: too few sites answered.
            ConfigError: no site scored any round on validation data.
        """
        self._close_evaluation("the evaluation of the last model")
        self._select(self.rounds)
        self._save_state(self.rounds)
        if not self.best_round:
            raise ConfigError("no site could score any round on validation data, so none can be selected")
        self._save_model(LAST, self.rounds)
        self._record_selection()

    def open_best(self) -> Broadcast | None:
        """The message that has the best model scored on the test split; None if it is the last one, scored already."""
        if self.best_round == self.rounds:
            return None
        try:
            weights, arrays = self.files.read_best(self.best_round)
        except ConfigError as error:
            log.error("the best model is lost, that of round %d is taken: %s", self.rounds, error)
            self.record.selection.best = self.rounds
            self._save_model(BEST, self.rounds)
            self._record_selection()
            return None
        self._scored_round = self.best_round
        self.record.open_round(self.round)
        return self.model.stored_broadcast(
            self.best_round + 1, weights, arrays, best_round=self.best_round, sites=self.invited
        )

    def finish(self) -> None:
        """End the run: write the final scores.

        Raises:
            QuorumError: too few sites answered.
        """
        if self.best_round != self.rounds:
            self._close_evaluation("the evaluation of the best model")
        self.record.set_final(last_round=self.rounds, own_models=self.own_models)
        for name, round_ in ((BEST, self.best_round), (LAST, self.rounds)):
            self._room.write(name, partial(self.files.add_references, name, round_))
        self._save_state(self.rounds)
        self._write_results()
        self._on_progress(self)

    # --- steps of a round -------------------------------------------------------------------------

    def _make_model(self, methods: MethodSet) -> GlobalModel:
        return GlobalModel(methods, lay_out=self._lay_out)

    def _make_inbound(self, methods: MethodSet) -> Inbound:
        return Inbound(methods, self._task, self.model)

    def _load_starting_weights(self) -> None:
        """Only a run that begins needs the job's file of starting weights; one that goes on doesn't."""
        loaded = self.model.load_starting_weights(self._task.network())
        if loaded is not None:
            self.results.job.initial_weights, self.results.job.lineage = loaded
        log.info("job %s: initial weights: %s", self.job.name, self.results.job.initial_weights)
        if self.job.task.schedule.minutes is not None:
            log.warning("job %s: %s", self.job.name, BY_CLOCK)

    def _reject_mixed_data(self) -> None:
        """Reject sites with simulated data if the others have real data, or the other way round."""
        for site, fault in self.record.mixed_data():
            self.record.forget_site(site)
            if site in self._updates:
                self._reject_accepted(site, fault)

    def _reject_outliers(self) -> None:
        """Reject updates that are far from the others."""
        stored = [self._updates[s] for s in self.job.task.sites if s in self._updates]
        for site, fault in list(self.inbound.outliers(stored, self.round)):
            self._reject_accepted(site, fault)

    def _reject_accepted(self, site: str, fault: Rejected) -> None:
        """Reject an update that had been accepted, now that those of the other sites are known."""
        self._updates.pop(site).close()
        self.record.remove_update(site)
        self.reject(site, fault.key, fault.reason)

    def _limits(self, stored: Sequence[SpooledUpdate]) -> Limits | None:
        """The limits of the round's updates; logs those that are met."""
        federation = self.job.federation
        if federation.robust is not None or federation.encryption is not None:
            return None
        limits = usual_limits(
            stored,
            self.inbound.medians if self.round else {},
            norm_ratio=federation.clip_norm_ratio,
            opposed_ratio=federation.clip_opposed_ratio,
            sample_ratio=federation.clip_sample_ratio,
            weights=self.model.weights,
            trainable=self.model.trainable,
            by_clock=self.job.task.schedule.minutes is not None,
        )
        for site, what in exceeded(stored, limits) if limits else ():
            log.warning("round %d: site %s: %s", self.round, site, what)
        return limits

    def _require(self, n_usable: int, what: str) -> None:
        self.quorum.require(self.round, n_usable, answered=self.answered, rejected=self.rejected, what=what)

    def _require_validation_data(self) -> None:
        """Without it no round could be selected, which would else be found after the last round."""
        if not any(record.n["val"] for record in self.results.data.values()):
            raise ConfigError("no site has validation data, so no round could be selected: prepare more cases")

    def _close_evaluation(self, what: str) -> None:
        self.record.close_evaluation(self.invited)
        self._require(self.usable, what)

    def _select(self, round_: int) -> None:
        """Keep the model of ``round_`` if it is the best so far. It is the one that was sent last."""
        if self.record.selection.consider(round_):
            self._save_model(NEXT_BEST, round_)

    def _end_if_patience_is_over(self) -> None:
        """Make the present round the last one if the rounds since the best one are as many as the job has patience."""
        patience, scored = self.job.task.schedule.patience, self.round - 1
        if patience is None or not self.best_round or scored - self.best_round < patience:
            return
        if self.round < self.job.task.schedule.rounds:
            self._end_after(self.round)
            log.info(
                "round %d is the last: the mean validation %s has not risen in the %d rounds after round %d",
                *(self.round, self.metric, scored - self.best_round, self.best_round),
            )

    def _end_after(self, round_: int) -> None:
        self._ended = self.quorum.last_round = round_

    def _record_selection(self) -> None:
        self.record.select()
        self._write_results()

    def _write_results(self) -> None:
        self._room.write("results.json", lambda: self.results.write(self.folder))

    def _save_model(self, name: str, round_: int) -> None:
        """Write the model that ``round_`` made, as the next round sends it."""
        weights, arrays = self.model.as_sent(round_ + 1)
        self._room.write(name, lambda: self.files.save_model(name, round_, weights, arrays))

    def _save_state(self, round_: int) -> None:
        model, medians, ended = self.model, self.inbound.medians, self._ended
        self._room.write(
            "the state",
            lambda: self.files.save_state(round_, model.weights, model.method_state, medians, ended=ended),
        )


def payload_bytes(message: Broadcast | Update) -> int:
    """Bytes of the arrays in a message, without framing."""
    methods_bytes = sum(array.nbytes for named in message.arrays.values() for array in named.values())
    packed_bytes = sum(packed.nbytes for packed in message.packed.values())
    return sum(array.nbytes for array in message.weights.values()) + packed_bytes + methods_bytes
