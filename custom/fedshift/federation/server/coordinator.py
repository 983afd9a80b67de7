"""The server's side of a job: guard, combine, selection, results. Used by the FLARE workflow and in one process.

Accepted updates wait on disk and are reduced tensor by tensor in site order, so memory does not grow with the
number of sites and the sum does not depend on who came first.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from fedshift import methods
from fedshift.data.samples import epoch_starts
from fedshift.federation.compression import check as check_compression
from fedshift.federation.model_files import (
    FORMER_STATE_FILE,
    STATE_FILE,
    ServerState,
    load_progress,
    read_model,
    save_checkpoint,
    save_progress,
)
from fedshift.federation.server import robust
from fedshift.federation.server.guard import (
    TRAINING,
    Change,
    Received,
    Rejected,
    check_packed,
    check_scores,
    check_update,
    medians,
    outliers,
)
from fedshift.federation.server.selection import Selection
from fedshift.federation.server.spool import StoredUpdate
from fedshift.federation.site.site import SCORED, SCORED_IF_HELD_OUT, read_weights
from fedshift.methods.base import ServerContext
from fedshift.schema import compression
from fedshift.schema.compression import Packed, packed_keys
from fedshift.schema.errors import ConfigError, MixedDataError, QuorumError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, MethodArrays, Scores, SiteInfo, Update, Weights
from fedshift.schema.results import (
    BEST,
    FILE_NAME,
    LAST,
    DataRecord,
    Final,
    FinalScores,
    MachineRecord,
    Rejection,
    Results,
    RoundRecord,
    Selected,
    SiteRound,
    new_results,
)
from fedshift.schema.seeding import generator
from fedshift.tasks import pretrained
from fedshift.tasks.base import build_task

log = logging.getLogger("fedshift")

NEXT_BEST = "next_best_global_model.pt"
"""Until the server's state says that it is the best."""
MOST_TEXT = 300
"""Characters of what a site says went wrong."""


