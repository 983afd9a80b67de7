"""What a map of the shift suggests, in careful words: which family of methods was made for such a shift.

That a method was made for a shift does not mean that it helps with this one. Each sentence names the page that shows
how much it gave, where that was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedshift.data.shift import (
    ASPECTS,
    CONTRAST,
    EXTENT,
    INTENSITY,
    PREVALENCE,
    SHAPE,
    SPACING,
    VOLUME,
    Aspect,
    ShiftMap,
)
from fedshift.data.tallies import of_pictures, worded
from fedshift.schema.fingerprint import Fingerprint

PAGE = "fedshift's documentation, page Results"
"""What methods gave on real data."""
APPEARANCE = ("fedbn", "fedfa", "fedrdn", "harmofl", "mixstyle")
"""Methods on statistics of images and of features."""
UNEQUAL = ("fedprox", "scaffold")
"""Methods that keep local training near the common model, whatever makes the sites unequal."""
FEW = 10
"""Cases of a site below which distances are mostly chance."""
FARTHER = 1.5
"""A site stands apart if it is so many times farther from the others than they are from each other."""


@dataclass(frozen=True)
class Suggestion:
    """A sentence or two; ``tone`` as in a report."""

    tone: Literal["result", "good", "caution", "note"]
    text: str


def suggestions(shift: ShiftMap, fingerprints: Sequence[Fingerprint]) -> list[Suggestion]:
    """In the order in which they should be read."""
    if not shift.pairs:
        return [Suggestion("note", "There are not two sites that tell enough to be compared.")]
    pictures = of_pictures(fingerprints)
    listed = [*_shifts(shift), *_apart(shift), *_cautions(shift, fingerprints)]
    return [replace(each, text=worded(each.text, pictures=pictures)) for each in listed]


def _shifts(shift: ShiftMap) -> Iterator[Suggestion]:
    appearance = [aspect for aspect in (SHAPE, CONTRAST) if _level(shift, aspect) not in ("similar", "unknown")]
    if all(_level(shift, aspect) in ("similar", "unknown") for aspect in ASPECTS):
        yield Suggestion(
            "good",
            "No two sites differ beyond the rules of thumb: fedavg is the method to begin with, and others may add "
            "little.",
        )
        return
    if appearance:
        yield Suggestion(
            "result",
            f"After each volume is normalised the sites still differ in {_listed(shift, appearance)}. This is the "
            "shift of appearance that methods on statistics of images and features were made for: "
            f"{', '.join(APPEARANCE)}. Whether one helps here only a run shows; what they gave on real scans is in "
            f"{PAGE}. Strong augmentation, which the plan has, was made for it too.",
        )
    elif _level(shift, INTENSITY) not in ("similar", "unknown"):
        yield Suggestion(
            "good",
            f"The sites differ in {_listed(shift, [INTENSITY])}, and hardly once each volume is normalised: the plan's "
            "normalisation may be all that it takes.",
        )
    if appearance and _level(shift, INTENSITY) == "differs much":
        yield Suggestion(
            "note",
            f"They differ in {_listed(shift, [INTENSITY])} too; normalising each volume takes scale and offset away.",
        )
    grid = [aspect for aspect in (SPACING, EXTENT) if _level(shift, aspect) not in ("similar", "unknown")]
    if grid:
        yield Suggestion(
            "result",
            f"The sites differ in {_listed(shift, grid)}. The plan resamples all to one voxel size and cuts patches; "
            "no method here was made for what resampling leaves; augmentation with zoom and low resolution was.",
        )
    labels = [aspect for aspect in (VOLUME, PREVALENCE) if _level(shift, aspect) not in ("similar", "unknown")]
    if labels:
        yield Suggestion(
            "result",
            f"The sites differ in {_listed(shift, labels)}: a shift of what is labelled, not of how images look. "
            f"Methods against feature shift do not aim at it; {' and '.join(UNEQUAL)} were made for sites that are "
            "unequal in any way. See first that all sites outline by one rule.",
        )


def _apart(shift: ShiftMap) -> Iterator[Suggestion]:
    """A site that is far from all others, while they are near each other."""
    if len(shift.sites) < 3:
        return
    mean: dict[str, float] = {}
    for site in shift.sites:
        away = [value for other in shift.sites if other != site and (value := shift.overall(site, other)) is not None]
        mean[site] = sum(away) / len(away) if away else 0.0
    site = max(mean, key=lambda name: mean[name])
    among = [value for pair in shift.pairs if site not in pair and (value := shift.overall(*pair)) is not None]
    if among and mean[site] > FARTHER * sum(among) / len(among):
        yield Suggestion(
            "caution",
            f"{site} stands apart: it is {mean[site] / (sum(among) / len(among)):.1f} times farther from the others "
            "than they are from each other. Look at its scores by themselves, since a mean over sites hides them.",
        )


def _cautions(shift: ShiftMap, fingerprints: Sequence[Fingerprint]) -> Iterator[Suggestion]:
    for what in dict.fromkeys(site.simulated for site in fingerprints if site.simulated):
        sites = [fingerprint.site for fingerprint in fingerprints if fingerprint.simulated == what]
        yield Suggestion("caution", f"Simulated at {', '.join(sites)}: {what}. Such a shift is made up.")
    few = [f"{site.site} ({site.surveyed})" for site in fingerprints if not site.withheld and site.surveyed < FEW]
    if few:
        yield Suggestion(
            "caution",
            f"Few cases at {', '.join(few)}: with fewer than {FEW} a part of every distance is chance.",
        )
    noisy = [fingerprint.site for fingerprint in fingerprints if fingerprint.noise is not None]
    if noisy:
        yield Suggestion("caution", f"{', '.join(noisy)} put noise on what they told: distances to them are too large.")
    for fingerprint in fingerprints:
        if fingerprint.withheld:
            yield Suggestion("note", f"{fingerprint.site} is not on the map: {fingerprint.withheld}.")
    if shift.placed:
        yield Suggestion("note", f"On the map only, and not in the plan: {', '.join(shift.placed)}.")


def _level(shift: ShiftMap, aspect: Aspect) -> str:
    largest = shift.largest(aspect)
    return aspect.level(None if largest is None else largest[1])


def _listed(shift: ShiftMap, aspects: Sequence[Aspect]) -> str:
    """``contrast (0.9 SD between HK and UCL)``, joined."""
    distances = []
    for aspect in aspects:
        largest = shift.largest(aspect)
        assert largest is not None
        (first, other), distance = largest
        distances.append(f"{aspect.noun} ({distance:.2g} {aspect.unit} between {first} and {other})")
    return " and ".join(distances)
