"""``data check --explain``, and the record of readings in manifests, predictions and evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk
from scanfiles import other_sequence, volume, write_described, write_dicom, write_pair

from data_prep.msd import plan_volumes
from data_prep.own_scans import prepare_own
from data_prep.phantom import make_phantom
from data_prep.volumes import write_volumes
from fedshift.cli import main
from fedshift.data.case_check import read_case
from fedshift.data.cases import CaseFiles
from fedshift.data.explain import explain
from fedshift.schema.manifest import read_manifest
from fedshift.schema.reading import Reading


def as_nifti2(path: Path) -> None:
    image = nibabel.load(path)
    values = np.asarray(image.dataobj)
    nibabel.save(nibabel.Nifti2Image(values, image.affine), path)


def test_how_a_file_is_read_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, mask = write_pair(tmp_path, "P1")
    as_nifti2(image)
    assert main(["data", "check", "--explain", str(image), "--masks", str(mask)]) == 0
    printed = capsys.readouterr().out
    assert "NIfTI-2" in printed and "NIfTI-1" in printed and "0.7 x 0.8 x 3 mm" in printed


def test_why_a_file_is_refused_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "P1.mif").write_bytes(b"mrtrix image")
    assert main(["data", "check", str(tmp_path / "P1.mif"), "--explain"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "MRtrix" in printed and "mrconvert" in printed


@pytest.mark.parametrize("kind", ["file", "folder", "series", "4D", "site", "broken", "unclear"])
def test_whatever_is_named_is_explained(kind: str, tmp_path: Path) -> None:
    image, mask = write_pair(tmp_path / "set", "P1")
    path, wanted = tmp_path / "set", [("NIfTI-1", 0), ("NIfTI-1", 0)]
    if kind == "file":
        path, wanted = image, [("NIfTI-1", 0)]
    elif kind == "series":
        path, wanted = tmp_path / "dicom", [(None, 0)]
        write_dicom(path, volume()[0])
    elif kind == "4D":
        path, wanted = tmp_path / "several.nii.gz", [("", 1)]
        first = volume()[0]
        sitk.WriteImage(sitk.JoinSeries([first, other_sequence(first)]), str(path))
    elif kind == "site":
        path = prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=path, labels={"ball": (1,)})
    elif kind == "broken":
        path, wanted = image, [("", 1)]
        image.write_bytes(image.read_bytes()[:500])
    elif kind == "unclear":
        path, wanted = tmp_path / "scan.nrrd", [("NRRD", 1)]
        head = "NRRD0004\ntype: uchar\ndimension: 3\nsizes: 4 4 4\nspacings: 1.1 1.1 3\nencoding: raw\n\n"
        path.write_bytes(head.encode() + bytes(range(64)))
    explained = list(explain(path))
    assert len(explained) == len(wanted)
    for one, (form, findings) in zip(explained, wanted, strict=True):
        assert len(one.findings) == findings
        assert form is None or (one.reading.format if one.reading else "") == form
    assert mask.is_file()


def test_a_volume_of_several_is_explained_with_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = volume()[0]
    sitk.WriteImage(sitk.JoinSeries([first, other_sequence(first)]), str(tmp_path / "4d.nii.gz"))
    command = ["data", "check", str(tmp_path / "4d.nii.gz"), "--explain"]
    assert main(command) == 1 and "--volume N" in capsys.readouterr().out
    assert main([*command, "--volume", "2"]) == 0 and "2 of 2" in capsys.readouterr().out
    assert main([*command, "--volume", "2", "--label", "a=1"]) == 2 and "--label" in capsys.readouterr().err


def test_a_site_keeps_how_its_scans_were_read(tmp_path: Path) -> None:
    """… also when others come and go, and when they were read in another form than they are kept in."""
    for k in range(3):
        image, _ = write_pair(tmp_path / "set", f"P{k}", k)
        if k == 1:
            as_nifti2(image)
    options = {"dataset": "d", "labels": {"ball": (1,)}}
    site = prepare_own(None, None, "A", tmp_path / "out", source=tmp_path / "set", **options)  # type: ignore[arg-type]
    first = {case.id: case.reading for case in read_manifest(site).cases}
    assert [first[f"P{k}"]["image"].format for k in range(3)] == ["NIfTI-1", "NIfTI-2", "NIfTI-1"]
    assert all(set(reading) == {"image", "mask"} for reading in first.values())
    write_pair(tmp_path / "more", "P3", 3, suffix=".nrrd")
    prepare_own(None, None, "A", tmp_path / "out", source=tmp_path / "more", withdraw=["P0"], **options)  # type: ignore[arg-type]
    later = {case.id: case.reading for case in read_manifest(site).cases}
    assert set(later) == {"P1", "P2", "P3"} and later["P3"]["mask"].format == "NRRD"
    assert (later["P1"], later["P2"]) == (first["P1"], first["P2"])


def test_sequences_have_a_record_each(tmp_path: Path) -> None:
    folder = write_described(tmp_path / "set", sequences=("T2", "ADC"))
    (site,) = write_volumes(plan_volumes(folder), tmp_path / "out")
    (reading, *_) = [case.reading for case in read_manifest(site).cases]
    assert (reading["T2"].volume, reading["ADC"].volume) == ("1 of 2", "2 of 2") and set(reading) == {
        "T2",
        "ADC",
        "mask",
    }


def test_the_record_holds_what_applies_and_a_phantom_has_none(tmp_path: Path) -> None:
    assert Reading(format="NRRD", units="lengths in um").model_dump() == {"format": "NRRD", "units": "lengths in um"}
    make_phantom(tmp_path, sites=["BIDMC"], cases=3)
    (manifest,) = tmp_path.rglob("manifest.json")
    assert "reading" not in manifest.read_text(encoding="utf-8")


def test_trusted_voxels_are_said(tmp_path: Path) -> None:
    image, mask = write_pair(tmp_path, "P1")
    moved = sitk.ReadImage(str(mask))
    moved.SetOrigin((1, 2, 3))
    sitk.WriteImage(moved, str(mask))
    decoded, _ = read_case(CaseFiles("P1", (image,), mask, trust_voxels=True))
    assert decoded is not None and "trust-voxels" in decoded.mask.reading.remarks[-1]
    assert decoded.image.reading.remarks == ()
    assert json.loads(json.dumps(decoded.mask.reading.model_dump()))["format"] == "NIfTI-1"
