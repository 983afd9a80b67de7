"""``fedshift drift``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.model_choice import add_choice, choice, describe, print_statistics

if TYPE_CHECKING:
    from rich.table import Table

    from fedshift.inference.model import Model
    from fedshift.inference.ready import ReadyModel
    from fedshift.schema.fingerprint import Reference
    from fedshift_survey.drift.compare import Compared, Limits
    from fedshift_survey.drift.conclusion import Month

TABLE, RECORD = "drift.csv", "drift.json"


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "drift",
        help="compare scans of later months with those that a model was trained on",
        description="Compare scans, without masks, with those that a model was trained on: their intensities and "
        "sizes, what the model outlines in them, and how sure it is. Says in a sentence what changed, since when, and "
        "which scans to look at. Exit code 1 if something changed, or a scan could not be read.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="best_global_model.pt of a run, for example")
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="scans, or a sub-folder of them for each month (2026-03); others count for the month of their file's date",
    )
    parser.add_argument(
        "--reference",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="compare with this prepared site instead of what the model file holds (repeat it)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"write {TABLE} and {RECORD} there")
    parser.add_argument("--force", action="store_true", help="replace what an earlier call wrote into the folder")
    add_choice(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """``fedshift drift``; exit code 1 if something changed, or a scan could not be read."""
    from fedshift.cli.display import console
    from fedshift.data.scan_folders import not_read, pictures_in, scans_in
    from fedshift.inference import segment
    from fedshift.inference.model import open_model
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.names import printable
    from fedshift_survey.drift.compare import FEWEST, cases_of, compare_scans, limits
    from fedshift_survey.drift.conclusion import Month, sentence, since
    from fedshift_survey.drift.months import scans_by_month

    model = open_model(args.model)
    if not model.is_segmentation:
        raise ConfigError("wrong-kind-of-model", f"{model.path} classifies pictures: 'fedshift drift' compares scans")
    written = (
        next((args.out / name for name in (TABLE, RECORD) if (args.out / name).exists()), None) if args.out else None
    )
    if written is not None and not args.force:
        raise ConfigError(
            "file-exists", f"{written} already exists: name another folder with --out, or replace it with --force"
        )
    by_month = scans_by_month(args.folder, pictures_in if model.of_pictures else scans_in)
    for line in () if model.of_pictures else not_read([args.folder]):
        print(printable(line))
    cases = {month: cases_of(model, paths) for month, paths in by_month.items() if paths}
    images = {month: [case.image for case in paths] for month, paths in cases.items()}
    for line in describe(model):
        print(line)
    if len(images) < len(by_month):
        print(f"no scan yet, and left out: {', '.join(month for month in by_month if month not in images)}")
    every, true = [case for month in cases.values() for case in month], args.true_spacing
    ready = segment.ready_for(model, every, choice(args), device=args.device, true_spacing=true)
    print_statistics(ready)
    references = _references(model, ready, args.reference)
    usual = limits(list(references.values()))
    if not usual.by_aspect:
        raise ConfigError(
            "too-few-cases",
            f"{model.path}: too few cases are known of {', '.join(references)} to tell what is usual: name prepared "
            f"sites with --reference, with at least {FEWEST} cases together",
        )
    print(_compared_with(model, references, usual))
    months = [
        Month(name, list(compare_scans(model, ready, list(references.values()), paths, true_spacing=true)))
        for name, paths in images.items()
    ]
    lost = sum(not scan.known_spacing for month in months for scan in month.scans)
    if lost:
        print(_without_spacing(model, lost, len(every)))
    conclusion, run = sentence(months), since(months)
    print(f"\n{conclusion}\n")
    console.print(_by_month(months, run))
    console.print(_by_scan(months, size="pixels" if model.of_pictures else "ml"))
    if args.out is not None:
        _write(args.out, months, run, conclusion, model=model, sites=list(references), usual=usual)
        print(f"every scan: {args.out / TABLE}; all of it: {args.out / RECORD}")
    failed = sum(scan.error is not None for month in months for scan in month.scans)
    return int(failed > 0 or bool(run) or any(month.changed for month in months))


def _references(model: Model, ready: ReadyModel, folders: Sequence[Path]) -> dict[str, Reference]:
    """Site -> what it tells of its scans, from the model file or from the folders."""
    from fedshift.schema.errors import ConfigError
    from fedshift_survey.drift.compare import folder_reference

    if folders:
        references = [folder_reference(model, ready, folder) for folder in folders]
        return {reference.fingerprint.site: reference for reference in references}
    if not model.header.references:
        raise ConfigError(
            "no-reference",
            f"{model.path} does not say what scans it was trained on: train it with --set evaluation.reference=true, "
            "or name a prepared site with --reference",
        )
    return model.header.references


def _compared_with(model: Model, references: dict[str, Reference], usual: Limits) -> str:
    from fedshift_survey.drift.compare import NOUNS

    cases = sum(reference.fingerprint.surveyed for reference in references.values())
    silent = [site for site in model.header.sites if site not in references]
    text = f"compared with {cases} scans of {', '.join(references)}"
    text += f"; not told by {', '.join(silent)}" if silent else ""
    unknown = [noun for key, noun in NOUNS.items() if key not in usual.by_aspect and key != "nothing found"]
    return text + (f"; not known of enough of them: {', '.join(unknown)}" if unknown else "")


def _without_spacing(model: Model, lost: int, scans: int) -> str:
    from fedshift.inference.plausible import REAL

    resampled = ", and resampled by data.matrix and not by 1 mm" if model.resamples_by_matrix else ""
    return (
        f"{lost} of {scans} headers hold no voxel size (1 x 1 x 1 mm): these scans are not compared in what needs one"
        f"{resampled}; {REAL}"
    )


def _by_month(months: Sequence[Month], run: Sequence[Month]) -> Table:
    from rich.table import Table

    from fedshift_survey.drift.compare import NOUNS

    table = Table(title="By month")
    for name in ("month", "scans", "flagged", "changed", "mostly in"):
        table.add_column(name, justify="right" if name in ("scans", "flagged") else "left")
    for month in months:
        aspects = ", ".join(NOUNS[key] for key in month.aspects[:3])
        table.add_row(month.name, str(len(month.read)), str(len(month.flagged)), _changed(month, run), aspects)
    return table


def _changed(month: Month, run: Sequence[Month]) -> str:
    if month.changed:
        return "yes"
    if month in run:
        return "with others"
    return "no" if month.tells else "too few scans"


def _by_scan(months: Sequence[Month], *, size: str) -> Table:
    from rich.table import Table

    from fedshift.schema.names import printable

    table = Table(title="By scan; distance in multiples of the largest usual one")
    for name in ("month", "scan", "distance", "differs in", size, "confidence"):
        right = name in ("distance", size, "confidence")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for month in months:
        for scan in month.scans:
            name = printable(scan.image.name)
            if scan.error is not None:
                table.add_row(month.name, name, "", printable(f"error: {scan.error}"), "", "")
                continue
            sure = "" if scan.confidence is None else f"{scan.confidence:.3f}"
            differs = ", ".join(_in_words(scan, key) for key in scan.differs)
            table.add_row(month.name, name, f"{scan.distance:.2f}", differs, _size(scan), sure)
    return table


def _size(scan: Compared) -> str:
    return f"{scan.volume_ml:.1f}" if scan.pixels is None else str(scan.pixels)


def _in_words(scan: Compared, key: str) -> str:
    """An aspect with the scan's distance in it: ``spacing 0.5 octaves``."""
    from fedshift.data.shift import OF_A_SCAN
    from fedshift.schema.fingerprint import DOUBT
    from fedshift_survey.drift.compare import NOTHING

    if key == NOTHING:
        return NOTHING
    if key == DOUBT:
        return "confidence"
    unit = next(aspect.unit for aspect in OF_A_SCAN if aspect.key == key)
    return f"{key} {scan.distances[key]:.2g} {unit}"


