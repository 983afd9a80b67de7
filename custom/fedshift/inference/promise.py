"""What a model promises where it is used, and the outlines that keep it (`fedshift.tasks.evaluation.guarantee`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedshift.inference.model import Model
from fedshift.inference.ready import Choice, ReadyModel
from fedshift.runtime.segmentation import regions_of
from fedshift.schema.errors import ConfigError
from fedshift.schema.guarantee import Curve, Guarantee, Level, Promise
from fedshift.schema.names import few_names
from fedshift.schema.strict import nearest
from fedshift.tasks.evaluation.guarantee import above, fewest, own_promise

EVEN = 0.5
"""Outer outlines begin at this probability at the latest and inner ones at the earliest, so that one is in the other.
Both promises are kept: a lower level misses less, a higher one takes in less that is something else."""

WIDE = 5
"""An outer outline so many times as large as the mask is remarked on."""


@dataclass(frozen=True)
class Promised:
    """What holds here: ``levels``, structure or class -> its promise, for ``population``, in words.

    ``statistics``: those that the model had when it was calibrated here; empty for other promises.
    """

    alpha: float
    population: str
    levels: Mapping[str, Promise]
    statistics: str = ""

    @property
    def covered(self) -> dict[str, Promise]:
        """Of structures or classes with a level at least."""
        return {
            name: promise
            for name, promise in self.levels.items()
            if any(level is not None and level.level is not None for level in (promise.outer, promise.inner))
        }

    def uncovered(self) -> Iterator[str]:
        """A sentence on each structure or class of which something is not promised."""
        for name, promise in self.levels.items():
            sides = {"outer": promise.outer, "inner": promise.inner}
            missing = {side: level for side, level in sides.items() if level is not None and level.level is None}
            what = f"{name} (its {next(iter(missing))} outline)" if len(missing) == 1 and promise.inner else name
            if missing:
                yield f"{what}: not covered here: {_needed(list(missing.values()))}"

    def lines(self, *, outlines: bool) -> Iterator[str]:
        """What is promised, and to whom."""
        percent = f"{100 * self.alpha:g} %"
        if outlines:
            yield (
                f"guarantee: on average at most {percent} of a structure is outside its outer outline, and at most "
                f"{percent} of its inner outline is something else; this holds for {self.population}"
            )
        else:
            yield (
                f"guarantee: of the cases that have a class, on average at most {percent} lack it in their set; this "
                f"holds for {self.population}"
            )
        for name, promise in self.covered.items():
            sides = {"outer outline" if outlines else "in the set": promise.outer, "inner outline": promise.inner}
            levels = [
                _level_in_words(side, level)
                for side, level in sides.items()
                if level is not None and level.level is not None
            ]
            yield f"  {name}: {'; '.join(levels)}"

    def classes(self, probabilities: Mapping[str, float]) -> list[str]:
        """The set of classes of a case; those without a level are in every set, which keeps the promise."""
        levels = {name: promise.outer.level for name, promise in self.levels.items()}
        known = {name: levels.get(name) for name in probabilities}
        return [
            name for name, level in known.items() if level is None or bool(above(np.array(probabilities[name]), level))
        ]

    @property
    def about(self) -> dict[str, Any]:
        """For the record of predictions."""
        levels = {name: promise.model_dump(mode="json", exclude_none=True) for name, promise in self.levels.items()}
        return {"guarantee": {"alpha": self.alpha, "population": self.population, "levels": levels}}


def _level_in_words(side: str, level: Level) -> str:
    more = "" if level.at_most is None or level.others == 0 else f" (here at most {100 * level.at_most:.0f} %)"
    return f"{side} from a probability of {level.level:.3f}{more}"


def _needed(levels: Sequence[Level]) -> str:
    needed = [level.needed for level in levels]
    known = [number for number in needed if number is not None]
    if len(known) < len(needed):
        return "the model errs too much at every level, and no number of cases changes that"
    return f"{max(known)} more labelled case{'s are' if max(known) > 1 else ' is'} needed"


def promised(model: Model, choice: Choice, alpha: float) -> Promised:
    """What a model file promises to the patients of the site that ``choice`` names, or else of a new hospital.

    Raises:
        ConfigError: it promises nothing, or not this, or nothing to these patients.
    """
    guarantee, path = model.header.guarantee, model.path
    if guarantee is None or guarantee.is_empty:
        train = (
            f"train with --set evaluation.guarantee={alpha:g}"
            if guarantee is None
            else f"no site sent a risk curve{_reasons(guarantee)}, for too few validation cases or by its policy "
            "(min_cases, survey_cases): train it with more"
        )
        raise ConfigError(
            "no-guarantee",
            f"{path} promises nothing: {train}, or calibrate it on labelled cases with "
            f"'fedshift evaluate --guarantee {alpha:g} --calibrated FILE'",
        )
    if guarantee.alpha != alpha:
        raise ConfigError(
            "other-guarantee",
            f"{path} promises shares of {guarantee.alpha:g} and not of {alpha:g}: give --guarantee {guarantee.alpha:g}",
        )
    promise = _for_whom(model, guarantee, choice)
    if not promise.covered:
        raise ConfigError("not-covered", f"{path}: {'; '.join(promise.uncovered())}")
    return promise


def _reasons(guarantee: Guarantee) -> str:
    """Of a model without any curve why each site has none, in brackets; empty where that is not known."""
    words = {
        "absent": "did not score it",
        "policy": "by its policy",
        "few-cases": "too few cases",
        "held-out": "held out",
    }
    sites = [f"{site}: {words[reason]}" for site, reason in guarantee.without_curve.items()]
    return f" ({few_names(sites)})" if sites else ""


def _for_whom(model: Model, guarantee: Guarantee, choice: Choice) -> Promised:
    site = choice.site or ("" if choice.state is None else choice.state.resolve().name)
    if guarantee.calibrated:
        return of_hospital(guarantee)
    personal = bool(guarantee.sites) and not guarantee.newcomer
    if personal and choice.state is None:
        raise ConfigError(
            "not-covered",
            f"{model.path}: what it promises is of models with parts that each site keeps: name the state of one of "
            f"{few_names(list(guarantee.sites))} with --site-state",
        )
    if site:
        if site not in guarantee.sites:
            raise ConfigError(
                "site-unknown",
                f"{model.path} promises nothing to patients of site {site!r}, {_why_not(guarantee, site)}",
            )
        of_site = guarantee.sites[site]
        n = _counted(of_site)
        population = (
            f"new patients of site {site}, scanned as its {n} validation patients, on which the round was chosen too"
        )
        return Promised(guarantee.alpha, population, of_site)
    sites = max((promise.n for promise in guarantee.newcomer.values()), default=0)
    population = (
        f"patients of hospitals like the {sites} sites, on average over hospitals: at a single one it may be more"
    )
    return Promised(guarantee.alpha, population, guarantee.newcomer)


def _why_not(guarantee: Guarantee, site: str) -> str:
    """Why nothing is promised to a site's patients, as the rest of a sentence."""
    reason = guarantee.without_curve.get(site)
    if reason is None:
        known = [*guarantee.sites, *guarantee.without_curve]
        return f"which has sent no risk curve{nearest(site, known)}"
    calibrate = f"'fedshift evaluate --guarantee {guarantee.alpha:g} --calibrated FILE' on labelled cases of it"
    mend = f"{calibrate} promises something to them"
    return {
        "absent": f"which did not score this model in the last evaluation: {mend}",
        "policy": f"whose policy lets no risk curve leave (the site's log says why): {mend}",
        "few-cases": "which has too few validation cases of each structure or class (privacy.survey_cases, min_cases): "
        f"train it with more; or {mend}",
        "held-out": "which was held out of training, so that its cases set no level: leave out --site for what is "
        f"promised to a new hospital; or {mend}",
    }[reason]


