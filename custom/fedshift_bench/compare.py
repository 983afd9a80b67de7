"""What ``fedshift compare`` does, from a spec to the tables."""

from __future__ import annotations

import json
import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from fedshift.cli.display import console
from fedshift.data.locate import is_phantom
from fedshift.federation.effect import without_effect
from fedshift.federation.options import parse_option
from fedshift.reporting.progress import duration
from fedshift.reporting.table import PHANTOM_NOTE, title_of
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.schema.identity import own_identity
from fedshift.schema.job import JobSpec
from fedshift.schema.results import BEST, LAST
from fedshift.schema.results import FILE_NAME as RESULTS
from fedshift.tasks.device import own_device
from fedshift.tasks.machine import free_memory
from fedshift_bench import runner
from fedshift_bench.cell_run import run_cell
from fedshift_bench.cells import OnCount, add_rows, choose, expand, ignore_count, make_cells
from fedshift_bench.collect import Collector, FinishedCells, finished_comparisons, seconds_in_rounds
from fedshift_bench.curves import write_curves
from fedshift_bench.estimate import ASSUMED_SAMPLES, Estimator
from fedshift_bench.image_free import with_guess
from fedshift_bench.leaderboard import FILES, make_leaderboard, rich_leaderboard, write_leaderboard
from fedshift_bench.record import Comparison, write_comparison
from fedshift_bench.runner import GridProgress, QueueEntry, State
from fedshift_bench.spec import Spec
from fedshift_bench.store import Store, read_outcome
from fedshift_bench.tables import heading, rich_tables, title_with_scale, write_tables

SECONDS_PER_LINE = 30.0
"""Seconds between two progress lines if the output is not a terminal."""
say = partial(console.print, markup=False, emoji=False)
"""Prints a line as it is."""
STATES: dict[State, str] = {"running": "running", "elsewhere": "in another process", "failed": "failed"}


def time_range(low: float, high: float) -> str:
    """Format a range of seconds: ``2 min 10 s to 5 min 30 s``."""
    first, last = duration(low), duration(high)
    return first if first == last else f"{first} to {last}"


def describe(progress: GridProgress, *, phantom: bool = False) -> str:
    """The progress of a comparison in one line."""
    n_done, n_rounds = progress.rounds
    total = sum(len(entry.cells) for entry in progress.entries)
    ended = f"{'PHANTOM ' if phantom else ''}{progress.count('done', 'failed')} of {total} cells ended"
    counts = [f"{count} {word}" for state, word in STATES.items() if (count := progress.count(state))]
    time_left = f"about {duration(progress.seconds_left)} left"
    return ", ".join([ended, f"{n_done} of {n_rounds} rounds of all cells", *counts, time_left])


@contextmanager
def resolving() -> Iterator[OnCount]:
    """Show on a terminal how many cells are resolved."""
    if not console.is_terminal:
        yield ignore_count
        return
    with console.status("resolving") as status:
        yield lambda n_done, n_all: status.update(f"resolving {n_done}/{n_all}")


