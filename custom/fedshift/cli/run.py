"""``fedshift job``, ``fedshift run`` and ``fedshift pooled``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from fedshift.reporting.progress import Progress, duration

if TYPE_CHECKING:
    from fedshift.federation.server.coordinator import Coordinator
    from fedshift.flare.simulate import RunFolders
    from fedshift.schema.job import JobSpec

console = Console(soft_wrap=True, highlight=False)


def add_parsers(subparsers: Any) -> None:
    """Add the commands."""
    job = subparsers.add_parser("job", help="write a job folder for FLARE from a task and its methods")
    add_job_arguments(job)
    job.add_argument("--out", type=Path, default=Path("jobs"), metavar="DIR", help="where (default: jobs)")
    job.add_argument("--production", action="store_true", help="for sites that allow fedshift's components by name")
    job.add_argument("--with-code", action="store_true", help="with fedshift's source, for sites that allow code")
    job.set_defaults(func=write)

    run = subparsers.add_parser("run", help="run a job folder in FLARE's simulator, sites side by side")
    run.add_argument("job", type=Path, metavar="JOB_FOLDER")
    run.add_argument("-w", "--workspace", type=Path, metavar="DIR", help="default: runs/<name of the job>")
    run.add_argument("-t", "--threads", type=int, metavar="N", help="sites that work at a time (default: one a core)")
    run.add_argument(
        "--log", choices=("rounds", "full"), default="rounds", help="a line a round (default), or all that FLARE logs"
    )
    run.add_argument(
        "--in-process", action="store_true", help="without FLARE, one site after another: the same numbers"
    )
    run.add_argument("--resume", action="store_true", help="go on with a run in one process that was interrupted")
    _add_memory(run)
    run.set_defaults(func=execute)

    pooled = subparsers.add_parser("pooled", help="train a centralised reference on all sites' images, in one process")
    add_job_arguments(pooled)
    pooled.add_argument("-w", "--workspace", type=Path, metavar="DIR", help="default: runs/<name of the job>")
    pooled.add_argument("--resume", action="store_true", help="go on with a run that was interrupted")
    _add_memory(pooled)
    pooled.set_defaults(func=train_pooled)


def _add_memory(parser: Any) -> None:
    parser.add_argument(
        "--ignore-memory", action="store_true", help="run it even if it is not expected to fit into memory"
    )


def add_job_arguments(parser: Any, *, with_methods: bool = True, with_held_out: bool = True) -> None:
    """What `resolve_job` reads of a command line."""
    if with_methods:
        parser.add_argument("methods", metavar="METHODS", help="method names joined by +, such as fedfa+fedrdn")
    parser.add_argument("task", metavar="TASK", help="a task ('fedshift tasks' lists them), or a .yaml file of one")
    parser.add_argument("--protocol", metavar="P", help="a paper's settings, such as fedfa")
    parser.add_argument("--sites", metavar="A,B", help="only these sites of the task train")
    if with_held_out:
        parser.add_argument(
            "--held-out", metavar="A,B", help="sites that only score the final models; all others train"
        )
    parser.add_argument(
        "--set", dest="options", action="extend", nargs="+", default=[], metavar="K=V", help="any keys of the job"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides every random number (default 0)")
    parser.add_argument("--name", help="default: methods and task joined by _")
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="a state_dict to start from, such as ImageNet's (default: scratch)"
    )


def names(text: str | None) -> list[str] | None:
    """``A,B`` as a list."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def resolve_job(args: argparse.Namespace, *, quiet: bool = False, **changes: Any) -> JobSpec:
    """The job of a command line; ``changes`` (sites, held_out, name) take the place of what it says.

    Raises:
        ConfigError: any name, key or value that does not fit.
    """
    from fedshift.federation.resolve import resolve
    from fedshift.tasks import pretrained
    from fedshift.tasks.base import build_task

    weights = None if args.weights is None else pretrained.identify(args.weights)
    changes.setdefault("sites", names(args.sites))
    changes.setdefault("held_out", names(getattr(args, "held_out", None)))
    changes.setdefault("name", args.name)
    job = resolve(
        args.task,
        args.methods,
        protocol=args.protocol,
        options=args.options,
        seed=args.seed,
        weights=weights,
        **changes,
    )
    if weights is not None:
        taken = pretrained.take(build_task(job).network(), pretrained.read(args.weights), where=str(args.weights))
        kept = pretrained.keep(args.weights, weights)
    if weights is not None and not quiet:
        print(f"initial weights: {pretrained.describe(weights, taken)}; the server finds them in {kept.parent}")
    return job


