"""``fedshift run``: a job folder in FLARE's simulator or in one process."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.arguments import add_device, add_earlier_run, add_memory, add_parallel, add_phantom
from fedshift.cli.display import console, make_display, shown

if TYPE_CHECKING:
    from fedshift.federation.server.coordinator import Coordinator
    from fedshift.flare.workspaces import RunFolders
    from fedshift.schema.job import JobSpec


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    run = subparsers.add_parser("run", help="run a job folder in FLARE's simulator, sites side by side")
    run.add_argument("job", type=Path, metavar="JOB_FOLDER")
    run.add_argument("-w", "--workspace", type=Path, metavar="DIR", help="default: runs/<name of the job>")
    add_parallel(run)
    run.add_argument(
        "--log", choices=("rounds", "full"), default="rounds", help="a line a round (default), or all that FLARE logs"
    )
    run.add_argument(
        "--in-process", action="store_true", help="without FLARE, one site after another: the same numbers"
    )
    add_earlier_run(run)
    add_phantom(run)
    add_device(run)
    add_memory(run)
    run.set_defaults(func=execute)


def execute(args: argparse.Namespace) -> int:
    """``fedshift run``."""
    from fedshift.cli.previous_run import require_free
    from fedshift.data.local_sites import find_sites
    from fedshift.federation.image_free import record_guess
    from fedshift.federation.run_lock import require_unlocked
    from fedshift.flare.export import read_job_folder
    from fedshift.reporting import events
    from fedshift.reporting.table import scores_table
    from fedshift.schema import results
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.results import BEST, LAST

    job = read_job_folder(args.job)
    if args.in_process:
        from fedshift.federation.in_process import run_in_process

        if args.parallel is not None:
            raise ConfigError(
                "options-clash", "--parallel is for FLARE's simulator: leave out --in-process or --parallel"
            )
        return in_one_process(job, args, run_in_process)
    workspace = args.workspace or Path("runs") / job.name
    require_unlocked(workspace)
    require_free(workspace, resume=args.resume, force=args.force, in_process=False)
    folders = in_simulator(
        job,
        args.job,
        workspace,
        parallel=args.parallel,
        resume=args.resume,
        force=args.force,
        full_log=args.log == "full",
        ignore_memory=args.ignore_memory,
    )
    record_guess(job, find_sites(job), folders.server)
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


def in_one_process(job: JobSpec, args: argparse.Namespace, run: Callable[..., Coordinator]) -> int:
    """Run a job with ``run`` (`run_in_process` or `run_pooled`) in this process."""
    from fedshift.cli.previous_run import require_free
    from fedshift.data.local_sites import find_sites, is_phantom
    from fedshift.federation.image_free import record_guess
    from fedshift.federation.run_lock import lock_run, require_unlocked
    from fedshift.flare.workspaces import discard_aside
    from fedshift.reporting.table import scores_table
    from fedshift.schema import results
    from fedshift.schema.results import BEST, LAST

    folder = (args.workspace or Path("runs") / job.name).absolute()
    require_unlocked(folder)
    former = require_free(folder, resume=args.resume, force=args.force, in_process=True)
    data = find_sites(job)
    folder.mkdir(parents=True, exist_ok=True)
    from fedshift.tasks.device import own_device

    device = own_device()
    if not args.ignore_memory:
        check_memory(job, data)
    if args.force:
        with lock_run(folder):
            discard_aside(folder)
            if not former.in_process:  # the run replaces the files of one of its own kind as it goes
                former.remove()
    with stopped_by_sigterm(), shown(folder, job, phantom=is_phantom(data)) as show:
        run(job, data, folder, device=device, resume=args.resume, on_progress=show)
    record_guess(job, data, folder)
    console.print(scores_table(results.read_results(folder)))
    for what, name in (("best model", BEST), ("last model", LAST), ("results", results.FILE_NAME)):
        print(f"{what + ':':<13}{folder / name}")
    return 0


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM, which batch systems and containers send, end a run as Ctrl-C does. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def check_memory(job: JobSpec, data: Mapping[str, Path]) -> None:
    """Check that a run in this process will fit into memory; print a note if it will be tight.

    Raises:
        TooLittleMemory: it will not fit.
    """
    from fedshift.federation.footprint import measure
    from fedshift.federation.memory import choose_workers, needs_in_process
    from fedshift.methods import method_set

    pooled = method_set.pooled_reference(job.methods) is not None
    needs = needs_in_process(job, data, measure(job), together=len(job.task.sites) if pooled else 1)
    note = choose_workers(needs, wanted=1, asked=False)[1]
    if note:
        print(note, flush=True)


def in_simulator(
    job: JobSpec,
    job_folder: Path,
    workspace: Path,
    *,
    parallel: int | None = None,
    resume: bool = False,
    force: bool = False,
    full_log: bool = False,
    ignore_memory: bool = False,
) -> RunFolders:
    """Run a job folder in FLARE's simulator, with its progress or all its log lines on the terminal."""
    from fedshift.cli.display import Lines
    from fedshift.data.local_sites import find_sites, is_phantom
    from fedshift.flare.simulate import simulate, sites_at_a_time
    from fedshift.flare.simulator import RunFailed
    from fedshift.flare.workspaces import RunFolders

    sites_at_a_time(job, parallel)  # what does not fit is refused before data are looked for
    phantom = is_phantom(find_sites(job))
    display = Lines(phantom=phantom) if full_log else make_display(phantom=phantom)
    on_line = print if full_log else lambda line: None
    try:
        with stopped_by_sigterm(), display:
            return simulate(
                job,
                job_folder,
                workspace,
                parallel=parallel,
                resume=resume,
                force=force,
                ignore_memory=ignore_memory,
                on_look=display.show,
                on_line=on_line,
                on_note=print,
            )
    except RunFailed as failure:
        log = RunFolders(workspace.absolute()).log
        raise RunFailed("run-failed", f"{failure} (log: {log})") from None
