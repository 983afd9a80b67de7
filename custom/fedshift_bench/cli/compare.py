"""The command ``fedshift compare``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.arguments import add_phantom
from fedshift.cli.display import console

if TYPE_CHECKING:
    import argparse

    from fedshift_bench.cells import Cell
    from fedshift_bench.record import Comparison
    from fedshift_bench.runner import GridProgress, QueueEntry, State
    from fedshift_bench.spec import Spec
    from fedshift_bench.store import Store

DEFAULT_WORKSPACE = Path("runs/cells")
SECONDS_PER_LINE = 30.0
"""Seconds between two progress lines if the output is not a terminal."""


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    compare = subparsers.add_parser(
        "compare",
        help="run a grid of tasks, methods, options and seeds, and make tables",
        description="Run the cells of a comparison in parallel, each only once, and write cells.json, table.csv, "
        "table.md, table.tex, curves.csv and curves.svg. Repeat the command to resume it. Exit code 1: some cells "
        "failed.",
    )
    compare.add_argument("spec", type=Path, metavar="SPEC", help="a .yaml file; with --tables-only also a cells.json")
    compare.add_argument("--scale", metavar="NAME", help="a scale of the spec (default: quick, else its first)")
    compare.add_argument("--only", nargs="+", default=[], metavar="LABEL", help="run only cells with these labels")
    compare.add_argument(
        "--methods",
        nargs="+",
        default=[],
        metavar="METHODS",
        help="run only these rows; one that the spec does not have is added, such as a method of your own",
    )
    compare.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="options for the rows of --methods, which are then rows of their own",
    )
    compare.add_argument("--seeds", nargs="+", type=int, default=[], metavar="N", help="run only these of the seeds")
    compare.add_argument("--folds", nargs="+", type=int, default=[], metavar="N", help="run only these of the folds")
    compare.add_argument(
        "--again", action="store_true", help="run the chosen cells anew, also those that have finished"
    )
    compare.add_argument("--dry-run", action="store_true", help="resolve and estimate all cells, but run none")
    compare.add_argument("--flare", action="store_true", help="run in FLARE's simulator, one cell after another")
    compare.add_argument("--jobs", type=int, metavar="N", help="cells in parallel (default: as cores and memory allow)")
    compare.add_argument(
        "-w",
        "--workspace",
        type=Path,
        default=DEFAULT_WORKSPACE,
        metavar="DIR",
        help=f"folder of the cells (default: {DEFAULT_WORKSPACE})",
    )
    compare.add_argument("--out", type=Path, metavar="DIR", help="folder of the tables (default: runs/<name>_<scale>)")
    compare.add_argument("--tables-only", action="store_true", help="make the tables again from cells.json alone")
    add_phantom(compare)
    compare.set_defaults(func=compare_command)


def compare_command(args: argparse.Namespace) -> int:
    """The command ``fedshift compare``."""
    from fedshift.schema.errors import ConfigError
    from fedshift_bench.record import FILE_NAME, read_comparison
    from fedshift_bench.spec import DOMAINS, read_spec

    if args.tables_only and (args.spec.is_dir() or args.spec.name == FILE_NAME):
        comparison = read_comparison(args.spec)
        return _show(comparison, args.out or (args.spec if args.spec.is_dir() else args.spec.parent))
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError("--jobs must be 1 or more")
    if args.flare and args.jobs not in (None, 1):
        raise ConfigError(
            "--flare runs cells one after another, each with its sites in parallel on all cores: leave out --jobs"
        )
    spec, scale = read_spec(args.spec, args.scale)
    if args.flare and DOMAINS in spec.parts("federation"):
        raise ConfigError("--flare: sites do not send the gradients that domains need (part: domains): leave it out")
    out = args.out or Path("runs") / folder_name(spec, scale)
    if args.tables_only:
        return _show(read_comparison(out), out)
    return _Command(args, spec, scale, out.absolute()).run()


def folder_name(spec: Spec, scale: str) -> str:
    """The name of the folder of a spec's tables."""
    from fedshift_bench.spec import FULL

    return spec.name if scale == FULL else f"{spec.name}_{scale}"


