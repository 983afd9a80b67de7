"""What `fedshift report` is given: the folder of a run or of a comparison, or the record in it; read and named."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.reporting.comparison.record import FILE_NAME as CELLS
from fedshift.reporting.comparison.record import Comparison, read_comparison
from fedshift.reporting.report.wording import listed, short
from fedshift.schema.errors import ConfigError
from fedshift.schema.evaluation import Distribution, Evaluation
from fedshift.schema.protocol_results import CrossSite, LeaveOneOut, own_model
from fedshift.schema.results import BEST, FILE_NAME, FinalScores, Results, read_results

if TYPE_CHECKING:
    from fedshift.schema.job import JobSpec
    from fedshift.schema.messages import MethodArrays, Weights

_DEEPEST = 5
"""Folders below the one that was named: a job that was downloaded from a server has its results four down."""


@dataclass(frozen=True)
class Model:
    """The best model's file: the job as it was run, and what methods keep beside the weights."""

    path: Path
    job: JobSpec
    round: int
    sites: tuple[str, ...]
    """Those whose arrays of the statistics round are stacked in ``arrays``, in order."""
    personal: tuple[str, ...]
    """Keys of ``weights`` that every site has its own of."""
    weights: Weights
    arrays: MethodArrays


@dataclass(frozen=True)
class Run:
    """A finished run, or one that was cut short."""

    source: Path
    """Its ``results.json``."""
    results: Results
    model: Model | None = None
    fault: str = ""
    """Why the model file that is there could not be read."""
    label: str = ""
    """What it is called beside others."""

    @property
    def trained(self) -> list[str]:
        """Sites that took part in training."""
        return [site for site in self.results.data if site not in self.results.job.held_out]

    @property
    def methods(self) -> str:
        """Joined by +."""
        return " + ".join(method.name for method in self.results.job.methods)


@dataclass(frozen=True)
class Transfer:
    """A record of models at sites that they were not trained at."""

    record: LeaveOneOut | CrossSite
    run: Run
    """The run beside a cross-site record; else job, versions and data of the record, as a run without rounds."""


Given = Run | Transfer | Comparison


