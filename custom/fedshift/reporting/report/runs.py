"""What `fedshift report` is given: the folder of a run, or the record in it; found, read, and named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

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


Given = Run | Transfer


def read(path: Path) -> Given:
    """Read what a person has named.

    Raises:
        ConfigError: there is no record there, or several, or one of another version.
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist: name a run's folder or its {FILE_NAME}")
    for kind in (LeaveOneOut, CrossSite):
        if path.name == kind.FILE_NAME:
            return _transfer(kind.read(path.parent), path.parent)
        if (path / kind.FILE_NAME).is_file():
            return _transfer(kind.read(path), path)
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
    """The runs with labels that tell them apart: methods, then seed, protocol and task, as far as needed."""
    jobs = [run.results.job for run in runs]
    labels = [run.methods for run in runs]
    for parts in (
        [job.task for job in jobs],
        [job.protocol for job in jobs],
        [f"seed {job.seed}" for job in jobs],
        [run.source.parent.name for run in runs],
        [f"run {number}" for number in range(1, len(runs) + 1)],
    ):
        if len(set(labels)) == len(runs):
            break
        if len(set(parts)) > 1:
            labels = [f"{label}, {part}" for label, part in zip(labels, parts, strict=True)]
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


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
    from fedshift.federation.model_files import header_of, load_checkpoint

    content = load_checkpoint(path)
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
