"""How often `fedshift drift` flags scans, where nothing has changed and where something has: the two rates it needs.

    python benchmarks/drift_false_alarms.py NAME MODEL --sites DIR DIR DIR --others DIR

Each test case of the sites that trained the model is compared with their reference, which has no test cases; each
validation case with a reference that is made without it. What is flagged among them is a false alarm. The cases of the
other sites are compared with the whole reference. A row per site, and the sum, go to
`benchmarks/results/drift/NAME.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedshift import __version__
from fedshift.data.fingerprint import scan_fingerprint
from fedshift.data.prepared import read_images, read_labels
from fedshift.data.tallies import merge
from fedshift.federation.survey_answer import reference_of
from fedshift.inference.model import Model, open_model
from fedshift.inference.ready import Choice, ReadyModel, make_ready
from fedshift.inference.segment import outline
from fedshift.schema.fingerprint import Fingerprint, Reference
from fedshift.schema.manifest import read_manifest
from fedshift_survey.drift.compare import FALSE_ALARMS, Compared, judged, limits

RESULTS = Path(__file__).parent / "results" / "drift"


@dataclass(frozen=True)
class Case:
    """``labelled``: fingerprint with the site's mask; ``predicted``: with the model's."""

    split: str
    labelled: Fingerprint
    predicted: Fingerprint
    confidence: float | None


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("name")
    parser.add_argument("model", type=Path)
    parser.add_argument("--sites", type=Path, nargs="+", required=True)
    parser.add_argument("--others", type=Path, nargs="*", default=[])
    parser.add_argument("--note", default="", help="what a reader must know of the data")
    args = parser.parse_args(argv)
    model = open_model(args.model)
    ready = make_ready(model, Choice())
    training = {folder.name: cases_of(model, ready, folder) for folder in args.sites}
    whole = {site: reference(cases) for site, cases in training.items()}
    unchanged = {
        site: [
            judged(Path(), case.predicted, case.confidence, references, limits(references))
            for number, case in enumerate(cases)
            if case.split != "train"
            for references in [without(whole, site, cases, number)]
        ]
        for site, cases in training.items()
    }
    references = list(whole.values())
    others = {
        folder.name: [
            judged(Path(), case.predicted, case.confidence, references, limits(references))
            for case in cases_of(model, ready, folder)
        ]
        for folder in args.others
    }
    content: dict[str, Any] = {
        "schema": 1,
        "command": " ".join(
            [
                f"python benchmarks/drift_false_alarms.py {args.name} MODEL --sites",
                *(folder.name for folder in args.sites),
                *(["--others", *(folder.name for folder in args.others)] if args.others else []),
            ]
        ),
        "fedshift": __version__,
        "kind": model.header.kind,
        "task": model.header.job.task.name,
        "note": args.note,
        "trained_at": list(model.header.sites),
        "aimed_at": FALSE_ALARMS,
        "surveyed": {site: site_reference.fingerprint.surveyed for site, site_reference in whole.items()},
        "limits": {key: round(value, 4) for key, value in limits(references).by_aspect.items()},
        "unchanged": counted(unchanged),
        "others": counted(others),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{args.name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(content, indent=1))
    return 0


def cases_of(model: Model, ready: ReadyModel, folder: Path) -> list[Case]:
    """Every case of a prepared site."""
    manifest = read_manifest(folder)
    like = Fingerprint(
        site=manifest.site,
        dataset=manifest.dataset,
        kind=manifest.kind,
        cases={},
        classes=manifest.classes,
        sequences=manifest.sequences,
    )
    read_cases = []
    for case in manifest.cases:
        images = read_images(folder, manifest, case)
        spacing = manifest.known_spacing(case)
        mask, confidence = outline(ready, images, spacing)
        labelled = scan_fingerprint(images, read_labels(folder, case), spacing, like=like)
        read_cases.append(Case(case.split, labelled, scan_fingerprint(images, mask, spacing, like=like), confidence))
        print(manifest.site, len(read_cases), "of", len(manifest.cases), end="\r", file=sys.stderr)
    return read_cases


def reference(cases: Sequence[Case]) -> Reference:
    """What a site with these cases tells; as in a survey, the test part is left out."""
    told = [case.labelled for case in cases if case.split != "test"]
    site = merge(told, name=told[0].site)
    return reference_of(site, told, [case.confidence for case in cases if case.split == "val"], least=1)


def without(whole: dict[str, Reference], site: str, cases: Sequence[Case], number: int) -> list[Reference]:
    """All sites' references, that of ``site`` without a case; a test case is in none."""
    if cases[number].split == "test":
        return list(whole.values())
    remaining = reference([case for place, case in enumerate(cases) if place != number])
    return [remaining if name == site else other for name, other in whole.items()]


def counted(scans_of: dict[str, list[Compared]]) -> dict[str, Any]:
    """Flagged cases by site, and in all, with the share and why."""
    everything = [scan for scans in scans_of.values() for scan in scans]
    rows = {site: _row(scans) for site, scans in scans_of.items()}
    return {**rows, "all": _row(everything)} if everything else {}


def _row(scans: Sequence[Compared]) -> dict[str, Any]:
    flagged = [scan for scan in scans if scan.differs]
    return {
        "cases": len(scans),
        "flagged": len(flagged),
        "share": round(len(flagged) / max(len(scans), 1), 4),
        "differs": dict(Counter(key for scan in flagged for key in scan.differs)),
        "median_distance": round(float(np.median([scan.distance for scan in scans])), 3) if scans else None,
    }


if __name__ == "__main__":
    raise SystemExit(main())
