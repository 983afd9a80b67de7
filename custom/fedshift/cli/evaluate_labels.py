"""``fedshift evaluate`` of a classifier: pictures or volumes with a table of labels."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from fedshift.cli.arguments import make_folder
from fedshift.cli.display import console
from fedshift.cli.guarantee import calibrate
from fedshift.cli.model_choice import choice, describe, scored_model
from fedshift.cli.own_labels import refuse_options
from fedshift.cli.prepared import progress
from fedshift.reporting.known_scores import OF_CLASSES, SCORES
from fedshift.reporting.report.wording import counted
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import CsvWriter
from fedshift.schema.protocol_results import LabelledImages

if TYPE_CHECKING:
    from fedshift.inference.labelled import LabelledScores
    from fedshift.inference.model import Model

CASES, SUMMARY = "scores.csv", LabelledImages.FILE_NAME
OF_MASKS = {
    "masks": "--masks",
    "source": "--source",
    "label": "--label",
    "sequence": "--sequence",
    "annotated": "--annotated",
    "trust_voxels": "--trust-voxels",
    "interpolate": "--interpolate",
    "empty": "--empty",
    "tolerance": "--tolerance",
    "models": "--models",
}


def run(args: argparse.Namespace, model: Model) -> int:
    """Score it; returns the exit code."""
    from fedshift.inference import labelled

    if args.table is None:
        message = (
            f"{model.path} classifies: give the table of labels with --table, and its folder of images with --images"
        )
        raise ConfigError("table-missing", message)
    refuse_options(args, OF_MASKS, "on a model that classifies")
    if model.classifies_volumes:
        refuse_options(args, {"bits": "--bits"}, "on volumes")
    else:
        refuse_options(args, {"volume": "--volume", "true_spacing": "--true-spacing"}, "on pictures")
    for line in describe(model):
        print(line)
    with progress(None) as on_image:
        scored = labelled.score(
            model,
            args.table,
            images=args.images,
            subject=args.subject,
            choice=choice(args),
            device=args.device,
            bits=args.bits,
            volume=args.volume,
            true_spacing=args.true_spacing,
            progress=on_image,
        )
    print(f"statistics: {scored.statistics}")
    if scored.thresholds is not None:
        print(f"thresholds: {scored.thresholds.source}")
    make_folder(args.out)
    _write(args.out, model, scored)
    console.print(_table(model, scored))
    print(f"every case: {args.out / CASES}; summary with intervals: {args.out / SUMMARY}")
    print(f"as a page: fedshift report {shlex.quote(str(args.out))}")
    if args.guarantee is None:
        return 0
    classes = model.header.job.task.classes
    return int(not calibrate(model, scored.risks.curves(), classes, args, statistics=scored.statistics))


def _table(model: Model, scored: LabelledScores) -> Table:
    """The scores of each class beside how many cases have it, and their averages."""
    evaluation, n = scored.evaluation, len(scored.ids)
    whose = "" if scored.subjects == n else f" of {counted(scored.subjects, 'subject')}"
    table = Table(title=f"{counted(n, 'case')}{whose} (95 % interval)")
    shown = [
        score
        for score in OF_CLASSES
        if any(score in class_scores.scores for class_scores in (evaluation.classes or {}).values())
    ]
    for number, heading in enumerate(("class", "with it", "without", *(SCORES[name].heading for name in shown))):
        table.add_column(heading, justify="right" if number else "left")
    for name, class_scores in (evaluation.classes or {}).items():
        cells = (_cell(class_scores.scores.get(score), class_scores.intervals.get(score)) for score in shown)
        table.add_row(name, str(class_scores.positives), str(class_scores.negatives), *cells)
    means = (_cell(evaluation.scores.get(score), evaluation.intervals.get(score)) for score in shown)
    table.add_row("mean", "", "", *means)
    spread = evaluation.distributions.get("accuracy")
    accuracy = _cell(evaluation.scores.get("accuracy"), None if spread is None else spread.interval)
    kappa = evaluation.scores.get("kappa")
    table.caption = f"mean over the classes with cases of both kinds; accuracy {accuracy} %" + (
        "" if kappa is None else f"; kappa {kappa:.3f}"
    )
    return table


def _cell(value: float | None, ends: tuple[float, float] | None) -> str:
    span = "" if ends is None else f" ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"
    return "-" if value is None else f"{100 * value:.1f}{span}"


def _write(out: Path, model: Model, scored: LabelledScores) -> None:
    """A row for each case, and the record that ``fedshift report`` makes a page of."""
    classes = model.header.job.task.classes
    record = LabelledImages(
        **scored_model(model, scored.statistics),
        thresholds="" if scored.thresholds is None else scored.thresholds.source,
        classes=list(classes),
        cases=len(scored.ids),
        subjects=scored.subjects,
        evaluation=scored.evaluation,
    )
    try:
        with (out / CASES).open("w", newline="", encoding="utf-8") as file:
            table = CsvWriter(file, ["case", "label", "predicted", *(f"probability {name}" for name in classes)])
            for case, truth, values in zip(scored.ids, scored.truth, scored.probabilities, strict=True):
                by_class = dict(zip(classes, values.tolist(), strict=True))
                if scored.thresholds is None:
                    has, predicted = [classes[int(truth.argmax())]], [classes[int(values.argmax())]]
                else:
                    has = [name for name, value in zip(classes, truth, strict=True) if value == 1]
                    predicted = scored.thresholds.decided(by_class)
                table.row(
                    [case, " | ".join(has), " | ".join(predicted), *(f"{value:.6g}" for value in by_class.values())]
                )
        record.write(out)
    except OSError as error:
        message = f"{out} cannot be written ({error.strerror}): name another folder with --out"
        raise ConfigError("folder-unwritable", message) from None
