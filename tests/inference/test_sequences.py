"""Which file or volume of a case is which sequence: by number, by ``dataset.json``, or by name in the case's folder."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk
from errors import raises
from scanfiles import write_dicom

from fedshift.data.scan_folders import scans_in
from fedshift.inference.masks import mask_path
from fedshift.inference.sequences import ScanCase, find_case, find_cases, in_case_folders

OF = ("T2", "ADC")
ORIGIN = (5.0, -3.0, 20.0)


def write(path: Path, level: int, **geometry: tuple[float, ...]) -> Path:
    """A scan whose voxels say of which file they are."""
    image = sitk.GetImageFromArray(np.arange(level, level + 60, dtype=np.int16).reshape(3, 4, 5))
    image.SetOrigin(geometry.get("origin", ORIGIN))
    image.SetSpacing(geometry.get("spacing", (0.5, 0.5, 3.0)))
    path.parent.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(image, str(path))
    return path


def numbered(folder: Path, count: int = 2) -> list[Path]:
    return [write(folder / f"P1_{number:04d}.nii.gz", 1000 * number) for number in range(count)]


def write_4d(path: Path, *levels: int) -> Path:
    """A 4D file whose volumes say which they are."""
    volumes = [sitk.ReadImage(str(write(path.with_name("volume.nii.gz"), level))) for level in levels]
    sitk.WriteImage(sitk.JoinSeries(volumes), str(path))
    path.with_name("volume.nii.gz").unlink()
    return path


def describe(path: Path, *names: str, key: str = "channel_names") -> None:
    path.write_text(json.dumps({key: dict(enumerate(names)), "labels": {"background": 0}}), encoding="utf-8")


def find_one(*images: Path, sequences: tuple[str, ...] = OF) -> ScanCase:
    (case,) = find_cases(images, sequences)
    return case


def test_numbers_are_in_the_models_order(tmp_path: Path) -> None:
    files = numbered(tmp_path)
    case = find_one(*files[::-1])
    assert case.image == files[0] and case.files == tuple(files) and case.named.name == "P1.nii.gz"
    assert "_0000 = T2, _0001 = ADC" in (case.assignment or "")
    describe(tmp_path / "dataset.json", "0000", "0001")
    assert find_one(files[0]).files == tuple(files), "numbers are no names"


def test_one_sequence_is_any_file_and_nothing_is_said(tmp_path: Path) -> None:
    files = numbered(tmp_path)
    cases = find_cases(files, ())
    assert [case.image for case in cases] == files and not any(case.assignment for case in cases)
    assert in_case_folders([tmp_path], ()) == [tmp_path]


@pytest.mark.parametrize("key", ["channel_names", "modality"])
@pytest.mark.parametrize("beside", [True, False])
def test_the_description_of_the_data_set_says_which_is_which(tmp_path: Path, beside: bool, key: str) -> None:
    files, described = numbered(tmp_path / "imagesTr", 3), tmp_path / ("" if beside else "imagesTr") / "dataset.json"
    describe(described, "adc", "DWI", "t2", key=key)
    case = find_one(*files[::2])
    assert case.image == files[2], "the case is named by its file of the model's first sequence"
    assert case.files == (files[2], files[0]) and case.named.name == "P1.nii.gz"
    scan, voxels = case.read_stacked()
    assert scan.voxels.min() == 2000 and voxels.min((1, 2, 3)).tolist() == [2000, 0]
    assert case.assignment == f"sequences: _0000 = adc, _0002 = t2 ({described})"


@pytest.mark.parametrize(
    ("content", "code", "naming"),
    [
        ({"0": "T2", "1": "DWI"}, "sequence-names", ("T2, DWI", "T2, ADC")),
        ({"0": "MRI", "1": "MRI"}, "sequence-names", "MRI, MRI"),
        ({"0": "T2", "1": "ADC", "2": "t2"}, "sequence-names", "T2, ADC, t2"),
        ({"first": "T2"}, "description-broken", ("dataset.json", 'number them, as in {"0": "first"}')),
        (["T2", "ADC"], "description-broken", ("dataset.json", 'number them, as in {"0": "T2", "1": "ADC"}')),
    ],
)
def test_names_that_do_not_fit_are_refused(tmp_path: Path, content: object, code: str, naming: tuple[str, ...]) -> None:
    (tmp_path / "dataset.json").write_text(json.dumps({"channel_names": content}), encoding="utf-8")
    with raises(code, naming=naming):
        find_cases(numbered(tmp_path), OF)


def test_a_number_that_nothing_names_is_refused(tmp_path: Path) -> None:
    with raises("sequence-unknown", naming=("P1_0002.nii.gz", "_0000 is T2, _0001 is ADC")):
        find_cases(numbered(tmp_path, 3), OF)


def test_the_folder_of_a_case_has_a_file_for_each_sequence(tmp_path: Path) -> None:
    t2 = [write(tmp_path / "P1" / "T2.nii.gz", 1000), write(tmp_path / "p2" / "P2_t2.nrrd", 3000)]
    adc = [write(tmp_path / "P1" / "adc.nii.gz", 0), write(tmp_path / "p2" / "p2_ADC.nrrd", 2000)]
    write(tmp_path / "P1" / "mask.nii.gz", 7)
    write(tmp_path / "masks" / "P1_mask.nii.gz", 7)
    cases = find_cases(scans_in(in_case_folders([tmp_path], OF)), OF)
    assert [case.files for case in cases] == list(zip(t2, adc, strict=True))
    assert [mask_path(case.named, Path("out")).name for case in cases] == ["P1_mask.nii.gz", "p2_mask.nrrd"]
    assert all("T2, ADC" in (case.assignment or "") for case in cases)
    assert cases[1].read_stacked()[1].min((1, 2, 3)).tolist() == [3000, 2000]
    assert find_one(*scans_in(in_case_folders([tmp_path / "P1"], OF))).image == t2[0], "the folder of one case"


@pytest.mark.parametrize("name", ["b_00.nii.gz", "b_0001.nii.gz", "b.nrrd"])
def test_the_volumes_of_a_4d_file_are_in_the_models_order(tmp_path: Path, name: str) -> None:
    file = write_4d(tmp_path / name, 1000, 2000)
    case = find_one(*scans_in(in_case_folders([tmp_path], OF)))
    assert case.files == (file, file) and case.named == file
    scan, voxels = case.read_stacked()
    assert scan.voxels.shape == (3, 4, 5) and voxels.min((1, 2, 3)).tolist() == [1000, 2000]
    assert "volume 1 = T2, volume 2 = ADC" in (case.assignment or "")
    with raises("options-clash", naming="--volume"):
        replace(case, volume=1).read()


@pytest.mark.parametrize("key", ["channel_names", "modality"])
@pytest.mark.parametrize("beside", [True, False])
def test_the_description_says_which_volume_is_which(tmp_path: Path, beside: bool, key: str) -> None:
    file = write_4d(tmp_path / "imagesTs" / "b_00.nii.gz", 0, 1000, 2000)
    described = tmp_path / ("" if beside else "imagesTs") / "dataset.json"
    describe(described, "adc", "DWI", "t2", key=key)
    case, single = find_one(file), find_one(file, sequences=("DWI",))
    assert case.read_stacked()[1].min((1, 2, 3)).tolist() == [2000, 0]
    assert f"volume 1 = adc, volume 3 = t2 ({described})" in (case.assignment or "")
    assert single.read_stacked()[1].min((1, 2, 3)).tolist() == [1000], "also the one that a model takes"
    assert f"volume 2 = DWI ({described})" in (single.assignment or "")
    describe(described, "T2", "DWI", "b800", key=key)
    with raises("sequence-names", naming=("T2, DWI, b800", "T2, ADC")):
        find_cases([file], OF)


def test_another_number_of_volumes_than_sequences_is_refused(tmp_path: Path) -> None:
    file = write_4d(tmp_path / "b_00.nii.gz", 0, 1000, 2000)
    for sequences, listed in ((OF, "2 (T2, ADC)"), (("T2",), "1 (T2)"), ((), "--volume N")):
        case = find_one(file, sequences=sequences)  # the other scans are predicted
        with raises("volumes-count", naming=("b_00.nii.gz", "3 volumes", listed)):
            case.read()
    describe(tmp_path / "dataset.json", "T2", "ADC")
    with raises("volumes-count", naming=("3 volumes", "dataset.json", "2 (T2, ADC)")):
        find_one(file).read()


def test_a_4d_file_of_one_volume_is_a_scan_of_one_sequence(tmp_path: Path) -> None:
    file = write_4d(tmp_path / "b_00.nii.gz", 1000)
    assert nibabel.load(file).ndim == 4
    for sequences in ((), ("T2",)):
        case = find_one(file, sequences=sequences)
        assert case.assignment is None and case.read_stacked()[1].shape == (1, 3, 4, 5)


def test_a_volume_that_is_the_same_everywhere_is_named(tmp_path: Path) -> None:
    image = sitk.ReadImage(str(write(tmp_path / "P1.nii.gz", 0)))
    file = tmp_path / "b.nii.gz"
    sitk.WriteImage(sitk.JoinSeries([image, 0 * image]), str(file))
    with raises("scan-empty", naming=("b.nii.gz", "ADC")):
        find_one(file).read()


def test_umlauts_that_a_mac_wrote_are_the_same_name(tmp_path: Path) -> None:
    name = unicodedata.normalize("NFD", "Möller")
    t2 = write(tmp_path / name / f"{name}_T2.nii.gz", 0)
    composed, decomposed = unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", "höhe")
    other = write(tmp_path / name / f"{composed}_{decomposed}.nii.gz", 1)
    assert find_case(t2, ("T2", "Höhe")).files == (t2, other)


def test_dicom_series_go_by_their_folders(tmp_path: Path) -> None:
    image = sitk.ReadImage(str(write(tmp_path / "image.nii.gz", 500)))
    study = tmp_path / "study" / "0815"
    for name in ("ADC", "T2", "scout"):
        write_dicom(study / name, image)
    case = find_one(*scans_in(in_case_folders([tmp_path / "study"], OF)))
    assert case.files == (study / "T2", study / "ADC") and case.is_dicom
    assert mask_path(case.named, Path("out")).name == "0815_mask.nii.gz"


def test_a_case_without_its_sequences_is_refused(tmp_path: Path) -> None:
    t2 = write(tmp_path / "P1" / "T2.nii.gz", 0)
    with raises("sequence-missing", naming=("P1", "ADC")):
        find_cases([t2], OF)
    for name in ("ADC.nii.gz", "P1_adc.nrrd"):
        write(tmp_path / "P1" / name, 1)
    with raises("sequence-twice", naming=("P1", "ADC.nii.gz", "P1_adc.nrrd")):
        find_cases([t2], OF)
    (tmp_path / "P1" / "P1_adc.nrrd").unlink()
    other = write(tmp_path / "P2" / "other.nii.gz", 0)
    with raises("sequence-unknown", naming=(str(other), "T2, ADC")):
        find_cases(scans_in(in_case_folders([tmp_path], OF)), OF)


@pytest.mark.parametrize(
    ("geometry", "difference"),
    [
        ({"origin": (5.005, -3.0, 20.0)}, None),
        ({"origin": (5.05, -3.0, 20.0)}, "origin by up to 0.05 mm"),
        ({"spacing": (0.5, 0.6, 3.0)}, "spacing by up to 0.1 mm"),
    ],
)
def test_grids_may_differ_by_what_preparation_allows(tmp_path: Path, geometry: dict, difference: str | None) -> None:
    first = write(tmp_path / "P1_0000.nii.gz", 0)
    write(tmp_path / "P1_0001.nii.gz", 1, **geometry)
    if difference is None:
        assert find_one(first).read_stacked()[1].shape == (2, 3, 4, 5)
        return
    with raises("sequence-grid", naming=("P1_0001.nii.gz", "P1_0000.nii.gz", difference)):
        find_one(first).read()


def test_another_number_of_voxels_is_said(tmp_path: Path) -> None:
    first = write(tmp_path / "P1_0000.nii.gz", 0)
    sitk.WriteImage(sitk.ReadImage(str(first))[:, :3], str(tmp_path / "P1_0001.nii.gz"))
    with raises("sequence-grid", naming=("5 x 3 x 3", "5 x 4 x 3")):
        find_one(first).read()
