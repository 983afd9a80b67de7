"""Read and label the inputs of ``fedshift report``: folders or records of runs, comparisons and evaluations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedshift.reporting.report.chapter_sources import chapter_of
from fedshift.reporting.report.section import Chapter
from fedshift.reporting.report.wording import listed, short
from fedshift.reporting.table import scored_on
from fedshift.schema.errors import ConfigError
from fedshift.schema.evaluation import Distribution, Evaluation
from fedshift.schema.protocol_results import CrossSite, LabelledImages, LabelledScans, LeaveOneOut, own_model
from fedshift.schema.results import (
    BEST,
    FILE_NAME,
    FinalScores,
    JobRecord,
    Results,
    deciding_settings,
    new_results,
    read_results,
)
from fedshift.schema.task import LossSpec
from fedshift.schema.validation import FILE_NAME as VALIDATION
from fedshift.schema.validation import Validation, read_validation

if TYPE_CHECKING:
    from fedshift.schema.job import JobSpec
    from fedshift.schema.messages import MethodArrays

_UNKNOWN = "unknown"
_MAX_PART = 60
"""Characters of a setting with its value in a run's label."""
_MAX_DEPTH = 5
"""Levels of subfolders that are searched: in a job downloaded from a server the results are four levels down."""


@dataclass(frozen=True)
class ModelFile:
    """What a report tells of the best model's file: the job, and the methods' own arrays."""

    path: Path
    job: JobSpec
    round: int
    sites: tuple[str, ...]
    """The sites whose arrays of the statistics round are stacked in ``arrays``, in order."""
    personal: tuple[str, ...]
    """Keys of its weights that are personal, different at every site."""
    is_shared: bool
    """Whether any of its weights is not personal."""
    arrays: MethodArrays


@dataclass(frozen=True)
class Run:
    """A run, finished or interrupted."""

    source: Path
    """Its ``results.json``."""
    results: Results
    model: ModelFile | None = None
    fault: str = ""
    """Why the existing model file could not be read."""
    label: str = ""
    """The run's name among several runs."""

    @property
    def trained(self) -> list[str]:
        """The sites that took part in training."""
        return [site for site in self.results.data if site not in self.results.job.held_out]

    @property
    def counted(self) -> str:
        """What is scored one by one: cases, or pictures."""
        return scored_on(self.results.data.values())

    @property
    def methods(self) -> str:
        """The methods' names, joined by +."""
        return " + ".join(method.name for method in self.results.job.methods)

    @property
    def has_guess(self) -> bool:
        """Whether the record has the scores of an image-free guess."""
        return self.results.final is not None and bool(self.results.final.image_free)

    @property
    def settings(self) -> dict[str, Any]:
        """`deciding_settings` of its job: from the record, else from the model file; empty if neither has them."""
        recorded = self.results.job.settings
        return recorded if recorded or self.model is None else deciding_settings(self.model.job)


@dataclass(frozen=True)
class Transfer:
    """A record of models evaluated at sites where they were not trained."""

    record: LeaveOneOut | CrossSite
    run: Run
    """The run next to a cross-site record; otherwise a run without rounds, with the record's job, versions and data."""


ReportInput = Run | Transfer | Chapter | LabelledScans | LabelledImages | Validation


def read(path: Path) -> ReportInput:
    """Read a folder or a record file; of an evaluation only where no other record is.

    Raises:
        ConfigError: there is no record, there are several, or the record is of another version.
    """
    if not path.exists():
        raise ConfigError(
            "file-missing", f"{path} does not exist: name a folder of a run or comparison, or its {FILE_NAME}"
        )
    for kind in (LeaveOneOut, CrossSite):
        if path.name == kind.FILE_NAME:
            return _transfer(kind.read(path.parent), path.parent)
        if (path / kind.FILE_NAME).is_file():
            return _transfer(kind.read(path), path)
    if (chapter := chapter_of(path)) is not None:
        return chapter
    if (validation := _find_validation(path)) is not None:
        return read_validation(validation)
    evaluated = path if path.is_dir() else path.parent
    if path.name == LabelledImages.FILE_NAME or (path / LabelledImages.FILE_NAME).is_file():
        return LabelledImages.read(evaluated)
    if path.name == LabelledScans.FILE_NAME or (
        (path / LabelledScans.FILE_NAME).is_file() and not (path / FILE_NAME).is_file()
    ):
        return LabelledScans.read(evaluated)
    return _read_run(path if path.is_file() else _find_results(path))


