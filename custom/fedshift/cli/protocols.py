"""``fedshift leave-one-out`` and ``fedshift cross-site``: how models do at sites that did not train them."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.arguments import add_parallel, add_shared
from fedshift.cli.display import console, shown
from fedshift.cli.job import add_job_arguments, resolve_job
from fedshift.cli.run import in_simulator
from fedshift.schema.errors import ConfigError
from fedshift.schema.protocol_results import CrossSite, LeaveOneOut, own_model
from fedshift.schema.results import FILE_NAME

if TYPE_CHECKING:
    from fedshift.schema.job import JobSpec


def add_leave_one_out(parser: Any) -> None:
    parser.description = (
        "Every site of the task (or of --sites) in turn is held out: the others train, and their models are scored at "
        "it. Repeated, the command goes on where it was interrupted."
    )
    add_job_arguments(parser, with_held_out=False)
    parser.add_argument("-w", "--workspace", type=Path, metavar="DIR", help="default: runs/<name>_leave_one_out")
    parser.add_argument(
        "--flare", action="store_true", help="in FLARE's simulator, not in one process: the same numbers"
    )
    parser.add_argument(
        "--choose-round",
        action="store_true",
        help="the held-out site scores each round on its validation part: which round is best where nobody trained?",
    )
    add_parallel(parser, note="with --flare: ")
    add_shared(parser, "--phantom")
    parser.set_defaults(func=leave_one_out)


def add_cross_site(parser: Any) -> None:
    parser.description = (
        "Score every site's own model, as it is after its last local training, on every site's test part. Simulation "
        "only, in one process: in a federation these models never leave their sites."
    )
    add_job_arguments(parser, with_methods=False, with_held_out=False)
    parser.add_argument(
        "--methods", default="single", metavar="METHODS", help="joined by +; single (default): all sites train alone"
    )
    parser.add_argument("-w", "--workspace", type=Path, metavar="DIR", help="default: runs/<name>_cross_site")
    parser.add_argument(
        "--keep-models",
        action="store_true",
        help="leave each site's own model in own_models/: `fedshift report --images` shows its features",
    )
    add_shared(parser, "--phantom")
    parser.set_defaults(func=cross_site)


def leave_one_out(args: argparse.Namespace) -> int:
    from fedshift.data.locate import find_sites, is_phantom
    from fedshift.federation import protocols
    from fedshift.federation.in_process import run_in_process, run_pooled
    from fedshift.flare.export import write_job
    from fedshift.flare.workspaces import find_run
    from fedshift.methods import method_set
    from fedshift.reporting.protocol_tables import best_unseen_round, leave_one_out_table
    from fedshift.reporting.report.repeat import command_at_round
    from fedshift.tasks.device import own_device

    if args.parallel is not None and not args.flare:
        raise ConfigError("options-clash", "--parallel is for FLARE's simulator: add --flare")
    if args.choose_round and args.flare:
        raise ConfigError(
            "options-clash",
            "--choose-round needs the runs in one process, as in FLARE a held-out site scores final models alone: "
            "leave out --flare",
        )
    whole = resolve_job(args, held_out=[])
    start = run_in_process if method_set.pooled_reference(whole.methods) is None else run_pooled
    if args.flare and start is run_pooled:
        raise ConfigError(
            "no-federation", f"{args.methods} trains where all images are, which no federation can: leave out --flare"
        )
    device = own_device()
    turns = whole.task.sites
    if len(turns) < 2:
        raise ConfigError("too-few-sites", f"only site {turns[0]} is there: leave-one-out needs at least two")
    data = find_sites(whole)
    protocols.require_training_samples(data)
    if args.choose_round:
        protocols.require_validation_samples(data)
    jobs = {
        site: resolve_job(
            args,
            quiet=True,
            sites=[other for other in turns if other != site],
            held_out=[site],
            name=f"{whole.name}_without_{site}",
        )
        for site in turns
    }
    folder = (args.workspace or Path("runs") / f"{whole.name}_leave_one_out").absolute()

    def in_process(job: JobSpec, place: Path) -> None:
        with shown(place, job, phantom=is_phantom(data)) as show:
            noted = {"on_aggregate": protocols.note_held_out} if args.choose_round else {}
            start(job, data, place, device=device, resume=True, on_progress=show, **noted)

    def in_flare(job: JobSpec, place: Path) -> None:
        workspace, earlier = place / "flare", find_run(place / "flare")
        resume = earlier is not None and not earlier.has_finished
        job_folder = write_job(job, place / "job")
        folders = in_simulator(job, job_folder, workspace, parallel=args.parallel, resume=resume)
        shutil.copyfile(folders.server / FILE_NAME, place / FILE_NAME)

    def say(site: str, ended: bool) -> None:
        number = f"{turns.index(site) + 1} of {len(turns)}"
        print(f"{site} is held out ({number}){': has ended before' if ended else ''}", flush=True)

    run = in_flare if args.flare else in_process
    record = protocols.leave_one_out(jobs, folder, name=whole.name, run=run, on_site=say, by_round=args.choose_round)
    console.print(leave_one_out_table(record))
    if record.chosen_round is not None:
        print(best_unseen_round(record))
        print(f"train on all sites for it: {command_at_round(record.job, turns, record.chosen_round, task=args.task)}")
    print(f"table: {folder / LeaveOneOut.FILE_NAME}")
    return 0


def cross_site(args: argparse.Namespace) -> int:
    from fedshift.data.locate import find_sites, is_phantom
    from fedshift.federation import protocols
    from fedshift.methods import method_set
    from fedshift.reporting.protocol_tables import cross_site_table
    from fedshift.tasks.device import own_device

    job = resolve_job(args, held_out=[], sites=args.sites)
    method_set.require_federation(job)
    device = own_device()
    data = find_sites(job)
    protocols.require_training_samples(data)
    folder = (args.workspace or Path("runs") / f"{job.name}_cross_site").absolute()
    protocols.claim(folder, job)
    if (folder / CrossSite.FILE_NAME).is_file():
        record = CrossSite.read(folder)
        if args.keep_models and not all(own_model(folder, site).is_file() for site in job.task.sites):
            raise ConfigError(
                "run-exists", f"{folder} has its table already, made without --keep-models: give another --workspace"
            )
    else:
        keep = args.keep_models
        with shown(folder, job, phantom=is_phantom(data)) as show:
            record = protocols.cross_site(job, data, folder, device=device, keep_models=keep, on_progress=show)
    console.print(cross_site_table(record))
    print(f"table: {folder / CrossSite.FILE_NAME}")
    return 0
