"""The record of a run: all that goes into ``results.json``, and which round's model is the best so far."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

from fedshift.federation.server.update_check import TRAINING, Rejected
from fedshift.schema.evaluation import ClassScores
from fedshift.schema.fingerprint import Reference
from fedshift.schema.guarantee import Guarantee, Reason
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import TEST_PREFIX, Scores, SiteInfo, Update
from fedshift.schema.names import one_line
from fedshift.schema.results import (
    DataRecord,
    Final,
    FinalScores,
    MachineRecord,
    Rejection,
    Results,
    RoundRecord,
    Selected,
    SiteBest,
    SiteRound,
    new_results,
)
from fedshift.tasks.evaluation.guarantee import federated

log = logging.getLogger("fedshift")

T = TypeVar("T")
THEN = ", then "
"""Between the versions of one thing with which a run was made, one part after another."""
RULE = (
    "highest {summary} of the aggregated model's validation {metric}; two rounds are compared over the sites "
    "that scored both, and of equals the earlier one is kept; if no site scored both, the one that more sites scored"
)
SUMMARIES = {"mean": "mean over sites", "worst": "score of the worst site"}
RULE_ROUND = "round {round}, which the job names (evaluation.select)"
RULE_LAST = "the last round: each round samples other sites, so the scores of two rounds cannot be compared"


class Selection:
    """Validation scores of every aggregate, by round and site, and the best round by them. Sums run in site order."""

    def __init__(
        self, sites: tuple[str, ...], metric: str, *, by: Literal["mean", "worst"] | int = "mean", last: bool = False
    ) -> None:
        """Start without scores of these sites. Rounds are compared ``by`` the mean over sites or the worst site; with
        ``last``, or a number of the round that the run ends after, the newest one is always selected.
        """
        self._sites, self._metric, self._last, self.best = sites, metric, last or isinstance(by, int), 0
        self._overall = min if by == "worst" else sum
        if isinstance(by, int):
            self.rule = RULE_ROUND.format(round=by)
        else:
            self.rule = RULE_LAST if last else RULE.format(summary=SUMMARIES[by], metric=metric)
        self._scores: dict[int, dict[str, dict[str, dict[str, float]]]] = {}

    def note(self, scores: Scores) -> None:
        """Add a site's scores of an aggregate."""
        self._scores.setdefault(scores.round, {}).setdefault(scores.site, {}).update(scores.values)

    def of_site(self, round_: int, site: str) -> dict[str, dict[str, float]]:
        """Split -> metrics of a round's aggregate at a site that has scored it."""
        return self._scores[round_][site]

    def scores(self, round_: int) -> dict[str, dict[str, dict[str, float]]]:
        """Site -> split -> metrics of a round's aggregate, in site order."""
        answers = self._scores.get(round_, {})
        return {site: answers[site] for site in self._sites if site in answers}

    def validation(self, round_: int) -> dict[str, float]:
        """Site -> validation score of a round's aggregate, of the sites that have reported one, in site order."""
        splits = {site: splits.get("val", {}) for site, splits in self.scores(round_).items()}
        return {site: val[self._metric] for site, val in splits.items() if self._metric in val}

    def mean(self, round_: int) -> float | None:
        """Mean validation score of a round over the sites that reported one; None if no site did."""
        values = list(self.validation(round_).values())
        return sum(values) / len(values) if values else None

    def consider(self, round_: int) -> bool:
        """Compare a round with the best so far. Returns True if the round is selected in its place.

        Only sites that scored both rounds count: otherwise a round without the score of a difficult site would win.
        """
        new, old = self.validation(round_), self.validation(self.best) if self.best else {}
        common = [site for site in self._sites if site in new and site in old]
        # With none in common a first round that one site scored, which then left, would else stay the best.
        overall = self._overall
        higher = overall(new[s] for s in common) > overall(old[s] for s in common) if common else len(new) > len(old)
        self.best = round_ if self._last or higher else self.best
        return self._last or higher


