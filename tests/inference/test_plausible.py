"""What is odd about a scan is said in a sentence; what is usual is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
from scanfiles import volume, write_dicom
from volumesites import blob_job, make_volume_site

from fedshift.data.fingerprint import fingerprint
from fedshift.data.scans import Scan
from fedshift.federation.model_files import add_references
from fedshift.inference import plausible
from fedshift.inference.model import open_model
from fedshift.inference.plausible import BODY_PART, MODALITY, MOST_TAG, check_scan, check_volume, read_tags
from fedshift.inference.ready import Choice, make_ready
from fedshift.schema.fingerprint import Reference

from .conftest import BALL, save_model

TURNED = (1.0, 0.0, 0.0, 0.0, 0.8, -0.6, 0.0, 0.6, 0.8)


def usual() -> Scan:
    voxels = np.random.default_rng(0).integers(0, 900, (24, 256, 256))
    return Scan(voxels, (0.6, 0.6, 3.0), (0.0, 0.0, 0.0), TURNED, "LPS", TURNED)


def test_nothing_is_said_of_a_usual_scan() -> None:
    assert list(check_scan(usual(), {MODALITY: "MR", BODY_PART: "PELVIS"}, target="prostate")) == []
    assert list(check_volume(45, target="prostate")) == []


@pytest.mark.parametrize(
    ("changes", "tags", "said"),
    [
        ({"spacing": (3.0, 3.0, 3.0)}, {}, "has a field of view of 768 x 768 mm"),
        ({"spacing": (0.1, 0.1, 3.0)}, {}, "has a pixel size of 0.1 x 0.1 mm"),
        ({"spacing": (0.6, 0.6, 10.0)}, {}, "has a slice distance of 10 mm"),
        ({"voxels": usual().voxels[:4]}, {}, "has a number of slices of 4"),
        ({"voxels": usual().voxels - 1000}, {}, "down to -1000: right for CT; for MRI"),
        ({"voxels": usual().voxels % 2}, {}, "is it a mask"),
        ({}, {MODALITY: "CT"}, "has modality CT"),
        ({}, {BODY_PART: "BRAIN"}, "has body part BRAIN"),
    ],
)
def test_what_is_odd_is_said(changes: dict[str, Any], tags: dict[str, str], said: str) -> None:
    found = list(check_scan(replace(usual(), **changes), tags, target="prostate"))
    assert any(said in sentence for sentence in found), found
    if "a field" in said or "number" in said:
        assert list(check_scan(replace(usual(), **changes), tags, target="liver")) == [], "not known what it is like"


def test_negative_intensities_of_ct_are_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    ct, said = replace(usual(), voxels=usual().voxels - 1000), "down to -1000: right for CT; for MRI"
    assert said in "".join(check_scan(ct, {}, target="liver")), "nothing says that it is CT"
    assert said in "".join(check_scan(ct, {MODALITY: "MR"}, target="liver"))
    assert list(check_scan(ct, {MODALITY: "CT"}, target="liver")) == []
    (other,) = check_scan(ct, {MODALITY: "CT"}, target="prostate")
    assert "modality CT" in other and "MR" in other
    expected = plausible.expected_of("prostate")
    assert expected is not None
    monkeypatch.setattr(plausible, "expected_of", lambda _: expected.model_copy(update={"modality": "CT"}))
    assert list(check_scan(ct, {}, target="prostate")) == []


@pytest.mark.parametrize(("sequences", "first"), [((), 0.0), ((), -2000.0), (("ADC", "T2"), -2000.0)])
def test_a_model_may_know_that_it_was_trained_on_negative_intensities(
    sequences: tuple[str, ...], first: float, tmp_path: Path
) -> None:
    site = make_volume_site(tmp_path, "A", sequences=sequences, offset=first)
    wanted = f"data.sequences=[{','.join(reversed(sequences))}]"  # in another order than the site's
    path = save_model(tmp_path / "model.pt", blob_job(tmp_path, *([wanted] if sequences else [])))

    def signed() -> bool:
        model = open_model(path)
        return make_ready(model, Choice()).signed

    assert not signed(), "the file does not tell"
    add_references(path, {"A": Reference(fingerprint=fingerprint(site), apart={})})
    assert signed() is (first < 0)


@pytest.mark.parametrize(
    ("millilitres", "said"), [(0.0, "no prostate was found"), (2.0, "5 to 250"), (400.0, "the mask has")]
)
def test_an_odd_volume_is_said(millilitres: float, said: str) -> None:
    (sentence,) = check_volume(millilitres, target="prostate")
    assert said in sentence


def test_dicom_says_what_it_shows(tmp_path: Path) -> None:
    write_dicom(tmp_path / "series", volume(**BALL)[0])
    assert read_tags(tmp_path / "series") == {MODALITY: "MR"}
    assert read_tags(tmp_path) == {} == read_tags(tmp_path / "scan.nii.gz")
    file = sorted((tmp_path / "series").iterdir())[0]
    image = sitk.ReadImage(file)
    image.SetMetaData(BODY_PART, "HEAD")
    writer = sitk.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    writer.SetFileName(str(file))
    writer.Execute(image)
    assert read_tags(tmp_path / "series")[BODY_PART] == "HEAD"
    image.SetMetaData(BODY_PART, "HEAD\x1b[2J\n=1+1" + "X" * 1000)
    writer.Execute(image)
    assert read_tags(tmp_path / "series")[BODY_PART].startswith("HEAD [2J =1+1XXX")
    assert len(read_tags(tmp_path / "series")[BODY_PART]) == MOST_TAG
