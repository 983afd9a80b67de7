"""The box "What it cannot do" in the README and in docs/why.md: each of its lines is something that is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from scanfiles import volume
from segmentpictures import TASK, prepare_discs

from data_prep.own_scans import prepare_own
from fedshift.federation.resolve import practical, resolve
from fedshift.schema.errors import FedshiftError
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.kinds import build_task

ROOT = Path(__file__).resolve().parents[2]


def kinds(folder: Path) -> None:
    resolve("prostate", "fedavg", options=["kind=detection"])


def networks(folder: Path) -> None:
    resolve("prostate", "fedavg", options=["network.name=sam"])


def together(folder: Path) -> None:
    resolve("prostate", "scaffold+fednova", options=["optimizer.name=sgd", "optimizer.lr=0.01", "optimizer.keep=false"])


def robust(folder: Path) -> None:
    resolve("prostate", "fedavg", options=["federation.encryption=ckks", "federation.robust.rule=median"])


def grids(folder: Path) -> None:
    image, mask = volume(1)
    other, _ = volume(1, size=(20, 20, 9))
    for name, made in (("T2", image), ("ADC", other), ("mask", mask)):
        (folder / "P1").mkdir(exist_ok=True)
        sitk.WriteImage(made, str(folder / "P1" / f"{name}.nii.gz"))
    prepare_own(None, None, "A", folder / "out", dataset="d", source=folder, labels={"ball": [1]})


def organs(folder: Path) -> None:
    practical("hippocampus")


LIMITS: dict[str, tuple[Callable[[Path], None], str]] = {
    "Other tasks than outlining structures and sorting images into classes": (kinds, "there is no kind"),
    "Code in a job": (networks, "there is no network"),
    "Any two methods together": (together, "cannot be combined"),
    "Encrypted updates together with robust averages": (robust, "which the server cannot read"),
    "Registering sequences": (grids, "grid"),
    "Recommending methods for other organs": (organs, "has no practical recipe"),
}
"""How a line of the box begins: what is refused, and words of the refusal."""


def box(page: str) -> list[str]:
    """The lines of the box."""
    text = (ROOT / page).read_text(encoding="utf-8")
    match = re.search(r"What it cannot do\*{0,2}\n\n?((?:- .*\n(?:  .*\n)*)+)", text)
    assert match is not None, page
    return [" ".join(line.split()) for line in re.split(r"^- ", match.group(1), flags=re.MULTILINE)[1:]]


def test_both_pages_have_the_same_box_and_each_line_is_known() -> None:
    lines = box("README.md")
    assert lines == box("docs/why.md")
    begins = [line.removeprefix("**").partition(":")[0].replace("**", "").rstrip(".") for line in lines]
    assert begins == list(LIMITS)


@pytest.mark.parametrize("line", LIMITS)
def test_what_the_box_says_is_refused(line: str, tmp_path: Path) -> None:
    act, words = LIMITS[line]
    with pytest.raises(FedshiftError, match=words):
        act(tmp_path)


def test_single_pictures_are_outlined(tmp_path: Path) -> None:
    """A scan needs three slices, a picture is one of its own."""
    (tmp_path / "discs.yaml").write_text(TASK, encoding="utf-8")
    job = resolve(str(tmp_path / "discs.yaml"), "fedavg")
    data = build_task(job).open(prepare_discs(tmp_path / "raw", tmp_path), "A")
    images, labels = data.train_samples(np.arange(2))
    assert images.shape == (2, 3, 16, 16) and labels.shape == (2, 16, 16)


def test_structures_that_overlap_are_segmented(tmp_path: Path) -> None:
    for name in ("imagesTr", "labelsTr"):
        (tmp_path / name).mkdir()
    described = {"background": 0, "whole": [1, 2], "core": 2}
    said = {"labels": described, "regions_class_order": [1, 2], "channel_names": {"0": "T1"}, "file_ending": ".nii.gz"}
    (tmp_path / "dataset.json").write_text(json.dumps(said), encoding="utf-8")
    for name in ("imagesTr/P1_0000.nii.gz", "labelsTr/P1.nii.gz"):
        sitk.WriteImage(volume(1)[name.startswith("labels")], str(tmp_path / name))
    site = prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=tmp_path)
    classes = read_manifest(site).classes
    regions = "regions={whole: [whole, core], core: [core]}"
    options = [f"classes=[{', '.join(classes)}]", regions, "codes={}", "dataset=d", "sites=[A]"]
    assert resolve("hippocampus", "fedavg", options=options).task.structures == ("whole", "core")
