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
    """One class over the sites: ``sites`` of ``all_sites`` have scores of it, and counts are over all."""

    positives: int
    negatives: int
    sites: int
    all_sites: int
    auroc: float | None
    f1: float | None
    balanced_accuracy: float | None


def pool(of_sites: Iterable[ClassScores]) -> Pooled:
    """One class, from what each site tells of it."""
    every = list(of_sites)
    positives, negatives = sum(site.positives for site in every), sum(site.negatives for site in every)
    scored = [site for site in every if "auroc" in site.scores]
    pairs = [site.positives * site.negatives for site in scored]
    areas = [site.scores["auroc"] for site in scored]
    hits, invented = sum(site.detected for site in every), sum(site.invented for site in every)
    both = bool(positives and negatives)
    return Pooled(
        positives=positives,
        negatives=negatives,
        sites=len(scored),
        all_sites=len(every),
        auroc=sum(n * area for n, area in zip(pairs, areas, strict=True)) / sum(pairs) if pairs else None,
        f1=2 * hits / (positives + hits + invented) if both else None,
        balanced_accuracy=(hits / positives + (negatives - invented) / negatives) / 2 if both else None,
    )