@contextmanager
def running(*, phantom: bool) -> Iterator[Callable[[GridProgress], None]]:
    """Show the progress of all cells: a bar on a terminal, else a line when a cell has ended, and now and then."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if console.is_terminal:
        columns = (BarColumn(30), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=1.0)
            yield lambda progress: bar.update(
                task, completed=progress.share, description=describe(progress, phantom=phantom)
            )
        return
    n_ended, last_printed = -1, 0.0

    def show(progress: GridProgress) -> None:
        nonlocal n_ended, last_printed
        count, now = progress.count("done", "failed"), progress.clock()
        if count != n_ended or now - last_printed > SECONDS_PER_LINE:
            n_ended, last_printed = count, now
            say(describe(progress, phantom=phantom))

    yield show


class Command:
    """One run of the command with its arguments, of a spec at a scale, with the folder of the tables."""

    def __init__(self, args: Namespace, spec: Spec, scale: str, out: Path) -> None:
        self._args, self._scale, self._out, self._folder = args, scale, out, args.spec.absolute().parent
        self._store = Store(args.workspace.absolute())
        say(title_with_scale(spec.title, scale))
        with resolving() as on_resolved:
            expanded, self._left_out = expand(spec, folder=self._folder, on_tried=on_resolved)
            options = {".".join(option.path): option.value for option in map(parse_option, args.set)}
            self._spec, rows = add_rows(expanded, args.methods, options)
            self._cells = make_cells(self._spec, folder=self._folder, on_resolved=on_resolved)
        self._selected = choose(self._cells, [*args.only, *rows], args.seeds, args.folds)
        works = [cell.work for cell in self._selected if cell.work is not None] if args.again else []
        comparisons = finished_comparisons(self._spec, scale, folder=self._folder, out=out)
        self._finished = FinishedCells(comparisons, again={work.key for work in works})
        for work in works if not args.dry_run else ():
            self._store.forget(work)
        data = {tuple(cell.data.items()): cell.data for cell in self._cells}
        self._phantom = any(map(is_phantom, data.values()))
        self._collector = Collector(
            self._spec,
            scale,
            self._cells,
            self._store,
            folder=self._folder,
            finished=self._finished,
            left_out=self._left_out,
        )
        self._estimator = Estimator(self._store.folder, device=own_device(), samples=self._spec.samples)
        self._reasons: dict[str, str] = {}

    def run(self) -> int:
        """Run the cells and make the tables; the exit code is 1 if cells failed."""
        args = self._args
        collected = self._collector.collect()  # raises errors before anything runs
        entries = runner.make_queue(self._selected, self._store, self._estimator, self._finished)
        max_parallel = 1 if args.flare else args.jobs or runner.default_parallel(entries, device=own_device())
        self._print_plan(collected, entries, max_parallel)
        if args.dry_run:
            return 0
        self._print_failed(entries)
        try:
            with running(phantom=self._phantom) as on_poll:
                if args.flare:
                    run_in_flare(entries, self._store, on_poll, self._end)
                else:
                    runner.run(entries, self._store, max_parallel=max_parallel, on_poll=on_poll, on_end=self._end)
        finally:
            comparison = self._write()
            write_tables(comparison, self._out)
        comparison = with_guess(comparison, self._cells)
        write_comparison(comparison, self._out)
        show(comparison, self._out)
        failed = sum(len(entry.cells) for entry in entries if entry.state == "failed")
        if failed:
            say(f"{failed} of {len(self._selected)} cells failed; repeat the command to run only what is missing")
        return 1 if failed else 0

    def _end(self, entry: QueueEntry) -> None:
        """Note an entry that has ended: its failure, or its cost."""
        if entry.state == "failed":
            self._reasons |= {cell.name: entry.reason for cell in entry.cells}
            say(f"failed: {entry.names}: {entry.reason}")
        elif entry.process is not None and entry.cell.work is not None:
            folder = self._store.folder_of(entry.cell.work)
            outcome, in_rounds = read_outcome(folder), seconds_in_rounds(entry.cell, folder)
            self._estimator.learn(
                entry.cell, seconds=outcome.seconds, in_rounds=in_rounds, peak_bytes=outcome.peak_bytes
            )
        self._write()

    def _write(self) -> Comparison:
        comparison = self._collector.collect(self._reasons)
        write_comparison(comparison, self._out)
        return comparison

    def _print_failed(self, entries: Sequence[QueueEntry]) -> None:
        failed = [(cell.name, entry.reason) for entry in entries if entry.state == "failed" for cell in entry.cells]
        self._reasons = dict(failed)
        for reason in dict.fromkeys(reason for _, reason in failed):
            names = [name for name, why in failed if why == reason]
            which = names[0] if len(names) == 1 else f"{len(names)} cells, from {names[0]} to {names[-1]}"
            say(f"failed: {which}: {reason}")

    def _print_plan(self, collected: Comparison, entries: Sequence[QueueEntry], max_parallel: int) -> None:
        n_done = sum(len(entry.cells) for entry in entries if entry.state == "done")
        n_duplicates = len(self._selected) - len(entries)
        duplicates = f", {n_duplicates} of them duplicates" if n_duplicates else ""
        say(f"{len(self._selected)} of {len(self._cells)} cells{duplicates}; {n_done} are done")
        n_other = sum(cell.source != own_identity().source for cell in collected.finished)
        if n_other:
            say(f"{n_other} finished cells were made by another version of fedshift; --again runs them anew")
        for sentence in sorted({sentence for cell in self._selected for sentence in cell.missing_inputs}):
            say(f"missing: {sentence}")
        if self._phantom:
            say(PHANTOM_NOTE)
        if self._args.dry_run:
            for name, reason in self._left_out.items():
                say(f"no row {name}: {reason}")
            self._print_rows(entries)
        self._print_without_effect()
        ended = ("done",) if self._args.dry_run else ("done", "failed")  # without data nothing runs
        to_run = [entry for entry in entries if entry.state not in ended]
        if to_run:
            self._print_estimates(to_run, max_parallel)

    def _print_without_effect(self) -> None:
        """Warn of rows whose methods perturb what normalisation takes away; one trial for rows of the same kind."""
        jobs = {}
        for job in (job for cell in self._selected for job in cell.plan.jobs.values()):
            kind = [job.methods, job.task.data, job.task.network.model_dump(mode="json")]
            jobs[json.dumps(kind, sort_keys=True)] = job
        for sentence in dict.fromkeys(str(effect) for job in jobs.values() for effect in without_effect(job)):
            say(f"hardly any effect: {sentence}")

    def _print_rows(self, entries: Sequence[QueueEntry]) -> None:
        """Print a table with the number of cells and the estimates of each row of the comparison."""
        title = title_of("cells to run", phantom=True) if self._phantom else None
        table = Table(box=None, pad_edge=False, title=title, title_justify="left")
        rows: dict[str, list[QueueEntry]] = {}
        for entry in entries:
            rows.setdefault(entry.cell.row, []).append(entry)
        table.add_column(self._spec.row_axis, no_wrap=True, min_width=max(map(len, rows)))
        for name in ("cells", "done", "time per cell", "memory"):
            table.add_column(name, justify="right")
        for row, of_row in rows.items():
            lows, highs = zip(*(entry.estimate.range for entry in of_row), strict=True)
            memory = max(entry.estimate.peak_bytes for entry in of_row) / 2**30
            n_done = sum(entry.state == "done" for entry in of_row)
            seconds = time_range(min(lows), max(highs))
            table.add_row(row, str(len(of_row)), str(n_done), seconds, f"{memory:.1f} GiB")
        console.print(table)

    def _print_estimates(self, entries: Sequence[QueueEntry], max_parallel: int) -> None:
        learned = all(entry.estimate.is_learned for entry in entries)
        basis = "from similar finished cells" if learned else "from short trials; some methods may take longer"
        seconds = time_range(*runner.total_seconds(entries, max_parallel))
        say(f"time: {seconds} with {max_parallel} in parallel ({basis})")
        peak = max(entry.estimate.peak_bytes for entry in entries)
        say(f"memory: up to {peak / 2**30:.1f} GiB per cell, {free_memory() / 2**30:.1f} GiB are free")
        if any(entry.estimate.is_assumed for entry in entries):
            n = self._spec.samples or ASSUMED_SAMPLES
            say(f"for sites without data, {n.train}/{n.val}/{n.test} samples (train/val/test) are assumed")


def show(comparison: Comparison, out: Path) -> int:
    """Print the tables, and write the tables and the curves to files; the exit code is 0."""
    paths = write_tables(comparison, out)
    for table in rich_tables(comparison):
        console.print(table)
    say(f"tables: {', '.join(map(str, paths))}")
    curves = write_curves(comparison, out)
    if curves:
        say(f"scores over rounds: {', '.join(map(str, curves))}")
    if comparison.ranking is not None:
        _show_leaderboard(comparison, out)
    return 0


def _show_leaderboard(comparison: Comparison, out: Path) -> None:
    """Print the rows by mean rank and write them to files, once the baseline has finished."""
    try:
        board = make_leaderboard([comparison])
    except ConfigError as error:
        say(f"no ranks: {error}")
        for name in FILES:  # of an earlier command
            (out / name).unlink(missing_ok=True)
        return
    title = heading(comparison)
    console.print(rich_leaderboard(board, title))
    paths = write_leaderboard(board, out, title=title, left_out=comparison.left_out)
    say(f"ranks: {', '.join(map(str, paths))}")


def run_in_flare(
    entries: Sequence[QueueEntry],
    store: Store,
    on_poll: Callable[[GridProgress], None],
    on_end: Callable[[QueueEntry], None],
) -> None:
    """Run cells one after another in FLARE's simulator; centralised references run in this process."""
    from fedshift.flare.export import write_job
    from fedshift.flare.simulate import simulate
    from fedshift.flare.workspaces import find_run

    grid = GridProgress(entries, time.monotonic(), 1)
    for entry in (entry for entry in entries if not entry.has_ended):
        assert entry.cell.work is not None
        entry.state = "running"

        def run_in_simulator(
            spec: JobSpec,
            data: Mapping[str, Path],
            folder: Path,
            on_share: Callable[[float], None],
            entry: QueueEntry = entry,
        ) -> None:
            def look(run_progress: Any) -> None:
                if run_progress is not None:
                    entry.share = run_progress.share
                    on_share(entry.share)
                on_poll(grid)

            folder.mkdir(parents=True, exist_ok=True)
            begun = find_run(folder / "flare")
            resume = begun is not None and not begun.has_finished
            job_folder = write_job(spec, folder / "job")
            folders = simulate(spec, job_folder, folder / "flare", resume=resume, on_look=look)
            for name in (RESULTS, BEST, LAST):
                shutil.copyfile(folders.server / name, folder / name)

        try:
            on_poll(grid)
            run_cell(store.prepare(entry.cell.work), run_in_simulator)
            entry.end()
        except FedshiftError as error:
            entry.end(failed=str(error))
        on_end(entry)