class RunRecord:
    """Collects what sites report. ``current`` is the open round, ``results`` everything before it."""

    _reported_precisions = ""

    def __init__(self, job: JobSpec, *, metric: str, select_last: bool = False) -> None:
        """``metric`` is the task's score that selects the best round; with ``select_last`` it is the newest one."""
        self._job, self.results = job, new_results(job, metric=metric)
        self.selection = Selection(job.task.sites, metric, by=job.evaluation.select, last=select_last)
        self._final_scores: list[Scores] = []
        self._trained_since: dict[str, int] = {}
        """Site -> the first round in which it took optimiser steps."""
        self.open_round(0)

    def restore(self, results: str) -> None:
        """Go on from a saved ``results.json``. The final evaluation of an unfinished run is repeated.

        Versions of this process that differ from the saved ones are logged and recorded beside them.
        """
        present, self.results = self.results.versions, Results.model_validate_json(results)
        self.results.versions = _joined(self.results.versions, present)
        if self.results.final is None:
            self.results.evaluations = []
        for record in self.results.rounds:
            self._note_trained(record)
        for record in self.results.scored_rounds:
            for name, site in record.sites.items():
                if site.val or site.test:
                    splits = {"val": site.val, "test": site.test or {}}
                    self.selection.note(Scores(name, record.round, {s: v for s, v in splits.items() if v}))

    @property
    def rejected(self) -> dict[str, str]:
        """Sites rejected in the open round, with the reason."""
        return {fault.site: f"{fault.key}: {fault.reason}" for fault in self.current.rejected}

    def open_round(self, round_: int) -> None:
        """Start the entry of a round and its clock."""
        self.current, self._opened = RoundRecord(round=round_), time.monotonic()
        self.answered: list[str] = []
        """Sites whose answer to the open round was accepted, in order of arrival."""

    def opened_before(self, seconds: float) -> None:
        """The open round was opened so long ago, by an earlier process."""
        self._opened -= seconds

    def stop_clock(self) -> None:
        """The open round has taken the time until now."""
        self.current.seconds = round(time.monotonic() - self._opened, 3)

    def close_round(self, invited: tuple[str, ...], metrics: Mapping[str, Mapping[str, float]]) -> None:
        """Add the open round to the results, and the scores in the ``metrics`` of its updates to the round before."""
        self.warn_of_mixed_precision()
        self.current.absent = [s for s in invited if s not in self.answered]
        self.current.sites = self._in_order(self.current.sites)
        if self.current.round:
            self.results.rounds.append(self.current)
            self._note_trained(self.current)
        else:
            self.results.statistics = self.current
        for site, values in metrics.items():
            self._note_validation(site, values)

    def close_evaluation(self, invited: tuple[str, ...]) -> None:
        """Add the open round to the results as an evaluation."""
        self.current.absent = [s for s in invited if s not in self.answered]
        self.results.evaluations.append(self.current)

    def add_site(self, info: SiteInfo) -> None:
        """Record a site's data and machine, which it reports with its first answer.

        Raises:
            Rejected: the site reported other data before; or its data are simulated and those of the job are real, or
                the other way round. In the statistics round `mixed_data` decides that for all sites together.
        """
        fields = vars(info) | {"n": {"train": info.n_train, "val": info.n_val, "test": info.n_test}}
        record = DataRecord.model_validate({name: fields[name] for name in DataRecord.model_fields})
        machine = MachineRecord.model_validate({name: fields[name] for name in MachineRecord.model_fields})
        if self.results.data.get(info.site, record) != record:
            raise Rejected("info", "the site's data have changed since the run began; start the run again")
        if info.site in self.results.data and self.results.machines.get(info.site) == machine:
            return
        if self.current.round or info.site in self._job.task.held_out:
            others = [other for site, other in self.results.data.items() if site != info.site]
            if any((other.kind == "phantom") != (record.kind == "phantom") for other in others):
                raise _mixed(record.kind, others)
        records = {**self.results.data, info.site: record}
        self.results.data = {site: records[site] for site in self._job.task.everyone if site in records}
        machines = {**self.results.machines, info.site: machine}
        self.results.machines = {site: machines[site] for site in self.results.data if site in machines}

    def mixed_data(self) -> list[tuple[str, Rejected]]:
        """The sites to reject because the job would mix simulated and real data, and why.

        They are the smaller part of those that said what their data are; if both parts are equally large, those with
        simulated data.
        """
        data = self.results.data
        simulated = [site for site, record in data.items() if record.kind == "phantom"]
        return self._smaller_part(simulated) if 0 < len(simulated) < len(data) else []

    def _smaller_part(self, simulated: Sequence[str]) -> list[tuple[str, Rejected]]:
        data = self.results.data
        real = [site for site in data if site not in simulated]
        wrong, right = (simulated, real) if len(simulated) <= len(real) else (real, simulated)
        return [(site, _mixed(data[site].kind, [data[other] for other in right])) for site in wrong]

    def forget_site(self, site: str) -> None:
        """Undo `add_site`."""
        self.results.data.pop(site, None)
        self.results.machines.pop(site, None)

    def add_update(self, update: Update, *, bytes_up: int, bytes_down: int) -> None:
        """Record an accepted update."""
        if self.current.round > 0:
            self.current.sites[update.site] = SiteRound(
                n=update.n_samples,
                steps=update.n_steps,
                train_loss=update.metrics.get("train_loss"),
                bytes_up=bytes_up,
                bytes_down=bytes_down,
                seconds=round(update.metrics.get("seconds", 0.0), 3),
                parts=int(update.metrics.get("parts", 1)),
            )
        self.answered.append(update.site)

    def remove_update(self, site: str) -> None:
        """Undo `add_update`."""
        self.current.sites.pop(site, None)
        self.answered.remove(site)

    def add_rejection(self, site: str, key: str, reason: str) -> Rejection:
        """Record that a site is left out of the open round.

        Text from a site becomes one short line of printable characters before it is logged.
        """
        site, key, reason = (one_line(text) or "(no name)" for text in (site, key, reason))
        log.error("round %d: site %s is left out: %s: %s", self.current.round, site, key, reason)
        rejection = Rejection(site=site, key=key, reason=reason)
        self.current.rejected.append(rejection)
        return rejection

    def add_scores(self, scores: Scores) -> None:
        """Record a site's scores from the final evaluation."""
        self._final_scores.append(scores)
        if scores.site not in self._job.task.held_out:
            self._note(scores)
        self.answered.append(scores.site)

    def note_held_out(self, site: str, round_: int, values: Mapping[str, float]) -> None:
        """Record a held-out site's validation scores of a round's aggregate. They select nothing in this run."""
        self.results.rounds[round_ - 1].held_out[site] = dict(values)

    def references(self, round_: int) -> dict[str, Reference]:
        """What sites have reported of their scans with their scores of a round's model. It is not in the results."""
        return {site: scores.reference for site, scores in self._answers_of(round_).items() if scores.reference}

    def guarantee(self, round_: int, *, own_models: bool) -> Guarantee | None:
        """What a round's model promises, from the risk curves that sites have sent; None if no site has scored it.

        ``own_models``: whether each site's curves are of a model of its own, which a new hospital has not.
        """
        alpha, answers, held_out = self._job.evaluation.guarantee, self._answers_of(round_), self._job.task.held_out
        if alpha is None or not answers:
            return None
        curves = {site: scores.risks for site, scores in answers.items() if scores.risks}
        promise = federated(curves, alpha=alpha, held_out=held_out, newcomers=not own_models)

        def reason(site: str) -> Reason:
            if site in held_out:
                return "held-out"
            if site not in answers:
                return "absent"
            return "few-cases" if site in curves else "policy"

        without = {site: reason(site) for site in self._job.task.everyone if site not in promise.sites}
        return promise.model_copy(update={"without_curve": without})

    def thresholds(self, round_: int) -> dict[str, dict[str, float]]:
        """Site -> class -> the threshold that its validation part has chosen for a round's model."""
        return self._of_classes(round_, lambda scores: scores.threshold if scores.chosen else None)

    def specific_thresholds(self, round_: int) -> dict[str, dict[str, float]]:
        """Site -> class -> the threshold that has the job's specificity on its validation part."""
        return self._of_classes(round_, lambda scores: scores.specific)

    def _of_classes(self, round_: int, value_of: Callable[[ClassScores], float | None]) -> dict[str, dict[str, float]]:
        values: dict[str, dict[str, float]] = {}
        for site, scores in self._answers_of(round_).items():
            tested = scores.evaluations.get("test")
            for name, class_scores in ((tested and tested.classes) or {}).items():
                if (value := value_of(class_scores)) is not None:
                    values.setdefault(site, {})[name] = value
        return values

    def select(self) -> None:
        """Record the best round."""
        self.results.selected = Selected(round=self.selection.best, rule=self.selection.rule)

    def trained_sites(self, round_: int) -> set[str]:
        """Sites that took optimiser steps in any round up to this one."""
        return {site for site, since in self._trained_since.items() if since <= round_}

    def _note_trained(self, record: RoundRecord) -> None:
        for site, entry in record.sites.items():
            if entry.steps:
                self._trained_since.setdefault(site, record.round)

    def set_final(self, *, last_round: int, own_models: bool) -> None:
        """Record the final scores; with ``own_models`` each site's scores are those of a model of its own."""
        best_round = self.selection.best
        best, last = self._scores(best_round), self._scores(last_round)
        answers = self._answers_of(best_round)
        personal = dict(best.sites) if own_models else {}
        personal |= {site: scores.personal for site, scores in answers.items() if scores.personal}
        tuned = {site: scores.personal_evaluation for site, scores in answers.items() if scores.personal_evaluation}
        trained = self.trained_sites(best_round)
        self.results.final = Final(
            best=best,
            last=last,
            personal=self._in_order({site: v["test"] for site, v in personal.items() if v.get("test")}),
            site_best=self._best_by_site(),
            personal_evaluations=tuned,
            fine_tuned=any(scores.personal for scores in self._final_scores),
            against_local={site: scores.against_local for site, scores in answers.items() if scores.against_local},
            guarantee=self.guarantee(best_round, own_models=own_models),
            newcomers=[site for site in self._job.task.sites if site in best.sites and site not in trained],
        )

    def _answers_of(self, round_: int) -> dict[str, Scores]:
        """What sites have reported of a round's model in a final evaluation, in site order."""
        return self._in_order({scores.site: scores for scores in self._final_scores if scores.round == round_})

    def _in_order(self, values: Mapping[str, T]) -> dict[str, T]:
        return {site: values[site] for site in self._job.task.everyone if site in values}

    def _best_by_site(self) -> dict[str, SiteBest]:
        """Each site's round of the highest validation score, the earlier of equals, with its scores there.

        Only of sites that have a test score of every round that they scored (``evaluation.every: 1``).
        """
        best_by_site: dict[str, SiteBest] = {}
        if self._job.evaluation.every != 1:
            return best_by_site
        metric = self.results.job.metric
        for site in self._job.task.sites:
            entries = {record.round: record.sites[site] for record in self.results.rounds if site in record.sites}
            scored = {number: entry for number, entry in entries.items() if metric in entry.val}
            if scored and all(entry.test for entry in scored.values()):
                best = max(scored, key=lambda number: (scored[number].val[metric], -number))
                best_by_site[site] = SiteBest(round=best, val=scored[best].val, test=scored[best].test or {})
        return best_by_site

    def _note_validation(self, site: str, metrics: Mapping[str, float]) -> None:
        """Record the scores of the model that a site received, which it sent with its update, if it sent any."""
        splits: dict[str, dict[str, float]] = {}
        for name, value in metrics.items():
            if name not in TRAINING:
                split = "test" if name.startswith(TEST_PREFIX) else "val"
                splits.setdefault(split, {})[name.removeprefix(TEST_PREFIX)] = value
        if splits and self.current.round:
            self._note(Scores(site, self.current.round - 1, splits))

    def warn_of_mixed_precision(self) -> None:
        """Log once, and again after a change, that sites compute in different precisions."""
        by: dict[str, list[str]] = {}
        for site, machine in self.results.machines.items():
            by.setdefault(machine.precision, []).append(site)
        listed = "; ".join(f"{precision} at {', '.join(sites)}" for precision, sites in sorted(by.items()))
        if len(by) > 1 and listed != self._reported_precisions:
            log.warning(
                "the sites do not compute in one precision: %s; schedule.precision=fp32 is the same everywhere", listed
            )
        self._reported_precisions = listed

    def _note(self, scores: Scores) -> None:
        self.selection.note(scores)
        values = self.selection.of_site(scores.round, scores.site)
        results, number = self.results, scores.round
        for record in results.rounds[number - 1 : number] if number else filter(None, [results.statistics]):
            # A site also scores models of rounds in which it took no part.
            site = record.sites.setdefault(scores.site, SiteRound())
            site.val = values.get("val", {})
            if site.test is None:  # that of a final model may be on another grid than those of other rounds
                site.test = values.get("test")

    def _scores(self, round_: int) -> FinalScores:
        answers = self._answers_of(round_)
        return FinalScores(
            round=round_,
            sites=self.selection.scores(round_),
            held_out={site: scores.values for site, scores in answers.items() if site in self._job.task.held_out},
            evaluations={site: dict(scores.evaluations) for site, scores in answers.items() if scores.evaluations},
        )


def _joined(former: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    """The versions of a run that goes on: ``2.4.0, then 2.5.1`` of what has changed, which is logged."""
    last = {name: version.split(THEN)[-1] for name, version in former.items()}
    changed = {name: version for name, version in present.items() if last.get(name, version) != version}
    if changed:
        log.warning(
            "the run goes on with other versions than before: %s; its numbers may differ from those of one version",
            ", ".join(f"{name} {version} (before: {last[name]})" for name, version in changed.items()),
        )
    return {**present, **former, **{name: f"{former[name]}{THEN}{version}" for name, version in changed.items()}}


def _mixed(kind: str, others: Sequence[DataRecord]) -> Rejected:
    kinds = " and ".join(sorted({other.kind for other in others}))
    return Rejected(
        "info",
        f"the site has data of kind {kind} and the others of kind {kinds}: a job does not mix simulated and real",
    )
