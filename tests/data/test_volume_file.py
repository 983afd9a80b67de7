"""NIfTI, NRRD and MetaImage files: what is read of them, converted, warned of and refused, by value."""

from __future__ import annotations

import bz2
import gzip
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk

from fedshift.data.scan_file import ScanError
from fedshift.data.scans import file_of, odd_size, read_scan, read_volumes, volumes_in
from fedshift.inference.masks import mask_path, volume_ml, write_mask

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SIZES = (1.2, 0.8, 3.0)
VALUES = np.arange(5 * 6 * 7, dtype=np.int16).reshape(5, 6, 7)  # x, y, z
TURN = np.array([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, 1.0]])
IN_FILE = VALUES.tobytes(order="F")
AFFINE = np.eye(4)
AFFINE[:3, :3], AFFINE[:3, 3] = TURN * SIZES, (-20, 30, 40)


def nifti(
    path: Path,
    *,
    kind: type = nibabel.Nifti1Image,
    values: np.ndarray = VALUES,
    affine: np.ndarray = AFFINE,
    units: int = 2,
    qform: int = 1,
    scaling: tuple[float, float] = (1, 0),
) -> Path:
    image = kind(values, affine)
    image.header["xyzt_units"] = units
    image.set_qform(affine, qform)
    image.set_sform(affine, 1)
    nibabel.save(image, path)
    content = bytearray(path.read_bytes())
    if path.name.endswith(".nii"):
        place, form = (112, "<ff") if kind is nibabel.Nifti1Image else (176, "<dd")
        struct.pack_into(form, content, place, *scaling)
        path.write_bytes(content)
    return path


def nrrd(
    path: Path, *fields: str, space: str = "left-posterior-superior", factors: tuple[float, ...] = (1, 1, 1)
) -> Path:
    """``factors``: what lengths along x, y and z of the world are written times."""
    lines = ["NRRD0005", "type: short", "dimension: 3", "sizes: 5 6 7", "endian: little", "encoding: raw"]
    if space:
        axes = (np.diag(factors) @ (TURN * SIZES)).T
        lines += [f"space: {space}", "space directions: " + " ".join(f"({x},{y},{z})" for x, y, z in axes)]
        lines.append("space origin: ({},{},{})".format(*np.multiply(factors, (20, -30, 40))))
    path.write_bytes("\n".join([*lines, *fields, "", ""]).encode() + VALUES.tobytes(order="F"))
    return path


def _encoded(folder: Path, encoding: str, voxels: bytes, *, beside: bool = False) -> Path:
    """``beside``: in a file of their own."""
    path = _replaced(nrrd(folder / "a.nrrd"), b"encoding: raw", f"encoding: {encoding}".encode())
    header = path.read_bytes()[: -VALUES.nbytes]
    if beside:
        (folder / "a.raw").write_bytes(voxels)
        header, voxels = header[:-1] + b"data file: a.raw\n", b""
    path.write_bytes(header + voxels)
    return path


def _skipping(folder: Path, encoding: str, data: bytes, *fields: str) -> Path:
    """Voxels in a file of their own, of which the header skips what lies before them."""
    (folder / "a.raw").write_bytes(data)
    path = _replaced(
        nrrd(folder / "a.nrrd", *fields, "data file: a.raw"), b"encoding: raw", b"encoding: " + encoding.encode()
    )
    path.write_bytes(path.read_bytes()[: -VALUES.nbytes - 1])
    return path


def meta(path: Path, *fields: str, factor: float = 1, matrix: str = " ".join(map(str, TURN.T.ravel()))) -> Path:
    lines = ["ObjectType = Image", "NDims = 3", "BinaryData = True", "BinaryDataByteOrderMSB = False"]
    lines += [f"TransformMatrix = {matrix}", "Offset = {} {} {}".format(*np.multiply(factor, (20, -30, 40)))]
    lines += ["ElementSpacing = {} {} {}".format(*np.multiply(factor, SIZES)), *fields]
    lines += ["DimSize = 5 6 7", "ElementType = MET_SHORT", "ElementDataFile = LOCAL", ""]
    path.write_bytes("\n".join(lines).encode() + VALUES.tobytes(order="F"))
    return path


def _text(values: np.ndarray) -> bytes:
    return " ".join(map(str, values.ravel(order="F").tolist())).encode()


def _in_text(folder: Path, values: np.ndarray) -> Path:
    path = _replaced(meta(folder / "a.mha"), b"BinaryData = True", b"BinaryData = False")
    path.write_bytes(path.read_bytes()[: -VALUES.nbytes] + _text(values) + b"\n")
    return path


