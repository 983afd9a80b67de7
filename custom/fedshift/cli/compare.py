"""``fedshift compare``."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.arguments import add_phantom
from fedshift.cli.display import console

if TYPE_CHECKING:
    import argparse

    from fedshift.reporting.comparison.cells import Cell
    from fedshift.reporting.comparison.record import Comparison
    from fedshift.reporting.comparison.runner import Job, Moment, State
    from fedshift.reporting.comparison.store import Store

CELLS = Path("runs/cells")
EVERY = 30.0
"""Seconds between two lines where nobody sees a bar."""


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    compare = subparsers.add_parser(
        "compare",
        help="run a grid of tasks, methods, options and seeds, and make its tables",
        description="Run the cells of a comparison side by side, none twice, and write cells.json, table.csv, "
        "table.md, table.tex, curves.csv and curves.svg. Repeated, the command goes on where it was. Exit code 1: some "
        "cells failed.",
    )
    compare.add_argument("spec", type=Path, metavar="SPEC", help="a .yaml file; with --tables-only also cells.json")
    compare.add_argument("--scale", metavar="NAME", help="one of the spec's (default: quick, else its first)")
    compare.add_argument("--only", nargs="+", default=[], metavar="LABEL", help="run only cells with these labels")
    compare.add_argument("--dry-run", action="store_true", help="resolve and estimate all cells, run none")
    compare.add_argument("--flare", action="store_true", help="in FLARE's simulator, one after another")
    compare.add_argument(
        "--jobs", type=int, metavar="N", help="cells side by side (default: as cores and memory allow)"
    )
    compare.add_argument("-w", "--workspace", type=Path, default=CELLS, metavar="DIR", help=f"cells (default: {CELLS})")
    compare.add_argument("--out", type=Path, metavar="DIR", help="tables (default: runs/<name>_<scale>)")
    compare.add_argument("--tables-only", action="store_true", help="make the tables anew from cells.json alone")
    add_phantom(compare)
    compare.set_defaults(func=compare_command)


def compare_command(args: argparse.Namespace) -> int:
    """``fedshift compare``."""
    from fedshift.reporting.comparison.record import FILE_NAME, read_comparison
    from fedshift.reporting.comparison.spec import FULL, read_spec
    from fedshift.schema.errors import ConfigError

    if args.tables_only and (args.spec.is_dir() or args.spec.name == FILE_NAME):
        comparison = read_comparison(args.spec)
        return _show(comparison, args.out or (args.spec if args.spec.is_dir() else args.spec.parent))
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError("--jobs must be 1 or more")
    if args.flare and args.jobs not in (None, 1):
        raise ConfigError(
            "--flare runs cells one after another, each with its sites side by side on all cores: leave out --jobs"
        )
    spec, scale = read_spec(args.spec, args.scale)
    out = args.out or Path("runs") / (spec.name if scale == FULL else f"{spec.name}_{scale}")
    if args.tables_only:
        return _show(read_comparison(out), out)
    return _Command(args, spec, scale, out.absolute()).run()


class _Command:
    """One call, from the spec to the tables."""

    def __init__(self, args: argparse.Namespace, spec: Any, scale: str, out: Path) -> None:
        from fedshift.reporting.comparison.store import Store

        self._args, self._spec, self._scale, self._out = args, spec, scale, out
        self._folder = args.spec.absolute().parent
        self._store = Store(args.workspace.absolute())

    def run(self) -> int:
        """Exit code 1 if cells failed."""
        from fedshift.data.local_sites import is_phantom
        from fedshift.reporting.comparison import runner
        from fedshift.reporting.comparison.cells import choose, make_cells
        from fedshift.reporting.comparison.collect import Collector
        from fedshift.reporting.comparison.estimate import Estimator
        from fedshift.reporting.comparison.tables import titled

        args, spec = self._args, self._spec
        print(titled(spec.title, self._scale), flush=True)
        with _Resolving() as resolving:
            self._cells = make_cells(spec, folder=self._folder, on_resolved=resolving)
        chosen = choose(self._cells, args.only)
        self._phantom = any(is_phantom(folders) for folders in _different(cell.data for cell in self._cells))
        self._collector = Collector(spec, self._scale, self._cells, self._store, folder=self._folder)
        self._collector.collect()  # reports what does not fit before anything runs
        from fedshift.tasks.device import own_device

        device = own_device()
        self._estimator = Estimator(self._store.folder, device=device, samples=spec.samples)
        jobs = runner.gather(chosen, self._store, self._estimator)
        at_a_time = 1 if args.flare else args.jobs or runner.side_by_side(jobs, device=device)
        self._tell(jobs, chosen, at_a_time)
        if args.dry_run:
            return 0
        reasons = {cell.name: job.reason for job in jobs if job.state == "failed" for cell in job.cells}
        for job in (job for job in jobs if job.state == "failed"):
            self._complain(job)

        def ended(job: Job) -> None:
            for cell in job.cells:
                if job.state == "failed":
                    reasons[cell.name] = job.reason
            if job.state == "failed":
                self._complain(job)
            elif job.process is not None or args.flare:
                self._learn(job)
            self._write(reasons)

        display = _Bar(phantom=self._phantom) if console.is_terminal else _Lines(phantom=self._phantom)
        try:
            with display:
                if args.flare:
                    _in_flare(jobs, self._store, display.show, ended)
                else:
                    runner.run(jobs, self._store, at_a_time=at_a_time, on_look=display.show, on_end=ended)
        finally:
            comparison = self._write(reasons)
            self._tables(comparison)
        _show(comparison, self._out)
        failed = [cell.name for job in jobs if job.state == "failed" for cell in job.cells]
        if failed:
            print(f"{len(failed)} of {len(chosen)} cells failed; repeat the command to run only what is missing")
        return 1 if failed else 0

    def _write(self, reasons: dict[str, str]) -> Comparison:
        from fedshift.reporting.comparison.record import write_comparison

        found = self._collector.collect(reasons)
        write_comparison(found, self._out)
        return found

    def _tables(self, comparison: Comparison) -> None:
        from fedshift.reporting.comparison.tables import write_tables

        write_tables(comparison, self._out)

    def _learn(self, job: Job) -> None:
        from fedshift.reporting.comparison.collect import seconds_in_rounds
        from fedshift.reporting.comparison.store import read_done

        assert job.cell.work is not None
        place = self._store.place(job.cell.work)
        done, spent = read_done(place), seconds_in_rounds(job.cell, place)
        if done.how == "one process":
            self._estimator.learn(job.cell, seconds=done.seconds, in_rounds=spent, peak_bytes=done.peak_bytes)

    def _complain(self, job: Job) -> None:
        console.print(f"failed: {job.cell.name}{_others(job)}: {job.reason}", markup=False)

    def _tell(self, jobs: Sequence[Job], chosen: Sequence[Cell], at_a_time: int) -> None:
        """How much there is to do, and what is lacking."""
        from rich.table import Table

        from fedshift.reporting.comparison.runner import by_row, total_seconds
        from fedshift.reporting.table import PHANTOM_NOTE, title_of
        from fedshift.tasks.machine import free_memory

        done = sum(len(job.cells) for job in jobs if job.state == "done")
        same = len(chosen) - len(jobs)
        print(
            f"{len(chosen)} of {len(self._cells)} cells"
            + (f", {same} of them the same as others" if same else "")
            + f"; {done} are done in {self._store.folder}"
        )
        from fedshift.reporting.comparison.store import read_done
        from fedshift.reporting.comparison.work import identity

        own = identity()["source"]
        places = [self._store.place(job.cell.work) for job in jobs if job.state == "done" and job.cell.work]
        others = sum(read_done(place).source != own for place in places)
        if others:
            print(f"{others} of them were made by another source of fedshift; another --workspace runs them anew")
        lacking = {sentence for job in jobs for cell in job.cells for sentence in cell.lacking}
        for sentence in sorted(lacking):
            print(f"lacking: {sentence}")
        if self._phantom:
            print(PHANTOM_NOTE)
        if self._args.dry_run:
            title = title_of("cells to run", phantom=True) if self._phantom else None
            table = Table(box=None, pad_edge=False, title=title, title_justify="left")
            rows = by_row(jobs)
            table.add_column(next(iter(self._spec.axes)), no_wrap=True, min_width=max(map(len, rows)))
            for name in ("cells", "done", "one takes", "memory"):
                table.add_column(name, justify="right")
            for row, of in rows.items():
                ranges = [job.estimate.range for job in of]
                span = between(min(low for low, _ in ranges), max(high for _, high in ranges))
                memory = max(job.estimate.peak_bytes for job in of) / 2**30
                ended = sum(job.state == "done" for job in of)
                table.add_row(row, str(len(of)), str(ended), span, f"{memory:.1f} GiB")
            console.print(table)
        ahead = [job for job in jobs if job.state != "done"]
        if not ahead:
            return
        learned = sum(job.estimate.is_learned for job in ahead)
        how = "from such cells that ended here" if learned == len(ahead) else "from short trials; methods may cost more"
        print(f"time: {between(*total_seconds(ahead, at_a_time))} with {at_a_time} at a time ({how})")
        most = max(job.estimate.peak_bytes for job in ahead)
        print(f"memory: up to {most / 2**30:.1f} GiB a cell, {free_memory() / 2**30:.1f} GiB are free", flush=True)
        if any(job.estimate.is_assumed for job in ahead):
            from fedshift.reporting.comparison.estimate import ASSUMED

            n = self._spec.samples or ASSUMED
            print(f"where data are lacking, sites are taken to have {n.train}/{n.val}/{n.test} samples")


def _show(comparison: Comparison, out: Path) -> int:
    """Tables into files and onto the terminal, and scores over rounds into files."""
    from fedshift.reporting.comparison.curves import write_curves
    from fedshift.reporting.comparison.tables import rich_tables, write_tables

    paths = write_tables(comparison, out)
    for table in rich_tables(comparison):
        console.print(table)
    print(f"tables: {', '.join(str(path) for path in paths)}")
    curves = write_curves(comparison, out)
    if curves:
        print(f"scores over rounds: {', '.join(str(path) for path in curves)}")
    return 0


def _in_flare(
    jobs: Sequence[Job], store: Store, on_look: Callable[[Moment], None], on_end: Callable[[Job], None]
) -> None:
    """Cells in FLARE's simulator, one after another; centralised references, which it cannot run, in this process."""
    import time

    from fedshift.flare.export import write_job
    from fedshift.flare.simulate import simulate
    from fedshift.reporting.comparison.runner import Moment
    from fedshift.reporting.comparison.store import BusyError
    from fedshift.reporting.comparison.work import perform
    from fedshift.schema.errors import FedshiftError
    from fedshift.schema.results import BEST, FILE_NAME, LAST

    moment = Moment(jobs, time.monotonic(), 1)
    for job in jobs:
        if job.has_ended:
            continue
        assert job.cell.work is not None
        job.state = "running"

        def start(spec: Any, data: Any, place: Path, tell: Callable[[float], None], job: Job = job) -> None:
            def look(progress: Any) -> None:
                if progress is not None:
                    job.share = progress.share
                    tell(job.share)
                on_look(moment)

            place.mkdir(parents=True, exist_ok=True)
            folders = simulate(spec, write_job(spec, place / "job"), place / "flare", on_look=look)
            for name in (FILE_NAME, BEST, LAST):
                shutil.copyfile(folders.server / name, place / name)

        try:
            on_look(moment)
            perform(store.prepare(job.cell.work), start)
            job.state, job.share = "done", 1.0
        except BusyError as error:
            job.state, job.reason = "failed", str(error)
        except FedshiftError as error:
            job.state, job.reason = "failed", str(error)
        on_end(job)


