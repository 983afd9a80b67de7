"""``fedshift survey``: what every site tells of its data, a plan from it, and a map of the shift between the sites."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.arguments import add_shared, make_folder
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import comma_separated
from fedshift_survey.cli import plans

if TYPE_CHECKING:
    from fedshift.schema.fingerprint import Fingerprint, Survey, SurveySpec

MAP = "shift.html"
LOG = "survey.log"
"""Beside the map, what FLARE's simulator printed."""


def add_parsers(subparsers: Any) -> None:
    """Add the command, and ``plans`` for sites that have planned already."""
    plans.add_parsers(subparsers)
    parser = subparsers.add_parser(
        "survey",
        help="ask every site for sums over its cases: a plan for a task, and a map of the shift between sites",
        description="Ask every site, under its own policy, for what nnU-Net calls a fingerprint; then plan a task and "
        "draw how far the sites are from each other. No case's numbers leave a site.",
    )
    parser.add_argument(
        "what",
        metavar="JOB_OR_TASK",
        help="a task, a prepared data set, a .yaml file or a job folder; or a survey.json that was made before",
    )
    parser.add_argument("--sites", type=comma_separated, metavar="A,B", help="ask, show and plan for these sites only")
    parser.add_argument(
        "--held-out", type=comma_separated, metavar="A,B", help="sites that are on the map and not in the plan"
    )
    parser.add_argument(
        "--place", type=Path, action="append", default=[], metavar="DIR", help="a newcomer's prepared folder, likewise"
    )
    parser.add_argument("--flare", action="store_true", help="ask through FLARE's simulator: the same numbers")
    parser.add_argument("--job", type=Path, metavar="DIR", help="only write the survey's job folder for FLARE")
    parser.add_argument("--production", action="store_true", help="with --job: as for 'fedshift job'")
    parser.add_argument(
        "--dims", type=int, choices=(2, 3), default=3, help="volumes (default) or slices; pictures are planned in 2D"
    )
    parser.add_argument("--memory", type=float, default=8.0, metavar="GB", help="of a training step (default 8)")
    parser.add_argument("--patch", metavar="N,N,N", help="a patch of your own, in voxels; two numbers go with --dims 2")
    parser.add_argument(
        "--nnunet", action="store_true", help="plan for nnU-Net's own network, as 'fedshift export --nnunet' takes it"
    )
    parser.add_argument("--name", help="of the planned task (default: the data set's)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: surveys/<data set>")
    parser.add_argument("--force", action="store_true", help="replace a task file that was changed by hand")
    add_shared(parser, "--phantom")
    parser.set_defaults(func=execute)


def execute(args: argparse.Namespace) -> int:
    """``fedshift survey``."""
    from fedshift.data.shift import shift_map
    from fedshift_survey.suggestions import suggestions

    patch = _checked(args)
    earlier = _earlier(args)
    spec = _question(args) if earlier is None else _narrowed(earlier.spec, args)
    if args.job is not None:
        return _write_job(spec, args)
    out = args.out or Path("surveys") / spec.dataset
    path = out / f"{args.name or spec.dataset}.yaml"
    make_folder(out)
    _check_replaceable(path, args)
    whole = _asked(spec, args, out) if earlier is None else earlier
    written = whole.write(out)  # before anything can fail: to ask again would be another release of a site's
    survey = whole.restricted_to(spec)
    newcomers = [_newcomer(folder, survey) for folder in args.place]
    everyone = [*survey.sites.values(), *newcomers]
    placed = [*survey.spec.held_out, *(fingerprint.site for fingerprint in newcomers)]
    shift = shift_map(everyone, placed=placed)
    advice = suggestions(shift, everyone)
    _print_map(everyone, shift, advice, survey)
    print()
    plan = None
    try:
        plan = _plan(survey, args, patch, path)
    finally:
        page = _write_page(shift, everyone, advice, survey, plan, out)
        for what, file in (("plan", plan), ("map", page), ("survey", written)):
            print(f"{what + ':':<8}{file or 'none'}")
    if plan is not None:
        print(f"\nfedshift job fedavg {shlex.quote(str(plan))}")
    return 1 if survey.refused else 0


def _checked(args: argparse.Namespace) -> list[int] | None:
    """The patch that is asked for; options that no survey can make right are refused before a site is asked."""
    from pydantic import TypeAdapter, ValidationError

    from fedshift.schema.names import Name
    from fedshift_survey.planning.plan import check_patch

    if not 0 < args.memory < math.inf:
        raise ConfigError("invalid-value", f"--memory must be more than 0 gigabytes, not {args.memory:g}")
    try:
        TypeAdapter(Name | None).validate_python(args.name)
    except ValidationError:
        raise ConfigError(
            "invalid-value", f"--name {args.name!r} is no name of a task: give letters, digits and _ . - alone"
        ) from None
    if args.patch is None:
        return None
    patch = _numbers(args.patch)
    check_patch(patch, args.dims)
    return patch


def _earlier(args: argparse.Namespace) -> Survey | None:
    """A survey that was made before, if the command names one."""
    from fedshift.schema.fingerprint import FILE_NAME, read_survey

    path = Path(args.what)
    return read_survey(path) if path.suffix == ".json" or (path / FILE_NAME).is_file() else None


