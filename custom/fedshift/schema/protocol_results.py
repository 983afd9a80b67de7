"""``leave_one_out.json``, ``cross_site.json`` and ``evaluation.json`` (schema 1): results of other evaluations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedshift.schema.errors import ConfigError
from fedshift.schema.evaluation import Distribution, Evaluation, OneSided
from fedshift.schema.files import write_text
from fedshift.schema.names import ClassName
from fedshift.schema.reading import Reading
from fedshift.schema.results import DataRecord, JobRecord, Metrics
from fedshift.schema.strict import first_fault

FALSE_POSITIVES = ("false_positives", "false_positives_mm2", "false_positives_px")
"""What cases without a class have in place of the other scores: a volume, or of pictures an area."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class _Record(_Model):
    """A results file: the job that all runs share, and the scores."""

    FILE_NAME: ClassVar[str]

    schema_: Literal[1] = Field(default=1, alias="schema")
    job: JobRecord
    versions: dict[str, str]

    def write(self, folder: Path) -> None:
        """Write the file into ``folder`` atomically."""
        write_text(folder / self.FILE_NAME, json.dumps(self.model_dump(mode="json", by_alias=True), indent=1))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file in ``folder``.

        Raises:
            ConfigError: not there, or not such a file.
        """
        path = folder / cls.FILE_NAME
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError("file-missing", f"{path} does not exist: the command was not finished") from None
        except ValueError as error:
            raise ConfigError("other-version", f"{path} is not a file of this version ({first_fault(error)})") from None


class ModelScores(_Model):
    """Scores of a model at its held-out site: on ``all`` samples and on the ``test`` split."""

    round: int
    scores: dict[str, Metrics]
    evaluations: dict[str, Evaluation] = {}


class HeldOutSite(_Model):
    """Scores of the best and the last model of a run that held this site out.

    ``others``: the best model's evaluations on the test parts of the sites that trained it, as they would use it.
    ``rounds``: round -> validation score of its aggregate at the site, if a round is to be chosen.
    """

    data: DataRecord
    best: ModelScores
    last: ModelScores
    others: dict[str, Evaluation] = {}
    rounds: dict[int, float] = {}


class LeaveOneOut(_Record):
    """Each site held out in turn. ``job.held_out`` is empty; the keys of ``sites`` are the held-out sites."""

    FILE_NAME = "leave_one_out.json"

    sites: dict[str, HeldOutSite]
    mean: dict[Literal["best", "last"], dict[str, Metrics]]
    """Mean over held-out sites."""

    @property
    def by_round(self) -> dict[int, float]:
        """Round -> mean over held-out sites of the validation score there, of the rounds that all of them scored."""
        curves = [site.rounds for site in self.sites.values()]
        common = set(curves[0]).intersection(*curves)
        return {round_: fmean(curve[round_] for curve in curves) for round_ in sorted(common)}

    @property
    def by_own_choice(self) -> float:
        """The same mean at the rounds that each run's own rule has selected."""
        return fmean(site.rounds[site.best.round] for site in self.sites.values())

    @property
    def chosen_round(self) -> int | None:
        """The round with the highest mean at held-out sites, the earlier of equals; None if they scored none."""
        means = self.by_round
        return max(means, key=lambda round_: (means[round_], -round_)) if means else None


class CrossSite(_Record):
    """Each site's model after its last local training, scored on every site's test split."""

    FILE_NAME = "cross_site.json"

    data: dict[str, DataRecord]
    scores: dict[str, dict[str, Metrics]]
    """Trained at -> tested at -> metrics."""
    mean_at_home: Metrics
    """Mean over models, each at its own site."""
    mean_elsewhere: Metrics
    """Mean over models, each at all other sites."""


def own_model(folder: Path, site: str) -> Path:
    """Path of a site's own model, as written by ``fedshift cross-site --keep-models``."""
    return folder / "own_models" / f"{site}.pt"


