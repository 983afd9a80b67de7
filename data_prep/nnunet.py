"""A data set of nnU-Net as one site: nnUNet_raw, and what nnU-Net has prepared of it.

The source is ``nnUNet_raw``, or a data set's folder in it, with ``imagesTr``, ``labelsTr`` and ``dataset.json``. Name
the data set as nnU-Net does, ``--dataset Dataset027_ACDC``; sites of a federation need not have the same number, and
its name is what follows the number, in lower case. Pictures (``file_ending`` .png, .tif or .bmp) are taken as well.

With ``--preprocessed nnUNet_preprocessed`` the volumes that nnU-Net has cropped, normalised and resampled are taken
(``.b2nd`` or ``.npz``), and no volume is prepared again for a task with ``convention: nnunet`` and the numbers of these
plans. One case is, to see that the result is the same. The plans are kept with the site, and a task file may be made of
several sites' (``fedshift plans``). ``--fold 0`` makes the validation cases of that fold of ``splits_final.json`` the
site's test cases.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data_prep.msd import find_described
from data_prep.nnunet_arrays import Preprocessed, open_preprocessed
from data_prep.volumes import SitePlan, VolumePlan, deal_splits
from fedshift.data.cases import CaseFiles
from fedshift.data.labels import BACKGROUND, Labels, settle_labels
from fedshift.data.nnunet_plans import CONFIGURATION, DEFAULT_PLANS
from fedshift.data.scan_file import Finding
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.manifest import BY_HEADERS, TRUE_SPACING, Split
from fedshift.schema.names import comma_separated
from fedshift.schema.strict import nearest

SITE = "nnunet"
LICENCE = "as the data set's source says"
CITATION = (
    "Isensee F et al. nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation. Nature "
    "Methods 18, 203-211, 2021 (layout)"
)
NAME = re.compile(r"Dataset\d{3}_(.+)")
SPLITS, RAW = "splits_final.json", "nnUNet_raw"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the data set's and the site's name, and what nnU-Net has prepared."""
    parser.add_argument(
        "--dataset", metavar="NAME", help="as Dataset027_ACDC, or its number (default: the only one in --source)"
    )
    parser.add_argument("--site", default=SITE, metavar="NAME", help=f"the site's name (default: {SITE})")
    parser.add_argument(
        "--classes",
        type=comma_separated,
        metavar="A,B",
        help="the labels in the order of the other sites, without background (default: by their numbers)",
    )
    parser.add_argument("--preprocessed", type=Path, metavar="DIR", help="nnUNet_preprocessed, or the data set's in it")
    parser.add_argument("--plans", default=DEFAULT_PLANS, metavar="NAME", help=f"of nnU-Net (default: {DEFAULT_PLANS})")
    parser.add_argument(
        "--configuration", default=CONFIGURATION, metavar="NAME", help=f"of the plans (default: {CONFIGURATION})"
    )
    parser.add_argument("--fold", type=int, metavar="N", help="whose validation cases become test cases")


def plan_volumes(
    source: Path,
    *,
    dataset: str | None = None,
    site: str = SITE,
    classes: Sequence[str] | None = None,
    preprocessed: Path | None = None,
    plans: str = DEFAULT_PLANS,
    configuration: str = CONFIGURATION,
    fold: int | None = None,
) -> VolumePlan:
    """Find the scans of a data set, and what nnU-Net has prepared of them.

    Raises:
        ConfigError: no such data set, plans, configuration or fold, or labels that cannot be used.
        DataError: another layout, or prepared volumes that lack a case.
    """
    folder = _folder(source, dataset)
    table = find_described(folder)
    described = table.described_labels({})
    if described is not None and classes is not None:
        _check_order(classes, described, folder / "dataset.json")
    order = None if classes is None else (BACKGROUND, *classes)
    labels = None if described is None else settle_labels(described=described, classes=order)
    if labels is None:
        raise ConfigError("labels-missing", f"{folder / 'dataset.json'} names no labels: name them there")
    ready: Preprocessed | None = None
    if preprocessed is not None:
        ready = open_preprocessed(
            _prepared_folder(preprocessed, folder.name), folder, table, labels, plans=plans, configuration=configuration
        )
    elif (plans, configuration) != (DEFAULT_PLANS, CONFIGURATION):
        raise ConfigError("no-effect", "--plans and --configuration are for --preprocessed: add it, or leave them out")
    cases, more = (table.cases, ()) if fold is None else _in_fold(table.cases, folder, ready, fold)
    twice = table.unusable_names
    if twice is not None:  # nnU-Net takes the names of channels for ways to normalise them
        what = f"{twice.message}, which are called {', '.join(table.sequences)} here"
        remedy = "if nnU-Net normalises channels of this name in a way of their own, say so in the task, data.normalise"
        more = (*more, Finding("warning", twice.code, twice.file, what, remedy))
    name = NAME.fullmatch(folder.name)
    site_plan = SitePlan(
        site=site,
        cases=cases,
        findings=(*table.findings, *more),
        source=f"{folder.name}, in nnU-Net's layout",
        licence=table.licence or LICENCE,
        citation=CITATION,
        preparation={
            **({} if table.of_pictures else {TRUE_SPACING: BY_HEADERS}),
            **({} if ready is None else {"nnunet": ready.recorded}),
            **({} if fold is None else {"split_rule": f"test: validation cases of fold {fold} of nnU-Net's splits"}),
        },
        arrays=None if ready is None else ready.write,
    )
    called = (name[1] if name else folder.name).lower()
    return VolumePlan(
        dataset=re.sub(r"[^\w.-]+", "_", called), labels=labels, sites=(site_plan,), sequences=table.sequences
    )