def _find_validation(path: Path) -> Path | None:
    """The record of a validation in a folder, or below it as in a job that was downloaded from a server."""
    if path.is_file():
        return path if path.name == VALIDATION else None
    if (path / FILE_NAME).is_file():
        return None
    depths = ("*/" * depth for depth in range(_MAX_DEPTH))
    records = [file for below in depths for file in sorted(path.glob(f"{below}{VALIDATION}"))]
    return records[0] if len(records) == 1 else None


def _transfer(record: LeaveOneOut | CrossSite, folder: Path) -> Transfer:
    source = folder / FILE_NAME
    if isinstance(record, LeaveOneOut):
        data = {site: site_record.data for site, site_record in record.sites.items()}
    else:
        data = record.data
        if source.is_file():
            run = _read_run(source)
            if run.results.job == record.job and run.results.data == data:
                return Transfer(record, run)
    results = Results(job=record.job, versions=record.versions, data=data)
    return Transfer(record, Run(folder / record.FILE_NAME, results))


def _read_run(source: Path) -> Run:
    results = read_results(source)
    file = source.parent / BEST
    if not file.is_file():
        return Run(source, results)
    try:
        model = model_file(file)
    except ConfigError as error:  # a report works without it; its text must not contain this machine's folders
        return Run(source, results, fault=str(error).replace(str(file), file.name))
    if not is_of(results.job, model.job) or (results.final is not None and results.final.best.round != model.round):
        return Run(source, results, fault=f"{file.name} is the model of another run")
    return Run(source, results, model)


def is_of(record: JobRecord, job: JobSpec) -> bool:
    """Whether a record is of a job; one of an earlier version says only its task, seed and methods."""
    if not record.settings:
        known = (record.task, record.dataset, record.seed, [method.name for method in record.methods])
        return known == (job.task.name, record.dataset and job.task.dataset, job.seed, [*job.methods])
    of_run = {"metric", "departures", "initial_weights", "lineage"}
    of_job = new_results(job, metric=record.metric).job
    return record.model_dump(mode="json", exclude=of_run) == of_job.model_dump(mode="json", exclude=of_run)


def own_models(transfer: Transfer) -> dict[str, ModelFile]:
    """Each site's own model, if they are stored next to a cross-site record.

    Raises:
        ConfigError: a model file cannot be read.
    """
    if not isinstance(transfer.record, CrossSite):
        return {}
    files = {site: own_model(transfer.run.source.parent, site) for site in transfer.record.data}
    return {site: model_file(file) for site, file in files.items() if file.is_file()}


def label_runs(runs: Sequence[Run]) -> list[Run]:
    """Label the runs by their differences: methods, then as needed task, protocol, settings, seed and folder names."""
    labels = [run.methods for run in runs]
    if len(runs) < 2:
        return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]
    settings = [_settings(run) for run in runs]
    keys = dict.fromkeys(key for texts in settings for key in texts)
    for key in sorted(keys, key=lambda key: key == "seed"):  # which comes last
        labels = _disambiguate(labels, [texts.get(key, "") for texts in settings])
    for depth in range(_MAX_DEPTH):
        parents = [run.source.parents for run in runs]
        labels = _disambiguate(labels, [folders[depth].name if depth < len(folders) else "" for folders in parents])
    labels = _disambiguate(labels, [f"run {number}" for number in range(1, len(runs) + 1)])
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def _disambiguate(labels: list[str], parts: list[str]) -> list[str]:
    """Append ``parts`` to labels that several runs share, if the parts differ."""
    extended = []
    for label, part in zip(labels, parts, strict=True):
        values = {other for name, other in zip(labels, parts, strict=True) if name == label}
        extended.append(f"{label}, {short(part, _MAX_PART)}" if len(values) > 1 and part else label)
    return extended


