"""Headers that say two places of their voxels, two sizes, or nothing: what is refused, and what is only told."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk
from errors import raises

from fedshift.data.scans import read_scan
from fedshift.inference.plausible import check_positions

SIZES = (0.7, 0.8, 3.0)


def write(path: Path, *, pixdim: tuple[float, ...] = SIZES, qform: int = 0, sform: int = 1) -> Path:
    image = nibabel.Nifti1Image(np.arange(9 * 11 * 7, dtype=np.int16).reshape(9, 11, 7), np.diag([*SIZES, 1]))
    image.header.set_sform(image.affine, 1)
    image.header.set_qform(image.affine, 1)
    image.header["qform_code"], image.header["sform_code"] = qform, sform
    image.header["pixdim"][1:4] = pixdim
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), None, image.header), path)
    return path


@pytest.mark.parametrize(
    ("pixdim", "qform", "is_refused"),
    [((1, 1, 1), 0, True), ((0.7, 0.8, 3.3), 0, True), ((0.701, 0.8, 3.0), 0, False), ((1, 1, 1), 1, False)],
    ids=["placeholder", "distance of slices", "rounded", "the qform goes with it, and the two are compared"],
)
@pytest.mark.reads("file: NIfTI whose pixdim and sform have two voxel sizes")
def test_a_header_with_two_voxel_sizes_is_refused(
    pixdim: tuple[float, ...], qform: int, is_refused: bool, tmp_path: Path
) -> None:
    path = write(tmp_path / "scan.nii", pixdim=pixdim, qform=qform)
    if is_refused:
        with raises("voxel-size", naming="0.7"):
            read_scan(path)
        assert read_scan(path, direction=(1, 0, 0, 0, 1, 0, 0, 0, 1)).voxels.any(), "where its header is not trusted"
    else:
        scan = read_scan(path)
        assert scan.spacing == pytest.approx(pixdim) and len(scan.unclear) == qform


@pytest.mark.reads("file: NIfTI with neither qform nor sform")
def test_a_header_without_orientation_is_told_as_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "scan.nii.gz", sform=0)
    scan = read_scan(path)
    (unclear,) = scan.unclear
    (remarks,) = check_positions(scan)
    assert unclear.code == "orientation-missing" and "LPS: " in remarks and scan.stored == "LPS"
    assert read_scan(write(tmp_path / "sound.nii", qform=1)).unclear == ()


def tilted(path: Path, degrees: float) -> Path:
    """A scan of 192 x 192 x 69 mm, axial as DICOM has them and tilted about all axes; written by SimpleITK."""
    direction = sitk.Euler3DTransform((0, 0, 0), *np.radians((degrees, degrees / 3, degrees / 50))).GetMatrix()
    image = sitk.Image(384, 384, 24, sitk.sitkUInt8)
    image.SetSpacing((0.5, 0.5, 3.0))
    image.SetOrigin((-93.1, -71.7, 40.3))
    image.SetDirection(direction)
    sitk.WriteImage(image, str(path))
    return path


@pytest.mark.parametrize("degrees", [0, *np.geomspace(0.05, 90, 20)])
def test_a_quaternion_in_32_bits_is_no_second_position(degrees: float, tmp_path: Path) -> None:
    """Its first part is near 0 in axial scans, and rounding of the others turns the volume by up to a thousandth."""
    path = tilted(tmp_path / "scan.nii.gz", degrees)
    scan = read_scan(path)
    assert scan.unclear == () and (scan.reading.geometry or "").endswith("agree")


@pytest.mark.parametrize("degrees", [0, 1, 2, 30])
@pytest.mark.parametrize("change", ["shifted by 0.3 mm", "turned by 0.3 degrees"])
@pytest.mark.reads("file: NIfTI with a qform and an sform that differ")
def test_a_qform_elsewhere_is_told(degrees: float, change: str, tmp_path: Path) -> None:
    image = nibabel.load(tilted(tmp_path / "scan.nii.gz", degrees))
    qform, turn = image.header.get_sform(), np.radians(0.3)
    if change.startswith("shifted"):
        qform[2, 3] += 0.3
    else:
        turned = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
        qform[:3, :3] = turned @ qform[:3, :3]
    image.header.set_qform(qform, 1)
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), None, image.header), tmp_path / "other.nii.gz")
    scan = read_scan(tmp_path / "other.nii.gz")
    (unclear,) = scan.unclear
    assert unclear.code == "forms-differ" and "qform" in unclear.what
    assert (scan.reading.geometry or "").endswith("differs")