def _others(job: Job) -> str:
    return f" (and {', '.join(cell.name for cell in job.cells[1:])})" if len(job.cells) > 1 else ""


def _different(data: Iterable[Mapping[str, Path]]) -> Iterable[Mapping[str, Path]]:
    """The distinct sets of sites' folders among those of many cells."""
    return {tuple(folders.items()): folders for folders in data}.values()


def between(low: float, high: float) -> str:
    """A range of times, such as ``2 min 10 s to 5 min 30 s``."""
    from fedshift.reporting.progress import duration

    first, last = duration(low), duration(high)
    return first if first == last else f"{first} to {last}"


def describe(moment: Moment, *, phantom: bool = False) -> str:
    """The state of a comparison in one line."""
    from fedshift.reporting.progress import duration

    done, of = moment.rounds
    total = sum(len(job.cells) for job in moment.jobs)
    ended = f"{moment.count('done', 'failed')} of {total} cells ended"
    parts = [f"PHANTOM {ended}" if phantom else ended, f"{done} of {of} rounds of all cells"]
    states: tuple[tuple[State, str], ...] = (
        ("running", "running"),
        ("elsewhere", "in another process"),
        ("failed", "failed"),
    )
    for state, word in states:
        count = moment.count(state)
        if count:
            parts.append(f"{count} {word}")
    parts.append(f"about {duration(moment.seconds_left)} left")
    return ", ".join(parts)


class _Resolving:
    """Says how many cells are resolved, on a terminal."""

    def __enter__(self) -> _Resolving:
        self._status = console.status("resolving") if console.is_terminal else None
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, done: int, of: int) -> None:
        if self._status:
            self._status.update(f"resolving {done}/{of}")


class _Bar:
    """A progress bar over all cells."""

    def __init__(self, *, phantom: bool) -> None:
        self._phantom = phantom

    def __enter__(self) -> _Bar:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(30), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._bar.start()
        self._task = self._bar.add_task("starting", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, moment: Moment) -> None:
        """As far as it is."""
        self._bar.update(self._task, completed=moment.share, description=describe(moment, phantom=self._phantom))


class _Lines:
    """A line when a cell has ended, or now and then."""

    def __init__(self, *, phantom: bool) -> None:
        self._phantom = phantom
        self._ended, self._said = -1, 0.0

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, moment: Moment) -> None:
        """Only what is new."""
        ended, now = moment.count("done", "failed"), moment.clock()
        if ended != self._ended or now - self._said > EVERY:
            self._ended, self._said = ended, now
            print(describe(moment, phantom=self._phantom), flush=True)