def _check_order(classes: Sequence[str], labels: Labels, file: Path) -> None:
    """See that ``classes`` are those of the labels in another order."""
    if labels.regions is not None:
        raise ConfigError(
            "options-clash", f"{file} has regions, whose classes are in an order of their own: leave out --classes"
        )
    if sorted(classes) != sorted(labels.classes[1:]):
        raise ConfigError(
            "class-unknown",
            f"--classes names {', '.join(classes)}, and {file} has the labels {', '.join(labels.classes[1:])}: name "
            "each of these once",
        )


def _folder(source: Path, dataset: str | None) -> Path:
    """The data set's folder."""
    if (source / "dataset.json").is_file():
        if dataset not in (None, source.name):
            raise ConfigError("dataset-name", f"{source} is {source.name}, not {dataset}: name one of the two")
        return source
    datasets = sorted(path.parent.name for path in source.glob("*/dataset.json"))
    if not datasets:
        near = next(
            (
                place
                for place in (source / RAW, source.parent)
                if (place / "dataset.json").is_file() or any(place.glob("*/dataset.json"))
            ),
            None,
        )
        raise ConfigError("dataset-name", f"{source} holds no data set of nnU-Net: give {near or RAW} as --source")
    if dataset is None and len(datasets) == 1:
        return source / datasets[0]
    if dataset is not None and dataset.isdecimal():  # as nnU-Net's -d
        dataset = next((name for name in datasets if name.startswith(f"Dataset{int(dataset):03d}_")), dataset)
    if dataset not in datasets:
        asked = "and --dataset names none" if dataset is None else f"and no {dataset!r}{nearest(dataset, datasets)}"
        raise ConfigError("dataset-name", f"{source} has the data sets {', '.join(datasets)}, {asked}")
    return source / str(dataset)


def _prepared_folder(preprocessed: Path, name: str) -> Path:
    return preprocessed if preprocessed.name == name else preprocessed / name


def _in_fold(
    cases: Sequence[CaseFiles], folder: Path, ready: Preprocessed | None, fold: int
) -> tuple[tuple[CaseFiles, ...], tuple[Finding, ...]]:
    """The cases of a fold, and a warning of those that it leaves out.

    Its validation cases are the test part, and no others: a checkpoint of the fold has trained on its training cases,
    of which as many as a fifth of all are for validation.
    """
    files = [place / SPLITS for place in ([ready.folder] if ready else []) + [folder]]
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        fault = " nor ".join(str(file) for file in files)
        raise ConfigError("folds-missing", f"there is no {fault}: leave out --fold, and the cases are dealt")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        folds = [(set(map(str, each["train"])), set(map(str, each["val"]))) for each in content]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError("not-json", f"{path} has no folds as nnU-Net writes them ({error}): copy it again") from None
    if not 0 <= fold < len(folds):
        raise ConfigError("folds-missing", f"{path} has the folds 0 to {len(folds) - 1}, and no {fold}: name one")
    train, val = folds[fold]
    known = {case.id for case in cases}
    if train & val or not (train | val) <= known:
        wrong = min(train & val or (train | val) - known)
        fault = "in both parts of the fold" if train & val else f"no case of {folder}"
        raise DataError("folds-other-data", f"{path}: {wrong} is {fault}: copy the splits of this data set")
    subjects = {case: case for case in train | val}
    held_out: dict[str, Split] = dict.fromkeys(val, "test")
    split_of = deal_splits(subjects, dataset=folder.name, site="", fixed=held_out, parts=("val",))
    chosen = tuple(replace(case, split=split_of[case.id]) for case in cases if case.id in split_of)
    others = sorted(known - split_of.keys())
    if not others:
        return chosen, ()
    what = f"has {len(others)} cases of the data set in neither part of fold {fold}, such as {', '.join(others[:3])}"
    remedy = "add them to the fold, if they are to be used"
    return chosen, (Finding("warning", "folds-incomplete", path, what, remedy),)
