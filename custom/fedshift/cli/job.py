"""``fedshift job``, and the options that describe a job, which other commands share."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedshift.cli import job_budget, job_evaluate
from fedshift.cli.nnunet_start import as_planned, hints, in_a_line, network_of_plans
from fedshift.schema.components import admit
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import BY_CLOCK, JobSpec, read_job
from fedshift.schema.names import comma_separated
from fedshift.schema.policy import USUAL_SITES_IN_SUM
from fedshift.schema.results import FILE_NAME, TRAINED_BEFORE
from fedshift.schema.settings import Setting, settings

if TYPE_CHECKING:
    from fedshift.tasks.stages import StagedNetwork

WIDTH = 100
"""Of the comments in a job that is shown."""


def add_arguments(job: Any) -> None:
    task = add_job_arguments(job)
    job_evaluate.add_options(job, task)
    job.add_argument(
        "--practical",
        action=_WithoutTask,
        task=task,
        help="in place of METHODS: the methods and settings that the task recommends for patients' scans, and why",
    )
    job.add_argument(
        "--show",
        action=_WithoutTask,
        task=task,
        help="write nothing: print the job with the meaning and default of every key; of a job that is there, give its "
        "folder in place of METHODS and TASK",
    )
    job.add_argument("--out", type=Path, default=Path("jobs"), metavar="DIR", help="where (default: jobs)")
    job_budget.add_option(job)
    job.add_argument(
        "--with-local",
        action="store_true",
        help="each site also trains a model alone, and says whether the federation's is better for it: twice the time",
    )
    job.add_argument("--production", action="store_true", help="for sites that allow fedshift's components by name")
    job.add_argument("--with-code", action="store_true", help="with fedshift's source, for sites that allow code")
    job.add_argument("--force", action="store_true", help="replace a job folder even if a run is inside it")
    job.set_defaults(func=write)


class _WithoutTask(argparse.Action):
    """A switch with which one name is enough."""

    def __init__(self, *, task: argparse.Action, **options: Any) -> None:
        super().__init__(nargs=0, default=False, **options)
        self._task = task

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        setattr(namespace, self.dest, True)
        self._task.required = False


def add_job_arguments(parser: Any, *, with_methods: bool = True, with_held_out: bool = True) -> argparse.Action:
    """Add the options that `resolve_job` reads; returns the argument TASK."""
    if with_methods:
        parser.add_argument("methods", metavar="METHODS", help="method names joined by +, such as fedfa+fedrdn")
    task: argparse.Action = parser.add_argument(
        "task", metavar="TASK", help="a task ('fedshift tasks' lists them), or a .yaml file of one"
    )
    parser.add_argument("--protocol", metavar="P", help="others of the task's settings, such as quick or fedfa")
    parser.add_argument("--sites", type=comma_separated, metavar="A,B", help="only these sites of the task train")
    if with_held_out:
        parser.add_argument(
            "--held-out",
            type=comma_separated,
            metavar="A,B",
            help="sites that only score the final models; all others train",
        )
    parser.add_argument(
        "--set", dest="options", action="extend", nargs="+", default=[], metavar="K=V", help="any keys of the job"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides every random number (default 0)")
    parser.add_argument("--name", help="default: methods and task joined by _")
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--weights", type=Path, metavar="FILE", help="a state_dict to start from, such as ImageNet's (default: scratch)"
    )
    start.add_argument(
        "--init",
        type=Path,
        metavar="MODEL",
        help="a model file, MONAI bundle or checkpoint of nnU-Net to start from; layers that do not fit start anew, "
        "and are listed; nnU-Net's plans decide the network",
    )
    return task


def resolve_job(args: argparse.Namespace, *, quiet: bool = False, **changes: Any) -> JobSpec:
    """Make the job that a command line asks for; ``changes`` (sites, held_out, name) replace its options."""
    from fedshift.federation.resolve import resolve
    from fedshift.tasks import pretrained
    from fedshift.tasks.kinds import build_task
    from fedshift.tasks.nnunet_checkpoint import USUAL_TRAINER, alike, check_fits
    from fedshift.tasks.starting import network_from

    start = args.weights or args.init
    path = None if start is None else pretrained.file_of(start)
    nnunet = None if path is None else pretrained.from_nnunet(path)
    weights = None if path is None else pretrained.identify(path, partial=args.init is not None and nnunet is None)
    changes.setdefault("sites", args.sites)
    changes.setdefault("held_out", getattr(args, "held_out", None))
    changes.setdefault("name", args.name)
    job = resolve(
        args.task,
        args.methods,
        protocol=args.protocol,
        options=[
            *args.options,
            *(["evaluation.local=true"] if getattr(args, "with_local", False) else []),
            *([] if nnunet is None else network_of_plans(nnunet, args.options)),
        ],
        seed=args.seed,
        weights=weights,
        **changes,
    )
    if path is None or weights is None:
        return job
    task = build_task(job)
    net = task.network()
    if nnunet is not None:
        channels = cast("StagedNetwork", net).in_channels
        regions = job.task.made_regions
        named = job.task.classes if regions is None else regions.names
        sequences, spacing = getattr(task, "sequences", None), job.task.data.get("spacing")
        check_fits(
            nnunet,
            channels=channels,
            sequences=sequences,
            named=named,
            regions=regions is not None,
            dims=len(task.spatial),
            spacing=spacing,
            path=path,
        )
        if not quiet:
            print(f"nnU-Net's plans: {as_planned(nnunet)}; images here are as the task's data says")
            for line in hints(nnunet, job, spacing):
                print(line)
            if sequences and not alike(nnunet.images, sequences):
                print(
                    f"its channels are {', '.join(nnunet.images)}: the network takes {', '.join(sequences)} for them, "
                    "in this order"
                )
            if not alike(nnunet.named, named):
                print(
                    f"its outputs are {', '.join(nnunet.named)}: the last layer begins with them as "
                    f"{', '.join(named)}, in this order"
                )
    try:
        _, loaded = network_from(job, path)
    except ConfigError as error:
        if nnunet is None or nnunet.trainer == USUAL_TRAINER or error.code != "weights-unfit":
            raise
        raise ConfigError(
            error.code,
            f"{path} was trained by {nnunet.trainer}, whose network is not that of its plans: take a checkpoint of "
            f"{USUAL_TRAINER}, or leave out --init",
        ) from None
    kept = pretrained.keep(path, weights)
    if not quiet:
        print(f"initial weights: {loaded}; the server finds them in {kept.parent}")
        if job.task.network.adapters is not None:
            print(f"adapters: they are all that travels, and every site needs its own copy of {path.name} beforehand")
        before = pretrained.trained_by(weights).get(job.task.dataset, ())
        not_new = [site for site in job.task.held_out if site in before]
        if not_new:
            print(f"held out: {', '.join(not_new)} {TRAINED_BEFORE}, so scores there are not those of a new site")
    return job


def _choose(args: argparse.Namespace) -> None:
    """Set the methods that the task recommends, and print what was chosen and why."""
    from fedshift.federation.resolve import practical

    if args.task is not None:
        raise ConfigError(
            "options-clash", f"--practical chooses the methods: leave out {args.methods!r}, or --practical"
        )
    if args.protocol is not None:
        raise ConfigError(
            "options-clash", f"--practical takes the task's default settings: leave out --protocol {args.protocol}"
        )
    chosen = practical(args.methods)
    args.task, args.methods = args.methods, "+".join(chosen.methods)
    print(f"methods: {args.methods}: {chosen.because}")
    print(f"settings: the task's default: {chosen.settings}")


def write(args: argparse.Namespace) -> int:
    from fedshift.federation.effect import without_effect
    from fedshift.federation.resolve import misfits
    from fedshift.flare.export import SPEC, write_job
    from fedshift.reporting.report.wording import counted
    from fedshift.reporting.table import site_names

    if args.evaluate is not None:
        return job_evaluate.write(args)
    job_evaluate.refuse_options(args)
    if args.show and args.task is None and not args.practical:
        folder = Path(args.methods)
        shown = read_job((folder if folder.is_dir() else args.out / folder) / SPEC)
        admit(shown.packages, where=str(folder))
        print(commented(shown), end="")
        return 0
    if args.practical:
        _choose(args)
    job = resolve_job(args, quiet=args.show)
    folder = args.out / job.name
    inside = None if args.show or args.force else min(folder.rglob(FILE_NAME), default=None)
    if inside is not None:
        raise ConfigError(
            "run-exists",
            f"{folder} holds a run ({inside.parent}): move that away, give another --name or --out, or use --force "
            "to replace both",
        )
    if args.budget is not None:
        fitting = job_budget.fitting_rounds(args.budget, job, args.options)
        args.options = [*args.options, f"{job_budget.ROUNDS}={fitting}"]
        job = resolve_job(args, quiet=True)
    if args.show:
        print(commented(job), end="")
        return 0
    write_job(job, folder, production=args.production, with_code=args.with_code)
    out = f"; held out: {', '.join(job.task.held_out)}" if job.task.held_out else ""
    for departure in job.task.departures:
        print(f"not the protocol: {departure}")
    if job.task.schedule.minutes is not None:
        print(f"by the clock: {BY_CLOCK}")
    if job.evaluation.local:
        print("with local models: each site trains a second model, on its own data alone; training takes twice as long")
    if job.federation.encryption == "masks" and job.federation.min_sites < USUAL_SITES_IN_SUM:
        print(
            f"sums over {job.federation.min_sites} sites (federation.min_sites): a site takes part in sums over "
            f"{USUAL_SITES_IN_SUM} or more only, unless its policy says fewer (privacy.min_sites_in_sum)"
        )
    for effect in without_effect(job):
        print(f"hardly any effect: {effect}")
    for misfit in misfits(job):
        print(f"does not fit the data here: {misfit}")
    select, rounds = job.evaluation.select, counted(job.task.schedule.rounds, "round")
    ends = f"{select} of " if isinstance(select, int) else ""
    print(f"{folder}: {ends}{rounds} at {site_names(job.task.sites)}{out}")
    return 0


# --- a job that is shown ------------------------------------------------------------------------------------


def commented(job: JobSpec) -> str:
    """The job's ``fedshift.yaml`` with a comment above every key that a model or a method knows."""
    return "\n".join(_lines(job.dump(), known_settings(job))) + "\n"


