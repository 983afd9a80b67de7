"""The sum of several sites' fingerprints: what one folder with all their cases would tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TypeVar

from fedshift.schema.errors import ConfigError
from fedshift.schema.fingerprint import Fingerprint, Geometry, Intensities, Tally, ThreeTallies, Volumes

K = TypeVar("K")
T = TypeVar("T")
EVERYONE = "all_sites"
"""Name of the sum."""


def merge(fingerprints: Sequence[Fingerprint], *, name: str = EVERYONE) -> Fingerprint:
    """Add up fingerprints. Sites that gave counts only add these; noise adds up too.

    Raises:
        ConfigError: there are none, or two have other classes, sequences, or kinds of data.
    """
    if not fingerprints:
        raise ConfigError("no-site", "no site answered the survey: prepare their data, or ask them why")
    check_alike(fingerprints)
    first = fingerprints[0]
    annotated = [set(one.classes[1:] if one.annotated is None else one.annotated) for one in fingerprints]
    outlined = set.union(*annotated)
    noises = [one.noise for one in fingerprints if one.noise is not None]
    scanners = [one.scanners for one in fingerprints if one.scanners is not None]
    told = [one for one in fingerprints if not one.withheld]
    return Fingerprint(
        site=name,
        dataset=first.dataset,
        kind=first.kind,
        simulated=next((one.simulated for one in fingerprints if one.simulated), None),
        cases=_dicts([one.cases for one in fingerprints], lambda a, b: a + b),
        classes=first.classes,
        sequences=first.sequences,
        annotated=None
        if outlined == set(first.classes[1:])
        else tuple(name for name in first.classes if name in outlined),
        surveyed=sum(one.surveyed for one in fingerprints),
        withheld="" if told else first.withheld,
        noise=sum(noise**2 for noise in noises) ** 0.5 if noises else None,
        geometry=_reduced([one.geometry for one in told if one.geometry is not None], _geometries),
        volumes=_dicts([one.volumes for one in told], _volumes),
        intensities=_dicts([one.intensities for one in told], lambda a, b: _dicts([a, b], add_intensities)),
        scanners=_dicts(scanners, lambda a, b: a + b) if scanners else None,
    )


def check_alike(fingerprints: Sequence[Fingerprint]) -> None:
    """See that sites can be compared.

    Raises:
        ConfigError: two sites have other classes or sequences, or simulated and real data; both are named.
    """
    first = fingerprints[0]
    for other in fingerprints[1:]:
        for what, mine, theirs in (
            ("classes", first.classes, other.classes),
            ("sequences", first.channels, other.channels),
        ):
            if mine != theirs:
                raise ConfigError(
                    "other-classes",
                    f"site {first.site} has the {what} {', '.join(mine)}, site {other.site} has {', '.join(theirs)}: "
                    "prepare them with the same names in the same order, or survey one without the other (--sites)",
                )
        if (first.kind == "phantom") != (other.kind == "phantom"):
            raise ConfigError(
                "phantom-mixed",
                f"site {first.site} has data of kind {first.kind}, site {other.site} of kind {other.kind}: a survey "
                "does not mix simulated and real data",
            )


def require_every_class(fingerprints: Sequence[Fingerprint]) -> None:
    """See that each class can be learnt at some site.

    Raises:
        ConfigError: the masks of no site outline a class, or no case of theirs has it.
    """
    for name in fingerprints[0].classes[1:]:
        outlining = [one for one in fingerprints if one.annotated is None or name in one.annotated]
        if all(name in one.volumes and not one.volumes[name].cases for one in outlining):
            has = "has a case with" if outlining else "outlines"
            raise ConfigError(
                "class-missing",
                f"no site {has} the class {name}, so none can learn it: prepare a site whose training cases have it, "
                "or prepare all of them without this class (--label)",
            )


def _reduced(parts: Sequence[T], add: Callable[[T, T], T]) -> T | None:
    return reduce(add, parts) if parts else None


def _dicts(parts: Iterable[Mapping[K, T]], add: Callable[[T, T], T]) -> dict[K, T]:
    total: dict[K, T] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = add(total[key], value) if key in total else value
    return total


def _tallies(one: Tally, other: Tally) -> Tally:
    total = dict(one)
    for value, mass in other:
        total[value] = total.get(value, 0.0) + mass
    return tuple(sorted(total.items()))


def _three(one: ThreeTallies, other: ThreeTallies) -> ThreeTallies:
    return tuple(_tallies(a, b) for a, b in zip(one, other, strict=True))  # type: ignore[return-value]


def _geometries(one: Geometry, other: Geometry) -> Geometry:
    return Geometry(
        cases=one.cases + other.cases,
        spacing=_three(one.spacing, other.spacing),
        extent=_three(one.extent, other.extent),
        voxels=_three(one.voxels, other.voxels),
    )


def _volumes(one: Volumes, other: Volumes) -> Volumes:
    return Volumes(
        cases=one.cases + other.cases,
        of=one.of + other.of,
        ml=one.ml + other.ml,
        square=one.square + other.square,
        values=_tallies(one.values, other.values),
    )


def add_intensities(one: Intensities, other: Intensities) -> Intensities:
    """The intensities of both together."""
    return Intensities(
        cases=one.cases + other.cases,
        mean=one.mean + other.mean,
        square=one.square + other.square,
        squared_mean=one.squared_mean + other.squared_mean,
        values=_tallies(one.values, other.values),
        normalised_mean=one.normalised_mean + other.normalised_mean,
        normalised=tuple(a + b for a, b in zip(one.normalised, other.normalised, strict=True)),
    )
