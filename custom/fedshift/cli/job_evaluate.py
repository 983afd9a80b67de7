"""``fedshift job --evaluate``: a job in which sites score finished models and nothing is trained."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from fedshift.schema.errors import ConfigError
from fedshift.schema.names import comma_separated, few_names
from fedshift.schema.validation import Part

ONLY = {"part": "--part", "strata": "--strata", "statistics": "--statistics"}
"""Options that are for such a job alone."""
NOT = {
    "protocol": "--protocol",
    "held_out": "--held-out",
    "options": "--set",
    "weights": "--weights",
    "init": "--init",
    "practical": "--practical",
    "show": "--show",
    "with_local": "--with-local",
    "budget": "--budget",
}
"""Options that such a job does not have."""
OF_EVERY_RUN, OF_SIMULATOR = ("best_global_model", "last_global_model"), ("simulate_job", "server")
"""Names of model files, and of folders above them, that every run has."""


class _Models(argparse.Action):
    """``--evaluate MODEL [MODEL …] TASK``: the task is the last, unless it is given before."""

    def __init__(self, *, task: argparse.Action, methods: argparse.Action, **options: Any) -> None:
        super().__init__(nargs="+", **options)
        self._positional = (task, methods)

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)
        for action in self._positional:
            action.required = False


def add_options(parser: Any, task: argparse.Action) -> None:
    """Add them to ``fedshift job``; ``task`` is its argument TASK."""
    methods = next(action for action in parser._actions if action.dest == "methods")
    group = parser.add_argument_group("validation without training")
    group.add_argument(
        "--evaluate",
        action=_Models,
        task=task,
        methods=methods,
        metavar="MODEL",
        help="in place of METHODS: sites score these model files or MONAI bundles on their own cases, and each other "
        "one is compared with the first; TASK follows",
    )
    group.add_argument(
        "--part",
        choices=get_args(Part),
        help="of a site's cases: its test part (default), its validation part, or all that it has",
    )
    group.add_argument(
        "--strata", type=comma_separated, metavar="A,B", help="columns of the sites' tables (default: all they tell)"
    )
    group.add_argument(
        "--statistics",
        metavar="SITE|own",
        help="whose statistics a model takes that normalises by site (own: each's)",
    )


def refuse_options(args: argparse.Namespace) -> None:
    """Refuse what is for such a job only, in another."""
    for name, option in ONLY.items():
        if getattr(args, name) is not None:
            raise ConfigError("no-effect", f"{option} is for a job of --evaluate: name the models, or leave it out")


def write(args: argparse.Namespace) -> int:
    """Write the job."""
    from fedshift.flare.export import SPEC
    from fedshift.flare.validation.job import models_of, write_validation_job
    from fedshift.inference.validation_run import begin
    from fedshift.reporting.report.wording import counted
    from fedshift.reporting.table import site_names
    from fedshift.schema.validation import ValidationSpec

    files, task = _models_and_task(args)
    for name, option in NOT.items():
        if getattr(args, name, None) not in (None, False, []):
            raise ConfigError("no-effect", f"{option} is for jobs that train: leave it out, or --evaluate")
    models = _named(files)
    dataset, task_sites, name = _of_task(task)
    spec = ValidationSpec.parse(
        {
            "validation": args.name or f"validate_{name}",
            "task": name,
            "dataset": dataset,
            "sites": _sites(args.sites, task_sites, task),
            "part": args.part or "test",
            "strata": args.strata,
            "models": [{"name": each, "sha256": "0" * 64} for each in models],
            "statistics": args.statistics,
        },
        where="--evaluate",
    )
    folder = args.out / spec.validation
    spec = write_validation_job(spec, models, folder, production=args.production, with_code=args.with_code)
    answers = begin(spec, models_of(folder))  # what does not go together is said now
    for record_name, record in answers.record().models.items():
        trained = (
            f"{'+'.join(record.methods)} on {record.task}, round {record.round}" if record.methods else record.task
        )
        print(f"{record_name}: {record.file}, {trained}")
        if record.seen_at:
            where = site_names(record.seen_at)
            print(f"! {record_name} was trained at {where}, on some of the cases that are scored there:")
            print("  its scores at these say too much for it")
        if record.adapted_on:
            print(
                f"! {record_name} was adapted to {counted(record.adapted_on, 'case')} of one hospital, which its file"
            )
            print("  does not name: if it is one of these sites, its scores there say too much for it")
    part = {"test": "their test cases", "val": "their validation cases", "all": "all their cases"}[spec.part]
    print(f"{folder}: {counted(len(models), 'model')} scored on {part} at {site_names(spec.sites)} ({SPEC.name})")
    return 0


def _models_and_task(args: argparse.Namespace) -> tuple[list[Path], str]:
    """The task is what is left over, wherever it stands."""
    names = [str(each) for each in args.evaluate]
    before = [each for each in (args.methods, args.task) if each is not None]
    if len(before) > 1:
        raise ConfigError("options-clash", f"--evaluate takes the place of METHODS: leave out {before[0]!r}")
    task = before[0] if before else names.pop()
    if not names:
        raise ConfigError(
            "model-missing", f"--evaluate takes one or more model files and then a task: {task!r} alone is given"
        )
    return [Path(each) for each in names], task


def _named(files: Sequence[Path]) -> dict[str, Path]:
    """Names for the models: of their files, or of the runs that these are of; with a word or number more as needed."""
    names: dict[str, Path] = {}
    for file in files:
        plain = file.stem
        if plain in OF_EVERY_RUN:
            of_run = next((folder.name for folder in file.resolve().parents if folder.name not in OF_SIMULATOR), "")
            plain = f"{of_run}_{plain.partition('_')[0]}"
        name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in plain)
        name = name.lstrip("_-")[:100] or "model"
        if name in names:
            name = next(f"{name}_{n}" for n in range(2, 100) if f"{name}_{n}" not in names)
        names[name] = file
    return names


def _of_task(task: str) -> tuple[str, list[str], str]:
    """Data set, sites and name of a task."""
    from fedshift.federation.resolve import read_task
    from fedshift.schema.task_files import Numbered

    raw, where = read_task(task)
    names: list[str] = []
    for key in ("sites", "held_out"):
        value = raw.get(key) or []
        names += Numbered.parse(value, where=f"{where}: {key}").names if isinstance(value, dict) else map(str, value)
    return str(raw.get("dataset") or ""), names, Path(task).stem


def _sites(wanted: Sequence[str] | None, task_sites: Sequence[str], task: str) -> list[str]:
    """Whom to ask. Hospitals that the task does not name may be asked too: they need not have trained."""
    if wanted is None and not task_sites:
        raise ConfigError("no-site", f"{task} names no site: name those that are asked with --sites")
    new = [site for site in wanted or () if site not in task_sites]
    if new and task_sites:
        print(f"not in the task: {few_names(new)}")
    return list(task_sites if wanted is None else wanted)
