"""What a site tells of its data: in a survey, with its record (``survey.json``), and for the files of models.

Everything is a sum over cases: those of two sites add up to what both would tell if their cases were in one folder
(`fedshift.data.tallies`). Every case counts the same in a sum, however many voxels it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from math import log, sqrt
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_text
from fedshift.schema.manifest import Split
from fedshift.schema.names import ClassName, Line, Name
from fedshift.schema.strict import Sparse, Strict

FILE_NAME = "survey.json"
BINS = 120
"""Bins of a histogram of normalised intensities, from `LOWEST` in steps of `STEP` standard deviations."""
LOWEST, STEP = -4.0, 0.1
ALL, OUTSIDE, INSIDE = "whole volume", "outside the labels", "inside the labels"
"""Places besides the classes themselves; the last one if there are several classes. No class has such a name."""
PLACES = (ALL, OUTSIDE, INSIDE)
DOUBT = "doubt"
"""1 less the model's confidence in a scan (`fedshift.tasks.evaluation.confidence`)."""
MOST_VALUES = 20_000
"""Different values that a tally may have."""
MOST_PARTS = 1024
"""Classes, sequences and scanners that a site may name."""


def _ascends(tally: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    if any(later[0] <= former[0] for former, later in pairwise(tally)):
        raise ValueError("its values must ascend")
    if any(mass < 0 for _, mass in tally):
        raise ValueError("a value cannot occur less than never")
    return tally


Tally = Annotated[tuple[tuple[float, float], ...], Field(max_length=MOST_VALUES), AfterValidator(_ascends)]
"""(value, how many cases have it), by value. A case whose voxels have several values gives a part of 1 to each."""
ThreeTallies = tuple[Tally, Tally, Tally]
"""Of slices, rows and columns."""
Amount = Annotated[float, Field(ge=0)]


class Intensities(Strict):
    """Intensities of one sequence in one place, over ``cases`` cases.

    ``mean``, ``square`` and ``squared_mean`` are the sums of each case's mean intensity, mean squared intensity and
    squared mean intensity: with them the variance over all cases is exact, within and between cases. ``values`` are the
    intensities as they are, rounded to 3 %. ``normalised_mean`` and ``normalised`` are of the same voxels after each
    volume was brought to mean 0 and standard deviation 1; what is beyond the first or last bin is counted there.
    """

    cases: int = Field(ge=0)
    mean: float
    square: Amount
    squared_mean: Amount
    values: Tally
    normalised_mean: float
    normalised: Annotated[tuple[Amount, ...], Field(min_length=BINS, max_length=BINS)]


class Volumes(Strict):
    """How large a class is: ``cases`` of the ``surveyed`` ones have it.

    Over those whose voxel size is known: the sums of ml and of its square, and ml rounded to 20 %.
    """

    cases: int = Field(ge=0)
    surveyed: int = Field(ge=0)
    ml: Amount = 0.0
    square: Amount = 0.0
    values: Tally = ()


class Geometry(Strict):
    """Voxel size and extent in mm and number of voxels along each axis, rounded to 1 %.

    ``cases`` tell a voxel size; of the others, whose headers have a placeholder, only the number of voxels counts.
    """

    cases: int = Field(ge=0)
    spacing: ThreeTallies
    extent: ThreeTallies
    voxels: ThreeTallies


class Fingerprint(Strict):
    """What a site tells of its cases; ``surveyed`` is how many of them everything below ``cases`` is about.

    ``simulated``: what was simulated of its scans, as in its manifest. ``withheld``: why the site tells of nothing but
    its counts. ``annotated``: as in a site's manifest. ``intensities``: sequence → place (of `PLACES`, or a class) →
    intensities; one unnamed sequence is called ``image``. ``noise``: standard deviation of the noise on histograms;
    then there are histograms of normalised intensities only.
    """

    site: Name
    dataset: Name
    kind: Literal["patients", "images", "phantom"]
    simulated: Line | None = None
    cases: dict[Split, int]
    classes: Annotated[tuple[ClassName, ...], Field(min_length=2, max_length=256)]
    sequences: Annotated[tuple[ClassName, ...], Field(max_length=MOST_PARTS)] = ()
    annotated: Annotated[tuple[ClassName, ...], Field(max_length=256)] | None = None
    surveyed: int = Field(default=0, ge=0)
    withheld: Line = ""
    noise: float | None = Field(default=None, gt=0)
    geometry: Geometry | None = None
    volumes: Annotated[dict[ClassName, Volumes], Field(max_length=256)] = {}
    intensities: Annotated[
        dict[ClassName, Annotated[dict[ClassName, Intensities], Field(max_length=259)]], Field(max_length=MOST_PARTS)
    ] = {}
    scanners: Annotated[dict[Line, int], Field(max_length=MOST_PARTS)] | None = None

    @model_validator(mode="after")
    def _of_its_classes(self) -> Self:
        for name in self.classes:
            if name in PLACES:
                raise ValueError(f"a class cannot be called {name!r}: rename it where the site is prepared")
        foreground = self.classes[1:]
        for name in (*self.volumes, *(place for places in self.intensities.values() for place in places)):
            if name not in (*foreground, *PLACES):
                raise ValueError(f"tells of {name!r}, which is none of its classes")
        return self

    @property
    def total(self) -> int:
        return sum(self.cases.values())

    @property
    def of_pictures(self) -> bool:
        """Whether all cases that it tells of are pictures, which have one slice."""
        slices = () if self.geometry is None else self.geometry.voxels[0]
        return bool(slices) and all(number == 1 for number, _ in slices)

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the sequences; one unnamed sequence is called ``image``."""
        return self.sequences or ("image",)


class LogSums(Strict):
    """Sums over ``cases`` cases of the natural logarithm of a number of each case, and of its square."""

    cases: int = Field(ge=0)
    total: float
    square: float = Field(ge=0)

    @classmethod
    def from_values(cls, values: Iterable[float], *, floor: float) -> Self:
        """The sums of ``values``; smaller ones than ``floor`` count as that."""
        logs = [log(max(value, floor)) for value in values]
        return cls(cases=len(logs), total=sum(logs), square=sum(value**2 for value in logs))

    def __add__(self, other: LogSums) -> LogSums:
        return LogSums(
            cases=self.cases + other.cases, total=self.total + other.total, square=self.square + other.square
        )

    @property
    def mean(self) -> float:
        """Of the logarithm; there must be a case."""
        return self.total / self.cases

    @property
    def deviation(self) -> float:
        """Sample standard deviation of the logarithm; there must be two cases."""
        return sqrt(max(self.square - self.total**2 / self.cases, 0.0) / (self.cases - 1))


class Reference(Strict):
    """What one site tells of the scans that the model was trained on.

    ``fingerprint``: as in a survey. ``apart``: aspect -> sums over its cases of their distance from the site's others,
    and under ``doubt`` of the final model's doubt in the validation cases. ``empty``: validation cases in which the
    model found nothing; they have no doubt.
    """

    fingerprint: Fingerprint
    apart: Annotated[dict[Name, LogSums], Field(max_length=16)]
    empty: int = Field(default=0, ge=0)


class SurveySpec(Sparse):
    """What a survey asks: which sites of which data set. FLARE's job of a survey holds this as ``fedshift.yaml``.

    ``held_out``: sites that are shown on the map and play no part in the plan. ``timeout``: seconds that a site has.
    ``regions``, ``regions_class_order``, ``ignore``: of the task that the survey was asked for, for its plan. Sites
    tell of classes.
    """

    RARE = ("regions", "regions_class_order", "ignore")

    schema_: Literal[1] = Field(default=1, alias="schema")
    survey: Name
    dataset: Name
    sites: Annotated[tuple[Name, ...], Field(min_length=1)]
    held_out: tuple[Name, ...] = ()
    timeout: float = Field(default=3600.0, gt=0)
    regions: dict[ClassName, tuple[ClassName, ...]] = {}
    regions_class_order: tuple[ClassName, ...] = ()
    ignore: bool = False

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        twice = sorted({site for site in self.everyone if self.everyone.count(site) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is named twice")
        return self

    @property
    def everyone(self) -> tuple[str, ...]:
        """The sites of the plan, then those that are only on the map."""
        return (*self.sites, *self.held_out)


class Survey(Strict):
    """Every site's answer, in the order of the specification; ``refused``: why a site gave none."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    spec: SurveySpec
    sites: dict[Name, Fingerprint]
    refused: dict[Name, Line] = {}

    @property
    def planned(self) -> list[Fingerprint]:
        """Answers of the sites that a plan is for."""
        return [self.sites[site] for site in self.spec.sites if site in self.sites]

    def restricted_to(self, spec: SurveySpec) -> Survey:
        """The answers of the sites of ``spec`` alone."""
        return Survey(
            spec=spec,
            sites={site: self.sites[site] for site in spec.everyone if site in self.sites},
            refused={site: self.refused[site] for site in spec.everyone if site in self.refused},
        )

    def write(self, folder: Path) -> Path:
        """Write ``survey.json``; returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE_NAME, json.dumps(self.model_dump(mode="json", by_alias=True)))
        return folder / FILE_NAME


def read_survey(path: Path) -> Survey:
    """Read a ``survey.json``, or the one in a folder.

    Raises:
        ConfigError: no survey is there.
    """
    path = path / FILE_NAME if path.is_dir() else path
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError("file-unreadable", f"{path} cannot be read: 'fedshift survey' writes one") from None
    except (ValueError, RecursionError):
        raise ConfigError("not-json", f"{path} is not valid JSON: make the survey again") from None
    return Survey.parse(raw, where=str(path))