def mean_metrics(values: Iterable[Metrics]) -> Metrics:
    """Mean of each metric over the entries that have it."""
    values = list(values)
    names = sorted({name for metrics in values for name in metrics})
    return {name: fmean(metrics[name] for metrics in values if name in metrics) for name in names}


class ScoredModel(_Record):
    """A model file, as what ``fedshift evaluate`` records says of it.

    ``job`` is the one that trained the model, and ``versions`` are those that scored it.

    Attributes:
        model: name of the model's file.
        sha256: of that file.
        averaged_with: SHA-256 of the model files whose probabilities are averaged with its own.
        round: of the model.
        sites: that trained it.
        kind: what its training data are.
        statistics: whose were used, in words.
        adapted: file of the model, or of one that is averaged with it -> on how many cases of one hospital it was
            adapted, if it was.
    """

    model: str
    sha256: str
    averaged_with: list[str] = []
    round: int
    sites: list[str]
    kind: Literal["phantom", "patients", "images"]
    statistics: str
    adapted: dict[str, int] = {}

    @property
    def is_phantom(self) -> bool:
        """Whether the model was trained on simulated data."""
        return self.kind == "phantom"


class LabelledImages(ScoredModel):
    """Scores of a classifier on images with a table of labels, by ``fedshift evaluate``.

    Attributes:
        thresholds: whose decided which findings are there, in words; empty if images have one class each.
        classes: the model's.
        cases: how many were scored.
        subjects: whose cases these are.
        evaluation: of all cases.
    """

    FILE_NAME = "classification.json"

    thresholds: str
    classes: list[str]
    cases: int
    subjects: int
    evaluation: Evaluation


class LabelledScans(ScoredModel):
    """Scores of a model file on scans with masks, by ``fedshift evaluate``.

    Attributes:
        tolerance: of surface Dice, in mm.
        classes: the model's foreground classes.
        cases: those that were scored, in the order of the scores of single cases.
        subjects: whose cases these are.
        not_scored: cases that could not be read.
        without_spacing: scored cases whose voxel size is not known.
        scores: of the mean over classes, and of each class if there are several.
        one_sided: classes that in some case one mask only has.
        one_sided_cases: case -> class -> which mask lacks it, of the cases that have such.
        reading: case -> ``image`` or a sequence, and ``mask`` -> how the file was read.
        lacking: class -> the cases whose masks rightly have none of it. They are in no score of that class but
            ``false_positives``, which is of them alone; the mean over classes is over those that a case has.
    """

    FILE_NAME = "evaluation.json"

    tolerance: float
    classes: list[str]
    cases: list[str]
    subjects: int
    not_scored: list[str]
    without_spacing: list[str]
    scores: dict[str, Distribution]
    one_sided: dict[ClassName, OneSided]
    one_sided_cases: dict[str, dict[ClassName, Literal["missed", "invented"]]]
    reading: dict[str, dict[str, Reading]] = {}
    lacking: dict[ClassName, list[str]] = {}

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if any(len(spread.cases or ()) != len(self.cases_of(name)) for name, spread in self.scores.items()):
            raise ValueError("a score is not of every case that has it")
        if self.cases_of("dice") and "dice" not in self.scores:
            raise ValueError("the cases have no Dice")
        return self

    def cases_of(self, score: str) -> list[str]:
        """The cases that have a score, in the order of its single values."""
        plain, _, name = score.partition(" ")
        lacks = [set(self.lacking.get(each, ())) for each in ([name] if name else self.outlined)]
        if plain in FALSE_POSITIVES:
            return [case for case in self.cases if any(case in each for each in lacks)]
        return [case for case in self.cases if not all(case in each for each in lacks)]

    @property
    def outlined(self) -> list[str]:
        """The classes that the masks outline."""
        scored = [
            name
            for name in self.classes
            if {f"{score} {name}" for score in ("dice", *FALSE_POSITIVES)} & self.scores.keys()
        ]
        return scored or self.classes