class Coordinator:
    """State of a job at the server: one ``open``, any number of ``accept``, one ``close`` for each round."""

    def __init__(
        self,
        job: JobSpec,
        folder: Path,
        *,
        on_progress: Callable[[Coordinator], None] | None = None,
        on_reject: Callable[[Rejection, int], None] = lambda rejection, round_: None,
        lay_out: Callable[[np.ndarray], np.ndarray] = lambda array: array,
    ) -> None:
        """Make the initial model.

        Args:
            job: the resolved job.
            folder: where results, models and waiting updates go.
            on_progress: called whenever there is something new to show.
            on_reject: called with every answer that is left out, and its round.
            lay_out: gives an array of the weights the place in memory that it is best sent from.
        """
        self.job = job
        self.folder = folder
        self.round = 0
        self.answered: list[str] = []
        self._on_progress = on_progress or (lambda coordinator: None)
        self._on_reject = on_reject
        self._lay_out = lay_out
        self._task = build_task(job)
        self.metric = self._task.metric
        self.results = new_results(job, metric=self.metric)
        drawn = job.federation.sites_per_round
        self._sampled = drawn if drawn is not None and drawn < len(job.task.sites) else None
        self._selection = Selection(job.task.sites, self.metric, last=self._sampled is not None)
        net = self._task.network()
        self._weights = read_weights(net)
        self._methods = methods.load(job.methods)
        methods.check(self._methods, job, net)
        robust.check(self._methods, job, net)
        check_compression(self._methods, job)
        self._halves = [(m.name, m.server()) for m in self._methods]
        self._specs = methods.array_specs(self._methods, net, self._task.sizes)
        self._not_kept = {
            (m.name, name) for m in self._methods for name, s in m.server().down(net).items() if not s.keep
        }
        self._personal = frozenset().union(*(m.client().personal(net) for m in self._methods))
        self._withheld = frozenset().union(*(m.client().withheld(net) for m in self._methods))
        self._own_models = any(m.client().scores_own_model(net) for m in self._methods)
        self._fine_tuned: dict[tuple[int, str], dict[str, dict[str, float]]] = {}
        self._evaluations: dict[int, dict[str, dict[str, Evaluation]]] = {}
        self._own_evaluations: dict[tuple[int, str], Evaluation] = {}
        self._held_out_scores: dict[tuple[int, str], dict[str, dict[str, float]]] = {}
        self._trainable = frozenset(name for name, _ in net.named_parameters())
        self._packed_keys = packed_keys(self._weights, self._trainable, job.federation.weights_as)
        self._received = self._compared_with()
        self._updates: dict[str, StoredUpdate] = {}
        self._medians: dict[str, float] = {}
        self._record = RoundRecord(round=0)
        self._started = time.monotonic()
        self._down_bytes = 0
        self._scoring = 0
        self._told_precisions = ""
        self._spool = folder / "updates"
        folder.mkdir(parents=True, exist_ok=True)
        for _, half in self._halves:
            half.start(net, self._context(0))

    @property
    def rounds(self) -> int:
        """Training rounds of the job."""
        return self.job.task.schedule.rounds

    @property
    def invited(self) -> tuple[str, ...]:
        """Sites that take part in the open round: all that train, or those drawn for it; at last the held-out too."""
        sites = self.job.task.sites
        if self.round > self.rounds:
            return self.job.task.everyone
        if self._sampled is None or not self.round:
            return sites
        rng = generator(self.job.seed, "server", self.round, "sites")
        drawn = sorted(torch.randperm(len(sites), generator=rng)[: self._sampled].tolist())
        return tuple(sites[number] for number in drawn)

    @property
    def needed(self) -> int:
        """Usable answers without which the open round does not count; as many may fail as in a drawn round."""
        asked = self._sampled or len(self.job.task.sites)
        return self.job.federation.min_sites + len(self._counted) - asked

    @property
    def _counted(self) -> tuple[str, ...]:
        """Invited sites that count towards the quorum."""
        return self.job.task.sites if self.round > self.rounds else self.invited

    @property
    def best_round(self) -> int:
        """The round whose aggregate is the best so far; 0 if none was scored yet."""
        return self._selection.best

    @property
    def rejected(self) -> dict[str, str]:
        """Sites whose answer was left out of the open round, and what was wrong with it."""
        return {fault.site: f"{fault.key}: {fault.reason}" for fault in self._record.rejected}

    def open(self, round_: int) -> Broadcast:
        """Begin a round (0: statistics; ``rounds`` + 1: only to score the last aggregate).

        Raises:
            ConfigError: round 0 needs a file of starting weights that is not here or does not fit.
        """
        if round_ == 0:
            self._start()
        self.round = round_
        self.answered = []
        self._updates = {}
        self._record = RoundRecord(round=round_)
        self._started = time.monotonic()
        self._scoring = round_ - 1
        for key in self._weights:  # one after another: never two models
            self._weights[key] = self._lay_out(self._weights[key])
        self._received = self._compared_with()
        broadcast = self._broadcast(round_, self._weights)
        self._down_bytes = payload_bytes(broadcast)
        self._on_progress(self)
        return broadcast

    def register(self, info: SiteInfo) -> None:
        """What a site says of its data, with its first answer.

        Raises:
            MixedDataError: simulated and real data would meet in one job.
            Rejected: the site had said something else before; or it is held out, and its data are of another kind
                than those of the training that is over by now.
        """
        record = DataRecord.model_validate(
            {
                "kind": info.kind,
                "n": {"train": info.n_train, "val": info.n_val, "test": info.n_test},
                "manifest_sha256": info.manifest_sha256,
                "split_rule": info.split_rule,
                "unknown_spacing": info.unknown_spacing,
            }
        )
        machine = MachineRecord(device=info.device, precision=info.precision, threads=info.threads)  # type: ignore[arg-type]
        if self.results.data.get(info.site, record) != record:
            raise Rejected("info", "the site's data have changed since the run began; start the run again")
        for site, other in self.results.data.items():
            if (other.kind == "phantom") != (record.kind == "phantom"):
                mixed = (
                    f"site {info.site} has data of kind {record.kind} and site {site} of kind {other.kind}: "
                    "a job uses either simulated data everywhere or nowhere"
                )
                raise Rejected("info", mixed) if info.site in self.job.task.held_out else MixedDataError(mixed)
        known = {**self.results.data, info.site: record}
        self.results.data = {site: known[site] for site in self.job.task.everyone if site in known}
        machines = {**self.results.machines, info.site: machine}
        self.results.machines = {site: machines[site] for site in self.results.data if site in machines}

    def accept(self, update: Update) -> bool:
        """Check an update and let it wait on disk. A refused one is recorded and logged."""
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
            update = self._restored(update)
            change = self._check(update, n_samples)
        except Rejected as fault:
            self.reject(update.site, fault.key, fault.reason)
            return False
        except Exception as error:  # no update, however strange, may end the job
            log.exception("the update of site %s cannot be checked", update.site)
            self.reject(update.site, "update", f"cannot be checked ({type(error).__name__})")
            return False
        path = self._spool / f"{self.job.task.sites.index(update.site):04d}.arrays"
        self._updates[update.site] = StoredUpdate(update, path, change)
        metrics = dict(update.metrics)
        train_loss, seconds = metrics.pop("train_loss", None), metrics.pop("seconds", 0.0)
        if self.round > 0:
            self._record.sites[update.site] = SiteRound(
                n=update.n_samples,
                steps=update.n_steps,
                train_loss=train_loss,
                bytes_up=bytes_up,
                bytes_down=self._down_bytes,
                seconds=round(seconds, 3),
            )
        self.answered.append(update.site)
        self._on_progress(self)
        return True

    def reject(self, site: str, key: str, reason: str) -> None:
        """Leave a site out of this round, and say so. What a site says may be long, or no text for a terminal."""
        site, key, reason = (
            " ".join("".join(c if c.isprintable() else " " for c in str(t)[:MOST_TEXT]).split()) or "(no name)"
            for t in (site, key, reason)
        )
        log.error("round %d: site %s is left out: %s: %s", self.round, site, key, reason)
        rejection = Rejection(site=site, key=key, reason=reason)
        self._record.rejected.append(rejection)
        self._on_reject(rejection, self.round)
        self._on_progress(self)

    def require(self, n_usable: int, what: str) -> None:
        """Hold a step to the quorum.

        Raises:
            QuorumError: fewer usable answers than the job needs.
        """
        needed = self.needed
        if n_usable < needed:
            said = self.rejected
            without: dict[str, list[str]] = {}
            for site in [*said, *(s for s in self._counted if s not in said)]:
                if site not in self.answered and site not in self.job.task.held_out:
                    without.setdefault(said.get(site, "no answer yet"), []).append(site)
            out = "; ".join(f"{', '.join(sites)} ({reason})" for reason, sites in without.items())
            raise QuorumError(
                f"{what}: {n_usable} usable answers, {needed} needed; without {out or 'nobody'}; "
                "mend these sites or lower federation.min_sites"
            )

    @property
    def usable(self) -> int:
        """Usable answers so far of sites that count towards the quorum."""
        return len({*self.answered} & {*self.job.task.sites})

    @property
    def hopeless(self) -> bool:
        """Whether too many sites were refused for the round to reach its quorum."""
        sites = set(self._counted)
        out = sites & {r.site for r in self._record.rejected} - set(self.answered)
        return len(sites) - len(out) < self.needed

    def close(self) -> None:
        """End a round: leave out what is far from the others, select among earlier aggregates, combine the rest.

        Raises:
            QuorumError: fewer usable updates than the job needs; the model stays as it was.
        """
        what = f"round {self.round}" if self.round else "the statistics round"
        self._record.seconds = round(time.monotonic() - self._started, 3)
        self._leave_out_outliers()
        self._record.absent = [s for s in self.invited if s not in self.answered]
        self._record.sites = {s: self._record.sites[s] for s in self.job.task.sites if s in self._record.sites}
        if self.round:
            self.results.rounds.append(self._record)
        else:
            self.results.statistics = self._record
        stored = [self._updates[s] for s in self.job.task.sites if s in self._updates]
        for update in stored:
            scores = {name: value for name, value in update.metrics.items() if name not in TRAINING}
            if scores and self.round > 1:
                self._note_scores(Scores(update.site, self.round - 1, {"val": scores}))
        self.require(len(stored), what)
        self._tell_precisions()
        if not self.round:
            self._require_validation_data()
        if self.round > 1:
            self._select(self.round - 1)
        self._combine(stored)
        if self.round:
            self._check_aggregate()
            self._save(LAST, self.round, self._as_received(), self._arrays(self.round + 1))
        for update in stored:
            update.close()
        self.discard_waiting()
        self.results.write(self.folder)
        self._remember(self.round)
        self._confirm_best()
        self._on_progress(self)

    def discard_waiting(self) -> None:
        """Remove single sites' updates, which nobody may see once they are combined or the run has ended."""
        shutil.rmtree(self._spool, ignore_errors=True)

    def start_anew(self) -> None:
        """Remove what an earlier run left in this folder, first of all what `resume` would go on from."""
        for name in (STATE_FILE, FORMER_STATE_FILE, NEXT_BEST, BEST, LAST, FILE_NAME):
            (self.folder / name).unlink(missing_ok=True)

    def resume(self) -> int:
        """Go on from the last round that was closed in this folder. Returns it; -1 if none was.

        Raises:
            ConfigError: what is in the folder is another job's, or damaged.
        """
        state = load_progress(self.folder)
        if state is None:
            return -1
        if state.job != self.job.dump():
            raise ConfigError(f"{self.folder} holds the state of another job: name another folder or start anew")
        self.round, self._weights, self._medians = state.round, state.weights, state.medians
        for name, half in self._halves:
            half.state = state.methods.get(name, {})
        self.results = Results.model_validate_json(state.results)
        if self.results.final is None:
            self.results.evaluations = []  # are done anew
        for record in self.results.rounds:
            for name, site in record.sites.items():
                if site.val or site.test:
                    splits = {"val": site.val, "test": site.test or {}}
                    self._selection.note(Scores(name, record.round, {s: v for s, v in splits.items() if v}))
        if state.best_round:
            self._find_best(state.best_round)
        # A candidate of the round that was under way: when that is done again it may not be the best.
        (self.folder / NEXT_BEST).unlink(missing_ok=True)
        return state.round

    def _find_best(self, round_: int) -> None:
        """The model of the best round. One that is damaged or lost is done without: later rounds are compared anew."""
        for name in (NEXT_BEST, BEST):
            try:
                read_model(self.folder / name, round_=round_)
            except ConfigError as error:
                log.debug("%s", error)
                continue
            self._selection.best = round_
            (self.folder / name).replace(self.folder / BEST)
            return
        log.error("the model of round %d, the best so far, is lost: the best is chosen from later rounds", round_)

    def add_scores(self, scores: Scores) -> bool:
        """A site's scores of the last or the best aggregate, from the final evaluation; refused if not usable."""
        try:
            if scores.site not in self.job.task.everyone:
                raise Rejected("site", f"is not one of {', '.join(self.job.task.everyone)}")
            if scores.site in self.answered:
                raise Rejected("site", "has answered already")
            held_out = scores.site in self.job.task.held_out
            known = self.results.data.get(scores.site)
            check_scores(
                scores,
                round_=self._scoring,
                metrics=self._task.metrics,
                parts=SCORED_IF_HELD_OUT if held_out else SCORED,
                personal=not held_out and any(m.client().fine_tune() for m in self._methods),
                counts={} if known is None else known.n,
                gradient_norm=self.job.evaluation.gradient_norm,
                n_classes=len(self.job.task.classes),
                per_case=self._task.per_case,
            )
        except Rejected as fault:
            self.reject(scores.site, fault.key, fault.reason)
            return False
        if held_out:
            self._held_out_scores[scores.round, scores.site] = scores.values
        else:
            self._note_scores(scores)
        if scores.personal:
            self._fine_tuned[scores.round, scores.site] = scores.personal
        self._evaluations.setdefault(scores.round, {})[scores.site] = dict(scores.evaluations)
        if scores.personal_evaluation is not None:
            self._own_evaluations[scores.round, scores.site] = scores.personal_evaluation
        self.answered.append(scores.site)
        self._on_progress(self)
        return True

    def close_last(self) -> None:
        """After the last aggregate was scored everywhere: the selection is final.

        Raises:
            QuorumError: too few sites answered.
        """
        self._close_evaluation("the evaluation of the last model")
        self._select(self.rounds)
        self._remember(self.rounds)
        self._confirm_best()
        if not self.best_round:
            raise ConfigError("no site could score any round on validation data, so none can be selected")
        self._save(LAST, self.rounds, self._as_received(), self._arrays_sent)
        self._choose()

    def open_best(self) -> Broadcast | None:
        """The best aggregate, to be scored on the test split; None if it is the last one, which has been."""
        if self.best_round == self.rounds:
            return None
        try:
            weights, arrays = read_model(self.folder / BEST, round_=self.best_round)
        except ConfigError as error:
            log.error("the best model is lost, that of round %d is taken: %s", self.rounds, error)
            self._selection.best = self.rounds
            self._save(BEST, self.rounds, self._as_received(), self._arrays_sent)
            self._choose()
            return None
        self.answered = []
        self._record = RoundRecord(round=self.round)
        self._scoring = self.best_round
        return self._broadcast(self.best_round + 1, weights, arrays)

    def finish(self) -> None:
        """Write the final scores.

        Raises:
            QuorumError: too few sites answered.
        """
        if self.best_round != self.rounds:
            self._close_evaluation("the evaluation of the best model")
        best, last = self._final(self.best_round), self._final(self.rounds)
        own = dict(best.sites) if self._own_models else {}
        own |= {site: splits for (round_, site), splits in self._fine_tuned.items() if round_ == self.best_round}
        before = [record for record in self.results.rounds if record.round <= self.best_round]
        trained = {site for record in before for site, told in record.sites.items() if told.steps}
        self.results.final = Final(
            best=best,
            last=last,
            personal={site: own[site]["test"] for site in self.job.task.sites if own.get(site, {}).get("test")},
            personal_evaluations={
                site: self._own_evaluations[self.best_round, site]
                for site in self.job.task.sites
                if (self.best_round, site) in self._own_evaluations
            },
            fine_tuned=bool(self._fine_tuned),
            newcomers=[site for site in self.job.task.sites if site in best.sites and site not in trained],
        )
        self._remember(self.rounds)
        self.results.write(self.folder)
        self._on_progress(self)

    def mean_score(self, round_: int) -> float | None:
        """Mean over sites of the aggregate's validation score, if any site has told it."""
        return self._selection.mean(round_)

    # --- inside -----------------------------------------------------------------------------------

    def _restored(self, update: Update) -> Update:
        """An update with all its weights as arrays: the site's changes on the server's own weights."""
        keys = self._packed_keys - self._withheld if self.round else frozenset()
        check_packed(update, self._weights, keys, self.job.federation.weights_as)
        return update.restored(self._weights)

    def _compared_with(self) -> Received:
        """What updates of the open round are compared with."""
        return Received(self._weights, trainable=self._trainable, withheld=self._withheld)

    def _check(self, update: Update, n_samples: int) -> Change:
        """Compare an update of the open round with what it may be; ``Rejected`` is raised if it is something else."""
        return check_update(
            update,
            round_=self.round,
            received=self._received,
            specs=self._specs,
            metrics=self._task.metrics,
            n_samples=n_samples,
            max_norm=self.job.federation.max_update_norm,
            n_steps=self._steps(n_samples),
            faults={name: half.fault for name, half in self._halves},
        )

    def _combine(self, stored: Sequence[StoredUpdate]) -> None:
        """Let the methods have the round's updates, and make new weights of them (none in the statistics round)."""
        context = self._context(self.round)
        updates = robust.present(
            stored,
            self.job.federation.robust,
            weights=self._weights,
            trainable=self._trainable,
            specs=self._specs,
        )
        for _, half in self._halves:
            half.receive(updates, context)
        if self.round:
            owner = next(half for _, half in self._halves if "combine" in half.owns)
            self._weights = owner.combine(self._weights, updates, context)

    def _steps(self, n_samples: int) -> int | None:
        """Optimiser steps of a site with so many samples in a round; None where the job's method decides."""
        schedule = self.job.task.schedule
        if methods.reference_in(self._methods) is not None:
            return None
        if schedule.local_steps is not None:
            return schedule.local_steps
        starts = epoch_starts(n_samples, batch_size=schedule.batch_size, drop_last=schedule.drop_last)
        return schedule.local_epochs * len(starts)

    def _leave_out_outliers(self) -> None:
        """Refuse the updates that are far from the others, as if they had been refused when they came."""
        stored = [self._updates[s] for s in self.job.task.sites if s in self._updates]
        federation = self.job.federation
        usual = medians(stored, self._medians)
        if self.round:  # the statistics round has arrays of its own
            self._medians = usual
        found = outliers(
            stored,
            usual=usual,
            specs=self._specs,
            max_norm_ratio=federation.max_norm_ratio,
            max_sample_ratio=federation.max_sample_ratio,
        )
        for site, fault in list(found):
            self._updates.pop(site).close()
            self._record.sites.pop(site, None)
            self.answered.remove(site)
            self.reject(site, fault.key, fault.reason)

    def _start(self) -> None:
        """Take the weights of the job's file, where it names one. A run that goes on needs it no more."""
        spec = self.job.task.network.weights
        if spec is not None:
            net = self._task.network()
            self.results.job.initial_weights = pretrained.load(net, spec)
            self._weights = read_weights(net)
            for _, half in self._halves:
                half.start(net, self._context(0))
        log.info("job %s: initial weights: %s", self.job.name, self.results.job.initial_weights)

    def _context(self, round_: int) -> ServerContext:
        task = self.job.task
        return ServerContext(round_, self.rounds, task.sites, self._trainable, task.optimizer, self.job.seed)

    def _broadcast(self, round_: int, weights: Weights, arrays: MethodArrays | None = None) -> Broadcast:
        if arrays is None:
            arrays = self._arrays(round_)
        packed = self._packed(weights)
        self._arrays_sent = arrays
        plain = {key: value for key, value in weights.items() if key not in packed}
        return Broadcast(round_, self.best_round, plain, arrays, self.invited, packed)

    def _packed(self, weights: Weights) -> dict[str, Packed]:
        """What of the weights travels in fewer bytes."""
        weights_as = self.job.federation.weights_as
        return {key: compression.pack(value, weights_as) for key, value in weights.items() if key in self._packed_keys}

    def _as_received(self) -> Weights:
        """Weights as the sites have them: what they score, and so what a model file holds."""
        return {**self._weights, **{key: value.unpack() for key, value in self._packed(self._weights).items()}}

    def _arrays(self, round_: int) -> MethodArrays:
        named = {name: half.broadcast(self._context(round_)) for name, half in self._halves}
        return {name: dict(values) for name, values in named.items() if values}

    def _tell_precisions(self) -> None:
        """Say it once, and again when it has changed, that sites compute in different precisions."""
        by: dict[str, list[str]] = {}
        for site, machine in self.results.machines.items():
            by.setdefault(machine.precision, []).append(site)
        told = "; ".join(f"{precision} at {', '.join(sites)}" for precision, sites in sorted(by.items()))
        if len(by) > 1 and told != self._told_precisions:
            log.warning(
                "the sites do not compute in one precision: %s; schedule.precision=fp32 is the same everywhere", told
            )
        self._told_precisions = told

    def _require_validation_data(self) -> None:
        """Better now than after the last round."""
        if not any(record.n["val"] for record in self.results.data.values()):
            raise ConfigError("no site has validation data, so no round could be selected: prepare more cases")

    def _close_evaluation(self, what: str) -> None:
        self._record.absent = [s for s in self.invited if s not in self.answered]
        self.results.evaluations.append(self._record)
        self.require(self.usable, what)

    def _note_scores(self, scores: Scores) -> None:
        self._selection.note(scores)
        values = self._selection.of(scores.round)[scores.site]
        for record in self.results.rounds:
            if record.round == scores.round:
                # A site that took no part in making an aggregate scores it all the same.
                site = record.sites.setdefault(scores.site, SiteRound())
                site.val, site.test = values.get("val", {}), values.get("test")

    def _select(self, round_: int) -> None:
        """Keep the aggregate of ``round_`` if it is the best so far. Its weights were those last sent."""
        if self._selection.consider(round_):
            self._save(NEXT_BEST, round_, self._as_received(), self._arrays_sent)

    def _choose(self) -> None:
        """Write down which round's model is the best."""
        self.results.selected = Selected(round=self.best_round, rule=self._selection.rule)
        self.results.write(self.folder)

    def _remember(self, round_: int) -> None:
        """What `resume` goes on from: everything up to the end of a round."""
        save_progress(
            self.folder,
            ServerState(
                job=self.job.dump(),
                round=round_,
                best_round=self.best_round,
                weights=self._weights,
                methods={name: half.state for name, half in self._halves},
                results=self.results.model_dump_json(by_alias=True),
                medians=self._medians,
            ),
        )

    def _confirm_best(self) -> None:
        """The state that names the best round is written: now the model may take its place."""
        waiting = self.folder / NEXT_BEST
        if waiting.is_file():
            waiting.replace(self.folder / BEST)

    def _check_aggregate(self) -> None:
        """What came out must be usable too, whatever the rule that made it."""
        for key, value in self._weights.items():
            if not np.isfinite(value).all():
                raise QuorumError(f"round {self.round}: the aggregate's {key} is not finite; the job cannot go on")
            if key.endswith("running_var") and value.min(initial=0) < 0:
                raise QuorumError(f"round {self.round}: the aggregate's {key} has a negative variance")

    def _save(self, name: str, round_: int, weights: Weights, arrays: MethodArrays) -> None:
        score, statistics = self.mean_score(round_), self.results.statistics
        kinds = {self.results.data[site].kind for site in self.job.task.sites if site in self.results.data}
        before = [record for record in self.results.rounds if record.round <= round_]
        trained = {site for record in before for site, told in record.sites.items() if told.steps}
        save_checkpoint(
            self.folder / name,
            job=self.job,
            round_=round_,
            weights=weights,
            methods={
                method: {name: value for name, value in named.items() if (method, name) not in self._not_kept}
                for method, named in arrays.items()
                if any((method, name) not in self._not_kept for name in named)
            },
            personal=sorted(self._personal),
            scores={} if score is None else {f"val_{self.metric}": score},
            kind=next((kind for kind in ("phantom", "patients") if kind in kinds), "images"),
            sites=len(trained),
            statistics=[] if statistics is None else [s for s in self.job.task.sites if s not in statistics.absent],
            initial_weights=self.results.job.initial_weights,
            encrypted=self.job.federation.encryption is not None,
        )

    def _final(self, round_: int) -> FinalScores:
        told = self._held_out_scores
        held_out = {site: told[round_, site] for site in self.job.task.held_out if (round_, site) in told}
        more = self._evaluations.get(round_, {})
        evaluations = {site: more[site] for site in self.job.task.everyone if more.get(site)}
        return FinalScores(round=round_, sites=self._selection.of(round_), held_out=held_out, evaluations=evaluations)


def payload_bytes(message: Broadcast | Update) -> int:
    """Bytes of the arrays in a message, without framing."""
    methods_bytes = sum(array.nbytes for named in message.arrays.values() for array in named.values())
    packed_bytes = sum(packed.nbytes for packed in message.packed.values())
    return sum(array.nbytes for array in message.weights.values()) + packed_bytes + methods_bytes
