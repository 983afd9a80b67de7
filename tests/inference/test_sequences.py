"""Which file or volume of a case is which sequence: by number, by ``dataset.json``, or by name in the case's folder."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk
from scanfiles import write_dicom

from fedshift.data.scan_file import ScanError
from fedshift.data.scan_folders import scans_in
from fedshift.inference.masks import mask_path
from fedshift.inference.sequences import case_of, files_of, first_files, in_case_folders, read_case, which_is_which
from fedshift.schema.errors import ConfigError

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


def test_numbers_are_in_the_models_order(tmp_path: Path) -> None:
    files = numbered(tmp_path)
    assert first_files(files[::-1], OF) == files[:1] and files_of(files[1], OF) == files
    assert case_of(files[0], OF).name == "P1.nii.gz"
    assert list(which_is_which(files[:1], OF)) == ["sequences: _0000 = T2, _0001 = ADC (the order of the model)"]
    describe(tmp_path / "dataset.json", "0000", "0001")
    assert files_of(files[0], OF) == files, "numbers are no names"


def test_one_sequence_is_any_file_and_nothing_is_said(tmp_path: Path) -> None:
    files = numbered(tmp_path)
    assert first_files(files, ()) == files and not list(which_is_which(files, ()))
    assert in_case_folders([tmp_path], ()) == [tmp_path]


@pytest.mark.parametrize("key", ["channel_names", "modality"])
@pytest.mark.parametrize("beside", [True, False])
def test_the_description_of_the_data_set_says_which_is_which(tmp_path: Path, beside: bool, key: str) -> None:
    files, described = numbered(tmp_path / "imagesTr", 3), tmp_path / ("" if beside else "imagesTr") / "dataset.json"
    describe(described, "adc", "DWI", "t2", key=key)
    assert first_files(files, OF) == [files[2]], "the case is named by its file of the model's first sequence"
    assert files_of(files[2], OF) == [files[2], files[0]]
    assert case_of(files[2], OF).name == "P1.nii.gz"
    scan, voxels = read_case(files[2], OF)
    assert scan.voxels.min() == 2000 and voxels.min((1, 2, 3)).tolist() == [2000, 0]
    assert list(which_is_which(files[2:], OF)) == [f"sequences: _0000 = adc, _0002 = t2 ({described})"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            {"0": "T2", "1": "DWI"},
            "calls the sequences T2, DWI, and the model takes T2, ADC: give them the model's names",
        ),
        ({"0": "MRI", "1": "MRI"}, "calls the sequences MRI, MRI"),
        ({"0": "T2", "1": "ADC", "2": "t2"}, "calls the sequences T2, ADC, t2"),
        ({"first": "T2"}, "cannot be parsed"),
        (["T2"], "cannot be parsed"),
    ],
)
def test_names_that_do_not_fit_are_refused(tmp_path: Path, content: object, said: str) -> None:
    (tmp_path / "dataset.json").write_text(json.dumps({"channel_names": content}), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"dataset.json {said}"):
        first_files(numbered(tmp_path), OF)


def test_a_number_that_nothing_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"P1_0002.nii.gz: the model takes 2 files .* _0000 is T2, _0001 is ADC$"):
        first_files(numbered(tmp_path, 3), OF)


def test_the_folder_of_a_case_has_a_file_for_each_sequence(tmp_path: Path) -> None:
    t2 = [write(tmp_path / "P1" / "T2.nii.gz", 1000), write(tmp_path / "p2" / "P2_t2.nrrd", 3000)]
    adc = [write(tmp_path / "P1" / "adc.nii.gz", 0), write(tmp_path / "p2" / "p2_ADC.nrrd", 2000)]
    write(tmp_path / "P1" / "mask.nii.gz", 7)
    write(tmp_path / "masks" / "P1_mask.nii.gz", 7)
    found = first_files(scans_in(in_case_folders([tmp_path], OF)), OF)
    assert found == t2 and [files_of(path, OF) for path in found] == [[t2[0], adc[0]], [t2[1], adc[1]]]
    assert [mask_path(case_of(path, OF), Path("out")).name for path in found] == ["P1_mask.nii.gz", "p2_mask.nrrd"]
    assert list(which_is_which(found, OF)) == ["sequences: T2, ADC, by the files' names in the case's folder"]
    assert read_case(found[1], OF)[1].min((1, 2, 3)).tolist() == [3000, 2000]
    assert first_files(scans_in(in_case_folders([tmp_path / "P1"], OF)), OF) == t2[:1], "the folder of one case"


@pytest.mark.parametrize("name", ["b_00.nii.gz", "b_0001.nii.gz", "b.nrrd"])
def test_the_volumes_of_a_4d_file_are_in_the_models_order(tmp_path: Path, name: str) -> None:
    file = write_4d(tmp_path / name, 1000, 2000)
    assert first_files(scans_in(in_case_folders([tmp_path], OF)), OF) == [file] and case_of(file, OF) == file
    assert files_of(file, OF) == [file, file]
    scan, voxels = read_case(file, OF)
    assert scan.voxels.shape == (3, 4, 5) and voxels.min((1, 2, 3)).tolist() == [1000, 2000]
    said = "sequences: of 4D files volume 1 = T2, volume 2 = ADC (the order of the model)"
    assert list(which_is_which([file, file], OF)) == [said]


@pytest.mark.parametrize("key", ["channel_names", "modality"])
@pytest.mark.parametrize("beside", [True, False])
def test_the_description_says_which_volume_is_which(tmp_path: Path, beside: bool, key: str) -> None:
    file = write_4d(tmp_path / "imagesTs" / "b_00.nii.gz", 0, 1000, 2000)
    described = tmp_path / ("" if beside else "imagesTs") / "dataset.json"
    describe(described, "adc", "DWI", "t2", key=key)
    assert read_case(file, OF)[1].min((1, 2, 3)).tolist() == [2000, 0]
    said = f"sequences: of 4D files volume 1 = adc, volume 3 = t2 ({described})"
    assert list(which_is_which(first_files([file], OF), OF)) == [said]
    assert read_case(file, ("DWI",))[1].min((1, 2, 3)).tolist() == [1000], "also the one that a model takes"
    assert list(which_is_which([file], ("DWI",))) == [f"sequences: of 4D files volume 2 = DWI ({described})"]
    describe(described, "T2", "DWI", "b800", key=key)
    with pytest.raises(ConfigError, match="calls the sequences T2, DWI, b800, and the model takes T2, ADC: give them"):
        first_files([file], OF)


def test_another_number_of_volumes_than_sequences_is_refused(tmp_path: Path) -> None:
    file = write_4d(tmp_path / "b_00.nii.gz", 0, 1000, 2000)
    assert first_files([file], OF) == [file], "the other scans are predicted"
    with pytest.raises(ScanError, match=r"b_00.nii.gz has 3 volumes, and the model takes 2 \(T2, ADC\): save those"):
        read_case(file, OF)
    with pytest.raises(ScanError, match=r"has 3 volumes, and the model takes 1 \(T2\): save those"):
        read_case(file, ("T2",))
    with pytest.raises(ScanError, match="has 3 volumes, and the model takes one: save that one alone as a 3D file"):
        read_case(file, ())
    describe(tmp_path / "dataset.json", "T2", "ADC")
    with pytest.raises(ScanError, match=r"has 3 volumes, and .*dataset.json names 2 \(T2, ADC\): name every volume"):
        read_case(file, OF)


def test_a_4d_file_of_one_volume_is_a_scan_of_one_sequence(tmp_path: Path) -> None:
    file = write_4d(tmp_path / "b_00.nii.gz", 1000)
    assert nibabel.load(file).ndim == 4
    for sequences in ((), ("T2",)):
        assert first_files([file], sequences) == [file] and not list(which_is_which([file], sequences))
        assert read_case(file, sequences)[1].shape == (1, 3, 4, 5)


def test_a_volume_that_is_the_same_everywhere_is_named(tmp_path: Path) -> None:
    image = sitk.ReadImage(str(write(tmp_path / "P1.nii.gz", 0)))
    file = tmp_path / "b.nii.gz"
    sitk.WriteImage(sitk.JoinSeries([image, 0 * image]), str(file))
    with pytest.raises(ScanError, match=r"b.nii.gz has the same intensity everywhere of ADC: export"):
        read_case(file, OF)


def test_umlauts_that_a_mac_wrote_are_the_same_name(tmp_path: Path) -> None:
    case, known = unicodedata.normalize("NFD", "Möller"), ("T2", "Höhe")
    t2 = write(tmp_path / case / f"{case}_T2.nii.gz", 0)
    other = write(
        tmp_path / case / f"{unicodedata.normalize('NFC', case)}_{unicodedata.normalize('NFD', 'höhe')}.nii.gz", 1
    )
    assert files_of(t2, known) == [t2, other]


def test_dicom_series_go_by_their_folders(tmp_path: Path) -> None:
    image = sitk.ReadImage(str(write(tmp_path / "image.nii.gz", 500)))
    for name in ("ADC", "T2", "scout"):
        write_dicom(tmp_path / "study" / "0815" / name, image)
    study = tmp_path / "study"
    found = first_files(scans_in(in_case_folders([study], OF)), OF)
    assert found == [study / "0815" / "T2"]
    assert files_of(found[0], OF) == [study / "0815" / "T2", study / "0815" / "ADC"]
    assert mask_path(case_of(found[0], OF), Path("out")).name == "0815_mask.nii.gz"


def test_a_case_without_its_sequences_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "P1" / "T2.nii.gz", 0)
    with pytest.raises(ConfigError, match=r"P1 holds no ADC, and the model takes one file each of T2, ADC$"):
        first_files([tmp_path / "P1" / "T2.nii.gz"], OF)
    for name in ("ADC.nii.gz", "P1_adc.nrrd"):
        write(tmp_path / "P1" / name, 1)
    with pytest.raises(ConfigError, match=r"P1 holds ADC.nii.gz, P1_adc.nrrd for ADC, and"):
        first_files([tmp_path / "P1" / "T2.nii.gz"], OF)
    (tmp_path / "P1" / "P1_adc.nrrd").unlink()
    other = write(tmp_path / "P2" / "other.nii.gz", 0)
    with pytest.raises(ConfigError, match=f"{other}: .* or, in a folder for each case, are T2, ADC$"):
        first_files(scans_in(in_case_folders([tmp_path], OF)), OF)


@pytest.mark.parametrize(
    ("geometry", "said"),
    [
        ({"origin": (5.005, -3.0, 20.0)}, None),
        ({"origin": (5.05, -3.0, 20.0)}, r"origin by up to 0.05 mm \(tolerance 0.01 mm\)"),
        ({"spacing": (0.5, 0.6, 3.0)}, r"spacing by up to 0.1 mm"),
    ],
)
def test_grids_may_differ_by_what_preparation_allows(tmp_path: Path, geometry: dict, said: str | None) -> None:
    first = write(tmp_path / "P1_0000.nii.gz", 0)
    write(tmp_path / "P1_0001.nii.gz", 1, **geometry)
    if said is None:
        assert read_case(first, OF)[1].shape == (2, 3, 4, 5)
        return
    with pytest.raises(ScanError, match=f"P1_0001.nii.gz lies on another grid than .*P1_0000.nii.gz: .*{said}"):
        read_case(first, OF)


def test_another_number_of_voxels_is_said(tmp_path: Path) -> None:
    first = write(tmp_path / "P1_0000.nii.gz", 0)
    sitk.WriteImage(sitk.ReadImage(str(first))[:, :3], str(tmp_path / "P1_0001.nii.gz"))
    with pytest.raises(ScanError, match="size, 5 x 3 x 3 voxels instead of 5 x 4 x 3"):
        read_case(first, OF)
