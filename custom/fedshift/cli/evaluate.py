"""``fedshift evaluate``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedshift.cli import evaluate_labels, own_scans
from fedshift.cli.arguments import add_shared, make_folder
from fedshift.cli.display import console
from fedshift.cli.guarantee import add_calibration, calibrate, check_calibration
from fedshift.cli.model_choice import (
    adapted_on,
    add_choice,
    add_models,
    averaged_models,
    choice,
    describe,
    print_statistics,
    scored_model,
)
from fedshift.reporting import false_positives
from fedshift.reporting.known_scores import SCORES
from fedshift.reporting.report.wording import counted, say
from fedshift.schema.errors import ConfigError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.files import CsvWriter
from fedshift.schema.job import EvaluationSpec
from fedshift.schema.protocol_results import LabelledScans

if TYPE_CHECKING:
    from fedshift.inference.model import Model
    from fedshift.inference.scoring import Scored, Summary

TABLE, SUMMARY = "scores.csv", "evaluation.json"
COLUMNS = ("dice", "surface_dice", "cldice", "hd95", "asd", "volume_difference", "false_positives")
PICTURES = (
    *("dice", "surface_dice", "cldice", "hd95", "asd", "area_difference_mm2", "false_positives_mm2"),
    *("hd95_px", "asd_px", "area_difference_px", "false_positives_px"),
)
"""The scores of volumes, and of pictures."""


def add_arguments(parser: Any) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="best_global_model.pt of a run, for example")
    parser.add_argument("--images", type=Path, metavar="DIR", help="the scans; or a pattern in quotes")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="of a model that classifies: the labels (.csv) of its images, as of 'fedshift data prepare own'",
    )
    parser.add_argument("--masks", type=Path, metavar="DIR", help="their masks, with the same names; or a pattern")
    parser.add_argument("--source", type=Path, metavar="DIR", help="a folder with images and masks in a usual layout")
    own_scans.add_meaning(parser)
    add_shared(parser, "--subject", "--trust-voxels", "--interpolate", "--empty", "--bits")
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="MM",
        help="of surface Dice, in pixels of pictures without a pixel size (default: the one of the model's job)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"for {TABLE} and {SUMMARY}")
    parser.add_argument("--force", action="store_true", help="replace what an earlier call wrote into the folder")
    add_models(parser)
    add_calibration(parser)
    add_choice(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """``fedshift evaluate``; exit code 1 if some cases could not be scored."""
    from fedshift.inference import scoring
    from fedshift.inference.model import open_model
    from fedshift.inference.plausible import REAL
    from fedshift.tasks.evaluation.guarantee import CaseRisks

    if args.tolerance is not None:
        EvaluationSpec.parse({"tolerance": args.tolerance}, where=f"--tolerance {args.tolerance:g}")
    model = open_model(args.model)
    files = (TABLE, SUMMARY, evaluate_labels.SUMMARY)
    read = {path.resolve() for path in (args.model, args.table, *args.models) if path is not None}
    for path, option in (*((args.out / name, "--out") for name in files), (args.calibrated, "--calibrated")):
        if path is not None and path.resolve() in read:
            raise ConfigError("output-exists", f"{path} is to be read and written: name another place with {option}")
    check_calibration(args)
    written = next((args.out / name for name in files if (args.out / name).exists()), None)
    if written is not None and not args.force:
        message = f"{written} already exists: name another folder with --out, or replace it with --force"
        raise ConfigError("output-exists", message)
    if not model.is_segmentation:
        return evaluate_labels.run(args, model)
    for value, option in ((args.table, "--table"), (args.bits, "--bits")):
        if value is not None:
            message = f"{model.path} segments, and {option} is for models that classify: leave it out"
            raise ConfigError("no-effect", message)
    sets, cases = own_scans.cases_for(model, args)
    for line in describe(model):
        print(line)
    others = averaged_models(model, args)
    for each in (model, *others):
        if n := adapted_on(each):
            caveat = "if any is among these, the scores say too much for it"
            print(f"warning: {each.path} was adapted to {counted(n, 'case')} of one hospital: {caveat}")
    for finding in (finding for folder in sets for finding in folder.findings):
        print(f"warning: {finding.sentence()}")
    about_scans = {"device": args.device, "true_spacing": args.true_spacing}
    ready = scoring.ready_for(model, cases, choice(args), others=others, **about_scans)
    print_statistics(ready)
    tolerance = model.header.job.evaluation.tolerance if args.tolerance is None else args.tolerance
    make_folder(args.out)
    scored = []
    risks, subjects = None if args.guarantee is None else CaseRisks(), scoring.subjects_of(sets)
    about = {"tolerance": tolerance, "true_spacing": args.true_spacing, "risks": risks, "subjects": subjects}
    for case in scoring.score_cases(ready, cases, **about):
        scored.append(case)
        for warning in case.warnings:
            print(f"warning: {warning}")
        print(f"{case.id}: {case.error or _scores_line(case)}")
    classes = model.header.job.task.structures
    summary = scoring.summary(scored, classes, subjects=subjects)
    columns = PICTURES if model.of_pictures else COLUMNS
    described = scored_model(model, ready.statistics, others)
    _write(args.out, columns, scored, _record(model, described, scored, summary, tolerance=tolerance))
    if summary.cases:
        console.print(_table(summary, classes, columns))
    for name, counts in summary.one_sided.items():
        caution = say("labelled_class_in_one_mask", name=name, sides=counts, cases=len(summary.cases))
        print(caution.removesuffix("."))
    means = {name: spread.mean for name, spread in summary.scores.items()}
    evaluation = Evaluation(scores=means, distributions=dict(summary.scores), one_sided=dict(summary.one_sided))
    for sentence in false_positives.sentences(evaluation):
        print(f"{sentence}; the other scores are over the cases that have it")
    if not all(case.known_spacing for case in scored):
        resampled = ", and they are resampled by data.matrix and not by 1 mm" if model.resamples_by_matrix else ""
        print(
            "some headers hold no voxel size (1 x 1 x 1 mm): surface Dice, distances in mm and volumes in ml mean "
            f"nothing for these scans{resampled}; {REAL}"
        )
    print(f"every case: {args.out / TABLE}; summary with intervals: {args.out / SUMMARY}")
    print(f"as a page: fedshift report {shlex.quote(str(args.out))}")
    failed = sum(case.error is not None for case in scored)
    if failed:
        print(f"{failed} of {len(scored)} cases could not be scored")
    covered = risks is None or calibrate(model, risks.curves(), classes, args, statistics=ready.statistics)
    return int(failed > 0 or not covered)


def _scores_line(case: Scored) -> str:
    """Dice of the classes that a case has, and how much is wrongly outlined of those that it lacks."""
    has = [f"{name} {scores['dice']:.3f}" for name, scores in case.scores.items() if name not in case.lacks]
    false_sizes = {name: next(iter(case.scores[name].items())) for name in case.lacks}
    lacks = [
        f"no {name}, {size:.2f} {false_positives.UNITS[score]} found" for name, (score, size) in false_sizes.items()
    ]
    return "; ".join([*([f"Dice {', '.join(has)}"] if has else []), *lacks])


def _table(summary: Summary, classes: Sequence[str], columns: Sequence[str]) -> Table:
    """Mean over cases with its 95 % interval, of each class and of the mean over classes."""
    from fedshift.tasks.evaluation.spread import ENOUGH

    n = len(summary.cases)
    title, over = counted(n, "case"), "cases"
    if summary.subjects < n:
        title, over = f"{n} scans of {counted(summary.subjects, 'subject')}", "subjects"
    interval = "95 % interval" if summary.subjects >= ENOUGH else f"no interval: fewer than {ENOUGH} {over}"
    table = Table(title=f"{title}; mean over {'cases' if over == 'cases' else 'scans'} ({interval})")
    table.add_column("class")
    held = {name.partition(" ")[0] for name in summary.scores}
    always = set(columns) - {"false_positives", "cldice"} if columns == COLUMNS else {"dice"}
    shown = [score for score in columns if score in held | always]
    for score in shown:
        table.add_column(SCORES[score].heading, justify="right")
    rows = {name: f" {name}" for name in classes} if len(classes) > 1 else {}
    for label, suffix in {**rows, ("mean" if rows else classes[0]): ""}.items():
        cells = []
        for score in shown:
            spread, factor = summary.scores.get(f"{score}{suffix}"), SCORES[score].factor
            ends = None if spread is None else spread.interval
            span = "" if ends is None else f" ({' to '.join(f'{factor * end:.1f}' for end in ends)})"
            cells.append("-" if spread is None else f"{factor * spread.mean:.1f}{span}")
        table.add_row(label, *cells)
    return table


def _record(
    model: Model, described: Mapping[str, Any], scored: Sequence[Scored], summary: Summary, *, tolerance: float
) -> LabelledScans:
    """What ``fedshift report`` makes a page of; ``described``: of `scored_model`."""
    kept = [case for case in scored if case.error is None]
    return LabelledScans(
        **described,
        tolerance=tolerance,
        classes=list(model.header.job.task.structures),
        cases=list(summary.cases),
        subjects=summary.subjects,
        not_scored=[case.id for case in scored if case.error is not None],
        without_spacing=[case.id for case in kept if not case.known_spacing],
        scores=dict(summary.scores),
        one_sided=dict(summary.one_sided),
        one_sided_cases={case.id: dict(case.one_sided) for case in kept if case.one_sided},
        reading={case.id: dict(case.reading) for case in kept},
        lacking={name: list(cases) for name, cases in summary.lacking.items()},
    )


def _write(out: Path, columns: Sequence[str], scored: Sequence[Scored], record: LabelledScans) -> None:
    """Write a row for each case and class, and the record."""
    try:
        with (out / TABLE).open("w", newline="", encoding="utf-8") as file:
            table = CsvWriter(file, ["case", "class", *columns, "one_sided", "error"])
            for case in scored:
                for name, scores in case.scores.items():
                    values = (f"{scores[score]:.6g}" if score in scores else "" for score in columns)
                    table.row([case.id, name, *values, case.one_sided.get(name, ""), ""])
                if case.error is not None:
                    table.row([case.id, "", *("" for _ in columns), "", case.error])
        record.write(out)
    except OSError as error:
        message = f"{out} cannot be written ({error.strerror}): name another folder with --out"
        raise ConfigError("folder-unwritable", message) from None
