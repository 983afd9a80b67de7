"""Scans in formats that are not read are named, wherever a folder is looked at, with what converts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from errors import raises
from scanfiles import volume, write_described, write_pair

from fedshift.data.check import check
from fedshift.data.layouts.find import find_sets, gather
from fedshift.data.other_formats import how_to_convert, in_other_formats, other_format
from fedshift.data.scan_folders import not_read, scans_in
from fedshift.data.scans import read_scan
from fedshift.schema.errors import DataError

NAMES = {
    "P9.mif": "mrconvert",
    "P9.mif.gz": "mrconvert",
    "P9.mih": "mrconvert",
    "P9.mgz": "nib-convert",
    "P9.mgh": "nib-convert",
    "P9.mnc": "nib-convert",
    "P9.hdr": "nib-convert",
    "P9.img": "nib-convert",
    "P9.HEAD": "3dAFNItoNIFTI",
    "P9.BRIK.gz": "3dAFNItoNIFTI",
    "P9.PAR": "parrec2nii",
    "P9.nhdr": "3D Slicer",
    "P9.gipl.gz": "3D Slicer",
    "P9.vtk": "3D Slicer",
    "P9.b2nd": "nnUNet_raw",
    "P9.npy": "no voxel sizes",
    "P9.npz": "no voxel sizes",
    "P9.h5": "no voxel sizes",
    "P9.tif": "no voxel sizes",
    "P9.tiff": "no voxel sizes",
    "P9.nii.bz2": "unpack",
    "P9.nii.xz": "unpack",
    "P9.nii.gz.zip": "unpack",
    "P9.nrrd.gz": "unpack",
    "P9.mha.zst": "unpack",
}


def beside(folder: Path) -> list[Path]:
    write_pair(folder, "P1")
    return [folder]


def folders(folder: Path) -> list[Path]:
    image, mask = volume(1)
    for part, made in (("images", image), ("masks", mask)):
        (folder / part).mkdir(parents=True)
        sitk.WriteImage(made, str(folder / part / "P1.nii.gz"))
    return [folder, folder / "images", folder / "masks"]


def case_folders(folder: Path) -> list[Path]:
    image, mask = volume(1)
    (folder / "P1").mkdir(parents=True)
    sitk.WriteImage(image, str(folder / "P1" / "T2.nii.gz"))
    sitk.WriteImage(mask, str(folder / "P1" / "mask.nii.gz"))
    (folder / "P2").mkdir()
    return [folder, folder / "P1", folder / "P2"]


def sites(folder: Path) -> list[Path]:
    write_pair(folder / "NORTH", "P1")
    (folder / "SOUTH").mkdir()
    return [folder / "NORTH", folder / "SOUTH"]


def described(folder: Path) -> list[Path]:
    write_described(folder)
    return [folder / "imagesTr", folder / "labelsTr"]


@pytest.mark.parametrize("make", [beside, folders, case_folders, sites, described])
@pytest.mark.reads("list: scans in formats that are not read beside others")
def test_every_layout_names_what_is_passed_over(make: Callable[[Path], list[Path]], tmp_path: Path) -> None:
    for place in make(tmp_path / "set"):
        (place / "P9.mif").write_bytes(b"")
        (place / "P8.b2nd").write_bytes(b"")
        findings = [finding for finding in check(tmp_path / "set") if "not read" in finding.message]
        assert [(finding.level, finding.file) for finding in findings] == [("warning", place)], make
        assert "P8.b2nd, P9.mif" in findings[0].message and "mrconvert" in findings[0].remedy
        (place / "P9.mif").unlink()
        (place / "P8.b2nd").unlink()


def test_two_named_folders_are_looked_at(tmp_path: Path) -> None:
    folders(tmp_path)
    (tmp_path / "masks" / "P1.mgz").write_bytes(b"")
    (tables,) = gather(None, images=tmp_path / "images", masks=tmp_path / "masks")
    assert [finding.file for finding in tables.findings] == [tmp_path / "masks"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.reads("list: nothing but scans in formats that are not read")
def test_a_folder_with_nothing_else_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_bytes(b"x")
    remedy = NAMES[name]
    with raises("format-not-read", naming=(f"({name})", remedy)):
        find_sets(tmp_path / "set")
    with pytest.raises(DataError, match=f"only {name}: .*{remedy}"):
        scans_in([tmp_path / "set"])
    is_tiff = ".tif" in name  # a picture where somebody names it, and this one is none
    with raises("file-damaged" if is_tiff else "format-not-read", naming=name if is_tiff else (name, remedy)):
        read_scan(tmp_path / "set" / name)
    assert any(name in line and remedy in line for line in not_read([tmp_path / "set"]))
    assert [finding.level for finding in check(tmp_path / "set")] == ["error"]


@pytest.mark.parametrize(
    "name", ["P1.nii.gz", "P1.nii.zst", "P1.nrrd", "P1.seg.nrrd", "P1.mha", "P1.mhd", "P1.raw", "P1.zraw", "P1.json"]
)
def test_what_is_read_or_no_scan_is_not_named(name: str) -> None:
    assert other_format(Path(name)) is None


def test_of_two_files_the_header_is_named(tmp_path: Path) -> None:
    for name in ("a.hdr", "a.img", "b.img", "c.HEAD", "c.BRIK", "d.mhd", "d.img", "e.par", "e.rec"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "f.zarr").mkdir()
    (tmp_path / "g.npy").mkdir()
    named = [file.name for file in in_other_formats(sorted(tmp_path.iterdir()))]
    assert named == ["a.hdr", "b.img", "c.HEAD", "e.par", "f.zarr"]
    assert (
        how_to_convert([tmp_path / "a.hdr", tmp_path / "b.img"]) == "convert with nibabel, `nib-convert IN OUT.nii.gz`"
    )


def test_nibabel_converts_as_the_mend_says(tmp_path: Path) -> None:
    import nibabel
    from nibabel.cmdline.convert import main

    nibabel.save(nibabel.MGHImage(np.zeros((4, 5, 6), np.int16), np.diag([1, 2, 3, 1.0])), tmp_path / "a.mgz")
    main([str(tmp_path / "a.mgz"), str(tmp_path / "a.nii.gz")])
    assert read_scan(tmp_path / "a.nii.gz").spacing == pytest.approx((1, 2, 3))