def read(path: Path) -> Given:
    """Read what a person has named.

    Raises:
        ConfigError: there is no record there, or several, or one of another version.
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist: name a folder of a run or comparison, or its {FILE_NAME}")
    for kind in (LeaveOneOut, CrossSite):
        if path.name == kind.FILE_NAME:
            return _transfer(kind.read(path.parent), path.parent)
        if (path / kind.FILE_NAME).is_file():
            return _transfer(kind.read(path), path)
    if path.name == CELLS or (path / CELLS).is_file():
        return read_comparison(path)
    return _read_run(path if path.is_file() else _find(path))


def _transfer(record: LeaveOneOut | CrossSite, folder: Path) -> Transfer:
    source = folder / FILE_NAME
    if isinstance(record, LeaveOneOut):
        data = {site: told.data for site, told in record.sites.items()}
    else:
        data = record.data
        if source.is_file():
            run = _read_run(source)
            if run.results.job == record.job and run.results.data == data:
                return Transfer(record, run)
    told = Results(job=record.job, versions=record.versions, data=data)
    return Transfer(record, Run(folder / record.FILE_NAME, told))


def _read_run(source: Path) -> Run:
    results = read_results(source)
    file = source.parent / BEST
    if not file.is_file():
        return Run(source, results)
    try:
        model = _read_model(file)
    except ConfigError as error:  # a report does without; its words must not hold this machine's folders
        return Run(source, results, fault=str(error).replace(str(file), file.name))
    told, job = results.job, model.job
    same = (job.task.name, job.seed, [*job.methods]) == (told.task, told.seed, [m.name for m in told.methods])
    if not same or (results.final is not None and results.final.best.round != model.round):
        return Run(source, results, fault=f"{file.name} is the model of another run")
    return Run(source, results, model)


def own_models(given: Transfer) -> dict[str, Model]:
    """Each site's own model, if a cross-site record has them beside it.

    Raises:
        ConfigError: a model file cannot be used.
    """
    if not isinstance(given.record, CrossSite):
        return {}
    files = {site: own_model(given.run.source.parent, site) for site in given.record.data}
    return {site: _read_model(file) for site, file in files.items() if file.is_file()}


def named(runs: Sequence[Run]) -> list[Run]:
    """The runs with labels that say what differs: methods, then task, protocol, settings and seed as far as needed."""
    labels = [run.methods for run in runs]
    settings = [_settings(run) for run in runs]
    for key in dict.fromkeys(key for one in settings for key in one):
        labels = _distinguished(labels, [one.get(key, "") for one in settings])
    for depth in range(1, _DEEPEST + 1):
        labels = _distinguished(
            labels, [run.source.parents[depth - 1].name if depth <= len(run.source.parents) else "" for run in runs]
        )
    labels = _distinguished(labels, [f"run {number}" for number in range(1, len(runs) + 1)])
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def _distinguished(labels: list[str], parts: list[str]) -> list[str]:
    """Labels with parts added where that tells runs of one label apart."""
    longer = []
    for label, part in zip(labels, parts, strict=True):
        alike = {other for name, other in zip(labels, parts, strict=True) if name == label}
        longer.append(f"{label}, {part}" if len(alike) > 1 and part else label)
    return longer


def _settings(run: Run) -> dict[str, str]:
    """What may differ between runs of the same methods, in words by key; the seed comes last."""
    job = run.results.job
    found = {"task": job.task, "protocol": job.protocol}
    for method in job.methods:
        found |= _words(f"{method.name}.", method.options)
    found |= _words("network.", job.network) | _words("data.", job.data) | {"rounds": f"rounds {job.rounds}"}
    if run.model is not None:
        task = run.model.job.task
        found |= _words("schedule.", task.schedule.model_dump(mode="json", exclude={"rounds", "precision", "threads"}))
        found |= _words("optimizer.", task.optimizer.model_dump(mode="json")) | {"loss": f"loss {task.loss}"}
    found["weights"] = job.initial_weights
    found["held out"] = f"{listed(job.held_out)} held out" if job.held_out else ""
    found["sites"] = f"sites {listed(run.trained)}" if run.trained else ""
    found["precision"] = job.precision
    return {**found, "seed": f"seed {job.seed}"}


def _words(prefix: str, options: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            found |= _words(f"{prefix}{key}.", value)
        else:
            found[f"{prefix}{key}"] = f"{prefix}{key} {short(str(value))}"
    return found


def evaluation(scores: FinalScores, site: str, part: str) -> Evaluation | None:
    """A model's evaluation on a part of a site; records of earlier versions have none."""
    return scores.evaluations.get(site, {}).get(part)


def personal_evaluation(results: Results, site: str) -> Evaluation | None:
    """Of a site's own model, on its test part."""
    return None if results.final is None else results.final.personal_evaluations.get(site)


def distribution(scores: FinalScores, site: str, part: str, metric: str) -> Distribution | None:
    """One score over the cases of a part, if the record has it."""
    found = evaluation(scores, site, part)
    return None if found is None else found.distributions.get(metric)


def _find(folder: Path) -> Path:
    """The one ``results.json`` in a folder or below it."""
    if (folder / FILE_NAME).is_file():
        return folder / FILE_NAME
    found = []
    for place, folders, files in os.walk(folder):
        if len(Path(place).relative_to(folder).parts) >= _DEEPEST:
            folders.clear()
        if FILE_NAME in files:
            found.append(Path(place) / FILE_NAME)
    if not found:
        raise ConfigError(f"there is no {FILE_NAME} in {folder}: a run writes it into the server's job folder")
    if len(found) > 1:
        first, second = sorted(found)[:2]
        raise ConfigError(f"{folder} holds several runs ({first.parent}, {second.parent}, …): name those you want")
    return found[0]


def _read_model(path: Path) -> Model:
    from fedshift.federation.model_files import header_of, read_model_file

    content = read_model_file(path)
    header = header_of(content, where=str(path))
    if header.encrypted:
        raise ConfigError(f"{path} is encrypted: its arrays can be read at a site only")
    return Model(
        path,
        header.job,
        header.round,
        header.statistics,
        header.personal,
        {key: value.numpy() for key, value in content["weights"].items()},
        {name: {key: value.numpy() for key, value in arrays.items()} for name, arrays in content["methods"].items()},
    )