def _counted(promises: Mapping[str, Promise]) -> str:
    fewest_of_one, most_of_one = (pick(promise.n for promise in promises.values()) for pick in (min, max))
    cases = str(most_of_one) if fewest_of_one == most_of_one else f"{fewest_of_one} to {most_of_one}"
    return f"{cases} (of each structure or class)" if len(promises) > 1 else cases


def of_hospital(guarantee: Guarantee) -> Promised:
    """What a calibration at one hospital promises."""
    n = _counted(guarantee.calibrated)
    population = f"new patients of the hospital whose {n} labelled patients it was calibrated on, scanned as they were"
    return Promised(guarantee.alpha, population, guarantee.calibrated, guarantee.statistics)


def of_statistics(model: Model, choice: Choice) -> Choice:
    """``choice`` of statistics, without a site that the model promises something to and has no statistics of."""
    guarantee = model.header.guarantee
    alone = guarantee is not None and choice.site in guarantee.sites and choice.site not in model.header.statistics
    return Choice() if alone else choice


def require_statistics(promise: Promised, ready: ReadyModel) -> None:
    """Refuse a model with other statistics than it was calibrated with (ConfigError)."""
    if promise.statistics and promise.statistics.split(",")[0] != ready.statistics.split(",")[0]:
        raise ConfigError(
            "statistics-choice",
            f"{ready.model.path} was calibrated with statistics {promise.statistics!r}, now it has "
            f"{ready.statistics!r}: make the same choice (--statistics, --site or --site-state)",
        )


