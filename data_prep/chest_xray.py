"""Chest radiographs of CheXpert and NIH ChestX-ray14, with CheXpert's fourteen findings; the sites are the two sources.

The source is a folder with both downloads, or with one of them (``--sites``):

- CheXpert or CheXpert-small: ``train.csv`` and ``valid.csv`` with the columns Path, Frontal/Lateral and the fourteen
  findings (1, 0, -1 or nothing), and the pictures that Path names:
  ``CheXpert-v1.0-small/train/patient00001/study1/view1_frontal.jpg``. It is described at
  https://stanfordmlgroup.github.io/competitions/chexpert.
- NIH ChestX-ray14: ``Data_Entry_2017.csv`` (or ``Data_Entry_2017_v2020.csv``) with Image Index, Finding Labels
  (separated by ``|``) and Patient ID; the pictures in ``images/`` or ``images_001/images/`` and so on; and, where the
  official split is wanted, ``train_val_list.txt`` and ``test_list.txt``. It is described at
  https://nihcc.app.box.com/v/ChestXray-NIHCC.

Findings are CheXpert's. Of NIH's, Effusion is Pleural Effusion, and a Mass or a Nodule is a Lung Lesion; Atelectasis,
Cardiomegaly, Consolidation, Edema, Pneumonia, Pneumothorax and No Finding have the same names. What only one of the two
labels is unknown at the other: at NIH, Enlarged Cardiomediastinum, Lung Opacity, Pleural Other, Fracture and Support
Devices; NIH's Infiltration, Emphysema, Fibrosis, Pleural Thickening and Hernia are not used. At CheXpert -1
(uncertain) is unknown, and so is a finding that the report does not mention, unless ``--blank negative`` takes it as
absent, as many papers do. Only frontal views are read, of both.

All pictures of a patient are in one split. CheXpert's valid.csv and NIH's test_list.txt are the test parts, and a tenth
of the other patients is for validation; without NIH's lists its patients are split 60/20/20 within each finding.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from data_prep.dealing import BY_SUBJECT, deal_by_subject, deal_official_by_subject
from data_prep.pictures import Dealing, Hashed, PictureSet, Plan, Source
from data_prep.tables import Row, table_rows
from fedshift.data.decode import read_picture
from fedshift.data.downloads import names_in, read_file
from fedshift.data.label_table import VALUES
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Split
from fedshift.schema.names import comma_separated
from fedshift.schema.strict import nearest

Blank = Literal["unknown", "negative"]
CHEST_XRAY = PictureSet(
    dataset="chest_xray",
    name="Chest radiographs",
    sites=("chexpert", "nih"),
    classes=(
        "No Finding",
        "Enlarged Cardiomediastinum",
        "Cardiomegaly",
        "Lung Opacity",
        "Lung Lesion",
        "Edema",
        "Consolidation",
        "Pneumonia",
        "Atelectasis",
        "Pneumothorax",
        "Pleural Effusion",
        "Pleural Other",
        "Fracture",
        "Support Devices",
    ),
    described="the downloads are described at https://stanfordmlgroup.github.io/competitions/chexpert and "
    "https://nihcc.app.box.com/v/ChestXray-NIHCC",
    licence="CheXpert: Stanford University School of Medicine, research use agreement; NIH ChestX-ray14: no "
    "restrictions beyond acknowledging the NIH Clinical Center",
    citation="Irvin J, et al. CheXpert: a large chest radiograph dataset with uncertainty labels and expert "
    "comparison. AAAI 2019; Wang X, et al. ChestX-ray8: hospital-scale chest X-ray database. CVPR 2017",
    channels=1,
)
OF_NIH: Mapping[str, tuple[str, ...]] = {
    "Atelectasis": ("Atelectasis",),
    "Cardiomegaly": ("Cardiomegaly",),
    "Consolidation": ("Consolidation",),
    "Edema": ("Edema",),
    "Pneumonia": ("Pneumonia",),
    "Pneumothorax": ("Pneumothorax",),
    "Pleural Effusion": ("Effusion",),
    "Lung Lesion": ("Mass", "Nodule"),
    "No Finding": ("No Finding",),
}
"""A finding -> NIH's labels of which one is enough for it."""
NIH_LABELS = (
    *("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Emphysema", "Fibrosis", "Hernia"),
    *("Infiltration", "Mass", "Nodule", "Pleural_Thickening", "Pneumonia", "Pneumothorax", "No Finding"),
)
ENTRIES = ("Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv")
TRAINING, TESTING = "train_val_list.txt", "test_list.txt"
SIZE = 128


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `plan` for the command line."""
    parser.add_argument(
        "--sites", type=comma_separated, metavar="A,B", help="which of chexpert, nih are there (default: both)"
    )
    parser.add_argument(
        "--blank",
        choices=get_args(Blank),
        default="unknown",
        help="what a finding is that a report of CheXpert does not mention (default: unknown)",
    )


def plan(source: Path, *, sites: Sequence[str] | None = None, blank: Blank = "unknown") -> Plan:
    """The pictures of the downloads.

    Raises:
        DataError: a download, a column or a picture is missing, or a cell has another value.
    """
    for name in sites or ():
        if name not in CHEST_XRAY.sites:
            raise DataError("invalid-value", f"--sites: there is no site {name!r}{nearest(name, CHEST_XRAY.sites)}")
    chosen = tuple(site for site in CHEST_XRAY.sites if site in (sites or CHEST_XRAY.sites))
    by_site: dict[str, list[Source]] = {}
    tested: dict[str, set[str]] = {}
    for site in chosen:
        read = _chexpert(_find(source, ("train.csv",), site), blank) if site == "chexpert" else _nih(source)
        by_site[site], tested[site] = read
    rules = {site: "official test part; val 1/10 of patients" if tested[site] else BY_SUBJECT.rule for site in chosen}
    rule = next(iter(rules.values())) if len(set(rules.values())) == 1 else "official test parts where there are some"

    def deal(site: str, pictures: Hashed) -> Mapping[str, Split]:
        if not tested[site]:
            return deal_by_subject(site, pictures)
        return deal_official_by_subject(site, pictures, is_test=tested[site].__contains__)

    notes = {"views": "frontal", "blank": blank}
    return Plan(CHEST_XRAY, by_site, (SIZE,), Dealing(deal, rule, notes=notes))


def _chexpert(folder: Path, blank: Blank) -> tuple[list[Source], set[str]]:
    sources: list[Source] = []
    tested: set[str] = set()
    for name in ("train.csv", "valid.csv"):
        table = folder / name
        for line, row in table_rows(table, ("Path", "Frontal/Lateral", *CHEST_XRAY.classes)):
            if row["Frontal/Lateral"] != "Frontal":
                continue
            parts = Path(row["Path"]).parts
            subject = next((part for part in parts if part.startswith("patient")), None)
            if subject is None:
                raise DataError(
                    "table-cell", f"{table}, line {line}: {row['Path']!r} names no patient: download it again"
                )
            findings = dict(_chexpert_findings(table, line, row, blank))
            file = folder.joinpath(*parts[parts.index(subject) - 1 :])
            _require(file, table, line)
            if not findings:
                continue
            id_ = "/".join(parts[parts.index(subject) - 1 :])
            sources.append(Source(id_, "", partial(read_picture, file), findings=findings, subject=subject))
            if name == "valid.csv":
                tested.add(id_)
    return sources, tested


def _chexpert_findings(table: Path, line: int, row: Row, blank: Blank) -> Iterator[tuple[str, bool]]:
    for name in CHEST_XRAY.classes:
        text = row[name]
        if text not in VALUES:
            what = f"{table}, line {line}, column {name}: {text!r} is none of 1, 0, -1 and nothing"
            raise DataError("table-cell", f"{what}: download it again")
        value = False if not text and blank == "negative" else VALUES[text]
        if value is not None:
            yield name, value


def _nih(source: Path) -> tuple[list[Source], set[str]]:
    folder = _find(source, ENTRIES, "nih")
    table = next(folder / name for name in ENTRIES if (folder / name).is_file())
    files = dict(_nih_pictures(folder))
    sources = []
    for line, row in table_rows(table, ("Image Index", "Finding Labels", "Patient ID")):
        labels = row["Finding Labels"].split("|")
        unknown = next((label for label in labels if label not in NIH_LABELS), None)
        if unknown is not None:
            raise DataError(
                "table-cell",
                f"{table}, line {line}: {unknown!r} is no finding of ChestX-ray14{nearest(unknown, NIH_LABELS)}",
            )
        name = row["Image Index"]
        if name not in files:
            raise DataError("file-missing", f"{table}, line {line}: {name} is in no folder of images: unpack them all")
        findings = {finding: any(label in labels for label in enough) for finding, enough in OF_NIH.items()}
        read = partial(read_picture, files[name])
        sources.append(Source(name, "", read, findings=findings, subject=f"patient{int(row['Patient ID']):05d}"))
    lists = [folder / name for name in (TRAINING, TESTING)]
    if not all(path.is_file() for path in lists):
        return sources, set()
    training, testing = (set(read_file(path).decode().split()) for path in lists)
    listed = next((each.id for each in sources if each.id not in training | testing), None)
    if listed is not None:
        raise DataError(
            "list-incomplete", f"{folder}: {listed} is in neither {TRAINING} nor {TESTING}: download them again"
        )
    return sources, testing


def _nih_pictures(folder: Path) -> Iterator[tuple[str, Path]]:
    for name in names_in(folder):
        for place in (folder / name, folder / name / "images"):
            if name.startswith("images") and place.is_dir():
                yield from ((file, place / file) for file in names_in(place) if file.endswith(".png"))


def _find(source: Path, names: Sequence[str], site: str) -> Path:
    """The folder of a download: the source, or one of the folders in it."""
    folders = [source, *(source / name for name in names_in(source) if (source / name).is_dir())]
    for folder in folders:
        if any((folder / name).is_file() for name in names):
            return folder
    raise DataError(
        "file-missing",
        f"{source} has no {' or '.join(names)} of {site}: {CHEST_XRAY.described}; --sites says which of them are there",
    )


def _require(file: Path, table: Path, line: int) -> None:
    if not file.is_file():
        raise DataError("file-missing", f"{table}, line {line}: {file} is not there: unpack the whole download")