def write(args: argparse.Namespace) -> int:
    """``fedshift job``."""
    from fedshift.flare.export import write_job
    from fedshift.reporting.table import several

    job = resolve_job(args)
    folder = write_job(job, args.out / job.name, production=args.production, with_code=args.with_code)
    out = f"; held out: {', '.join(job.task.held_out)}" if job.task.held_out else ""
    print(f"{folder}: {job.task.schedule.rounds} rounds at {several(job.task.sites)}{out}")
    return 0


def train_pooled(args: argparse.Namespace) -> int:
    """``fedshift pooled``."""
    from fedshift.federation.in_process import run_pooled
    from fedshift.methods import method_set
    from fedshift.schema.errors import ConfigError

    job = resolve_job(args)
    if method_set.pooled_reference(job.methods) is None:
        known = method_set.pooled_references()
        raise ConfigError(
            f"{args.methods} is no centralised reference ({', '.join(known)}): use 'fedshift job' and 'run'"
        )
    return _in_one_process(job, args, run_pooled)


def _in_one_process(job: JobSpec, args: argparse.Namespace, run: Callable[..., Coordinator]) -> int:
    from fedshift.data.local_sites import find_sites
    from fedshift.reporting.progress import read_progress
    from fedshift.reporting.table import scores_table
    from fedshift.schema import results
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.results import BEST, LAST

    data = find_sites(job)
    folder = (args.workspace or Path("runs") / job.name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / results.FILE_NAME).is_file() and read_progress(folder) is None:
        raise ConfigError(f"{folder} holds something other than a run: give another --workspace")
    from fedshift.tasks.device import own_device

    device = own_device()
    if not args.ignore_memory:
        check_memory(job, data)
    with shown(folder) as show:
        run(job, data, folder, device=device, resume=args.resume, on_progress=show)
    console.print(scores_table(results.read_results(folder)))
    for what, name in (("best model", BEST), ("last model", LAST), ("results", results.FILE_NAME)):
        print(f"{what + ':':<13}{folder / name}")
    return 0


def check_memory(job: JobSpec, data: Mapping[str, Path]) -> None:
    """Whether a run in this process will fit into memory; says so if it will be tight.

    Raises:
        TooLittleMemory: it will not.
    """
    from fedshift.federation.footprint import measure
    from fedshift.federation.memory import choose_workers, needs_in_process
    from fedshift.methods import method_set

    pooled = method_set.pooled_reference(job.methods) is not None
    needs = needs_in_process(job, data, measure(job), together=len(job.task.sites) if pooled else 1)
    note = choose_workers(needs, wanted=1, asked=False)[1]
    if note:
        print(note, flush=True)


def execute(args: argparse.Namespace) -> int:
    """``fedshift run``."""
    from fedshift.flare.export import read_job_folder
    from fedshift.reporting import events
    from fedshift.reporting.table import scores_table
    from fedshift.schema import results
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.results import BEST, LAST

    job = read_job_folder(args.job)
    if args.in_process:
        from fedshift.federation.in_process import run_in_process

        return _in_one_process(job, args, run_in_process)
    if args.resume:
        raise ConfigError("--resume goes on with a run in one process only: add --in-process")
    workspace = args.workspace or Path("runs") / job.name
    folders = in_simulator(
        job, args.job, workspace, threads=args.threads, full_log=args.log == "full", ignore_memory=args.ignore_memory
    )
    console.print(scores_table(results.read_results(folders.server)))
    for what, name in (
        ("best model", BEST),
        ("last model", LAST),
        ("results", results.FILE_NAME),
        ("TensorBoard", events.FOLDER),
    ):
        print(f"{what + ':':<13}{folders.server / name}")
    print(f"{'log:':<13}{folders.log}")
    return 0


