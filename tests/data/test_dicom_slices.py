"""DICOM images of one frame as pictures to segment: their values, their colours, and the size of their pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicompictures import write_dicom
from errors import raises
from PIL import Image
from pydicom.uid import SecondaryCaptureImageStorage, UltrasoundImageStorage
from segmentpictures import disc

from data_prep.own_scans import prepare_own
from fedshift.data.check import check
from fedshift.data.picture_scan import as_picture
from fedshift.data.prepared import read_images
from fedshift.data.scans import read_scan, read_volumes
from fedshift.schema.manifest import read_manifest

CLASSES = ("background", "disc")


def write_radiographs(folder: Path, **tags: Any) -> Path:
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(3):
        picture, inside = disc(number)
        write_dicom(folder / "images" / f"p{number}.dcm", picture[..., 0].astype(np.uint16) * 16, **tags)
        Image.fromarray(np.uint8(255) * inside).save(folder / "masks" / f"p{number}.png")
    return folder


@pytest.mark.reads("picture to segment: radiographs, ultrasound and secondary captures in DICOM")
def test_radiographs_with_masks_are_pictures_of_sixteen_bits(tmp_path: Path) -> None:
    source = write_radiographs(tmp_path / "raw", PixelSpacing=[0.4, 0.2], PixelSpacingCalibrationType="GEOMETRY")
    assert check(source, classes=CLASSES, wanted=()) == []
    site = prepare_own(None, None, "A", tmp_path, dataset="d", source=source, classes=CLASSES, wanted=())
    manifest = read_manifest(site)
    case = manifest.cases[0]
    assert manifest.known_spacing(case) == (1.0, 0.4, 0.2)
    voxels = as_picture(read_images(site, manifest, case)[0])
    shown = np.rint(disc(int(case.id[1:]))[0][..., 0].astype(float) * 16 / 4095 * 65535)
    assert voxels.dtype == np.uint16 and np.abs(voxels - shown).max() <= 1
    assert case.reading["image"].bits == "12 of 16 bits, unsigned"


def test_inverted_values_are_turned(tmp_path: Path) -> None:
    pixels = disc(1)[0][..., 0].astype(np.uint16) * 16
    plain = read_scan(write_dicom(tmp_path / "plain.dcm", pixels)).voxels
    turned = read_scan(write_dicom(tmp_path / "turned.dcm", pixels, PhotometricInterpretation="MONOCHROME1")).voxels
    np.testing.assert_array_equal(plain, 65535 - turned)


@pytest.mark.reads("picture to segment: colours where grey is asked for")
def test_colours_are_refused_where_grey_is_asked_for(tmp_path: Path) -> None:
    pixels = disc(1)[0]
    path = write_dicom(tmp_path / "a.dcm", pixels, SOPClassUID=SecondaryCaptureImageStorage)
    scans = read_volumes(path, (0, 1, 2))
    np.testing.assert_array_equal(np.stack([as_picture(scan.voxels) for scan in scans], -1), pixels)
    with raises("colour-voxels", naming=("a.dcm", "burnt in")):
        read_scan(path)


@pytest.mark.reads("picture to segment: Pixel Spacing of DICOM")
@pytest.mark.parametrize(
    ("tags", "spacing"),
    [
        ({}, (1.0, 1.0)),
        ({"ImagerPixelSpacing": [0.2, 0.2]}, (1.0, 1.0)),
        ({"ImagerPixelSpacing": [0.2, 0.2], "PixelSpacing": [0.2, 0.2]}, (1.0, 1.0)),
        ({"ImagerPixelSpacing": [0.2, 0.2], "PixelSpacing": [0.16, 0.16]}, (0.16, 0.16)),
        (
            {"ImagerPixelSpacing": [0.2, 0.2], "PixelSpacing": [0.2, 0.2], "PixelSpacingCalibrationType": "FIDUCIAL"},
            (0.2, 0.2),
        ),
        ({"NominalScannedPixelSpacing": [0.2, 0.2], "PixelSpacing": [0.2, 0.2]}, (1.0, 1.0)),
        ({"NominalScannedPixelSpacing": [0.2, 0.2], "PixelSpacing": [0.16, 0.16]}, (0.16, 0.16)),
        ({"PixelSpacing": [0.3, 0.2]}, (1.0, 1.0)),
        ({"PixelSpacing": [0.3, 0.2], "PixelSpacingCalibrationType": "GEOMETRY"}, (0.2, 0.3)),
        ({"PixelSpacing": [0.3, 0.2], "SOPClassUID": UltrasoundImageStorage}, (0.2, 0.3)),
        ({"PixelSpacing": [0, 0.2]}, (1.0, 1.0)),
    ],
)
def test_distances_in_the_patient_are_those_of_the_standard(
    tmp_path: Path, tags: dict[str, Any], spacing: tuple[float, float]
) -> None:
    scan = read_scan(write_dicom(tmp_path / "a.dcm", np.arange(64, dtype=np.uint16).reshape(8, 8), **tags))
    assert scan.spacing[:2] == spacing
    assert any("not used" in remark for remark in scan.reading.remarks) == (bool(tags) and spacing == (1.0, 1.0))


@pytest.mark.reads("picture to segment: several frames in DICOM")
def test_several_frames_are_refused(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm", np.zeros((8, 8), np.uint16), NumberOfFrames=2)
    with raises("several-frames", naming="a.dcm"):
        read_scan(path)