def _options(texts: Sequence[str]) -> dict[str, Any]:
    """The options of ``--set`` by their keys; `fedshift.federation.resolve.resolve` checks them."""
    from fedshift.federation.options import parse_option

    return {".".join(option.path): option.value for option in map(parse_option, texts)}


class _Command:
    """One run of the command, from the spec to the tables."""

    def __init__(self, args: argparse.Namespace, spec: Any, scale: str, out: Path) -> None:
        from fedshift.schema.errors import ConfigError
        from fedshift_bench.store import Store

        self._args, self._spec, self._scale, self._out = args, spec, scale, out
        self._folder = args.spec.absolute().parent
        if args.set and not args.methods:
            raise ConfigError("--set is for the rows of --methods: name them, or change the spec's options")
        self._store = Store(args.workspace.absolute())

    def run(self) -> int:
        """Run the command; the exit code is 1 if cells failed."""
        from fedshift.data.local_sites import is_phantom
        from fedshift_bench import runner
        from fedshift_bench.cells import choose, make_cells
        from fedshift_bench.collect import Collector
        from fedshift_bench.estimate import Estimator
        from fedshift_bench.every import add_rows, expand
        from fedshift_bench.kept import Kept, finished_comparisons
        from fedshift_bench.record import write_comparison
        from fedshift_bench.score_guess import with_guess
        from fedshift_bench.tables import title_with_scale

        args, spec = self._args, self._spec
        print(title_with_scale(spec.title, self._scale), flush=True)
        with _ResolvingStatus() as resolving:
            expanded = expand(spec, folder=self._folder, on_tried=resolving)
            spec, rows = add_rows(expanded.spec, args.methods, _options(args.set))
            self._cells = make_cells(spec, folder=self._folder, on_resolved=resolving)
        self._left_out = expanded.left_out
        selected = choose(self._cells, [*args.only, *rows], args.seeds, args.folds)
        self._phantom = any(is_phantom(folders) for folders in _distinct(cell.data for cell in self._cells))
        again = {cell.work.key for cell in selected if cell.work is not None} if args.again else set()
        finished = finished_comparisons(spec, folder_name(spec, self._scale), folder=self._folder, out=self._out)
        kept = Kept(finished, again=again)
        if args.again and not args.dry_run:
            for cell in selected:
                if cell.work is not None:
                    self._store.forget(cell.work)
        self._collector = Collector(
            spec, self._scale, self._cells, self._store, folder=self._folder, kept=kept, left_out=expanded.left_out
        )
        self._collector.collect()  # raises errors before anything runs
        from fedshift.tasks.device import own_device

        device = own_device()
        self._estimator = Estimator(self._store.folder, device=device, samples=spec.samples)
        entries = runner.make_queue(selected, self._store, self._estimator, kept)
        max_parallel = 1 if args.flare else args.jobs or runner.default_parallel(entries, device=device)
        self._print_plan(entries, selected, max_parallel)
        if args.dry_run:
            return 0
        reasons = {cell.name: entry.reason for entry in entries if entry.state == "failed" for cell in entry.cells}
        for reason in dict.fromkeys(reasons.values()):
            names = [name for name, why in reasons.items() if why == reason]
            told = names[0] if len(names) == 1 else f"{len(names)} cells, from {names[0]} to {names[-1]}"
            console.print(f"failed: {told}: {reason}", markup=False)

        def on_end(entry: QueueEntry) -> None:
            for cell in entry.cells:
                if entry.state == "failed":
                    reasons[cell.name] = entry.reason
            if entry.state == "failed":
                self._print_failure(entry)
            elif entry.process is not None or args.flare:
                self._learn_cost(entry)
            self._write(reasons)

        display = _ProgressBar(phantom=self._phantom) if console.is_terminal else _ProgressLines(phantom=self._phantom)
        try:
            with display:
                if args.flare:
                    _in_flare(entries, self._store, display.show, on_end)
                else:
                    runner.run(entries, self._store, max_parallel=max_parallel, on_poll=display.show, on_end=on_end)
        finally:
            comparison = self._write(reasons)
            self._write_tables(comparison)
        comparison = with_guess(comparison, self._cells)
        write_comparison(comparison, self._out)
        _show(comparison, self._out)
        failed = [cell.name for entry in entries if entry.state == "failed" for cell in entry.cells]
        if failed:
            print(f"{len(failed)} of {len(selected)} cells failed; repeat the command to run only what is missing")
        return 1 if failed else 0

    def _write(self, reasons: dict[str, str]) -> Comparison:
        from fedshift_bench.record import write_comparison

        comparison = self._collector.collect(reasons)
        write_comparison(comparison, self._out)
        return comparison

    def _write_tables(self, comparison: Comparison) -> None:
        from fedshift_bench.tables import write_tables

        write_tables(comparison, self._out)

    def _learn_cost(self, entry: QueueEntry) -> None:
        from fedshift_bench.collect import seconds_in_rounds
        from fedshift_bench.store import read_done

        assert entry.cell.work is not None
        folder = self._store.folder_of(entry.cell.work)
        done, in_rounds = read_done(folder), seconds_in_rounds(entry.cell, folder)
        if done.how == "one process":
            self._estimator.learn(entry.cell, seconds=done.seconds, in_rounds=in_rounds, peak_bytes=done.peak_bytes)

    def _print_failure(self, entry: QueueEntry) -> None:
        console.print(f"failed: {entry.cell.name}{_duplicate_names(entry)}: {entry.reason}", markup=False)

    def _print_plan(self, entries: Sequence[QueueEntry], selected: Sequence[Cell], max_parallel: int) -> None:
        """Print how many cells are to run, missing inputs, and the estimates."""
        from fedshift.reporting.table import PHANTOM_NOTE
        from fedshift.tasks.machine import free_memory
        from fedshift_bench.work import own_version

        n_done = sum(len(entry.cells) for entry in entries if entry.state == "done")
        n_duplicates = len(selected) - len(entries)
        print(
            f"{len(selected)} of {len(self._cells)} cells"
            + (f", {n_duplicates} of them duplicates" if n_duplicates else "")
            + f"; {n_done} are done"
        )
        source = own_version()["source"]
        n_other_source = sum(cell.source != source for cell in self._collector.collect().cells if cell.state == "done")
        if n_other_source:
            print(f"{n_other_source} finished cells were made by another version of fedshift; --again runs them anew")
        missing_inputs = {sentence for entry in entries for cell in entry.cells for sentence in cell.missing_inputs}
        for sentence in sorted(missing_inputs):
            print(f"missing: {sentence}")
        if self._phantom:
            print(PHANTOM_NOTE)
        if self._args.dry_run:
            for name, reason in self._left_out.items():
                print(f"no row {name}: {reason}")
            self._print_rows(entries)
        self._print_without_effect(selected)
        ended = ("done",) if self._args.dry_run else ("done", "failed")  # without data nothing runs
        to_run = [entry for entry in entries if entry.state not in ended]
        if to_run:
            self._print_estimates(to_run, max_parallel, free_memory())

    def _print_without_effect(self, selected: Sequence[Cell]) -> None:
        """Warn of rows whose methods perturb what normalisation takes away; one trial for rows of the same kind."""
        from fedshift.federation.effect import without_effect

        jobs = {}
        for job in (job for cell in selected for job in cell.plan.jobs.values()):
            kind = [job.methods, job.task.data, job.task.network.model_dump(mode="json")]
            jobs[json.dumps(kind, sort_keys=True)] = job
        for sentence in dict.fromkeys(str(effect) for job in jobs.values() for effect in without_effect(job)):
            print(f"hardly any effect: {sentence}")

    def _print_rows(self, entries: Sequence[QueueEntry]) -> None:
        """Print a table with the number of cells and the estimates of each row of the comparison."""
        from rich.table import Table

        from fedshift.reporting.table import title_of
        from fedshift_bench.runner import group_by_row

        title = title_of("cells to run", phantom=True) if self._phantom else None
        table = Table(box=None, pad_edge=False, title=title, title_justify="left")
        rows = group_by_row(entries)
        table.add_column(next(iter(self._spec.axes)), no_wrap=True, min_width=max(map(len, rows)))
        for name in ("cells", "done", "time per cell", "memory"):
            table.add_column(name, justify="right")
        for row, row_entries in rows.items():
            ranges = [entry.estimate.range for entry in row_entries]
            seconds = time_range(min(low for low, _ in ranges), max(high for _, high in ranges))
            memory = max(entry.estimate.peak_bytes for entry in row_entries) / 2**30
            n_done = sum(entry.state == "done" for entry in row_entries)
            table.add_row(row, str(len(row_entries)), str(n_done), seconds, f"{memory:.1f} GiB")
        console.print(table)

    def _print_estimates(self, entries: Sequence[QueueEntry], max_parallel: int, free_bytes: int) -> None:
        """Print the estimated time and memory of the cells that are to run."""
        from fedshift_bench.estimate import ASSUMED_SAMPLES
        from fedshift_bench.runner import total_seconds

        if all(entry.estimate.is_learned for entry in entries):
            basis = "from similar finished cells"
        else:
            basis = "from short trials; some methods may take longer"
        print(f"time: {time_range(*total_seconds(entries, max_parallel))} with {max_parallel} in parallel ({basis})")
        peak = max(entry.estimate.peak_bytes for entry in entries)
        print(f"memory: up to {peak / 2**30:.1f} GiB per cell, {free_bytes / 2**30:.1f} GiB are free", flush=True)
        if any(entry.estimate.is_assumed for entry in entries):
            n = self._spec.samples or ASSUMED_SAMPLES
            print(f"for sites without data, {n.train}/{n.val}/{n.test} samples (train/val/test) are assumed")


