"""``leave_one_out.json`` and ``cross_site.json`` (schema 1), and their tables for the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field
from rich.table import Table

from fedshift.errors import ConfigError
from fedshift.evaluation.record import Evaluation
from fedshift.reporting.results import DataRecord, JobRecord, Metrics
from fedshift.reporting.table import PHANTOM
from fedshift.whole import write_text


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class _Record(_Model):
    """A file of its own: the job that all runs share, and what came of it."""

    FILE_NAME: ClassVar[str]

    schema_: Literal[1] = Field(default=1, alias="schema")
    job: JobRecord
    versions: dict[str, str]

    def write(self, folder: Path) -> None:
        """Write the file into ``folder`` (whole or not at all)."""
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
            raise ConfigError(f"{path} does not exist: the command did not end") from None
        except ValueError as error:
            raise ConfigError(f"{path} is not a file of this version ({str(error).splitlines()[0]})") from None


class ModelScores(_Model):
    """A model's scores at the site that it was not trained on: ``all`` samples, and those of the ``test`` part."""

    round: int
    scores: dict[str, Metrics]
    evaluations: dict[str, Evaluation] = {}


class HeldOutSite(_Model):
    """What the others' best and last model reached at a site."""

    data: DataRecord
    best: ModelScores
    last: ModelScores


class LeaveOneOut(_Record):
    """Every site held out in turn. ``job.held_out`` is empty: ``sites`` names who took turns."""

    FILE_NAME = "leave_one_out.json"

    sites: dict[str, HeldOutSite]
    mean: dict[Literal["best", "last"], dict[str, Metrics]]
    """Over sites."""


class CrossSite(_Record):
    """Every site's own model after its last local training, on every site's test part."""

    FILE_NAME = "cross_site.json"

    data: dict[str, DataRecord]
    scores: dict[str, dict[str, Metrics]]
    """Trained at -> tested at -> metrics."""
    mean_own: Metrics
    """Of every model at its own site."""
    mean_elsewhere: Metrics
    """Of every model at every other site."""


def own_model(folder: Path, site: str) -> Path:
    """Where ``fedshift cross-site --keep-models`` leaves a site's own model."""
    return folder / "own_models" / f"{site}.pt"


def mean_metrics(values: Iterable[Metrics]) -> Metrics:
    """The mean of each metric over those that have it."""
    values = list(values)
    names = sorted({name for metrics in values for name in metrics})
    return {name: fmean(metrics[name] for metrics in values if name in metrics) for name in names}


def leave_one_out_table(record: LeaveOneOut) -> Table:
    """A row a site that was held out: the others' best and last model on all its samples, and on its test part."""
    table = _table(record, "each site held out in turn", [site.data for site in record.sites.values()])
    table.add_column("held out")
    table.add_column("samples", justify="right")
    for which in ("best", "last"):
        for part in ("all", "test"):
            table.add_column(f"{which} model\n{part} samples", justify="right")
    metric = record.job.metric
    for name, site in record.sites.items():
        found = [model.scores.get(part, {}) for model in (site.best, site.last) for part in ("all", "test")]
        table.add_row(name, str(sum(site.data.n.values())), *(_percent(metrics, metric) for metrics in found))
    table.add_section()
    means = [record.mean[which].get(part, {}) for which in ("best", "last") for part in ("all", "test")]
    table.add_row("mean", "", *(_percent(metrics, metric) for metrics in means))
    return table


def cross_site_table(record: CrossSite) -> Table:
    """Rows: where a model was trained. Columns: at whose test part it is scored; then its own site, and the others."""
    table = _table(record, "every site's own model", record.data.values())
    table.add_column("trained at")
    for name in record.data:
        table.add_column(f"tested at\n{name}", justify="right")
    table.add_column("own\nsite", justify="right")
    table.add_column("mean\nelsewhere", justify="right")
    metric = record.job.metric
    for name, row in record.scores.items():
        elsewhere = mean_metrics(metrics for site, metrics in row.items() if site != name)
        shown = [*(row.get(site, {}) for site in record.data), row.get(name, {}), elsewhere]
        table.add_row(name, *(_percent(metrics, metric) for metrics in shown))
    table.add_section()
    means = [_percent(metrics, metric) for metrics in (record.mean_own, record.mean_elsewhere)]
    table.add_row("mean", *[""] * len(record.data), *means)
    return table


def _table(record: _Record, what: str, data: Iterable[DataRecord]) -> Table:
    job = record.job
    notes = [f"Initial weights: {job.initial_weights}."]
    if any(site.kind == "phantom" for site in data):
        notes.append(PHANTOM)
    methods = " + ".join(method.name for method in job.methods)
    return Table(
        title=f"{methods} on {job.task}, {what}, {job.metric} in percent",
        caption="\n".join(notes),
        title_justify="left",
        caption_justify="left",
    )


def _percent(metrics: Metrics, name: str) -> str:
    return f"{100 * metrics[name]:.1f}" if name in metrics else "-"
