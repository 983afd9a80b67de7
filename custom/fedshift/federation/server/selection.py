"""Which round's aggregate is the best so far, from the sites' validation scores."""

from __future__ import annotations

from fedshift.schema.messages import Scores

RULE = (
    "highest mean over sites of the aggregated model's validation {metric}; two rounds are compared over the sites "
    "that scored both, and of equals the earlier one is kept"
)

RULE_LAST = "the last round: sites are drawn anew for each, so rounds are scored by different sites"


class Selection:
    """Scores of all aggregates, by round and site. Sums run in site order, whoever answers first."""

    def __init__(self, sites: tuple[str, ...], metric: str, *, last: bool = False) -> None:
        """``metric`` decides; higher is better. With ``last`` every round takes the place of the one before."""
        self._sites, self._metric, self._last = sites, metric, last
        self.rule = RULE_LAST if last else RULE.format(metric=metric)
        self._scores: dict[int, dict[str, dict[str, dict[str, float]]]] = {}
        self.best = 0

    def note(self, scores: Scores) -> None:
        """Add a site's scores of an aggregate to what is known of it."""
        self._scores.setdefault(scores.round, {}).setdefault(scores.site, {}).update(scores.values)

    def of(self, round_: int) -> dict[str, dict[str, dict[str, float]]]:
        """Site -> split -> metrics of a round's aggregate, in site order."""
        known = self._scores.get(round_, {})
        return {site: known[site] for site in self._sites if site in known}

    def mean(self, round_: int) -> float | None:
        """Mean validation score over the sites that told it."""
        values = list(self._validation(round_).values())
        return sum(values) / len(values) if values else None

    def consider(self, round_: int) -> bool:
        """Compare a round with the best so far; True if it takes its place.

        A site that is missing in one of the two counts in neither, or the round without a difficult site would win.
        """
        new, old = self._validation(round_), self._validation(self.best)
        common = [site for site in self._sites if site in new and site in old]
        if self._last:
            self.best = round_
            return True
        if self.best and (not common or sum(new[s] for s in common) <= sum(old[s] for s in common)):
            return False
        if not new:
            return False
        self.best = round_
        return True

    def _validation(self, round_: int) -> dict[str, float]:
        return {
            site: splits["val"][self._metric]
            for site, splits in self.of(round_).items()
            if self._metric in splits.get("val", {})
        }
