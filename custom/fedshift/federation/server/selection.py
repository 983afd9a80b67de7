"""Select the best round from the sites' validation scores of each round's aggregate."""

from __future__ import annotations

from fedshift.schema.messages import Scores

RULE = (
    "highest mean over sites of the aggregated model's validation {metric}; two rounds are compared over the sites "
    "that scored both, and of equals the earlier one is kept; if no site scored both, the one that more sites scored"
)

RULE_LAST = "the last round: each round samples other sites, so the scores of two rounds cannot be compared"


class Selection:
    """Validation scores of every aggregate, by round and site. Sums run in site order, not in order of arrival."""

    def __init__(self, sites: tuple[str, ...], metric: str, *, last: bool = False) -> None:
        """Start without scores.

        Args:
            sites: the sites whose scores count, in the job's order.
            metric: the metric by which rounds are compared; higher is better.
            last: always select the newest round.
        """
        self._sites, self._metric, self._last = sites, metric, last
        self.rule = RULE_LAST if last else RULE.format(metric=metric)
        self._scores: dict[int, dict[str, dict[str, dict[str, float]]]] = {}
        self.best = 0

    def note(self, scores: Scores) -> None:
        """Add a site's scores of an aggregate."""
        self._scores.setdefault(scores.round, {}).setdefault(scores.site, {}).update(scores.values)

    def of(self, round_: int) -> dict[str, dict[str, dict[str, float]]]:
        """Site -> split -> metrics of a round's aggregate, in site order."""
        known = self._scores.get(round_, {})
        return {site: known[site] for site in self._sites if site in known}

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

    def validation(self, round_: int) -> dict[str, float]:
        """Site -> validation score of a round's aggregate, of the sites that have reported one, in site order."""
        return {
            site: splits["val"][self._metric]
            for site, splits in self.of(round_).items()
            if self._metric in splits.get("val", {})
        }