def in_simulator(
    job: JobSpec,
    job_folder: Path,
    workspace: Path,
    *,
    threads: int | None = None,
    full_log: bool = False,
    ignore_memory: bool = False,
) -> RunFolders:
    """A job folder in FLARE's simulator, with its progress or all its lines on the terminal."""
    from fedshift.flare.simulate import RunFailed, RunFolders, simulate

    display = _Bar() if console.is_terminal and not full_log else _Lines()
    on_line = print if full_log else lambda line: None
    try:
        with display:
            return simulate(
                job,
                job_folder,
                workspace,
                threads=threads,
                ignore_memory=ignore_memory,
                on_look=display.show,
                on_line=on_line,
                on_note=print,
            )
    except RunFailed as failure:
        log = RunFolders(workspace.absolute()).log
        raise RunFailed(f"{failure} (log: {log})") from None


@contextmanager
def shown(folder: Path) -> Iterator[Callable[[Coordinator], None]]:
    """What shows the progress of a run in one process: on the terminal, in its folder for others, as curves."""
    from fedshift.reporting.events import Events
    from fedshift.reporting.progress import ProgressFile, read_progress
    from fedshift.schema.errors import FedshiftError

    file, events = ProgressFile(folder), Events(folder)
    display = _Bar() if console.is_terminal else _Lines()

    def show(coordinator: Coordinator) -> None:
        file.update(coordinator)
        events.update(coordinator.results)
        display.show(read_progress(folder))

    try:
        with display:
            yield show
    except FedshiftError as error:
        file.fail(str(error))
        raise
    finally:
        events.close()


def describe(progress: Progress | None) -> str:
    """A moment of a run in one line."""
    if progress is None:
        return "starting the sites"
    if progress.round == 0:
        what = "statistics"
    elif progress.round <= progress.rounds:
        what = f"round {progress.round}/{progress.rounds}"
    else:
        what = "last evaluation"
    parts = [what]
    if progress.sites_in:
        parts.append(f"{len(progress.sites_in)}/{len(progress.sites)} sites in")
    if progress.score is not None:
        parts.append(f"mean validation {progress.metric} {progress.score:.3f} (round {progress.score_round})")
    if progress.seconds_left is not None and progress.state == "running":
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join(parts)


class _Lines:
    """A line a round, and one for every answer that is left out."""

    def __init__(self) -> None:
        self._round: int | None = -1
        self._rejected: set[tuple[int, str]] = set()

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, progress: Progress | None) -> None:
        """Only what is new."""
        round_ = None if progress is None else progress.round
        if round_ != self._round:
            self._round = round_
            print(describe(progress), flush=True)
            if progress is not None and progress.phantom and progress.round == 1:
                from fedshift.reporting.table import PHANTOM

                print(PHANTOM, flush=True)
        for site, reason in () if progress is None else progress.rejected.items():
            if (self._round or 0, site) not in self._rejected:
                self._rejected.add((self._round or 0, site))
                print(f"  site {site} is left out: {reason}", flush=True)


class _Bar(_Lines):
    """The same above a progress bar, on a terminal."""

    def __enter__(self) -> _Bar:
        columns = (BarColumn(30), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = Bar(*columns, console=console, transient=True)
        self._bar.start()
        self._task = self._bar.add_task(describe(None), total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, progress: Progress | None) -> None:
        """Statistics and evaluation count as a round each."""
        super().show(progress)  # while a bar is shown, rich puts what is printed above it
        if progress is not None:
            steps = progress.rounds + 2
            done = progress.round + len(progress.sites_in) / max(len(progress.sites), 1)
            self._bar.update(self._task, total=steps, completed=min(done, steps))
        self._bar.update(self._task, description=describe(progress))