class Outlines:
    """Inner and outer outlines of a scan, from probabilities that come in parts.

    ``sides``: structure -> ``outer`` and ``inner``, as far as they are promised -> the voxels within, bool.
    """

    def __init__(self, ready: ReadyModel, promises: Mapping[str, Promise], shape: Sequence[int]) -> None:
        self._levels = {first_place(ready) + ready.classes.index(name): name for name in promises}
        self._promises = promises
        self.sides = {
            name: {side: np.zeros(tuple(shape), bool) for side in _levels(promise)}
            for name, promise in promises.items()
        }

    def add(self, place: int, part: slice, values: np.ndarray) -> None:
        """`fedshift.runtime.segmentation.OnScan`."""
        if (name := self._levels.get(place)) is not None:
            for side, level in _levels(self._promises[name]).items():
                self.sides[name][side][part] = above(values, level)

    def remarks(self, mask_voxels: Mapping[str, int]) -> Iterator[str]:
        """On outer outlines that are too wide to say much; ``mask_voxels``: of each structure."""
        for name, sides in self.sides.items():
            voxels = int(np.count_nonzero(sides["outer"])) if "outer" in sides else 0
            if voxels > WIDE * mask_voxels[name] > 0:
                times = f"{voxels / mask_voxels[name]:.0f} times as large as the mask"
                yield f"the outer outline of {name} is {times}: it keeps its promise, and says little about this scan"
            elif voxels and not mask_voxels[name]:
                yield f"the mask of {name} is empty, and its outer outline has {voxels} voxels"


def first_place(ready: ReadyModel) -> int:
    """The place of the first structure in what the network gives: classes begin with the background."""
    assert ready.model.spec is not None
    return 0 if regions_of(ready.model.spec) else 1


def _levels(promise: Promise) -> dict[str, float]:
    """The level of each side that is promised."""
    outer, inner = promise.outer.level, None if promise.inner is None else promise.inner.level
    levels = {} if outer is None else {"outer": min(outer, EVEN)}
    return levels | ({} if inner is None else {"inner": max(inner, EVEN)})


def own_guarantee(curves: Mapping[str, Curve], names: Sequence[str], alpha: float, statistics: str) -> Guarantee:
    """What a hospital's labelled cases promise to its new patients; without a case, nothing."""
    nothing = Promise(n=0, outer=Level(level=None, needed=fewest(alpha)))
    promises = {name: own_promise(curves[name], alpha) if name in curves else nothing for name in names}
    return Guarantee(alpha=alpha, calibrated=promises, statistics=statistics)