def _show(comparison: Comparison, out: Path) -> int:
    """Print the tables, and write the tables and the curves to files; the exit code is 0."""
    from fedshift_bench.curves import write_curves
    from fedshift_bench.tables import rich_tables, write_tables

    paths = write_tables(comparison, out)
    for table in rich_tables(comparison):
        console.print(table)
    print(f"tables: {', '.join(str(path) for path in paths)}")
    curves = write_curves(comparison, out)
    if curves:
        print(f"scores over rounds: {', '.join(str(path) for path in curves)}")
    if comparison.ranking is not None:
        _show_leaderboard(comparison, out)
    return 0


def _show_leaderboard(comparison: Comparison, out: Path) -> None:
    """Print the rows by mean rank and write them to files, once the baseline has finished."""
    from fedshift.schema.errors import ConfigError
    from fedshift_bench.leaderboard import make_leaderboard
    from fedshift_bench.leaderboard_tables import FILES, rich_leaderboard, write_leaderboard
    from fedshift_bench.tables import heading

    title = heading(comparison)
    try:
        board = make_leaderboard([comparison])
    except ConfigError as error:
        print(f"no ranks: {error}")
        for name in FILES:  # of an earlier command
            (out / name).unlink(missing_ok=True)
        return
    console.print(rich_leaderboard(board, title))
    paths = write_leaderboard(board, out, title=title, left_out=comparison.left_out)
    print(f"ranks: {', '.join(str(path) for path in paths)}")


