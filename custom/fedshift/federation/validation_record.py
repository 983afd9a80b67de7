"""The server's side of a validation: every site's answer is checked and kept, and the record is made of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from math import sqrt
from typing import TypeVar

import numpy as np
from pydantic import ValidationError

from fedshift.schema.evaluation import Distribution
from fedshift.schema.names import one_line
from fedshift.schema.results import versions
from fedshift.schema.strict import first_fault
from fedshift.schema.validation import (
    ClassArea,
    ModelRecord,
    PairedDifference,
    PooledArea,
    PooledDifference,
    PooledModel,
    PooledScore,
    SiteValidation,
    Validation,
    ValidationSpec,
)
from fedshift.tasks.evaluation.by_class import PICTURE_RANGES, RANGES
from fedshift.tasks.evaluation.random_effects import random_effects

log = logging.getLogger("fedshift")

T = TypeVar("T")
ACCURACY = "accuracy"


class ValidationAnswers:
    """Answers to a validation as they come in, in any order.

    Attributes:
        sites: those that were accepted.
        refused: sites without an answer, and why.
    """

    def __init__(
        self,
        spec: ValidationSpec,
        *,
        classes: Iterable[str],
        metric: str,
        models: Mapping[str, ModelRecord],
        on_change: Callable[[ValidationAnswers], None] = lambda answers: None,
    ) -> None:
        """``classes``, ``metric`` and ``models`` are for the record; ``on_change`` is called after each answer."""
        self.spec, self.metric = spec, metric
        self._classes, self._models, self._on_change = list(classes), dict(models), on_change
        self.sites: dict[str, SiteValidation] = {}
        self.refused: dict[str, str] = {}

    def add(self, site: str, answer: SiteValidation) -> bool:
        """Keep a site's answer; False if it was rejected."""
        fault = self._fault(site, answer)
        if fault:
            return self.refuse(site, fault)
        self.sites[site] = answer
        scored = ", ".join(answer.models) or "none"
        log.info("site %s: models scored: %s", site, scored)
        self._on_change(self)
        return True

    def refuse(self, site: str, reason: str) -> bool:
        """Note that a site gave no usable answer; always False."""
        site, reason = one_line(site) or "(no name)", one_line(reason)
        log.error("site %s is left out of the validation: %s", site, reason)
        if site in self.spec.sites and site not in self.sites:
            self.refused.setdefault(site, reason)
            self._on_change(self)
        return False

    def _fault(self, site: str, answer: SiteValidation) -> str:
        """What is wrong with an answer; empty if nothing is."""
        named = {model.name for model in self.spec.models}
        if answer.site != site:
            return f"it answered in the name of {answer.site}"
        if site not in self.spec.sites or site in self.sites:
            return "it was not asked, or answered twice"
        if answer.dataset != self.spec.dataset:
            return f"it scored on data set {answer.dataset}, not on {self.spec.dataset}"
        if {*answer.models, *answer.refused} != named:
            return "it does not tell of each model whether it was scored"
        for scores in answer.models.values():
            distributions = [scores.scores, *(each for values in scores.strata.values() for each in values.values())]
            for name, spread in ((name, spread) for each in distributions for name, spread in each.items()):
                low, high = self._range(name)
                if not low <= spread.mean <= high:
                    return f"its mean {name[:64]} is {spread.mean:g}, and lies between {low:g} and {high:g}"
            unknown = sorted(set(scores.areas) - set(self._classes))
            if unknown:
                return f"it tells of the class {unknown[0][:64]}, which the models have not"
        return ""

    def _range(self, name: str) -> tuple[float, float]:
        """Of a score; empty for an unknown one."""
        score, _, of_class = name.partition(" ")
        ranges = {**RANGES, **PICTURE_RANGES, ACCURACY: (0.0, 1.0)}
        is_named = not of_class or of_class in self._classes
        return ranges[score] if score in ranges and is_named else (np.inf, -np.inf)

    def record(self) -> Validation:
        """The record; sites that neither answered nor said why are noted as silent."""
        silent = [site for site in self.spec.sites if site not in self.sites and site not in self.refused]
        refused = {**self.refused, **dict.fromkeys(silent, "it did not answer in time")}
        sites = {site: self.sites[site] for site in self.spec.sites if site in self.sites}
        simulated = [site for site, answer in sites.items() if answer.kind == "phantom"]
        for site in simulated if len(simulated) < len(sites) else ():
            del sites[site]
            refused[site] = "its data are simulated, and those of other sites are not"
        return Validation(
            spec=self.spec,
            versions=versions(),
            classes=self._classes,
            metric=self.metric,
            models=self._models,
            sites=sites,
            refused={site: refused[site] for site in self.spec.sites if site in refused and site not in sites},
            pooled={model.name: pooled(sites, model.name) for model in self.spec.models},
        )


