from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from errors import raises
from scanfiles import write_described, write_liu

from data_prep.msd import plan_volumes
from data_prep.volumes import write_volumes
from fedshift import cli
from fedshift.data.check import check
from fedshift.data.prepared import read_images, read_labels
from fedshift.schema.manifest import read_manifest


@pytest.mark.parametrize("style", ["msd", "nnunet"])
def test_both_layouts_give_the_same_site(tmp_path: Path, style: str) -> None:
    source = write_described(tmp_path / style, sequences=("T2", "ADC"), classes=("PZ", "TZ"), style=style)
    assert cli.main(["data", "prepare", "msd", "--source", str(source), "--out", str(tmp_path / "out")]) == 0
    site = tmp_path / "out" / "ball" / "MSD"
    manifest = read_manifest(site)
    assert (manifest.classes, manifest.sequences) == (("background", "PZ", "TZ"), ("T2", "ADC"))
    assert manifest.kind == "patients" and not manifest.has_unknown_spacing
    assert "Decathlon" in manifest.citation and str(tmp_path) not in (site / "manifest.json").read_text(
        encoding="utf-8"
    )
    case = manifest.cases[0]
    images, labels = read_images(site, manifest, case), read_labels(site, case)
    assert images.shape == (2, *case.shape) and set(np.unique(labels)) == {0, 1, 2}
    assert images[0][labels > 0].min() > 500 > images[1][labels > 0].max()
    assert check(site) == []


def test_names_classes_and_sequences_by_option(tmp_path: Path) -> None:
    source = write_described(tmp_path / "set", sequences=("T2", "ADC"), classes=("PZ", "TZ"))
    words = ["--label", "gland=1,2", "--sequence", "ADC", "--site", "CLINIC", "--dataset", "glands"]
    assert cli.main(["data", "prepare", "msd", "--source", str(source), "--out", str(tmp_path / "out"), *words]) == 0
    manifest = read_manifest(tmp_path / "out" / "glands" / "CLINIC")
    assert (manifest.classes, manifest.sequences) == (("background", "gland"), ("ADC",))
    assert manifest.preparation["labels"] == {"gland": [1, 2]}


def test_masks_that_outline_some_of_the_classes(tmp_path: Path) -> None:
    source = write_described(tmp_path / "set", classes=("PZ", "TZ"))
    (site,) = write_volumes(plan_volumes(source, label=["PZ=1,2", "TZ=3"], annotated=["PZ"]), tmp_path / "out")
    assert read_manifest(site).annotated == ("PZ",)


def test_another_layout(tmp_path: Path) -> None:
    with raises("layout-unknown", naming="raw"):
        plan_volumes(write_liu(tmp_path / "raw"))
    source = write_described(tmp_path / "set")
    (source / "dataset.json").unlink()
    with raises("labels-missing", naming="dataset.json"):
        plan_volumes(source)