def known_settings(job: JobSpec) -> dict[str, Setting]:
    """Dotted key of the job -> what is known of it, with the keys of its kind of data and of its methods."""
    from fedshift.methods import method_set
    from fedshift.tasks.kinds import build_task

    every = [*settings(JobSpec), *settings(build_task(job).data_spec, "task.data.")]
    for name in job.methods:
        every += settings(method_set.find(name).Config, f"methods.{name}.")
    return {setting.key: setting for setting in every}


def _lines(values: Mapping[str, Any], known: Mapping[str, Setting], path: str = "") -> Iterator[str]:
    """The keys of a mapping; those that a job may have and this one leaves out are comments with their defaults."""
    indent = "  " * path.count(".")
    for key, value in values.items():
        yield from _comment(known.get(f"{path}{key}"), indent)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{in_a_line(key)}:"
            yield from _lines(value, known, f"{path}{key}.")
        else:
            yield f"{indent}{in_a_line(key)}: {in_a_line(value)}"
    for setting in known.values():
        parent, _, key = setting.key.rpartition(".")
        if path and f"{parent}." == path and key not in values and setting.default is not None:
            yield from _comment(setting, indent)
            yield f"{indent}# {key}: {setting.default}"


def _comment(setting: Setting | None, indent: str) -> Iterator[str]:
    if setting is not None:
        default = "required" if setting.default is None else f"default {setting.default}"
        text = f"{setting.meaning} {setting.type[:1].upper()}{setting.type[1:]}; {default}.".strip()
        yield from textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