def _settings(run: Run) -> dict[str, str]:
    """Settings that may differ between runs of the same methods, as text by key."""
    job = run.results.job
    texts = {"task": job.task, "protocol": job.protocol}
    for method in job.methods:
        texts |= _flat_settings(f"{method.name}.", method.options)
    texts |= (
        _flat_settings("network.", job.network) | _flat_settings("data.", job.data) | {"rounds": f"rounds {job.rounds}"}
    )
    settings = run.settings
    texts[_UNKNOWN] = "" if settings else "settings not recorded"
    elsewhere = {"schedule.rounds", "schedule.precision"}
    if "loss" in settings:  # with options it is not its name alone
        loss = LossSpec.model_validate(settings["loss"])
        settings = {**settings, "loss": loss.name, "loss.options": loss.options}
    texts |= {key: text for key, text in _flat_settings("", settings).items() if key not in elsewhere}
    texts["weights"] = job.initial_weights
    texts["held out"] = f"{listed(job.held_out)} held out" if job.held_out else ""
    texts["sites"] = f"sites {listed(run.trained)}" if run.trained else ""
    texts["precision"] = job.precision
    return {**texts, "seed": f"seed {job.seed}"}


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Names of the settings in which runs differ, but for the seed and the methods with their own options.

    Runs whose settings are not known do not count.
    """
    known = [run for run in runs if run.settings]
    prefixes = tuple(f"{method.name}." for run in known for method in run.results.job.methods)
    settings = [_settings(run) for run in known]
    return [
        key
        for key in dict.fromkeys(key for texts in settings for key in texts)
        if key != "seed" and not key.startswith(prefixes) and len({texts.get(key, "") for texts in settings}) > 1
    ]


def _flat_settings(prefix: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Nested options as text, with dotted keys."""
    texts: dict[str, str] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            texts |= _flat_settings(f"{prefix}{key}.", value)
        else:
            texts[f"{prefix}{key}"] = f"{prefix}{key} {'none' if value is None else value}"
    return texts


def evaluation(scores: FinalScores, site: str, part: str) -> Evaluation | None:
    """A model's evaluation on one part of a site's samples; None in records of earlier versions."""
    return scores.evaluations.get(site, {}).get(part)


def personal_evaluation(results: Results, site: str) -> Evaluation | None:
    """The evaluation of a site's own model on its test part, if there is one."""
    return None if results.final is None else results.final.personal_evaluations.get(site)


def distribution(scores: FinalScores, site: str, part: str, metric: str) -> Distribution | None:
    """The distribution of a score over the cases of a part, if the record has it."""
    result = evaluation(scores, site, part)
    return None if result is None else result.distributions.get(metric)


def guess_mean(run: Run, sites: Sequence[str], part: str, metric: str) -> float | None:
    """The mean score of the image-free guess over these sites; None if one has none."""
    guess = {} if run.results.final is None else run.results.final.image_free
    values = [guess.get(site, {}).get(part, {}).get(metric) for site in sites]
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _find_results(folder: Path) -> Path:
    """Find the only ``results.json`` in a folder or its subfolders.

    Raises:
        ConfigError: there is none, or more than one.
    """
    if (folder / FILE_NAME).is_file():
        return folder / FILE_NAME
    sources = []
    for place, folders, files in os.walk(folder):
        if len(Path(place).relative_to(folder).parts) >= _MAX_DEPTH:
            folders.clear()
        if FILE_NAME in files:
            sources.append(Path(place) / FILE_NAME)
    if not sources:
        raise ConfigError(
            "no-run", f"there is no {FILE_NAME} in {folder}: name the folder of a run, or the server's job folder"
        )
    if len(sources) > 1:
        first, second = sorted(sources)[:2]
        raise ConfigError(
            "several-runs",
            f"{folder} contains several runs ({first.parent}, {second.parent}, …): name the folder of one",
        )
    return sources[0]


def model_file(path: Path) -> ModelFile:
    """Read a model file, without building its network.

    Raises:
        ConfigError: it cannot be read, or is encrypted.
    """
    from fedshift.federation.model_files import read_with_header

    header, content = read_with_header(path)
    if header.encrypted:
        raise ConfigError("encrypted", f"{path} is encrypted: its arrays can be read only at a site")
    return ModelFile(
        path,
        header.job,
        header.round,
        header.statistics,
        header.personal,
        set(header.personal) != content["weights"].keys(),
        {name: {key: value.numpy() for key, value in arrays.items()} for name, arrays in content["methods"].items()},
    )
