"""A validation: finished models, scored by every site on its own cases, with nothing trained.

`ValidationSpec` is the ``fedshift.yaml`` of its job, `SiteValidation` a site's answer, `Validation` the record that the
server writes (``validation.json``). No answer has a score of a single case.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedshift.schema.errors import ConfigError
from fedshift.schema.evaluation import Distribution, Number, Share
from fedshift.schema.files import write_text
from fedshift.schema.names import ClassName, Line, Name, Stratum
from fedshift.schema.paired import FEWEST_FOR_TEST
from fedshift.schema.strict import Strict, first_fault

FILE_NAME = "validation.json"
CASES_FILE = "validation_cases.csv"
"""A site's own scores of its single cases, in its folder of the job."""
KEY = "validation"
"""What only the ``fedshift.yaml`` of such a job has."""
MOST_MODELS = 16
MOST_COLUMNS, MOST_VALUES = 8, 12
"""Strata that a site may have, and values of each: more would leave few cases in each."""

Part = Literal["test", "val", "all"]
"""Of a site's cases: its test part; its validation part, to choose between models; or all, for models that were trained
elsewhere."""


class ModelRef(Strict):
    """A model of the job: its name there, and the hash of the file in which the job brings it."""

    name: Name
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class ValidationSpec(Strict):
    """What sites are asked.

    ``validation``: the job's name. ``sites``: who is asked. ``part``: of their cases. ``strata``: columns of the sites'
    tables by which scores are told too; None for all that a site tells. ``models``: every other one is compared with
    the first. ``statistics``: whose a model takes that normalises by site, a site's of its training or ``own``, of the
    cases that are scored; None for models that need none. ``timeout``: seconds for all sites to answer.
    """

    validation: Name
    task: Name
    dataset: Name
    sites: Annotated[tuple[Name, ...], Field(min_length=1)]
    part: Part = "test"
    strata: tuple[Name, ...] | None = None
    models: Annotated[tuple[ModelRef, ...], Field(min_length=1, max_length=MOST_MODELS)]
    statistics: Name | None = None
    timeout: float = Field(default=24 * 3600.0, gt=0)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for names in (self.sites, tuple(model.name for model in self.models), self.strata or ()):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{', '.join(twice)} is named twice")
        return self

    @property
    def first(self) -> str:
        """The model that the others are compared with."""
        return self.models[0].name


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


Scores = dict[str, Distribution]
"""Score -> its distribution, without single cases."""


class PairedDifference(_Model):
    """A model's scores less the first one's, case by case.

    ``p``: of Wilcoxon's signed-rank test, or McNemar's of scores that are right or wrong, of each subject's mean
    difference; None for fewer than `FEWEST_FOR_TEST` subjects.
    """

    difference: Distribution
    p: Share | None = None

    @property
    def independent(self) -> int:
        """What a test counts: subjects if some have several cases, else cases."""
        return self.difference.subjects or self.difference.n

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.p is not None and self.independent < FEWEST_FOR_TEST:
            raise ValueError("p comes with too few subjects")
        return self


Error = Annotated[float, Field(allow_inf_nan=False, ge=0)]


class AreaDifference(_Model):
    """The area of a model less that of the first on the same cases, its standard error, and DeLong's p.

    ``error``, ``p``: None as of `ClassArea`.
    """

    difference: Annotated[float, Field(ge=-1, le=1)]
    error: Error | None = None
    p: Share | None = None


class ClassArea(_Model):
    """The area under the ROC curve of a model for one class, over cases with the class and without.

    ``error``: DeLong's standard error; None if some subjects have several cases, which it takes for independent.
    """

    positives: int = Field(ge=1)
    negatives: int = Field(ge=1)
    area: Share
    error: Error | None = None
    against_first: AreaDifference | None = None

    @property
    def pairs(self) -> int:
        """Of a case with the class and one without: the area is the share of those that are ranked rightly."""
        return self.positives * self.negatives


MOST_CLASSES = 256


class ModelScores(_Model):
    """A model at a site: over all cases, by strata (column -> value -> scores), and against the first model.

    ``areas``: of a classifier, by class; classes of which the site tells.
    """

    scores: Scores
    strata: dict[Name, dict[Stratum, Scores]] = Field(default={}, max_length=MOST_COLUMNS)
    against_first: dict[str, PairedDifference] = {}
    areas: dict[ClassName, ClassArea] = Field(default={}, max_length=MOST_CLASSES)


