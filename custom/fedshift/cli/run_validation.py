"""``fedshift run`` of a job of ``fedshift job --evaluate``, in FLARE's simulator or in one process."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from fedshift.cli.display import console, ending_noted, make_display
from fedshift.reporting.report.wording import metric, ordered
from fedshift.schema.errors import ConfigError
from fedshift.schema.validation import FILE_NAME

if TYPE_CHECKING:
    from fedshift.schema.validation import Validation, ValidationSpec


def run(args: argparse.Namespace) -> int:
    """Run it; exit code 1 if a site gave no answer."""
    from fedshift.data.locate import find_site
    from fedshift.federation.run_lock import lock_run, require_unlocked
    from fedshift.flare.export import SPEC
    from fedshift.flare.validation.job import read_validation_spec

    if args.resume:
        raise ConfigError("no-effect", "a job that trains nothing is not gone on with: leave out --resume")
    if args.parallel is not None:
        raise ConfigError("no-effect", "--parallel is for jobs that train: leave it out")
    spec = read_validation_spec(args.job / SPEC)
    data = {site: find_site(spec.dataset, site, local=None, simulator=True) for site in spec.sites}
    workspace: Path = (args.workspace or Path("runs") / spec.validation).absolute()
    require_unlocked(workspace)
    _require_free(workspace, force=args.force)
    with lock_run(workspace):
        run_ = _in_process if args.in_process else _in_simulator
        record, folder = run_(spec, args.job, data, workspace)
    console.print(_table(record))
    for site, reason in record.refused.items():
        console.print(f"! site {site} gave no answer: {reason}", markup=False)
    for site, answer in record.sites.items():
        for what, reason in {**answer.refused, **answer.withheld}.items():
            console.print(f"  site {site}: {what}: {reason}", markup=False)
    print(f"record: {folder / FILE_NAME}")
    print(f"as a page: fedshift report {folder}")
    return int(bool(record.refused))


def _require_free(workspace: Path, *, force: bool) -> None:
    """Refuse a folder that holds something that is not such a record; an earlier record is replaced with ``force``."""
    from fedshift.flare.workspaces import RunFolders, find_run

    earlier = any((folder / FILE_NAME).is_file() for folder in (workspace, RunFolders(workspace).server))
    if earlier and not force:
        raise ConfigError(
            "run-exists", f"{workspace} holds a record: use --force to replace it, or another --workspace"
        )
    other = find_run(workspace)
    if other is not None or (workspace.is_dir() and not earlier and any(workspace.iterdir())):
        raise ConfigError("run-exists", f"{workspace} holds something else: give another --workspace")


def _in_process(spec: ValidationSpec, job: Path, data: Mapping[str, Path], workspace: Path) -> tuple[Validation, Path]:
    from fedshift.data.locate import is_phantom
    from fedshift.federation.validation_record import ValidationAnswers
    from fedshift.flare.validation.job import models_of
    from fedshift.inference.validation_run import validate_in_process
    from fedshift.reporting.progress import ProgressFile, of_validation, read_progress
    from fedshift.tasks.device import own_device

    file, display = ProgressFile(workspace), make_display(phantom=is_phantom(data))
    latest: list[ValidationAnswers] = []

    def show(answers: ValidationAnswers) -> None:
        latest[:] = [answers]
        file.show(of_validation(answers))
        display.show(read_progress(workspace))

    with ending_noted(file), display:
        record = validate_in_process(spec, models_of(job), data, workspace, device=own_device(), on_change=show)
    file.show(of_validation(latest[0], record))
    return record, workspace


def _in_simulator(
    spec: ValidationSpec, job: Path, data: Mapping[str, Path], workspace: Path
) -> tuple[Validation, Path]:
    from fedshift.data.locate import is_phantom
    from fedshift.flare.simulate_question import simulate_question
    from fedshift.flare.workspaces import RunFolders
    from fedshift.reporting.progress import mark_stopped, read_progress
    from fedshift.schema.validation import read_validation

    folders, display = RunFolders(workspace), make_display(phantom=is_phantom(data))

    def look() -> None:
        display.show(read_progress(folders.server))

    try:
        with display:
            simulate_question(
                job.absolute(), folders, FILE_NAME, sites=len(spec.sites), timeout=spec.timeout, on_look=look
            )
    except KeyboardInterrupt:
        mark_stopped(folders.server)
        raise
    return read_validation(folders.server), folders.server


def _table(record: Validation) -> Table:
    """Mean scores of each model at each site, and the differences to the first model over all sites."""
    table = Table(title=f"{record.spec.validation}: mean over cases")
    table.add_column("model")
    names = ordered({name for model in record.pooled.values() for name in model.scores if name == record.metric})
    sites = list(record.sites)
    for site in sites:
        table.add_column(site, justify="right")
    table.add_column("all cases", justify="right")
    table.add_column(f"against {record.spec.first}", justify="right")
    for name in names:
        m = metric(name)
        for model, pooled in record.pooled.items():
            of_sites = [record.sites[site].models.get(model) for site in sites]
            spreads = [None if each is None else each.scores.get(name) for each in of_sites]
            cells = [m.number(None if spread is None else spread.mean) for spread in spreads]
            whole = pooled.scores.get(name)
            against = pooled.against_first.get(name)
            difference = (
                "" if against is None else f"{m.points(against.mean)} {m.points_interval(against.interval)}".strip()
            )
            table.add_row(model, *cells, "–" if whole is None else m.number(whole.mean), difference)
    return table
