"""Breast MRI of the ODELIA Challenge 2025: a volume is one breast, and its lesion none, benign or malignant.

The sites are the institutions.

The source is the download of ODELIA-AI/ODELIA-Challenge-2025, its folder ``data`` or one with the institutions in it:
``<institution>/data_unilateral/<UID>_left|right/Pre.nii.gz``, ``Post_1.nii.gz`` … and ``T2.nii.gz``; and
``<institution>/metadata_unilateral/annotation.csv`` with UID, PatientID and Lesion (0 none, 1 benign, 2 malignant), and
``split.csv`` with UID, Fold and Split. It is described at
https://huggingface.co/datasets/ODELIA-AI/ODELIA-Challenge-2025 and in arXiv:2506.00474. Institutions without
annotations (the challenge's hidden parts) are left out.

Sequences are Pre and Post_1; ``--sequences Pre,Post_1,T2`` takes others, and a breast without one of them is refused
unless ``--skip-damaged`` leaves it out. T2 is brought onto the grid of the first sequence. The challenge's split of
``--fold 0`` is used; ``--split own`` splits 60/20/20 by patient. Both breasts of a patient are in one split.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from data_prep.dealing import BY_SUBJECT
from data_prep.labelled_volumes import LabelledPlan, VolumeSource
from data_prep.tables import table_rows
from fedshift.data.downloads import names_in
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Split
from fedshift.schema.names import comma_separated

DATASET = "breast_mri"
CLASSES = ("no lesion", "benign", "malignant")
LESIONS: Mapping[str, str] = dict(zip(("0", "1", "2"), CLASSES, strict=True))
DATA, METADATA = "data_unilateral", "metadata_unilateral"
SEQUENCES = ("Pre", "Post_1")
SPLITS: Mapping[str, Split] = {"train": "train", "val": "val", "test": "test"}
DESCRIBED = "the download is described at https://huggingface.co/datasets/ODELIA-AI/ODELIA-Challenge-2025"
LICENCE = "CC BY-NC 4.0"
CITATION = "ODELIA consortium. ODELIA breast MRI challenge 2025. arXiv:2506.00474"
Chosen = Literal["challenge", "own"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `plan` for the command line."""
    parser.add_argument(
        "--sequences",
        type=comma_separated,
        metavar="A,B",
        help=f"files of a breast that are read (default: {','.join(SEQUENCES)})",
    )
    parser.add_argument(
        "--split", choices=get_args(Chosen), default="challenge", help="the challenge's, or 60/20/20 by patient"
    )
    parser.add_argument("--fold", type=int, default=0, metavar="N", help="of the challenge's split (default: 0)")


def plan(
    source: Path, *, sequences: Sequence[str] | None = None, split: Chosen = "challenge", fold: int = 0
) -> LabelledPlan:
    """The breasts of a download.

    Raises:
        DataError: no institution is there, or a table lacks a column, a breast or the fold.
    """
    names = tuple(sequences or SEQUENCES)
    by_site: dict[str, list[VolumeSource]] = {}
    for folder in _institutions(source):
        if not (folder / METADATA / "annotation.csv").is_file():
            continue
        splits = _splits(folder, fold) if split == "challenge" else {}
        by_site[folder.name] = list(_breasts(folder, names, splits, all_listed=split == "challenge"))
    if not by_site:
        raise DataError("file-missing", f"{source} has no institution with {METADATA}/annotation.csv: {DESCRIBED}")
    return LabelledPlan(
        dataset=DATASET,
        name="ODELIA breast MRI",
        by_site=by_site,
        classes=CLASSES,
        sequences=names,
        licence=LICENCE,
        citation=CITATION,
        split_rule=f"ODELIA's, fold {fold}" if split == "challenge" else BY_SUBJECT.rule,
    )


def _institutions(source: Path) -> list[Path]:
    names_in(source)  # which says it if it cannot be read
    places = [source, source / "data"]
    return [each for place in places if place.is_dir() for each in _folders(place) if (each / DATA).is_dir()]


def _folders(place: Path) -> list[Path]:
    return [place / name for name in names_in(place) if (place / name).is_dir()]


def _breasts(
    folder: Path, sequences: Sequence[str], splits: Mapping[str, Split], *, all_listed: bool
) -> Iterator[VolumeSource]:
    table = folder / METADATA / "annotation.csv"
    for line, row in table_rows(table, ("UID", "PatientID", "Lesion")):
        uid, lesion = row["UID"], row["Lesion"].removesuffix(".0")
        if lesion not in LESIONS:
            raise DataError("table-cell", f"{table}, line {line}: Lesion is {lesion!r} and not 0, 1 or 2")
        if all_listed and uid not in splits:
            continue  # it is in no part of the challenge
        if not (folder / DATA / uid).is_dir():
            raise DataError("file-missing", f"{table}, line {line}: there is no folder {uid} in {folder / DATA}")
        yield VolumeSource(
            uid,
            tuple(folder / DATA / uid / f"{name}.nii.gz" for name in sequences),
            label=LESIONS[lesion],
            subject=row["PatientID"],
            split=splits.get(uid),
        )


def _splits(folder: Path, fold: int) -> dict[str, Split]:
    table = folder / METADATA / "split.csv"
    split_of: dict[str, Split] = {}
    for line, row in table_rows(table, ("UID", "Fold", "Split")):
        if row["Split"] not in SPLITS:
            raise DataError("table-cell", f"{table}, line {line}: {row['Split']!r} is none of {', '.join(SPLITS)}")
        if row["Fold"].removesuffix(".0") == str(fold):
            split_of[row["UID"]] = SPLITS[row["Split"]]
    if not split_of:
        raise DataError("invalid-value", f"{table} has no fold {fold}: name another with --fold, or --split own")
    return split_of
