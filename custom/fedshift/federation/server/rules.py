"""The rules of a run: which sites a round asks, how many must answer, and which round's model is the best."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from fedshift.schema.errors import QuorumError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Scores
from fedshift.schema.seeding import generator

RULE = (
    "highest mean over sites of the aggregated model's validation {metric}; two rounds are compared over the sites "
    "that scored both, and of equals the earlier one is kept; if no site scored both, the one that more sites scored"
)
RULE_LAST = "the last round: each round samples other sites, so the scores of two rounds cannot be compared"


class Quorum:
    """Whom a round asks, and how many must answer. Round 0 is the statistics round, ``rounds`` + 1 the evaluation."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self.last_round = job.task.schedule.rounds
        """The last training round; earlier in a run that ends early."""

    @property
    def samples_sites(self) -> bool:
        """Whether each training round asks only some of the sites, drawn at random."""
        return self._asked < len(self._job.task.sites)

    @property
    def _asked(self) -> int:
        return min(self._job.federation.sites_per_round or len(self._job.task.sites), len(self._job.task.sites))

    def invited(self, round_: int) -> tuple[str, ...]:
        """Sites asked in a round: all training sites, or those drawn for it; held-out sites in the final evaluation."""
        if round_ > self.last_round:
            return self._job.task.everyone
        return self._drawn(round_) if round_ and self.samples_sites else self._job.task.sites

    def _drawn(self, round_: int) -> tuple[str, ...]:
        sites = self._job.task.sites
        rng = generator(self._job.seed, "server", round_, "sites")
        drawn = sorted(torch.randperm(len(sites), generator=rng)[: self._asked].tolist())
        return tuple(sites[number] for number in drawn)

    def needed(self, round_: int) -> int:
        """Minimum usable answers for a round. Sampling sites doesn't change how many may fail."""
        return self._job.federation.min_sites + len(self._counted(round_)) - self._asked

    def usable(self, answered: Collection[str]) -> int:
        """How many of these sites count towards the quorum; held-out sites don't."""
        return len({*answered} & {*self._job.task.sites})

    def is_out_of_reach(self, round_: int, *, answered: Collection[str], rejected: Collection[str]) -> bool:
        """Whether so many sites were rejected that a round cannot get enough answers."""
        possible = [s for s in self._counted(round_) if s in answered or s not in rejected]
        return len(possible) < self.needed(round_)

    def shortage(
        self, round_: int, n_usable: int, *, answered: Collection[str], rejected: Mapping[str, str], what: str
    ) -> QuorumError:
        """The error of a round with too few usable answers: who is missing, and why.

        Args:
            round_: the open round.
            n_usable: usable answers.
            answered: sites whose answer was accepted.
            rejected: sites whose answer was rejected, with the reason.
            what: name of the round for the message.
        """
        without: dict[str, list[str]] = {}
        for site in [*rejected, *(s for s in self._counted(round_) if s not in rejected)]:
            if site not in answered and site not in self._job.task.held_out:
                without.setdefault(rejected.get(site, "no answer yet"), []).append(site)
        missing = "; ".join(f"{', '.join(sites)} ({reason})" for reason, sites in without.items())
        return QuorumError(
            "too-few-answers",
            f"{what}: {n_usable} usable answers, {self.needed(round_)} needed; without {missing or 'nobody'}; "
            "mend these sites or lower federation.min_sites",
        )

    def _counted(self, round_: int) -> tuple[str, ...]:
        """Invited sites that count towards the quorum."""
        return self._job.task.sites if round_ > self.last_round else self.invited(round_)


class Selection:
    """Validation scores of every aggregate, by round and site, and the best round by them.

    Sums run in site order, not in order of arrival.
    """

    def __init__(self, sites: tuple[str, ...], metric: str, *, last: bool = False) -> None:
        """Start without scores.

        Args:
            sites: the sites whose scores count, in the job's order.
            metric: the metric by which rounds are compared; higher is better.
            last: always select the newest round.
        """
        self._sites, self._metric, self._last, self.best = sites, metric, last, 0
        self.rule = RULE_LAST if last else RULE.format(metric=metric)
        self._scores: dict[int, dict[str, dict[str, dict[str, float]]]] = {}

    def note(self, scores: Scores) -> None:
        """Add a site's scores of an aggregate."""
        self._scores.setdefault(scores.round, {}).setdefault(scores.site, {}).update(scores.values)

    def scores(self, round_: int) -> dict[str, dict[str, dict[str, float]]]:
        """Site -> split -> metrics of a round's aggregate, in site order."""
        known = self._scores.get(round_, {})
        return {site: known[site] for site in self._sites if site in known}

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
        if self._last:
            better = True
        elif common:
            better = sum(new[s] for s in common) > sum(old[s] for s in common)
        else:  # else a first round that one site scored, which then left, would stay the best
            better = len(new) > len(old)
        if better:
            self.best = round_
        return better
