"""Scores of one class over several sites, from what sites tell of it: no scores of single cases are needed.

The mean of sites' averages over classes says which classes a site has as much as how good the model is there: two
halves of one set of cases, split by class, get other averages from the same model. So each class is taken by itself,
and over all cases of all sites where their counts allow it:

- ``f1``, ``balanced_accuracy``: of the sums of all counts, each site's at its own threshold;
- ``auroc``: the mean over pairs of a case with the class and one without, both of one site: sites' areas weighted by
  their numbers of pairs. Pairs of two sites are not counted, since probabilities of two sites need not be comparable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedshift.schema.evaluation import ClassScores


@dataclass(frozen=True)
class Pooled:
    """One class over the sites. ``sites`` have scores of it, ``of`` tell of it; counts are of all."""

    positives: int
    negatives: int
    sites: int
    of: int
    auroc: float | None
    f1: float | None
    balanced_accuracy: float | None


def pool(told: Iterable[ClassScores]) -> Pooled:
    """One class, from what each site tells of it."""
    every = list(told)
    positives, negatives = sum(one.positives for one in every), sum(one.negatives for one in every)
    scored = [one for one in every if "auroc" in one.scores]
    pairs = [one.positives * one.negatives for one in scored]
    areas = [one.scores["auroc"] for one in scored]
    found, invented = sum(one.found for one in every), sum(one.invented for one in every)
    both = bool(positives and negatives)
    return Pooled(
        positives=positives,
        negatives=negatives,
        sites=len(scored),
        of=len(every),
        auroc=sum(n * area for n, area in zip(pairs, areas, strict=True)) / sum(pairs) if pairs else None,
        f1=2 * found / (positives + found + invented) if both else None,
        balanced_accuracy=(found / positives + (negatives - invented) / negatives) / 2 if both else None,
    )