def _in_flare(
    entries: Sequence[QueueEntry],
    store: Store,
    on_poll: Callable[[GridProgress], None],
    on_end: Callable[[QueueEntry], None],
) -> None:
    """Run cells one after another in FLARE's simulator; centralised references run in this process."""
    import time

    from fedshift.flare.export import write_job
    from fedshift.flare.simulate import simulate
    from fedshift.flare.workspaces import find_run
    from fedshift.schema.errors import FedshiftError
    from fedshift.schema.results import BEST, FILE_NAME, LAST
    from fedshift_bench.runner import GridProgress
    from fedshift_bench.work import run_cell

    progress = GridProgress(entries, time.monotonic(), 1)
    for entry in entries:
        if entry.has_ended:
            continue
        assert entry.cell.work is not None
        entry.state = "running"

        def run_in_simulator(
            spec: Any, data: Any, folder: Path, on_share: Callable[[float], None], entry: QueueEntry = entry
        ) -> None:
            def look(run_progress: Any) -> None:
                if run_progress is not None:
                    entry.share = run_progress.share
                    on_share(entry.share)
                on_poll(progress)

            folder.mkdir(parents=True, exist_ok=True)
            earlier = find_run(folder / "flare")
            resume = earlier is not None and not earlier.has_finished
            job_folder = write_job(spec, folder / "job")
            folders = simulate(spec, job_folder, folder / "flare", resume=resume, on_look=look)
            for name in (FILE_NAME, BEST, LAST):
                shutil.copyfile(folders.server / name, folder / name)

        try:
            on_poll(progress)
            run_cell(store.prepare(entry.cell.work), run_in_simulator)
            entry.state, entry.share = "done", 1.0
        except FedshiftError as error:
            entry.state, entry.reason = "failed", str(error)
        on_end(entry)


