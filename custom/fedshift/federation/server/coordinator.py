"""The server's side of a job: its sequence of rounds, and what happens when one opens, gets answers and closes.

Nothing here sends messages. Whoever does (one process, FLARE's workflow) takes each request of `Coordinator.requests`
to the invited sites and hands in their answers. Accepted updates wait on disk and are combined tensor by tensor in site
order, so memory doesn't grow with the number of sites, and the sum doesn't depend on the order of arrival.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from fedshift.federation import refusals
from fedshift.federation.server.global_model import GlobalModel
from fedshift.federation.server.outliers import medians, outliers
from fedshift.federation.server.quorum import Quorum
from fedshift.federation.server.robust import limits_of_job
from fedshift.federation.server.run_files import NEXT_BEST, FreeDisk, RunFiles, ServerState
from fedshift.federation.server.run_record import RunRecord
from fedshift.federation.server.score_check import check_scores
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.server.update_check import Rejected, UpdateCheck
from fedshift.methods.method_set import MethodSet
from fedshift.schema import components
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import BY_CLOCK, JobSpec
from fedshift.schema.messages import Broadcast, Scores, SiteInfo, Update
from fedshift.schema.results import BEST, LAST, Rejection, Results
from fedshift.tasks.kinds import build_task

log = logging.getLogger("fedshift")

TaskName = Literal["statistics", "train", "unmask", "validate"]


@dataclass(frozen=True)
class Request:
    """What the server asks of the invited sites: a task and the message that goes with it."""

    task: TaskName
    broadcast: Broadcast


class Callbacks(TypedDict, total=False):
    """What whoever runs a `Coordinator` may ask of it.

    Attributes:
        on_progress: called whenever there is something new to show.
        on_reject: called for each rejected answer, with its round.
        stopped: whether the run was stopped from outside while it waits for space on a full disk.
    """

    on_progress: Callable[[Coordinator], None] | None
    on_reject: Callable[[Rejection, int], None]
    stopped: Callable[[], bool]


class Coordinator:
    """A job at the server. `requests` is the whole run; ``open`` and ``close`` are one round of it."""

    def __init__(
        self, job: JobSpec, folder: Path, *, weights: Path | None = None, **callbacks: Unpack[Callbacks]
    ) -> None:
        """Make the initial model. Results, models and waiting updates go to ``folder``.

        ``weights``: a folder in which the job's file of starting weights is looked for first.

        Raises:
            ConfigError: the job cannot run, or needs a package that is not installed here in its version.
        """
        components.admit(job.packages, where="the server")
        self.job, self.folder, self._weights = job, folder, weights
        self.round = 0
        """The open round, or else the last one: 0 is the statistics round, ``rounds`` + 1 the final evaluation."""
        self.next_round = 0
        """The round after the last closed one."""
        self._on_progress = callbacks.get("on_progress") or (lambda coordinator: None)
        self._on_reject: Callable[[Rejection, int], None] = callbacks.get("on_reject", lambda rejection, round_: None)
        self._task = build_task(job)
        self.metric = self._task.metric
        methods = MethodSet(job, self._task.network())  # not kept, because it has a second copy of the weights
        methods.check()
        refusals.check(methods)
        self.is_pooled, self.own_models = methods.pooled is not None, methods.scores_own_model
        self._fine_tunes = methods.fine_tune_epochs > 0
        self.quorum = Quorum(job)
        self.record = RunRecord(job, metric=self.metric, select_last=self.quorum.samples_sites)
        stopped = callbacks.get("stopped", lambda: False)
        disk = FreeDisk(folder, patience=job.federation.round_timeout, stopped=stopped)
        self.files = RunFiles(methods, folder, self.record, disk, weights=weights)
        self.model = self._make_model(methods)
        self.update_check = self._make_update_check(methods)
        self.medians: dict[str, float] = {}
        """`fedshift.federation.server.outliers.medians` of the rounds so far."""
        self._updates: dict[str, SpooledUpdate] = {}
        self._down_bytes, self._scored_round = 0, 0
        self._ended: int | None = None
        if isinstance(job.evaluation.select, int):
            self._end_after(job.evaluation.select)

    def _make_model(self, methods: MethodSet) -> GlobalModel:
        return GlobalModel(methods)

    def _make_update_check(self, methods: MethodSet) -> UpdateCheck:
        return UpdateCheck(methods, self._task, self.model)

    # --- the run ----------------------------------------------------------------------------------

    def requests(self) -> Iterator[Request]:
        """The job's requests in order: statistics, the training rounds, evaluation of the last and of the best model.

        For each request: send it to the ``invited`` sites, pass their answers to `take` (or `reject` a site that
        failed), then take the next request, which closes the round. With masks, each training round has a second
        request (`open_unmasking`). Evaluation of the best model is left out if it is the last one. After `resume` the
        requests begin with the round after the last closed one; final models are scored again, as a site may have been
        missing.

        Raises:
            QuorumError: a round had too few usable answers.
            ConfigError: the starting weights don't fit, or no site has validation data.
        """
        self.results.final, self.results.evaluations = None, []
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
        self.round, self.next_round, self.medians = state.round, state.round + 1, state.medians
        self.model.restore(state.weights, state.methods)
        self.record.restore(state.results)
        if self.files.recover_best(state.best_round):
            self.record.selection.best = state.best_round
        if state.ended is not None:
            self._end_after(state.ended)
        return state.round

    # --- a round ----------------------------------------------------------------------------------

    def open(self, round_: int) -> Broadcast:
        """Begin a round and make its message. The statistics round sends no weights.

        Raises:
            ConfigError: round 0 needs a file of starting weights that is missing or doesn't fit.
        """
        if round_ == 0:
            self._load_starting_weights()
        self.round, self._updates, self._scored_round = round_, {}, round_ - 1
        self.record.open_round(round_)
        sites, final = self.invited, round_ > self.rounds
        if round_ == 0:
            broadcast = Broadcast(round=0, best_round=0, weights={}, sites=sites)
        else:
            broadcast = self.model.broadcast(round_, best_round=self.best_round, sites=sites, is_final=final)
        self.update_check.forget_model()
        self._down_bytes = payload_bytes(broadcast)
        self._on_progress(self)
        return broadcast

    def open_unmasking(self) -> Broadcast | None:
        """A further question to the sites before a round is closed: with masks, for what unmasks the sum."""
        return None

    def take(self, answer: Update | Scores, info: SiteInfo | None = None) -> bool:
        """Check a site's answer, and what it reports of itself, and keep it; False if it was rejected.

        Raises:
            DiskFull: it could not be stored.
        """
        return self.add_scores(answer, info) if isinstance(answer, Scores) else self.accept(answer, info)

    def register(self, info: SiteInfo) -> None:
        """Record a site's data and machine, which it reports with its first answer.

        Raises:
            Rejected: the site's data have changed, or the job would mix simulated and real data.
        """
        self.record.add_site(info)

    def accept(self, update: Update, info: SiteInfo | None = None) -> bool:
        """`take` an update, which is stored until the round is closed."""
        try:
            if info is not None:
                self.register(info)
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
            n_samples, bytes_up = self.results.data[update.site].n["train"], payload_bytes(update)
            update, change = self.update_check.check(update, round_=self.round, n_samples=n_samples)
        except Rejected as fault:
            self.reject(update.site, fault.key, fault.reason)
            return False
        except Exception as error:  # a malformed update must not end the job
            log.exception("the update of site %s cannot be checked", update.site)
            self.reject(update.site, "update", f"cannot be checked ({type(error).__name__})")
            return False
        self._updates[update.site] = self.files.store_update(update, change)
        self.record.add_update(update, bytes_up=bytes_up, bytes_down=self._down_bytes)
        self._on_progress(self)
        return True

    def add_scores(self, scores: Scores, info: SiteInfo | None = None) -> bool:
        """`take` a site's scores from the final evaluation."""
        try:
            if info is not None:
                self.register(info)
            if scores.site not in self.job.task.everyone:
                raise Rejected("site", f"is not one of {', '.join(self.job.task.everyone)}")
            if scores.site in self.answered:
                raise Rejected("site", "has answered already")
            known, round_ = self.results.data.get(scores.site), self._scored_round
            counts = {} if known is None else known.n
            check_scores(scores, self.job, self._task, round_=round_, counts=counts, fine_tunes=self._fine_tunes)
        except Rejected as fault:
            self.reject(scores.site, fault.key, fault.reason)
            return False
        self.record.add_scores(scores)
        self._on_progress(self)
        return True

    def reject(self, site: str, key: str, reason: str) -> None:
        """Leave a site out of the open round; ``key`` names the part of its answer that is at fault."""
        rejection = self.record.add_rejection(site, key, reason)
        self._on_reject(rejection, self.round)
        self._on_progress(self)

    def take_out(self, site: str, key: str, reason: str) -> None:
        """Leave a site out that may not take part, with its update of the open round; scores that it has sent stay."""
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
        round_ = self.round
        self.record.stop_clock()
        for site, fault in self.record.mixed_data() if round_ == 0 else ():
            self.record.forget_site(site)
            if site in self._updates:
                self._reject_accepted(site, fault)
        self._reject_outliers()
        stored = self._stored()
        self.record.close_round(self.invited, {update.site: update.metrics for update in stored})
        self._require(len(stored), f"round {round_}" if round_ else "the statistics round")
        if round_ == 0:
            self.require_validation_data()
        if round_ > 1:
            self._select(round_ - 1)
            self._end_if_patience_is_over()
        model = self.model
        limits = limits_of_job(
            stored, self.job, round_, usual=self.medians, weights=model.weights, trainable=model.trainable
        )
        model.combine(stored, round_, limits=limits, is_last=round_ == self.rounds)
        self.update_check.forget_model()
        if round_:
            self.record.current.contributions = model.contributions(round_)
            self.files.save_model(LAST, round_, *model.as_sent(round_ + 1))
        self.discard_waiting()
        self.files.write_results()
        self._save_state(round_)
        self.next_round = round_ + 1
        self._on_progress(self)

    def discard_waiting(self) -> None:
        """Delete the sites' stored updates: nobody may read them after they were combined or the run ended."""
        self.files.discard_updates()

    # --- the end of the run -----------------------------------------------------------------------

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
            raise ConfigError(
                "no-validation-data", "no site could score any round on validation data, so none can be selected"
            )
        self.files.save_model(LAST, self.rounds, *self.model.as_sent(self.rounds + 1))
        self._record_selection()

    def open_best(self) -> Broadcast | None:
        """The message that has the best model scored on the test split; None if it is the last, scored already."""
        if self.best_round == self.rounds:
            return None
        try:
            weights, arrays = self.files.read_best(self.best_round)
        except ConfigError as error:
            log.error("the best model is lost, that of round %d is taken: %s", self.rounds, error)
            self.record.selection.best = self.rounds
            self.files.save_model(BEST, self.rounds, *self.model.as_sent(self.rounds + 1))
            self._record_selection()
            return None
        self._scored_round = self.best_round
        self.record.open_round(self.round)
        return self.model.stored_broadcast(
            self.best_round + 1, weights, arrays, best_round=self.best_round, sites=self.invited
        )

    def finish(self) -> None:
        """End the run: write the final scores. Raises as `close_last` if too few sites answered."""
        if self.best_round != self.rounds:
            self._close_evaluation("the evaluation of the best model")
        self.record.set_final(last_round=self.rounds, own_models=self.own_models)
        for name, round_ in ((BEST, self.best_round), (LAST, self.rounds)):
            self.files.add_reported(name, round_, own_models=self.own_models)
        final = self.results.final
        if final is not None and final.guarantee is not None and final.guarantee.is_empty:
            log.warning(
                "evaluation.guarantee=%g: the model promises nothing, for no site sent a risk curve: each has too few "
                "validation cases, or a policy that keeps it",
                final.guarantee.alpha,
            )
        self._save_state(self.rounds)
        self.files.write_results()
        self._on_progress(self)

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
        """Seconds that the run has waited for space on a full disk; they do not count for a round's deadline."""
        return self.files.disk.waited

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

    # --- steps of a round -------------------------------------------------------------------------

    def _load_starting_weights(self) -> None:
        """Only a run that begins needs the job's file of starting weights; one that goes on doesn't."""
        if self.job.task.network.weights is not None:
            loaded = self.model.load_starting_weights(weights=self._weights)
            self.results.job.initial_weights, self.results.job.lineage = loaded
        log.info("job %s: initial weights: %s", self.job.name, self.results.job.initial_weights)
        if self.job.task.schedule.minutes is not None:
            log.warning("job %s: %s", self.job.name, BY_CLOCK)

    def _stored(self) -> list[SpooledUpdate]:
        """The open round's accepted updates, in site order."""
        return [self._updates[site] for site in self.job.task.sites if site in self._updates]

    def _reject_outliers(self) -> None:
        """Reject updates that are far from the others."""
        federation, stored = self.job.federation, self._stored()
        usual = medians(stored, self.medians)
        if self.round:  # the statistics round has other arrays
            self.medians = usual
        ratios = {"max_norm_ratio": federation.max_norm_ratio, "max_sample_ratio": federation.max_sample_ratio}
        for site, fault in list(outliers(stored, usual=usual, specs=self.update_check.specs, **ratios)):
            self._reject_accepted(site, fault)

    def require_validation_data(self) -> None:
        """Without it no round could be selected, which would else be noticed after the last round."""
        if not any(record.n["val"] for record in self.results.data.values()):
            raise ConfigError(
                "no-validation-data", "no site has validation data, so no round could be selected: prepare more cases"
            )

    def _reject_accepted(self, site: str, fault: Rejected) -> None:
        """Reject an update that had been accepted, now that those of the other sites are known."""
        del self._updates[site]
        self.record.remove_update(site)
        self.reject(site, fault.key, fault.reason)

    def _require(self, n_usable: int, what: str) -> None:
        if n_usable < self.quorum.needed(self.round):
            raise self.quorum.shortage(self.round, n_usable, answered=self.answered, rejected=self.rejected, what=what)

    def _close_evaluation(self, what: str) -> None:
        self.record.close_evaluation(self.invited)
        self._require(self.usable, what)

    def _select(self, round_: int) -> None:
        """Keep the model of ``round_`` if it is the best so far. It is the one that was sent last."""
        if self.record.selection.consider(round_):
            self.files.save_model(NEXT_BEST, round_, *self.model.as_sent(round_ + 1))

    def _end_if_patience_is_over(self) -> None:
        """Make the present round the last one if the rounds since the best one are as many as the job has patience."""
        patience, scored = self.job.task.schedule.patience, self.round - 1
        if patience is None or not self.best_round or scored - self.best_round < patience:
            return
        if self.round < self.job.task.schedule.rounds:
            of_sites = "mean" if self.job.evaluation.select == "mean" else "worst site's"
            self._end_after(self.round)
            log.info(
                "round %d is the last: the %s validation %s has not risen in the %d rounds after round %d",
                *(self.round, of_sites, self.metric, scored - self.best_round, self.best_round),
            )

    def _end_after(self, round_: int) -> None:
        self._ended = self.quorum.last_round = round_

    def _record_selection(self) -> None:
        self.record.select()
        self.files.write_results()

    def _save_state(self, round_: int) -> None:
        model = self.model
        self.files.save_state(ServerState(round_, model.weights, model.method_state, self.medians, self._ended))


def payload_bytes(message: Broadcast | Update) -> int:
    """Bytes of the arrays in a message, without framing."""
    methods_bytes = sum(array.nbytes for named in message.arrays.values() for array in named.values())
    packed_bytes = sum(packed.nbytes for packed in message.packed.values())
    return sum(array.nbytes for array in message.weights.values()) + packed_bytes + methods_bytes
