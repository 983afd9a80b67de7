"""``fedshift run``, in FLARE's simulator or in one process, and ``fedshift pooled``, in one process."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli import run_validation
from fedshift.cli.arguments import add_parallel, add_resume_or_force, add_shared
from fedshift.cli.display import Lines, console, make_display, shown
from fedshift.cli.job import add_job_arguments, resolve_job
from fedshift.cli.memory import check_memory
from fedshift.schema.components import admit
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import BEST, FILE_NAME, LAST, read_results

if TYPE_CHECKING:
    from fedshift.federation.server.coordinator import Coordinator
    from fedshift.flare.workspaces import Former, RunFolders
    from fedshift.schema.job import JobSpec

ENDED = {"best model": BEST, "last model": LAST, "results": FILE_NAME}
"""What is said of a run's files when it has ended."""


def add_run(parser: Any) -> None:
    parser.add_argument("job", type=Path, metavar="JOB_FOLDER")
    parser.add_argument("-w", "--workspace", type=Path, metavar="DIR", help="default: runs/<name of the job>")
    add_parallel(parser)
    parser.add_argument(
        "--log", choices=("rounds", "full"), default="rounds", help="a line a round (default), or all that FLARE logs"
    )
    parser.add_argument(
        "--in-process", action="store_true", help="without FLARE, one site after another: the same numbers"
    )
    add_resume_or_force(parser)
    add_shared(parser, "--phantom", "--device", "--devices", "--ignore-memory")
    parser.set_defaults(func=run)


def add_pooled(parser: Any) -> None:
    add_job_arguments(parser)
    parser.add_argument("-w", "--workspace", type=Path, metavar="DIR", help="default: runs/<name of the job>")
    add_resume_or_force(parser)
    add_shared(parser, "--phantom", "--device", "--ignore-memory")
    parser.set_defaults(func=train_pooled)


def run(args: argparse.Namespace) -> int:
    from fedshift.data.locate import find_sites
    from fedshift.federation.image_free import record_guess
    from fedshift.federation.run_lock import require_unlocked
    from fedshift.flare.export import read_job_folder
    from fedshift.flare.validation.job import is_validation
    from fedshift.reporting import events
    from fedshift.reporting.table import scores_table

    if is_validation(args.job):
        return run_validation.run(args)
    job = read_job_folder(args.job)
    admit(job.packages, where=str(args.job))
    if args.in_process:
        from fedshift.federation.in_process import run_in_process

        if args.parallel is not None:
            raise ConfigError(
                "options-clash", "--parallel is for FLARE's simulator: leave out --in-process or --parallel"
            )
        return _in_one_process(job, args, run_in_process)
    workspace = args.workspace or Path("runs") / job.name
    require_unlocked(workspace)
    require_free(workspace, resume=args.resume, force=args.force, in_process=False)
    folders = in_simulator(
        job,
        args.job,
        workspace,
        full_log=args.log == "full",
        parallel=args.parallel,
        resume=args.resume,
        force=args.force,
        ignore_memory=args.ignore_memory,
    )
    record_guess(job, find_sites(job), folders.server)
    console.print(scores_table(read_results(folders.server)))
    for what, name in {**ENDED, "TensorBoard": events.FOLDER}.items():
        print(f"{what + ':':<13}{folders.server / name}")
    print(f"{'log:':<13}{folders.log}")
    return 0


def train_pooled(args: argparse.Namespace) -> int:
    from fedshift.federation.in_process import run_pooled
    from fedshift.methods import method_set

    job = resolve_job(args)
    if method_set.pooled_reference(job.methods) is None:
        references = ", ".join(method_set.pooled_references())
        raise ConfigError(
            "not-a-reference",
            f"{args.methods} is no centralised reference ({references}): use 'fedshift job' and 'run'",
        )
    return _in_one_process(job, args, run_pooled)


def _in_one_process(job: JobSpec, args: argparse.Namespace, start: Callable[..., Coordinator]) -> int:
    """Run a job in this process; ``start``: `run_in_process` or `run_pooled`."""
    from fedshift.data.locate import find_sites, is_phantom
    from fedshift.federation.image_free import record_guess
    from fedshift.federation.run_lock import lock_run, require_unlocked
    from fedshift.flare.workspaces import discard_aside
    from fedshift.reporting.table import scores_table
    from fedshift.tasks.device import own_device

    folder = (args.workspace or Path("runs") / job.name).absolute()
    require_unlocked(folder)
    former = require_free(folder, resume=args.resume, force=args.force, in_process=True)
    data = find_sites(job)
    folder.mkdir(parents=True, exist_ok=True)
    device = own_device()
    if not args.ignore_memory:
        check_memory(job, data)
    if args.force:
        with lock_run(folder):
            discard_aside(folder)
            if not former.in_process:  # the run replaces the files of one of its own kind as it goes
                former.remove()
    with _stopped_by_sigterm(), shown(folder, job, phantom=is_phantom(data)) as show:
        start(job, data, folder, device=device, resume=args.resume, on_progress=show)
    record_guess(job, data, folder)
    console.print(scores_table(read_results(folder)))
    for what, name in ENDED.items():
        print(f"{what + ':':<13}{folder / name}")
    return 0


def in_simulator(
    job: JobSpec,
    job_folder: Path,
    workspace: Path,
    *,
    parallel: int | None,
    full_log: bool = False,
    **options: Any,
) -> RunFolders:
    """Run a job folder in FLARE's simulator, with its progress or all its log lines on the terminal.

    ``options``: ``resume``, ``force`` and ``ignore_memory`` of `fedshift.flare.simulate.simulate`.
    """
    from fedshift.data.locate import find_sites, is_phantom
    from fedshift.flare.simulate import simulate, sites_at_a_time
    from fedshift.flare.simulator import RunFailed
    from fedshift.flare.workspaces import RunFolders

    sites_at_a_time(job, parallel)  # what does not fit is refused before data are looked for
    phantom = is_phantom(find_sites(job))
    display = Lines(phantom=phantom) if full_log else make_display(phantom=phantom)
    on_line = print if full_log else lambda line: None
    outputs: dict[str, Any] = {"on_look": display.show, "on_line": on_line, "on_note": print}
    try:
        with _stopped_by_sigterm(), display:
            return simulate(job, job_folder, workspace, parallel=parallel, **options, **outputs)
    except RunFailed as failure:
        log = RunFolders(workspace.absolute()).log
        raise RunFailed("run-failed", f"{failure} (log: {log})") from None


def require_free(workspace: Path, *, resume: bool, force: bool, in_process: bool) -> Former:
    """See that a run may begin in a workspace, or go on there; what an earlier one has left there."""
    from fedshift.flare.workspaces import find_former, find_run

    earlier = find_run(workspace)
    if earlier is not None and not force:
        if not resume:
            raise ConfigError(
                "run-exists",
                f"{workspace} holds {earlier.says}: use --resume to go on with it, --force to replace it, or another "
                "--workspace",
            )
        if earlier.in_process != in_process:
            how = "in one process: add --in-process" if earlier.in_process else "under FLARE: leave out --in-process"
            raise ConfigError("run-exists", f"{workspace} holds {earlier.says}, made {how}")
    return find_former(workspace, in_process=in_process, force=force)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
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