def _narrowed(spec: SurveySpec, args: argparse.Namespace) -> SurveySpec:
    from fedshift_survey.question import narrowed

    return narrowed(spec, sites=args.sites, held_out=args.held_out, where=args.what)


def _question(args: argparse.Namespace) -> SurveySpec:
    from fedshift.flare.export import SPEC
    from fedshift_survey.question import question

    what = str(Path(args.what) / SPEC) if (Path(args.what) / SPEC).is_file() else args.what
    return question(what, sites=args.sites, held_out=args.held_out)


def _check_replaceable(path: Path, args: argparse.Namespace) -> None:
    """Before a site is asked, see that the plan may be written."""
    from fedshift_survey.planning.task_file import is_unchanged

    if path.is_file() and not args.force and not is_unchanged(path):
        raise ConfigError(
            "file-changed",
            f"{path} is not as 'fedshift survey' wrote it: keep it by another --name or --out, or replace it (--force)",
        )


def _write_job(spec: SurveySpec, args: argparse.Namespace) -> int:
    from fedshift_survey.flare.job import write_survey_job

    folder = write_survey_job(spec, args.job, production=args.production)
    print(f"{folder}: a survey of {spec.dataset} at {', '.join(spec.everyone)}")
    print("Submit it ('nvflare job submit -j FOLDER'), download it, and give its survey.json to 'fedshift survey'.")
    return 0


def _asked(spec: SurveySpec, args: argparse.Namespace, out: Path) -> Survey:
    """Ask every site, through FLARE's simulator or in this process."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from fedshift.cli.display import console
    from fedshift.data.locate import find_site
    from fedshift_survey.collect import survey_in_process

    data = {site: find_site(spec.dataset, site, local=None, simulator=True) for site in spec.everyone}
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("asking the sites")
        if args.flare:
            from fedshift_survey.flare.simulate import simulate_survey

            return simulate_survey(spec, out / LOG)
        return survey_in_process(
            spec, data, progress=lambda site, case: bar.update(task, description=f"{site}: {case}")
        )


def _newcomer(folder: Path, survey: Survey) -> Fingerprint:
    """A site that took no part, for the map."""
    from fedshift.federation.survey_answer import answer
    from fedshift.schema.manifest import read_manifest

    site = read_manifest(folder).site
    if site in survey.sites:
        raise ConfigError(
            "site-twice", f"{folder} is site {site}, which the survey has already: leave out --place {folder}"
        )
    return answer(folder, site)


def _plan(survey: Survey, args: argparse.Namespace, patch: Sequence[int] | None, path: Path) -> Path | None:
    """Write the planned task file; None if no site tells enough."""
    from fedshift.data.tallies import merge, require_every_class, worded
    from fedshift.schema.files import write_text
    from fedshift_survey.planning.plan import make_plan
    from fedshift_survey.planning.task_file import task_file, unlike_nnunet

    if all(fingerprint.geometry is None for fingerprint in survey.planned):
        print("No plan: no site tells the size of its voxels and volumes.", file=sys.stderr)
        return None
    pooled = merge(survey.planned)
    require_every_class(survey.planned)
    surveyed = sum(site.surveyed > 0 for site in survey.planned)  # with noise, cases count and tell no sizes
    outputs = len(survey.spec.regions) or None
    plan = make_plan(pooled, sites=surveyed, dims=args.dims, memory=args.memory, patch=patch, outputs=outputs)
    write_text(path, task_file(plan, survey.planned, survey.spec, name=path.stem, nnunet=args.nnunet))
    if note := unlike_nnunet(survey.planned):
        beginning = worded("Each volume is brought", pictures=pooled.of_pictures)
        print(f"{beginning} to mean 0 and standard deviation 1. {note}\n")
    return path


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            "invalid-value", f"--patch {text!r} is not a list of whole numbers such as 64,128,128"
        ) from None


def _print_map(everyone: Sequence[Fingerprint], shift: Any, advice: Any, survey: Survey) -> None:
    from fedshift.cli.display import console
    from fedshift_survey.shift_table import map_tables, pair_table, sites_table, suggestion_lines

    console.print(sites_table(everyone, placed=shift.placed))
    for site, reason in survey.refused.items():
        console.print(f"! site {site} gave no answer: {reason}", markup=False)
    for table in map_tables(shift) if shift.pairs else ():
        console.print()
        console.print(table)
    if shift.farthest is not None:
        console.print()
        console.print(pair_table(shift, shift.farthest, everyone))
    console.print()
    for line in suggestion_lines(advice):
        console.print(line)


def _write_page(
    shift: Any, everyone: Sequence[Fingerprint], advice: Any, survey: Survey, plan: Path | None, out: Path
) -> Path:
    """The map as a page."""
    from fedshift.reporting.report import page
    from fedshift_survey import shift_map

    chapter = shift_map.chapter(
        shift,
        everyone,
        advice,
        dataset=survey.spec.dataset,
        command=shlex.join(["fedshift", *sys.argv[1:]]),
        plan="" if plan is None else plan.read_text(encoding="utf-8"),
    )
    path = out / MAP
    page.write(page.render(page.with_ids([chapter])), path)
    return path