def _millilitres(scan: Compared) -> float | None:
    return None if scan.error else round(scan.volume_ml, 3)


def _write(
    out: Path,
    months: Sequence[Month],
    run: Sequence[Month],
    conclusion: str,
    *,
    model: Model,
    sites: Sequence[str],
    usual: Limits,
) -> None:
    """Write a row for each scan, and all of it as JSON."""
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.files import CsvWriter, write_text
    from fedshift_survey.drift.compare import FALSE_ALARMS
    from fedshift_survey.drift.conclusion import CHANCE

    aspects = list(usual.by_aspect)
    rows = [
        {
            "month": month.name,
            "file": str(scan.image),
            "distance": None if scan.error else round(scan.distance, 4),
            "differs": list(scan.differs),
            **{key: round(scan.distances[key], 6) if key in scan.distances else None for key in aspects},
            **({"pixels": scan.pixels} if model.of_pictures else {"volume_ml": _millilitres(scan)}),
            "confidence": None if scan.confidence is None else round(scan.confidence, 6),
            "error": scan.error,
        }
        for month in months
        for scan in month.scans
    ]
    content = {
        "schema": 1,
        "conclusion": conclusion,
        "since": run[0].name if run else None,
        "model": model.path.name,
        "job": model.header.job.name,
        "kind": model.header.kind,
        "compared_with": list(sites),
        "false_alarms": FALSE_ALARMS,
        "chance": CHANCE,
        "limits": dict(usual.by_aspect),
        "months": [
            {
                "month": month.name,
                "scans": len(month.read),
                "flagged": len(month.flagged),
                "chance": month.chance,
                "changed": month.changed,
            }
            for month in months
        ],
        "scans": rows,
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        with (out / TABLE).open("w", newline="", encoding="utf-8") as file:
            table = CsvWriter(file, list(rows[0]))
            for row in rows:
                shown = {"file": Path(str(row["file"])), "differs": "; ".join(row["differs"])}  # type: ignore[arg-type]
                table.row({**row, **shown}.values())
        write_text(out / RECORD, json.dumps(content, indent=1))
    except OSError as error:
        raise ConfigError(
            "file-unwritable", f"{out} cannot be written ({error.strerror}): name another folder with --out"
        ) from None