class SiteValidation(_Model):
    """A site's answer.

    ``kind``: as in its manifest. ``models``: those that it scored. ``refused``: the others, and why. ``withheld``: what
    was asked for and is not told, and why. ``noise``: deviation of the noise on each mean score; there is then nothing
    but these means. ``unknown_spacing``: headers of some cases hold no voxel size.
    """

    site: Name
    dataset: Name
    kind: Literal["patients", "images", "phantom"]
    manifest_sha256: str = Field(max_length=64, pattern=r"^[0-9A-Za-z]+$")
    unknown_spacing: bool = False
    models: dict[Name, ModelScores] = Field(default={}, max_length=MOST_MODELS)
    refused: dict[Name, Line] = Field(default={}, max_length=MOST_MODELS)
    withheld: dict[Line, Line] = Field(default={}, max_length=64)
    noise: Annotated[float, Field(allow_inf_nan=False, gt=0)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        by_model = [[*_cells(scores)] for scores in self.models.values()]
        if any(spread.cases is not None for cells in by_model for _, spread in cells):
            raise ValueError("scores of single cases have no place in a validation")
        sizes: dict[tuple[str, ...], int] = {}
        for cells in by_model:
            for where, spread in cells:
                if sizes.setdefault(where, spread.n) != spread.n:
                    raise ValueError(f"{' '.join(where)} is over other cases for one model than for another")
        supports = {
            (name, area.positives, area.negatives)
            for scores in self.models.values()
            for name, area in scores.areas.items()
        }
        if len(supports) > len({name for name, *_ in supports}):
            raise ValueError("the areas of a class are over other cases for one model than for another")
        if set(self.models) & set(self.refused):
            raise ValueError("a model is both scored and refused")
        return self


def _cells(scores: ModelScores) -> Iterator[tuple[tuple[str, ...], Distribution]]:
    """Every distribution, with its place."""
    yield from (((name,), spread) for name, spread in scores.scores.items())
    yield from (((name,), paired.difference) for name, paired in scores.against_first.items())
    for column, values in scores.strata.items():
        for value, spreads in values.items():
            yield from (((column, value, name), spread) for name, spread in spreads.items())


class PooledScore(_Model):
    """A score over sites: ``mean`` of all their ``n`` cases, and ``of_sites``, in which each site counts the same."""

    sites: int = Field(ge=1)
    n: int = Field(ge=1)
    mean: Number
    of_sites: Number


class PooledDifference(_Model):
    """A difference over sites, each compared within itself (`fedshift.tasks.evaluation.random_effects`).

    ``mean``: over all cases of all sites. ``effect``, ``interval``: of the random-effects model, over the ``sites``
    that tell a deviation; None if fewer than two do, and no ``interval`` if no two cases differ. ``tau``: standard
    deviation of the true difference between sites.
    """

    sites: int = Field(ge=0)
    n: int = Field(ge=1)
    mean: Number
    effect: Number | None = None
    interval: tuple[Number, Number] | None = None
    tau: Number | None = None


class PooledArea(_Model):
    """The areas of a class over sites: ``mean`` over pairs of two cases of one site, ``of_sites`` over sites.

    ``against_first``: the difference to the first model, over pairs likewise; ``n`` counts cases.
    """

    sites: int = Field(ge=1)
    positives: int = Field(ge=1)
    negatives: int = Field(ge=1)
    mean: Number
    of_sites: Number
    against_first: PooledDifference | None = None


class PooledModel(_Model):
    """A model over all sites that tell of it."""

    scores: dict[str, PooledScore] = {}
    strata: dict[str, dict[str, dict[str, PooledScore]]] = {}
    against_first: dict[str, PooledDifference] = {}
    areas: dict[str, PooledArea] = {}


class ModelRecord(_Model):
    """What a model's header says of it.

    ``file_sha256``: of the model file that it was made from. ``sites``: that trained it, on data of ``kind``.
    ``seen_at``: sites of the validation of whose scored cases it was trained on some. ``adapted_on``: cases of one
    hospital, which the model's file does not name, that it was adapted to.
    """

    file: Line
    file_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    task: Line
    methods: list[Line] = []
    round: int | None = None
    sites: list[Line] = []
    seen_at: list[Line] = []
    adapted_on: int = Field(default=0, ge=0)
    kind: Literal["patients", "images", "phantom", "unknown"] = "unknown"


class Validation(_Model):
    """The record: every site's answer, in the order of the specification. ``refused``: why a site gave none."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    spec: ValidationSpec
    versions: dict[str, str]
    classes: list[str]
    metric: str
    models: dict[Name, ModelRecord]
    sites: dict[Name, SiteValidation] = {}
    refused: dict[Name, Line] = {}
    pooled: dict[Name, PooledModel] = {}

    @property
    def is_phantom(self) -> bool:
        """Whether any site's data, or any model's, are simulated."""
        kinds = [*(site.kind for site in self.sites.values()), *(model.kind for model in self.models.values())]
        return "phantom" in kinds

    def write(self, folder: Path) -> Path:
        """Write ``validation.json``; returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE_NAME, json.dumps(self.model_dump(mode="json", by_alias=True), indent=1))
        return folder / FILE_NAME


def read_validation(path: Path) -> Validation:
    """Read a ``validation.json``, or the one in a folder.

    Raises:
        ConfigError: not there, or not such a file.
    """
    path = path / FILE_NAME if path.is_dir() else path
    try:
        raw: Any = path.read_text(encoding="utf-8")
        return Validation.model_validate_json(raw)
    except OSError:
        raise ConfigError(
            "file-missing", f"{path} does not exist: a job of 'fedshift job --evaluate' writes it"
        ) from None
    except ValidationError as error:
        raise ConfigError("other-version", f"{path} is not a file of this version ({first_fault(error)})") from None