def _compressed(folder: Path, values: np.ndarray, *, size: int | None = None) -> Path:
    """``size``: bytes of compressed voxels as the header says; 0 if it does not say it."""
    packed = zlib.compress(values.tobytes(order="F"))
    fields = [f"CompressedDataSize = {len(packed) if size is None else size}"] if size != 0 else []
    plain = meta(folder / "a.mha", "CompressedData = True", *fields).read_bytes()
    (folder / "a.mha").write_bytes(plain[: -VALUES.nbytes] + packed)
    return folder / "a.mha"


def _of_slices(folder: Path, where: str, *, last: int = 7, end: str = "\n") -> Path:
    """A file for each slice, of which a list names those up to ``last``."""
    for number in range(1, 8):
        (folder / f"s{number}.raw").write_bytes(VALUES[..., number - 1].tobytes(order="F"))
    named = "\n".join(f"s{number}.raw" for number in range(1, last + 1)) + end if where.startswith("LIST") else ""
    head = meta(folder / "a.mhd").read_bytes()[: -VALUES.nbytes].replace(b"LOCAL", where.encode())
    (folder / "a.mhd").write_bytes(head + named.encode())
    return folder / "a.mhd"


def _replaced(path: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    return path


def _without(path: Path, name: bytes) -> Path:
    """A file without the line of its header that begins with ``name``."""
    before, line, after = path.read_bytes().partition(name)
    path.write_bytes(before + after.partition(b"\n")[2])
    assert line
    return path


def where(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Affine in ITK's world, mm, of the file's volume in RAS, and its values."""
    scan = read_scan(path)
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(scan.direction, (3, 3)) * np.array(scan.spacing)
    affine[:3, 3] = scan.origin
    return affine, scan.voxels


@pytest.mark.parametrize(
    ("write", "like", "said"),
    [
        pytest.param(
            lambda f: nifti(f / "a.nii.gz"), nifti, {"format": "NIfTI-1", "bits": "16 bits, signed"},
            marks=pytest.mark.reads("file: NIfTI-1, .nii and .nii.gz"),
        ),
        pytest.param(
            lambda f: nifti(f / "a.nii.gz", kind=nibabel.Nifti2Image), nifti, {"format": "NIfTI-2"},
            marks=pytest.mark.reads("file: NIfTI-2"),
        ),
        pytest.param(
            lambda f: nifti(f / "a.nii", kind=nibabel.Nifti2Image, qform=0, units=1, affine=_times(0.001)), nifti,
            {"format": "NIfTI-2", "units": "lengths in m, converted to mm", "geometry": "sform"}, id="NIfTI-2 in m",
        ),
        pytest.param(lambda f: nifti(f / "a.nii.zst"), nifti, {"format": "NIfTI-1"},
        marks=pytest.mark.reads("file: .nii.zst")),
        pytest.param(
            lambda f: nifti(f / "a.nii.zst", kind=nibabel.Nifti2Image), nifti, {"format": "NIfTI-2"}, id="NIfTI-2, zst"
        ),
        pytest.param(
            lambda f: nifti(f / "a.nii", units=3, affine=_times(1000)), nifti,
            {"units": "lengths in micron, converted to mm"},
            marks=pytest.mark.reads("file: NIfTI with lengths in m or micron"),
        ),
        pytest.param(
            lambda f: nifti(f / "a.nii", units=0), nifti, {"units": "lengths without a unit, taken for mm"},
            marks=pytest.mark.reads("file: NIfTI without a unit of length"),
        ),
        pytest.param(
            lambda f: nifti(f / "a.nii", units=8 + 2), nifti, {"geometry": "qform and sform, which agree"},
            id="mm and seconds",
        ),
        pytest.param(
            lambda f: nrrd(f / "a.nrrd", 'space units: "um" "um" "um"', factors=(1000,) * 3), nrrd,
            {"units": "lengths in um, converted to mm"}, marks=pytest.mark.reads("file: NRRD with space units"),
        ),
        pytest.param(
            lambda f: nrrd(f / "a.nrrd", 'space units: "mm" "mm" "m"', factors=(1, 1, 0.001)), nrrd,
            {"units": "lengths in mm, mm, m, converted to mm"}, id="units of single axes",
        ),
        pytest.param(
            lambda f: nrrd(f / "a.nrrd", 'space units: "cm" "cm" "cm"', factors=(0.1,) * 3), nrrd,
            {"format": "NRRD"}, id="cm",
        ),
        pytest.param(
            lambda f: nrrd(f / "a.nrrd", 'space units: "" "" ""'), nrrd,
            {"units": "lengths without a unit, taken for mm"}, id="no units",
        ),
        pytest.param(
            lambda f: nrrd(f / "a.nrrd", space="right-anterior-superior", factors=(-1, -1, 1)), nrrd,
            {"geometry": "space directions in right-anterior-superior"},
            marks=pytest.mark.reads("file: NRRD in RAS, LAS or LPS"),
        ),
        pytest.param(
            lambda f: nrrd(f / "a.nrrd", 'spaceunits: "um" "um" "um"', factors=(1000,) * 3), nrrd,
            {"units": "lengths in um, converted to mm"},
            marks=pytest.mark.reads("file: NRRD with fields and spaces in one word"),
        ),
        pytest.param(
            lambda f: _encoded(f, "gzip", gzip.compress(VALUES.tobytes(order="F"))), nrrd, {},
            marks=pytest.mark.reads("file: NRRD in raw, gzip or text"),
        ),
        pytest.param(
            lambda f: _encoded(f, "raw", VALUES.tobytes(order="F"), beside=True), nrrd, {}, id="NRRD in two files"
        ),
        pytest.param(lambda f: _encoded(f, "text", _text(VALUES.astype(float))), nrrd, {}, id="NRRD in text"),
        pytest.param(lambda f: _encoded(f, "txt", _text(VALUES), beside=True), nrrd, {}, id="in text beside it"),
        pytest.param(
            lambda f: _skipping(f, "raw", b"1\n2\n34" + IN_FILE, "line skip: 2", "byteskip: 2"), nrrd, {},
            marks=pytest.mark.reads("file: NRRD whose voxels begin after lines or bytes (line skip, byte skip)"),
        ),
        pytest.param(lambda f: _skipping(f, "raw", b"1\n2" + IN_FILE, "byte skip: -1"), nrrd, {}, id="at the end"),
        pytest.param(lambda f: nrrd(f / "a.nrrd", "line skip: 0", "byte skip: -1"), nrrd, {}, id="all at the end"),
        pytest.param(
            lambda f: _skipping(f, "gzip", b"1\n" + gzip.compress(b"23" + IN_FILE), "line skip: 1", "byte skip: 2"),
            nrrd, {}, id="bytes within gzip",
        ),
        pytest.param(
            lambda f: _skipping(f, "text", b"1\n2 " + _text(VALUES), "line skip: 1", "byte skip: 2"), nrrd, {},
            id="lines of text",
        ),
        pytest.param(
            lambda f: meta(f / "a.mha", "DistanceUnits = um", factor=1000), meta,
            {"format": "MetaImage", "units": "lengths in um, converted to mm"},
            marks=pytest.mark.reads("file: MetaImage with DistanceUnits"),
        ),
        pytest.param(
            lambda f: meta(f / "a.mha", "DistanceUnits = cm", factor=0.1), meta,
            {"bits": "16 bits, signed"}, id="mha cm",
        ),
        pytest.param(lambda f: meta(f / "a.mha", "DistanceUnits = ?"), meta, {}, id="mha ?"),
        pytest.param(lambda f: meta(f / "a.mha", "DistanceUnits = mm"), meta, {}, id="mha mm"),
        pytest.param(lambda f: _replaced(meta(f / "a.mha"), b"ElementSpacing", b"ElementSize"), meta, {}, id="size"),
        pytest.param(lambda f: _replaced(meta(f / "a.mha"), b"Offset", b"Position"), meta, {}, id="position"),
        pytest.param(lambda f: _in_text(f, VALUES), meta, {}, id="mha in text"),
        pytest.param(lambda f: _compressed(f, VALUES), meta, {}, id="mha compressed"),
        pytest.param(
            lambda f: _of_slices(f, "LIST"), meta, {},
            marks=pytest.mark.reads("file: MetaImage with a file for each slice"),
        ),
        pytest.param(lambda f: _of_slices(f, "LIST 2"), meta, {}, id="list of slices"),
        pytest.param(lambda f: _of_slices(f, "s%d.raw 1 7 1"), meta, {}, id="pattern"),
        pytest.param(lambda f: _of_slices(f, "s%d.raw"), meta, {}, id="pattern alone"),
    ],
)  # fmt: skip
def test_voxels_and_places_are_those_of_the_same_scan_in_plain_mm(
    write: Callable[[Path], Path], like: Callable[..., Path], said: dict[str, str], tmp_path: Path
) -> None:
    path = write(tmp_path)
    suffix = {nifti: ".nii", nrrd: ".nrrd", meta: ".mha"}[like]  # type: ignore[index]
    affine, values = where(path)
    wanted, wanted_values = where(like(tmp_path / f"plain{suffix}"))
    assert np.allclose(affine, wanted, rtol=1e-5, atol=1e-4) and np.array_equal(values, wanted_values)
    reading = read_scan(path).reading.model_dump()
    assert said.items() <= reading.items(), reading


def _times(factor: float) -> np.ndarray:
    return np.diag([factor, factor, factor, 1]) @ AFFINE


def test_an_array_in_units_without_a_space(tmp_path: Path) -> None:
    path = nrrd(tmp_path / "a.nrrd", "spacings: 0.12 0.08 0.3 ", 'units: "cm" "cm" "cm"', space="")
    assert read_scan(path).spacing == pytest.approx(SIZES)


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32])
@pytest.mark.parametrize(
    ("scaling", "right", "rescale"),
    [
        pytest.param((0, -1024), (1, 0), None, marks=pytest.mark.reads("file: NIfTI with an scl_slope of 0 or NaN")),
        pytest.param((np.nan, -1024), (1, 0), None),
        pytest.param((0, 0), (1, 0), None),
        pytest.param((0, np.nan), (1, 0), None),
        pytest.param(
            (1, -1024), (1, -1024), "x 1 - 1024", marks=pytest.mark.reads("file: NIfTI with scl_slope and scl_inter")
        ),
        pytest.param((-2, 5), (-2, 5), "x -2 + 5"),
        pytest.param((0.5, 3), (0.5, 3), "x 0.5 + 3"),
    ],
)
def test_intensities_are_scaled_as_the_standard_says(
    kind: type,
    dtype: type,
    scaling: tuple[float, float],
    right: tuple[float, float],
    rescale: str | None,
    tmp_path: Path,
) -> None:
    """… which is as nibabel, and an exported bundle with it, reads them."""
    path = nifti(tmp_path / "a.nii", kind=kind, values=VALUES.astype(dtype), scaling=scaling)
    plain = nifti(tmp_path / "b.nii", values=VALUES.astype(dtype))
    scan = read_scan(path)
    assert np.allclose(scan.voxels, read_scan(plain).voxels.astype(float) * right[0] + right[1])
    assert np.allclose(np.sort(scan.voxels.ravel()), np.sort(np.ravel(nibabel.load(path).get_fdata())))
    assert scan.reading.rescale == rescale
    is_ignored = right == (1, 0) and scaling[1] == -1024
    assert any("is not added" in remark for remark in scan.reading.remarks) == is_ignored


REFUSED = [
    pytest.param(
        lambda f: nifti(f / "a.nii", scaling=(1, np.nan)), r"intercept that is not a number",
        marks=pytest.mark.reads("file: NIfTI with an scl_inter that is not a number"),
    ),
    pytest.param(
        lambda f: nrrd(f / "a.nrrd", 'space units: "mm" "mm" "furlong"'), r"lengths in 'furlong'",
        marks=pytest.mark.reads("file: lengths in a unit that is not known, NRRD or MetaImage"),
    ),
    pytest.param(lambda f: meta(f / "a.mha", "DistanceUnits = furlong"), r"lengths in 'furlong'", id="mha furlong"),
    pytest.param(
        lambda f: nrrd(f / "a.nrrd", space="3D-left-handed"), r"left-handed space",
        marks=pytest.mark.reads("file: NRRD with a left-handed space"),
    ),
    pytest.param(
        lambda f: nrrd(f / "a.nrrd", "spacings: 1.2 0.8 NaN", space=""), r"axis without a voxel size",
        marks=pytest.mark.reads("file: NRRD with an axis without a size"),
    ),
    pytest.param(
        lambda f: nrrd(f / "a.nrrd", "axis mins: 0 0 0\naxis maxs: 9.6 6.4 12", space=""), r"ends of its axes",
        marks=pytest.mark.reads("file: NRRD with the ends of its axes in place of sizes"),
    ),
    pytest.param(
        lambda f: nrrd(f / "a.nrrd", space=""), r"says no size of its voxels in its header",
        marks=pytest.mark.reads("file: NRRD without spacings and space directions"),
    ),
    pytest.param(
        lambda f: nrrd(f / "a.nrrd", "spacings: 1.2 0.8 -3", space=""), r"read as a mirrored axis",
        marks=pytest.mark.reads("file: NRRD with a negative voxel size"),
    ),
    pytest.param(
        lambda f: nrrd(f / "a.nrrd", "spacings: 1.2 0.8 -nan", space=""), r"axis without a voxel size", id="-nan"
    ),
    pytest.param(
        lambda f: nrrd(f / "a.nrrd", "space: LPS", "space directions: (1,0,0) (0,1,0) none", space=""),
        r"without a size or direction", id="no direction",
    ),
    pytest.param(
        lambda f: nrrd(f / "a.nrrd", "space: LPS", "space directions: (1,0,0) (0,1,0) (nan,nan,nan)", space=""),
        r"without a size or direction", id="direction of NaN",
    ),
    pytest.param(
        lambda f: _replaced(nrrd(f / "a.nrrd"), b"(20,-30,40)", b"(nan,nan,nan)"), r"\(space origin \(nan,nan",
        marks=pytest.mark.reads("file: NRRD with a space origin that is not in numbers"),
    ),
    pytest.param(lambda f: _replaced(nrrd(f / "a.nrrd"), b",40)", b")"), r"\(space origin \(20", id="two numbers"),
    pytest.param(
        lambda f: nrrd(f / "a.nrrd", "old min: -1024", "old max: 3071"), r"intensities that stand for others",
        marks=pytest.mark.reads("file: NRRD with intensities that stand for others (old min, old max)"),
    ),
    pytest.param(lambda f: nrrd(f / "a.nrrd", space="3Dlefthanded"), r"left-handed space", id="left-handed, one word"),
    pytest.param(
        lambda f: _replaced(nrrd(f / "a.nrrd"), b"short", b"uchar"), r"has 420 bytes of voxels, and 210 by their type",
        marks=pytest.mark.reads("file: NRRD with more bytes of voxels than its header says"),
    ),
    pytest.param(
        lambda f: _encoded(f, "gzip", gzip.compress(bytes(500)), beside=True), r"has 500 bytes of voxels", id="gzip",
    ),
    pytest.param(lambda f: _encoded(f, "gzip", gzip.compress(bytes(420))[:-9]), r"end too early", id="cut gzip"),
    pytest.param(lambda f: _skipping(f, "raw", bytes(424), "byte skip: 2"), r"has 422 bytes of voxels", id="long"),
    pytest.param(lambda f: _skipping(f, "raw", b"1\n" + bytes(419), "line skip: 1"), r"1 of 420 bytes", id="skip, cut"),
    pytest.param(
        lambda f: _skipping(f, "gzip", gzip.compress(bytes(430)), "byte skip: 2"), r"has 428 bytes", id="skip in gzip",
    ),
    pytest.param(lambda f: _skipping(f, "raw", bytes(419), "byte skip: -1"), r"1 of 420 bytes", id="end, cut"),
    pytest.param(
        lambda f: _skipping(f, "raw", bytes(424), "byte skip: -3"), r"skips -3 bytes in its header",
        marks=pytest.mark.reads("file: NRRD with another byte skip below 0"),
    ),
    pytest.param(
        lambda f: _skipping(f, "gzip", gzip.compress(bytes(430)), "byte skip: -1"), r"skips -1 bytes", id="end of gzip",
    ),
    pytest.param(lambda f: _encoded(f, "raw", bytes(400)), r"20 of 420 bytes are missing", id="cut NRRD"),
    pytest.param(lambda f: nrrd(f / "a.nrrd", "data file: b.raw"), r"data file b.raw is missing", id="no voxels"),
    pytest.param(
        lambda f: _encoded(f, "text", _text(VALUES + 0.5)), r"text than whole ones of its type \(int16\)",
        marks=pytest.mark.reads("file: NRRD of whole numbers with other numbers in its text"),
    ),
    pytest.param(lambda f: _encoded(f, "ascii", _text(VALUES.astype(int) + 65536)), r"in its text", id="more bits"),
    pytest.param(lambda f: _encoded(f, "ascii", _text(VALUES) + b" 1"), r"one for each voxel", id="one number more"),
    pytest.param(lambda f: _encoded(f, "ascii", b"1e1 " * VALUES.size), r"numbers in its text", id="powers of ten"),
    pytest.param(
        lambda f: _encoded(f, "bzip2", bz2.compress(VALUES.tobytes(order="F"))), r"that is not read \(bzip2\): save",
        marks=pytest.mark.reads("file: NRRD in another encoding, such as bzip2"),
    ),
    pytest.param(
        lambda f: nrrd(f / "a.nrrd", "data file: s%d.raw 1 7 1"), r"in several files \(data file: s%d.raw 1 7 1\)",
        marks=pytest.mark.reads("file: NRRD with its voxels in several files"),
    ),
    pytest.param(lambda f: nrrd(f / "a.nrrd", "datafile: LIST\ns1.raw"), r"\(data file: LIST\)", id="NRRD list"),
    pytest.param(
        lambda f: meta(f / "a.mha", "ElementToIntensityFunctionSlope = 2"), r"intensities are its values x 2 \+ 0",
        marks=pytest.mark.reads("file: MetaImage with an ElementToIntensityFunction"),
    ),
    pytest.param(
        lambda f: meta(f / "a.mha", "AnatomicalOrientation = LPS", matrix="1 0 0"), r"3 of 9 numbers for Tra",
        id="short matrix",
    ),
    pytest.param(
        lambda f: _without(meta(f / "a.mha"), b"ElementSpacing"), r"no size of its voxels",
        marks=pytest.mark.reads("file: MetaImage without ElementSpacing and ElementSize"),
    ),
    pytest.param(
        lambda f: _replaced(meta(f / "a.mha"), b"= 1.2 0.8 3.0", b"= 1.2 0.8 -3"), r"0 or negative \(ElementSpacing",
        marks=pytest.mark.reads("file: MetaImage with a voxel size that is 0 or negative"),
    ),
    pytest.param(lambda f: _replaced(meta(f / "a.mha"), b"1.2 0.8 3.0", b"0 1 1"), r"0 or negative", id="mha 0 mm"),
    pytest.param(
        lambda f: _replaced(meta(f / "a.mha"), b"20 -30 40", b"20 -30"), r"2 of 3 numbers for Offset",
        marks=pytest.mark.reads("file: MetaImage with fewer numbers than axes"),
    ),
    pytest.param(
        lambda f: _replaced(meta(f / "a.mha"), b"20 -30 40", b"nan nan nan"), r"0 of 3 numbers for Offset",
        id="no place in numbers",
    ),
    pytest.param(
        lambda f: meta(f / "a.mha", "Position = 1 2 3"), r"Offset and Position in its header, which stand for one",
        marks=pytest.mark.reads("file: MetaImage with two places or matrices that differ"),
    ),
    pytest.param(
        lambda f: meta(f / "a.mha", "ElementByteOrderMSB = True"), r"and ElementByteOrderMSB differently",
        marks=pytest.mark.reads("file: MetaImage with a byte order said twice, or neither True nor False"),
    ),
    pytest.param(lambda f: meta(f / "a.mha", "CompressedData = no"), r"'no' for CompressedData", id="neither true nor"),
    pytest.param(
        lambda f: _replaced(meta(f / "a.mha"), b"5 6 7", b"5 6 6"), r"has 420 bytes of voxels, and 360 by",
        marks=pytest.mark.reads("file: MetaImage with more bytes of voxels than its header says"),
    ),
    pytest.param(
        lambda f: _replaced(meta(f / "a.mha"), b"MET_SHORT", b"MET_UCHAR"), r"420 bytes .*, and 210 by", id="half"
    ),
    pytest.param(
        lambda f: meta(f / "a.mha", "HeaderSize = 8"), r"a HeaderSize, which ITK counts from",
        marks=pytest.mark.reads("file: MetaImage with voxels and a HeaderSize in one file"),
    ),
    pytest.param(
        lambda f: _in_text(f, VALUES + 0.5), r"other numbers in its text than whole ones",
        marks=pytest.mark.reads("file: MetaImage of whole numbers with other numbers in its text"),
    ),
    pytest.param(
        lambda f: _compressed(f, VALUES[..., :6]), r"have 360 bytes, and not 420",
        marks=pytest.mark.reads("file: MetaImage whose compressed voxels are of another length"),
    ),
    pytest.param(lambda f: _compressed(f, VALUES, size=20), r"compressed data end too early", id="a part of them"),
    pytest.param(
        lambda f: _compressed(f, VALUES, size=0), r"does not say how many bytes \(CompressedDataSize\)",
        marks=pytest.mark.reads("file: MetaImage with compressed voxels below its header and no CompressedDataSize"),
    ),
    pytest.param(
        lambda f: _of_slices(f, "LIST", last=5), r"files of their own \(LIST\) that are not one for each",
        marks=pytest.mark.reads(
            "file: MetaImage with other files than one for each slice, or a list whose last line has no end"
        ),
    ),
    pytest.param(lambda f: _of_slices(f, "LIST", end=""), r"\(LIST\) that are not one", id="no end"),
    pytest.param(lambda f: _of_slices(f, "LIST 3"), r"\(LIST 3\) that are not one", id="volumes"),
    pytest.param(lambda f: _of_slices(f, "s%d.raw 1 5 1"), r"\(s%d.raw 1 5 1\) that are not one", id="five of seven"),
    pytest.param(
        lambda f: nrrd(f / "a.nrrd", 'space units: "mm" "um" "mm"'), r"sheared coordinate system",
        marks=pytest.mark.reads("file: axes without right angles"),
    ),
    pytest.param(
        lambda f: _cut(nifti(f / "a.nii.zst"), 0.5), r"compressed data end too early",
        marks=pytest.mark.reads("file: a truncated or damaged file"),
    ),
    pytest.param(lambda f: _cut(nifti(f / "a.nii"), 0.9), r"bytes are missing", id="cut"),
    pytest.param(
        lambda f: _cut(nifti(f / "a.nii", kind=nibabel.Nifti2Image), 0.9), r"bytes are missing", id="cut nii2"
    ),
    pytest.param(lambda f: _changed(nifti(f / "a.nii.zst")), r"compressed data are damaged", id="damaged zst"),
    pytest.param(
        lambda f: nifti(f / "a.nii.gz").rename(f / "b.nii.zst"), r"is compressed as \.gz: rename it to b\.nii\.gz",
        marks=pytest.mark.reads("file: a name of another compression than the file's"),
    ),
    pytest.param(lambda f: nifti(f / "a.nii.zst").rename(f / "b.nii"), r"rename it to b\.nii\.zst", id="zst as nii"),
    pytest.param(
        lambda f: nifti(f / "a.nii").rename(f / "b.nii.zst"), r"not compressed: rename it to b\.nii", id="nii as zst"
    ),
    pytest.param(
        lambda f: nifti(f / "a.nii", kind=nibabel.Nifti2Image, values=VALUES.astype(np.complex64)), r"complex voxels",
        marks=pytest.mark.reads("file: complex or colour voxels"),
    ),
    pytest.param(lambda f: nifti(f / "a.nii.zst", values=_rgb()), r"3 values per voxel", id="colour, zst"),
    pytest.param(
        lambda f: nifti(f / "a.nii.zst", values=np.where(VALUES == 7, np.nan, VALUES).astype(np.float32)),
        r"1 voxel\(s\) that are NaN",
        marks=pytest.mark.reads("file: NaN or infinite voxels"),
    ),
    pytest.param(
        lambda f: nifti(f / "a.nii", kind=nibabel.Nifti2Image, values=VALUES[..., :2]), r"has 2 slice\(s\)",
        marks=pytest.mark.reads("file: fewer than three slices"),
    ),
    pytest.param(
        lambda f: _without_size(nifti(f / "a.nii")), r"voxels of 0 x 0\.8 x 3 mm in its header \(pixdim\)",
        marks=pytest.mark.reads("file: NIfTI with voxel sizes that are 0, negative or NaN, or a singular affine"),
    ),
    pytest.param(
        lambda f: nifti(f / "a.nii", kind=nibabel.Nifti2Image, values=np.zeros((40000, 3, 3), np.uint8)),
        r"more than 32,767 along an axis",
        marks=pytest.mark.reads("file: more than 2^30 voxels, or 32,767 along an axis"),
    ),
    pytest.param(
        lambda f: _packed(nifti(f / "a.nii"), 108, 0), r"from byte 0 on by its header \(vox_offset\)",
        marks=pytest.mark.reads("file: NIfTI whose voxels begin within its header (vox_offset)"),
    ),
    pytest.param(
        lambda f: nifti(f / "a.nii", values=np.stack([VALUES, VALUES], -1)), r"is 4D",
        marks=pytest.mark.reads("file: several volumes in one file, where nothing names them"),
    ),
    pytest.param(
        lambda f: nifti(f / "a.nii", values=np.stack([VALUES, VALUES], -1)[..., None, :]),
        r"is 5D \(5 x 6 x 7 x 1 x 2\), and at most 4D is read: save the volume",
        marks=pytest.mark.reads("file: several volumes along more than one axis (5D and more)"),
    ),
    pytest.param(
        lambda f: nifti(f / "a.nii", values=np.stack([VALUES, VALUES], -1)[..., None, None, :]), r"is 6D", id="6D"
    ),
    pytest.param(
        lambda f: nifti(f / "a.nii").rename(f / "a.mif"), r"not read \(MRtrix\): convert with MRtrix",
        marks=pytest.mark.reads("file: a format that is not read, by name"),
    ),
]  # fmt: skip


def _rgb() -> np.ndarray:
    return np.zeros(VALUES.shape, dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])


def _without_size(path: Path) -> Path:
    return _packed(path, 80, 0)


def _packed(path: Path, place: int, number: float) -> Path:
    """With another number at a place of the header."""
    content = bytearray(path.read_bytes())
    struct.pack_into("<f", content, place, number)
    path.write_bytes(content)
    return path


def _cut(path: Path, part: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    return path


def _changed(path: Path) -> Path:
    """Compressed data with a checksum, and one byte of the last block of which is another."""
    content = zstd.decompress(path.read_bytes())
    packed = bytearray(zstd.compress(content, options={zstd.CompressionParameter.checksum_flag: 1}))
    packed[-1] ^= 255
    path.write_bytes(packed)
    return path


@pytest.mark.parametrize(("write", "words"), REFUSED)
def test_what_cannot_be_read_right_is_refused_by_its_name(
    write: Callable[[Path], Path], words: str, tmp_path: Path
) -> None:
    path = write(tmp_path)
    with pytest.raises(ScanError, match=words) as caught:
        read_scan(path)
    assert path.name in str(caught.value) and caught.value.remedy


@pytest.mark.parametrize(
    ("write", "words"),
    [
        pytest.param(
            lambda f: nifti(f / "a.nii", units=5), "unit that NIfTI does not have",
            marks=pytest.mark.reads("file: NIfTI with a code of length that NIfTI does not have"),
        ),
        pytest.param(
            lambda f: nrrd(f / "a.nrrd", space="scanner-xyz"), "space scanner-xyz",
            marks=pytest.mark.reads("file: NRRD without axes of the patient"),
        ),
        pytest.param(
            lambda f: _without(nrrd(f / "a.nrrd"), b"space origin"), "says no place of its voxels",
            marks=pytest.mark.reads("file: NRRD in a space, without a space origin"),
        ),
        pytest.param(lambda f: nrrd(f / "a.nrrd", "spacings: 1.2 0.8 3", space=""), "no orientation", id="no space"),
        pytest.param(
            lambda f: meta(f / "a.mha", "AnatomicalOrientation = LAS"), "says LAS in its header",
            marks=pytest.mark.reads("file: MetaImage whose AnatomicalOrientation is not that of its matrix"),
        ),
        pytest.param(lambda f: meta(f / "a.mha", "AnatomicalOrientation = RAI"), None, id="the matrix's"),
        pytest.param(
            lambda f: _packed(nifti(f / "a.nii"), 268, np.nan), "places that are not in numbers",
            marks=pytest.mark.reads("file: NIfTI with a qform that is not in numbers, and an sform"),
        ),
        pytest.param(lambda f: nrrd(f / "a.nrrd"), None, id="LPS"),
        pytest.param(lambda f: nrrd(f / "a.nrrd", space="left posterior superior"), None, id="LPS in words"),
        pytest.param(lambda f: nifti(f / "a.nii", units=3, affine=_times(1000)), None, id="agree in micron"),
        pytest.param(lambda f: nifti(f / "a.nii.zst", kind=nibabel.Nifti2Image), None, id="agree in NIfTI-2"),
    ],
)  # fmt: skip
def test_what_a_header_leaves_unclear_is_said(write: Callable[[Path], Path], words: str | None, tmp_path: Path) -> None:
    remarks = [unclear.what for unclear in read_scan(write(tmp_path)).unclear]
    assert len(remarks) == (words is not None) and all(words in what for what in remarks if words), remarks


def test_a_header_without_sizes_does_where_its_geometry_is_not_used(tmp_path: Path) -> None:
    path = nrrd(tmp_path / "a.nrrd", space="")
    with pytest.raises(ScanError, match="no size of its voxels"):
        file_of(path).open(trusted=False)
    image, _ = file_of(path).open(trusted=True)
    np.testing.assert_array_equal(sitk.GetArrayFromImage(image), VALUES.transpose())


@pytest.mark.reads("file: voxels of a size that no scanner has")
def test_sizes_that_a_wrong_unit_makes(tmp_path: Path) -> None:
    assert odd_size(read_scan(nifti(tmp_path / "a.nii"))) is None
    assert "1.2e+03" in (odd_size(read_scan(nifti(tmp_path / "b.nii", units=1))) or "")
    assert odd_size(read_scan(nrrd(tmp_path / "c.nrrd", 'space units: "um" "um" "um"'))) is not None


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".nii.zst"])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.reads("file: several volumes in one file, as sequences")
def test_volumes_of_a_4d_file(kind: type, suffix: str, tmp_path: Path) -> None:
    path = nifti(tmp_path / f"a{suffix}", kind=kind, values=np.stack([VALUES, VALUES + 1000, VALUES + 2000], -1))
    assert volumes_in(path) == 3
    first, last = read_volumes(path, [0, 2])
    assert np.array_equal(last.voxels, first.voxels + 2000) and last.reading.volume == "3 of 3"


@pytest.mark.parametrize(
    "write",
    [
        lambda f: nifti(f / "a.nii", kind=nibabel.Nifti2Image),
        lambda f: nifti(f / "a.nii.zst"),
        lambda f: nifti(f / "a.nii", units=3, affine=_times(1000)),
        lambda f: nrrd(f / "a.nrrd", 'space units: "um" "um" "um"', factors=(1000,) * 3),
        lambda f: meta(f / "a.mha", "DistanceUnits = um", factor=1000),
    ],
    ids=["NIfTI-2", "zst", "micron", "NRRD in um", "MetaImage in um"],
)
def test_a_mask_of_such_a_scan_lies_on_it(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path)
    scan = read_scan(path)
    mask = (scan.voxels % 3 == 0).astype(np.uint8)
    out = mask_path(path, tmp_path / "out")
    out.parent.mkdir()
    write_mask(mask, scan, out, source=path)
    back = read_scan(out)
    assert np.array_equal(back.voxels, mask) and back.spacing == pytest.approx(SIZES, rel=1e-5)
    assert volume_ml(mask, scan) == pytest.approx(mask.sum() * np.prod(SIZES) / 1000, rel=1e-5)


def test_a_compressed_name_is_of_one_file(tmp_path: Path) -> None:
    path = nifti(tmp_path / "a.nii")
    (tmp_path / "b.nii.gz").write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "c.nii.zst").write_bytes(zstd.compress(path.read_bytes()))
    hashes = {read_scan(tmp_path / name).voxels.tobytes() for name in ("a.nii", "b.nii.gz", "c.nii.zst")}
    assert len(hashes) == 1 and sitk.ReadImage(str(path)).GetSize() == VALUES.shape
