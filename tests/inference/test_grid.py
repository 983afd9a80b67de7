"""From a scan's grid to the network's and back: nothing moves, whatever the file's geometry."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk
from dicomstudies import write_slices
from errors import raises
from scanfiles import rotation, volume, write_dicom

from fedshift.data.scans import read_scan, read_volumes
from fedshift.inference import masks
from fedshift.inference.masks import mask_path, volume_ml, write_mask
from fedshift.inference.plausible import check_positions
from fedshift.runtime.grids import radiological, resize_images, restore
from fedshift.runtime.segmentation import SliceSpec, segment

from .conftest import BALL, bright, dice, write_ball

CODES = [
    "".join(letters) for axes in itertools.permutations(("RL", "AP", "IS")) for letters in itertools.product(*axes)
]


def find(path: Path, *, matrix: int) -> np.ndarray:
    return segment(read_scan(path).voxels[None], None, bright, SliceSpec(matrix, context=3, scale=1.0))


def centre(mask: np.ndarray) -> np.ndarray:
    return np.argwhere(mask).mean(0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"size": (45, 50, 13)},
        {"size": (64, 64, 9)},
        {"size": (101, 77, 12), "spacing": (0.35, 0.45, 3.0)},
        {"size": (31, 29, 7), "spacing": (1.3, 1.2, 5.0), "radius": 15.0},
        {"direction": rotation(12, 0)},
        {"direction": rotation(-20, 1)},
        {"direction": rotation(35, 2)},
    ],
)
@pytest.mark.parametrize("matrix", [64, 96])
def test_what_is_found_lies_where_it_is(changes: dict[str, Any], matrix: int, tmp_path: Path) -> None:
    path = tmp_path / "scan.nii.gz"
    truth = write_ball(path, **changes)
    scan = read_scan(path)
    write_mask(find(path, matrix=matrix), scan, tmp_path / "mask.nii.gz", source=path)
    voxels = sitk.GetArrayFromImage(sitk.ReadImage(tmp_path / "mask.nii.gz"))
    wanted = sitk.GetArrayFromImage(truth)
    assert voxels.shape == wanted.shape and dice(voxels, wanted) > 0.97
    assert np.abs(centre(voxels) - centre(wanted)).max() < 0.1, "voxels"


@pytest.mark.parametrize("code", CODES)
def test_a_mask_has_the_geometry_of_its_file_in_every_order_of_axes(code: str, tmp_path: Path) -> None:
    image, truth = (sitk.DICOMOrient(made, code) for made in volume(**BALL, direction=rotation(10, 0)))
    sitk.WriteImage(image, tmp_path / "scan.nrrd")
    scan = tmp_path / "scan.nrrd"
    write_mask(find(scan, matrix=64), read_scan(scan), tmp_path / "mask.nrrd", source=scan)
    written = sitk.ReadImage(tmp_path / "mask.nrrd")
    for what in ("GetSize", "GetSpacing", "GetOrigin", "GetDirection"):
        assert np.allclose(getattr(written, what)(), getattr(image, what)(), atol=1e-6), what
    assert dice(sitk.GetArrayFromImage(written), sitk.GetArrayFromImage(truth)) > 0.97


@pytest.mark.parametrize("suffix", [".nii.gz", ".nii", ".nrrd", ".mha", ".mhd"])
def test_a_mask_is_written_in_the_format_of_its_scan(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.b{suffix}"
    truth = write_ball(path, direction=rotation(10, 1))
    mask = mask_path(path, tmp_path)
    assert mask == tmp_path / f"a.b_mask{suffix}"
    write_mask(find(path, matrix=64), read_scan(path), mask, source=path)
    assert dice(sitk.GetArrayFromImage(sitk.ReadImage(mask)), sitk.GetArrayFromImage(truth)) > 0.97
    if suffix.startswith(".nii"):
        assert np.allclose(nibabel.load(mask).affine, nibabel.load(path).affine, atol=1e-4)
        assert set(np.unique(nibabel.load(mask).dataobj)) == {0, 1}


def test_a_dicom_folder_gets_a_nifti_mask(tmp_path: Path) -> None:
    image, truth = volume(**BALL)
    write_dicom(tmp_path / "series.1", image)
    mask = mask_path(tmp_path / "series.1", tmp_path)
    assert mask.name == "series.1_mask.nii.gz"
    scan = read_scan(tmp_path / "series.1")
    write_mask(find(tmp_path / "series.1", matrix=64), scan, mask, source=tmp_path / "series.1")
    written = sitk.ReadImage(mask)
    assert np.allclose(written.GetOrigin(), image.GetOrigin(), atol=1e-3)
    assert dice(sitk.GetArrayFromImage(written), sitk.GetArrayFromImage(truth)) > 0.97
    assert volume_ml(scan.voxels > 500, scan) == pytest.approx(4 / 3 * np.pi * 1.1**3, rel=0.05)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("degrees", [45, -45, 135])
def test_axes_halfway_between_two_directions_get_their_mask(degrees: int, axis: int, tmp_path: Path) -> None:
    """Which directions they are called by differs between DICOM's cosines and a mask's; the places do not."""
    image, _ = volume(**BALL, direction=tuple(np.round(rotation(degrees, axis), 8)))
    series, out = tmp_path / "s", tmp_path / "mask.nii.gz"
    write_slices(series, image)
    scan = read_scan(series)
    write_mask(scan.voxels > 500, scan, out, source=series)
    written = sitk.ReadImage(out)
    outlined = np.argwhere(sitk.GetArrayFromImage(written).T).tolist()
    below = [image.TransformPhysicalPointToIndex(written.TransformIndexToPhysicalPoint(at)) for at in outlined]
    wanted = np.argwhere(sitk.GetArrayFromImage(image).T > 500).tolist()
    assert sorted(map(list, below)) == sorted(wanted) != []
    elsewhere = replace(scan, origin=(scan.origin[0] + scan.spacing[0], *scan.origin[1:]))
    assert not masks._lies_on(read_scan(out), scan.voxels > 500, elsewhere)
    assert not masks._lies_on(read_scan(out), scan.voxels > 2000, scan)


def test_a_mask_that_reads_otherwise_than_it_was_written_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ball(tmp_path / "scan.nii.gz")
    scan = read_scan(tmp_path / "scan.nii.gz")
    monkeypatch.setattr(masks, "read_scan", lambda path: scan)
    with raises("mask-differs", naming="mask.nii.gz"):
        write_mask(scan.voxels > 500, scan, tmp_path / "mask.nii.gz", source=tmp_path / "scan.nii.gz")
    assert not (tmp_path / "mask.nii.gz").exists()


@pytest.mark.parametrize(("qform", "sform"), [(1, 1), (1, 2), (0, 2), (1, 0), (1, 4)])
@pytest.mark.parametrize("code", ["LPS", "PIR", "RAS"])
def test_a_nifti_mask_lies_where_every_reader_takes_the_scan_to_be(
    qform: int, sform: int, code: str, tmp_path: Path
) -> None:
    image, _ = (sitk.DICOMOrient(made, code) for made in volume(**BALL, direction=rotation(10, 0)))
    sitk.WriteImage(image, tmp_path / "made.nii.gz")
    scan = nibabel.load(tmp_path / "made.nii.gz")
    elsewhere = scan.affine.copy()
    elsewhere[0, 3] += 30 if sform == 2 else 0
    scan.header.set_sform(elsewhere, sform)
    scan.header.set_qform(scan.header.get_qform(), qform)
    scan.header["descrip"] = b"Name of a patient"
    path = tmp_path / "scan.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.asarray(scan.dataobj), None, scan.header), path)
    write_mask(find(path, matrix=64), read_scan(path), tmp_path / "mask.nii.gz", source=path)
    mask, own = nibabel.load(tmp_path / "mask.nii.gz"), nibabel.load(path)
    np.testing.assert_array_equal(mask.affine, own.affine)
    np.testing.assert_array_equal(mask.header.get_qform(), own.header.get_qform())
    np.testing.assert_array_equal(mask.header.get_sform(), own.header.get_sform())
    for key in ("qform_code", "sform_code", "xyzt_units", "pixdim", "dim"):
        np.testing.assert_array_equal(mask.header[key], own.header[key])
    assert not bytes(mask.header["descrip"].item())
    voxels, found = np.asarray(own.dataobj), np.asarray(mask.dataobj)
    assert dice(found > 0, voxels > 500) > 0.97, "voxel by voxel, as the file stores them"
    told = list(check_positions(read_scan(path)))
    assert len(told) == (qform > 0 and sform == 2) and all("30 mm" in sentence for sentence in told)


@pytest.mark.parametrize(
    ("quaternion", "qform", "sform", "told"),
    [
        ((1.00001, 0.0, 0.0), 1, 1, "the sform is used"),
        ((0.70712, 0.70712, 0.0), 1, 2, "the quaternion, scaled to length 1, is used"),
        ((0.9, 0.9, 0.9), 0, 1, None),
    ],
    ids=["rounded", "no sform of the scanner's", "unused"],
)
def test_a_qform_that_is_no_rotation_is_told_and_copied(
    quaternion: tuple[float, float, float], qform: int, sform: int, told: str | None, tmp_path: Path
) -> None:
    """Nibabel makes no matrix of a quaternion that is longer than 1; SimpleITK reads such files."""
    path, out = tmp_path / "scan.nii", tmp_path / "mask.nii"
    image = nibabel.Nifti1Image(np.arange(9 * 11 * 7, dtype=np.int16).reshape(9, 11, 7), np.diag([0.7, 0.8, 3, 1]))
    image.header.set_qform(image.affine, qform)
    image.header.set_sform(image.affine, sform)
    image.header["quatern_b"], image.header["quatern_c"], image.header["quatern_d"] = quaternion
    nibabel.save(image, path)
    scan = read_scan(path)
    remarks = list(check_positions(scan))
    if told is None:
        assert remarks == []
    else:
        assert len(remarks) == 1 and "qform" in remarks[0] and told in remarks[0]
    write_mask(scan.voxels > 300, scan, out, source=path)
    mask = nibabel.load(out)
    for key in masks.POSITION_FIELDS:
        np.testing.assert_array_equal(mask.header[key], nibabel.load(path).header[key])
    np.testing.assert_array_equal(np.asarray(mask.dataobj), np.asarray(image.dataobj) > 300)
    mask.header["quatern_b"] = 0.5
    nibabel.save(mask, out)
    assert masks._position_fields(out) != masks._position_fields(path)


@pytest.mark.parametrize("volumes", [1, 2])
def test_the_mask_of_a_4d_file_is_one_volume_at_its_place(volumes: int, tmp_path: Path) -> None:
    truth, file = write_ball(tmp_path / "scan.nii.gz", direction=rotation(12, 0)), tmp_path / "4d.nii.gz"
    scan = sitk.ReadImage(str(tmp_path / "scan.nii.gz"))
    sitk.WriteImage(sitk.JoinSeries([scan] * volumes, 0.0, 2.5), str(file))
    (read,) = read_volumes(file, [0])
    write_mask(read.voxels > 500, read, tmp_path / "m.nii.gz", source=file)
    mask = sitk.ReadImage(str(tmp_path / "m.nii.gz"))
    assert mask.GetSize() == truth.GetSize() and nibabel.load(tmp_path / "m.nii.gz").ndim == 3
    np.testing.assert_array_equal(sitk.GetArrayFromImage(mask), sitk.GetArrayFromImage(truth))
    for key in ("srow_x", "srow_y", "srow_z", "qoffset_x"):
        assert np.array_equal(*(nibabel.load(tmp_path / name).header[key] for name in ("m.nii.gz", "4d.nii.gz")))


def test_a_grid_of_the_networks_size_comes_back_as_it_was() -> None:
    voxels = np.random.default_rng(0).integers(0, 250, (5, 32, 32)).astype(np.uint8)
    there = resize_images(radiological(voxels), 32)
    assert np.array_equal(restore(there, 32, 32), there), "a radiologist's view"
    assert np.array_equal(radiological(there), voxels), "undone"