def _duplicate_names(entry: QueueEntry) -> str:
    """The names of the other cells of an entry, in brackets."""
    return f" (and {', '.join(cell.name for cell in entry.cells[1:])})" if len(entry.cells) > 1 else ""


def _distinct(data: Iterable[Mapping[str, Path]]) -> Iterable[Mapping[str, Path]]:
    """The distinct mappings from sites to folders."""
    return {tuple(folders.items()): folders for folders in data}.values()


def time_range(low: float, high: float) -> str:
    """Format a range of seconds: ``2 min 10 s to 5 min 30 s``."""
    from fedshift.reporting.progress import duration

    first, last = duration(low), duration(high)
    return first if first == last else f"{first} to {last}"


def describe(progress: GridProgress, *, phantom: bool = False) -> str:
    """The progress of a comparison in one line."""
    from fedshift.reporting.progress import duration

    done, of = progress.rounds
    total = sum(len(entry.cells) for entry in progress.entries)
    ended = f"{progress.count('done', 'failed')} of {total} cells ended"
    parts = [f"PHANTOM {ended}" if phantom else ended, f"{done} of {of} rounds of all cells"]
    states: tuple[tuple[State, str], ...] = (
        ("running", "running"),
        ("elsewhere", "in another process"),
        ("failed", "failed"),
    )
    for state, word in states:
        count = progress.count(state)
        if count:
            parts.append(f"{count} {word}")
    parts.append(f"about {duration(progress.seconds_left)} left")
    return ", ".join(parts)


class _ResolvingStatus:
    """Shows on a terminal how many cells are resolved."""

    def __enter__(self) -> _ResolvingStatus:
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


class _ProgressBar:
    """A progress bar over all cells."""

    def __init__(self, *, phantom: bool) -> None:
        self._phantom = phantom

    def __enter__(self) -> _ProgressBar:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(30), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._bar.start()
        self._task = self._bar.add_task("starting", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, progress: GridProgress) -> None:
        """Update the bar."""
        self._bar.update(self._task, completed=progress.share, description=describe(progress, phantom=self._phantom))


class _ProgressLines:
    """Prints a line when a cell has ended, and every `SECONDS_PER_LINE`."""

    def __init__(self, *, phantom: bool) -> None:
        self._phantom = phantom
        self._n_ended, self._last_printed = -1, 0.0

    def __enter__(self) -> _ProgressLines:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, progress: GridProgress) -> None:
        """Print a line if a cell has ended or enough time has passed."""
        n_ended, now = progress.count("done", "failed"), progress.clock()
        if n_ended != self._n_ended or now - self._last_printed > SECONDS_PER_LINE:
            self._n_ended, self._last_printed = n_ended, now
            print(describe(progress, phantom=self._phantom), flush=True)
