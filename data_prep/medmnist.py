"""MedMNIST: small medical pictures and volumes, one file a subset, dealt to sites by Dirichlet.

The source is the folder with ``<subset>.npz``, or ``<subset>_64.npz``, ``_128`` or ``_224`` of MedMNIST+ (``--side``),
each with train_images, train_labels, val_images, val_labels, test_images and test_labels. They are described at
https://medmnist.com. ``--subset`` is one of pathmnist, chestmnist (several findings at once), dermamnist, octmnist,
pneumoniamnist, retinamnist (grades in order), breastmnist, bloodmnist, tissuemnist, organamnist, organcmnist,
organsmnist; or of volumes organmnist3d, nodulemnist3d, adrenalmnist3d, fracturemnist3d, vesselmnist3d, synapsemnist3d.

Each class of the training part is distributed over ``--sites-count`` sites in proportions from Dirichlet(``--alpha``);
of findings, each picture goes by the rarest one that it has. Validation and test parts are distributed in the
proportions that the sites have for training. The parts are MedMNIST's; which pictures are of one patient is not in the
files. The data set's name is ``<subset>_dirichlet_<alpha>``. Duplicates are left out, those of training first.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from data_prep.arrayfiles import read_npz
from data_prep.labelled_volumes import LabelledPlan, VolumeSource
from data_prep.manysites import site_names
from data_prep.partition import dirichlet, distinct, least, like, require_seed
from data_prep.pictures import Dealing, Hashed, PictureSet, Plan, Source
from fedshift.data.scans import Scan
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Split
from fedshift.schema.strict import nearest

LICENCE = "CC BY 4.0 (DermaMNIST: CC BY-NC 4.0)"
CITATION = (
    "Yang J, et al. MedMNIST v2: a large-scale lightweight benchmark for 2D and 3D biomedical image classification. "
    "Scientific Data 10:41, 2023"
)
DESCRIBED = "the files are described at https://medmnist.com"
SIDE, SIDES = 28, (28, 64, 128, 224)
PARTS: tuple[Split, ...] = ("train", "val", "test")
_ORGANS = (
    *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left"),
    *("lung-right", "pancreas", "spleen"),
)


@dataclass(frozen=True)
class Subset:
    """``classes`` in the order of the labels. ``findings``: whether a picture may have several of them."""

    classes: tuple[str, ...]
    channels: Literal[1, 3] = 1
    volumes: bool = False
    findings: bool = False


SUBSETS: Mapping[str, Subset] = {
    "pathmnist": Subset(
        (
            *("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa"),
            *("cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
        ),
        channels=3,
    ),
    "chestmnist": Subset(
        (
            *("atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia"),
            *("pneumothorax", "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia"),
        ),
        findings=True,
    ),
    "dermamnist": Subset(
        (
            *("actinic keratoses and intraepithelial carcinoma", "basal cell carcinoma"),
            *("benign keratosis-like lesions", "dermatofibroma", "melanoma", "melanocytic nevi", "vascular lesions"),
        ),
        channels=3,
    ),
    "octmnist": Subset(("choroidal neovascularization", "diabetic macular edema", "drusen", "normal")),
    "pneumoniamnist": Subset(("normal", "pneumonia")),
    "retinamnist": Subset(("0", "1", "2", "3", "4"), channels=3),
    "breastmnist": Subset(("malignant", "normal or benign")),
    "bloodmnist": Subset(
        (
            *("basophil", "eosinophil", "erythroblast", "immature granulocytes", "lymphocyte", "monocyte"),
            *("neutrophil", "platelet"),
        ),
        channels=3,
    ),
    "tissuemnist": Subset(
        (
            *("collecting duct or connecting tubule", "distal convoluted tubule", "glomerular endothelial cells"),
            *("interstitial endothelial cells", "leukocytes", "podocytes", "proximal tubule segments"),
            "thick ascending limb",
        )
    ),
    "organamnist": Subset(_ORGANS),
    "organcmnist": Subset(_ORGANS),
    "organsmnist": Subset(_ORGANS),
    "organmnist3d": Subset(
        (
            *("liver", "kidney-right", "kidney-left", "femur-right", "femur-left", "bladder", "heart"),
            *("lung-right", "lung-left", "spleen", "pancreas"),
        ),
        volumes=True,
    ),
    "nodulemnist3d": Subset(("benign", "malignant"), volumes=True),
    "adrenalmnist3d": Subset(("normal", "hyperplasia"), volumes=True),
    "fracturemnist3d": Subset(
        ("buckle rib fracture", "nondisplaced rib fracture", "displaced rib fracture"), volumes=True
    ),
    "vesselmnist3d": Subset(("vessel", "aneurysm"), volumes=True),
    "synapsemnist3d": Subset(("inhibitory synapse", "excitatory synapse"), volumes=True),
}
DEFAULT = "chestmnist"
Part = tuple[np.ndarray, np.ndarray]
"""Images uint8, (N, S, S), (N, S, S, 3) or (N, S, S, S), and labels (N,) or, of findings, (N, K)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `plan` for the command line."""
    parser.add_argument("--subset", default=DEFAULT, metavar="NAME", help=f"which one, see above (default: {DEFAULT})")
    parser.add_argument("--side", type=int, default=SIDE, choices=SIDES, help="of the files (default: 28)")
    parser.add_argument("--sites-count", type=int, default=5, metavar="N", help="number of sites (default: 5)")
    parser.add_argument(
        "--alpha", type=float, default=0.6, metavar="A", help="the smaller, the more sites differ (default: 0.6)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the partition (default: 0)")


def plan(
    source: Path,
    *,
    subset: str = DEFAULT,
    side: int = SIDE,
    sites_count: int = 5,
    alpha: float = 0.6,
    seed: int = 0,
) -> Plan | LabelledPlan:
    """The pictures or volumes of a subset, distributed to sites.

    Raises:
        DataError: the file is missing or has another form, or a partition that is not possible.
    """
    require_seed(seed)
    if subset not in SUBSETS:
        raise DataError("invalid-value", f"--subset: MedMNIST has no {subset!r}{nearest(subset, SUBSETS)}")
    about, path = SUBSETS[subset], source / f"{subset}{'' if side == SIDE else f'_{side}'}.npz"
    if not path.is_file():
        raise DataError("file-missing", f"{source} has no {path.name}: {DESCRIBED}")
    parts = _read(path, about)
    chosen = _without_copies(parts)
    keys = {part: _keys(parts[part][1][chosen[part]], about) for part in PARTS}
    training = dirichlet(keys["train"], sites_count, alpha, seed=seed, min_each=least(len(keys["train"]), sites_count))
    of_part = {part: like(training, keys["train"], keys[part], seed=seed) for part in ("val", "test")}
    of_part["train"] = training
    members = {
        site: [(part, int(n)) for part in PARTS for n in chosen[part][of_part[part][number]]]
        for number, site in enumerate(site_names(sites_count))
    }
    dataset, rule = f"{subset}_dirichlet_{alpha:g}", f"Dirichlet({alpha:g}), seed {seed}; MedMNIST's parts"
    notes = {
        "partition": f"each class over {sites_count} sites in proportions from Dirichlet({alpha:g}), seed {seed}",
        "copies_left_out": sum(len(parts[part][1]) - len(chosen[part]) for part in PARTS),
    }
    if about.volumes:
        by_site = {
            site: [_volume(parts[part][0], parts[part][1], about, path, part, n) for part, n in images]
            for site, images in members.items()
        }
        return LabelledPlan(
            dataset=dataset,
            name=f"MedMNIST {subset}",
            by_site=by_site,
            classes=about.classes,
            licence=LICENCE,
            citation=CITATION,
            split_rule=rule,
            notes=notes,
        )
    pictures = {
        site: [_picture(parts[part][0], parts[part][1], about, part, n) for part, n in images]
        for site, images in members.items()
    }
    picture_set = PictureSet(
        dataset=dataset,
        name=f"MedMNIST {subset}",
        sites=tuple(members),
        classes=about.classes,
        described=DESCRIBED,
        licence=LICENCE,
        citation=CITATION,
        channels=about.channels,
    )
    return Plan(picture_set, pictures, (side,), Dealing(_by_part, rule, notes=notes, whole=True))


def _read(path: Path, about: Subset) -> dict[Split, Part]:
    stored = read_npz(path, [f"{part}_{what}" for part in PARTS for what in ("images", "labels")])
    parts: dict[Split, Part] = {}
    for part in PARTS:
        images, labels = stored[f"{part}_images"], stored[f"{part}_labels"]
        shape = (3,) if about.channels == 3 else ()
        wanted = 3 if about.volumes else 2
        fits = images.dtype == np.uint8 and images.ndim == 1 + wanted + len(shape) and len(set(images.shape[1:4])) <= 2
        columns = len(about.classes) if about.findings else 1
        most = 1 if about.findings else len(about.classes) - 1
        if not fits or labels.reshape(len(labels), -1).shape != (len(images), columns) or labels.max(initial=0) > most:
            raise DataError(
                "arrays-form",
                f"{path} has {part}_images {images.dtype} {images.shape} and {part}_labels {labels.shape} up to "
                f"{labels.max(initial=0)}, which is not MedMNIST's form: download it again",
            )
        parts[part] = images, labels.astype(np.int64).reshape(len(labels), -1 if about.findings else 1)
    return parts


def _without_copies(parts: Mapping[Split, Part]) -> dict[Split, np.ndarray]:
    """Numbers of the images of each part without those that a later part, or the part itself, has before."""
    test = parts["test"][0]
    val = distinct(parts["val"][0], besides=test)
    held_out = np.concatenate([test, parts["val"][0][val]])
    return {"train": distinct(parts["train"][0], besides=held_out), "val": val, "test": distinct(test)}


def _keys(labels: np.ndarray, about: Subset) -> np.ndarray:
    """What each image is distributed by: its class; of findings the rarest that it has, or K for none."""
    if not about.findings:
        return np.asarray(labels[:, 0])
    order = np.argsort(labels.sum(0), kind="stable")
    ranked = labels[:, order] > 0
    return np.asarray(np.where(ranked.any(1), order[ranked.argmax(1)], labels.shape[1]))


def _by_part(site: str, pictures: Hashed) -> Mapping[str, Split]:
    return {picture.id: next(part for part in PARTS if picture.id.startswith(part)) for picture, _ in pictures}


def _label_or_findings(labels: np.ndarray, about: Subset) -> tuple[str, dict[str, bool]]:
    """The label or the findings of an image."""
    if about.findings:
        return "", {name: bool(has) for name, has in zip(about.classes, labels, strict=True)}
    return about.classes[int(labels[0])], {}


def _picture(images: np.ndarray, labels: np.ndarray, about: Subset, part: str, number: int) -> Source:
    label, findings = _label_or_findings(labels[number], about)
    return Source(f"{part}/{number:06d}", label, partial(_shown, images, number), findings=findings)


def _shown(images: np.ndarray, number: int) -> Image.Image:
    return Image.fromarray(images[number]).convert("RGB")


def _volume(
    images: np.ndarray, labels: np.ndarray, about: Subset, path: Path, part: Split, number: int
) -> VolumeSource:
    label, findings = _label_or_findings(labels[number], about)
    return VolumeSource(
        f"{part}_{number:06d}",
        (path,),
        label=label,
        findings=findings,
        split=part,
        read=partial(_scan, images, number),
    )


def _scan(images: np.ndarray, number: int) -> Sequence[Scan]:
    """An array's rows as y and its columns as x; where they lie in the patient is not in the files."""
    direction = (-1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 1.0)
    return [Scan(images[number], (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), direction, "RAS", direction)]