def checked_answer(content: object) -> SiteValidation | str:
    """An answer as plain data, or what is wrong with it."""
    try:
        return SiteValidation.model_validate(content)
    except ValidationError as error:
        return f"its answer is no validation: {first_fault(error)}"
    except RecursionError:
        return "its answer is nested too deeply"


# --- over sites -----------------------------------------------------------------------------------------


def pooled(sites: Mapping[str, SiteValidation], model: str) -> PooledModel:
    """A model over the sites that tell of it."""
    model_scores = [answer.models[model] for answer in sites.values() if model in answer.models]
    strata: dict[str, dict[str, dict[str, list[Distribution]]]] = {}
    for scores in model_scores:
        for column, values in scores.strata.items():
            for value, named in values.items():
                for name, spread in named.items():
                    of_value = strata.setdefault(column, {}).setdefault(value, {})
                    of_value.setdefault(name, []).append(spread)
    return PooledModel(
        scores={name: _mean(each) for name, each in _by_name(scores.scores for scores in model_scores).items()},
        strata={
            column: {value: {name: _mean(each) for name, each in named.items()} for value, named in values.items()}
            for column, values in strata.items()
        },
        against_first={
            name: _difference(each) for name, each in _by_name(scores.against_first for scores in model_scores).items()
        },
        areas={name: _area(each) for name, each in _by_name(scores.areas for scores in model_scores).items()},
    )


def _by_name(mappings: Iterable[Mapping[str, T]]) -> dict[str, list[T]]:
    by_name: dict[str, list[T]] = {}
    for each in mappings:
        for name, value in each.items():
            by_name.setdefault(name, []).append(value)
    return by_name


def _mean(spreads: list[Distribution]) -> PooledScore:
    n = [spread.n for spread in spreads]
    means = [spread.mean for spread in spreads]
    return PooledScore(
        sites=len(spreads), n=sum(n), mean=float(np.average(means, weights=n)), of_sites=float(np.mean(means))
    )


def _difference(paired: list[PairedDifference]) -> PooledDifference:
    whole = _mean([each.difference for each in paired])
    estimates = [
        (each.difference.mean, each.difference.std / sqrt(each.independent))
        for each in paired
        if each.difference.std is not None
    ]
    return _over_sites(estimates, n=whole.n, mean=whole.mean)


def _area(areas: list[ClassArea]) -> PooledArea:
    pairs = [each.pairs for each in areas]
    compared = [(each, each.against_first) for each in areas if each.against_first is not None]
    against = None
    if compared:
        differences, weights = [each.difference for _, each in compared], [area.pairs for area, _ in compared]
        against = _over_sites(
            [(each.difference, each.error) for _, each in compared if each.error is not None],
            n=sum(area.positives + area.negatives for area, _ in compared),
            mean=float(np.average(differences, weights=weights)),
        )
    return PooledArea(
        sites=len(areas),
        positives=sum(each.positives for each in areas),
        negatives=sum(each.negatives for each in areas),
        mean=float(np.average([each.area for each in areas], weights=pairs)),
        of_sites=float(np.mean([each.area for each in areas])),
        against_first=against,
    )


def _over_sites(estimates: list[tuple[float, float]], *, n: int, mean: float) -> PooledDifference:
    """``estimates``: the difference and its standard error, of each site that tells one."""
    plain = PooledDifference(sites=len(estimates), n=n, mean=mean)
    if len(estimates) < 2:
        return plain
    differences, errors = zip(*estimates, strict=True)
    effect = random_effects(differences, errors)
    return plain.model_copy(update={"effect": effect.mean, "interval": effect.interval, "tau": effect.tau})
