"""Whatever the pixels are compressed with, they are those of the uncompressed file, or it is refused by name."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jpeg_ls
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from dicomforms import SHAPE, compress, in_file, write_forms
from errors import raises
from PIL import Image
from pydicom.encaps import generate_frames
from pydicom.uid import UID

from fedshift.data.dicom import MOST_INFLATED, read_slice
from fedshift.data.scan_file import ScanError
from fedshift.data.scans import read_scan

JPEG = "1.2.840.10008.1.2.4."
Encode = Callable[[np.ndarray], bytes]


def files(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def by_itk(compressor: str, tmp_path: Path) -> Encode:
    def encode(frame: np.ndarray) -> bytes:
        writer = sitk.ImageFileWriter()
        writer.SetFileName(str(tmp_path / "one.dcm"))
        writer.UseCompressionOn()
        writer.SetCompressor(compressor)
        writer.Execute(sitk.GetImageFromArray(frame))
        return next(generate_frames(pydicom.dcmread(tmp_path / "one.dcm").PixelData, number_of_frames=1))

    return encode


def by_pillow(frame: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame).save(out, "JPEG", quality=95)
    return out.getvalue()


def by_openjpeg(frame: np.ndarray) -> bytes:
    out = io.BytesIO()
    unsigned = frame.astype(np.uint16) if frame.dtype == np.int16 else frame
    options = {"irreversible": False, "no_jp2": True, "num_resolutions": 1}
    Image.fromarray(unsigned).save(out, "JPEG2000", **options)
    return out.getvalue()


def by_charls(frame: np.ndarray, *, bits: int) -> bytes:
    unsigned = frame if bits == 8 else frame.astype(np.uint16) & (2**bits - 1)
    return bytes(jpeg_ls.encode_array(np.ascontiguousarray(unsigned)))


def stored(sign: int, bits: int) -> np.ndarray:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if sign else (0, 2**bits)
    drawn = np.linspace(low, high - 1, np.prod(SHAPE)).reshape(SHAPE)
    drawn[:, 0, :2] = low, high - 1  # from which the encoder of JPEG-LS takes the bits
    return drawn.astype({(0, 16): np.uint16, (1, 16): np.int16, (0, 8): np.uint8}[sign, 8 if bits == 8 else 16])


LOSSLESS = ("57", "70", "80", "90", "91")


@pytest.mark.reads("DICOM image: JPEG lossless, JPEG-LS, JPEG 2000, run lengths (RLE)")
@pytest.mark.parametrize("form", ["classic", "enhanced"])
@pytest.mark.parametrize("ending", [*LOSSLESS, "RLE"])
@pytest.mark.parametrize(("sign", "bits"), [(0, 16), (1, 16), (0, 12), (1, 12), (0, 8)])
def test_lossless_pixels_are_those_of_the_uncompressed_file(
    sign: int, bits: int, ending: str, form: str, tmp_path: Path
) -> None:
    right = stored(sign, bits)
    allocated = 8 if bits == 8 else 16
    header = {"BitsAllocated": allocated, "BitsStored": bits, "HighBit": bits - 1, "PixelRepresentation": sign}
    path = write_forms(tmp_path, right, header=header)[form]
    syntax = UID("1.2.840.10008.1.2.5" if ending == "RLE" else JPEG + ending)
    for file in files(path):
        if ending == "RLE":
            dataset = pydicom.dcmread(file)
            dataset.compress(syntax)
            dataset.save_as(file)
        elif ending == "80":
            compress(file, syntax, partial(by_charls, bits=bits))
        else:
            compress(file, syntax, by_openjpeg if ending in ("90", "91") else by_itk("JPEG", tmp_path))
    scan = read_scan(path)
    np.testing.assert_array_equal(in_file(scan.voxels), right)
    assert scan.reading.transfer_syntax == syntax.name
    assert not scan.reading.remarks


HTJ2K = (
    "/0//UQApQAAAAAAKAAAACAAAAAAAAAAAAAAACgAAAAgAAAAAAAAAAAABDwEB/1AACAACAAAACv9SAAwAAgABAAUEBEAB/1wAEyCIkJCQkJCQkJCQkJCQ"
    "iIiI/2QAFwABT3BlbkpQSCBWZXIgMC4yNi4zLv+QAAoAAAAAAGkAAf+TwAAmgfUFB3QAAMAAEoAyAgd0AMAAEsAAFQD7AEd0ANAROv4A4jQAwAASwAAV"
    "YNsAQnQAyIgMZPwAIQB3VgDAACogABXAYlEU1+CLdQDmmzdv3vzgEEZCAey4AP/Z"
)
"""0, 50, 100 and so on in 8 rows and 10 columns, as OpenJPH writes them."""


@pytest.mark.reads("DICOM image: high-throughput JPEG 2000 (HTJ2K)")
@pytest.mark.parametrize("form", ["classic", "enhanced"])
@pytest.mark.parametrize("ending", ["201", "202", "203"])
def test_high_throughput_jpeg_2000_is_read(ending: str, form: str, tmp_path: Path) -> None:
    path = write_forms(tmp_path, stored(0, 12), header={"BitsStored": 12, "HighBit": 11})[form]
    for file in files(path):
        compress(file, JPEG + ending, lambda frame: base64.b64decode(HTJ2K))
    right = 50 * np.arange(80).reshape(SHAPE[1:])
    np.testing.assert_array_equal(in_file(read_scan(path).voxels), np.stack([right] * SHAPE[0]))


@pytest.mark.reads("DICOM image: JPEG with loss (baseline, extended), or an image that says it was compressed so")
@pytest.mark.parametrize("form", ["classic", "enhanced"])
@pytest.mark.parametrize("ending", ["50", "51"])
def test_what_was_lost_is_said(ending: str, form: str, tmp_path: Path) -> None:
    right = stored(0, 8)
    header = {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7}
    path = write_forms(tmp_path, right, header=header)[form]
    for file in files(path):
        compress(file, JPEG + ending, by_pillow)
    scan = read_scan(path)
    decoded = np.stack([np.asarray(Image.open(io.BytesIO(by_pillow(frame)))) for frame in right])
    np.testing.assert_array_equal(in_file(scan.voxels), decoded)
    (remark,) = scan.reading.remarks
    assert "with loss" in remark


@pytest.mark.reads("DICOM image: deflated, big endian or with implicit value representations")
@pytest.mark.parametrize("form", ["classic", "enhanced"])
@pytest.mark.parametrize(
    "syntax",
    ["1.2.840.10008.1.2", "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.2"],
    ids=["implicit", "deflated", "big"],
)
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_encodings_of_the_whole_file_are_read(bits: int, syntax: str, form: str, tmp_path: Path) -> None:
    right = stored(0, bits)
    header = {"BitsAllocated": 8 if bits == 8 else 16, "BitsStored": bits, "HighBit": bits - 1}
    path = write_forms(tmp_path, right, header=header)[form]
    for file in files(path):
        dataset = pydicom.dcmread(file)
        if syntax.endswith(".2.2"):
            pixels = np.frombuffer(dataset.PixelData, f"<u{dataset.BitsAllocated // 8}")
            dataset.PixelData = pixels.astype(pixels.dtype.newbyteorder(">")).tobytes()
            if bits == 8:  # in words, whose bytes are swapped (PS3.5, 8.1.2)
                dataset.PixelData = pixels.view("<u2").astype(">u2").tobytes()
        dataset["PixelData"].VR = "OW"
        dataset.file_meta.TransferSyntaxUID = UID(syntax)
        dataset._read_implicit = dataset._read_little = None  # as of one that was not read from a file
        dataset.save_as(file, enforce_file_format=True)
    np.testing.assert_array_equal(in_file(read_scan(path).voxels), right)


def test_a_deflated_file_without_the_length_of_its_group_is_read(tmp_path: Path) -> None:
    right = stored(0, 16)
    path = write_forms(tmp_path, right)["enhanced"]
    dataset = pydicom.dcmread(path)
    dataset.file_meta.TransferSyntaxUID = UID("1.2.840.10008.1.2.1.99")
    dataset.save_as(path, enforce_file_format=True)
    content = path.read_bytes()
    assert content[132:138] == b"\x02\0\0\0UL"
    path.write_bytes(content[:132] + content[144:])
    np.testing.assert_array_equal(in_file(read_scan(path).voxels), right)


@pytest.mark.reads("DICOM image: other encodings, such as MPEG or JPIP")
@pytest.mark.parametrize("form", ["classic", "enhanced"])
@pytest.mark.parametrize("ending", ["102", "94"])
def test_another_encoding_is_refused_by_its_name(ending: str, form: str, tmp_path: Path) -> None:
    path = write_forms(tmp_path, stored(0, 8), header={"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7})[form]
    for file in files(path):
        compress(file, JPEG + ending, by_pillow)
    with pytest.raises(ScanError, match=f"is encoded as {re.escape(UID(JPEG + ending).name)}"):
        read_scan(path)


@pytest.mark.reads("DICOM image: pixels that are damaged where they are compressed")
@pytest.mark.parametrize("form", ["classic", "enhanced"])
def test_pixels_that_are_not_what_they_are_said_to_be_are_refused(form: str, tmp_path: Path) -> None:
    path = write_forms(tmp_path, stored(0, 8), header={"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7})[form]
    for file in files(path):
        compress(file, f"{JPEG}70", lambda frame: b"no picture")
    with raises("pixels-damaged"):
        read_scan(path)


def test_a_deflated_file_may_not_hold_more_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_forms(tmp_path, stored(0, 16))["classic"]
    file = files(folder)[0]
    dataset = pydicom.dcmread(file)
    dataset.file_meta.TransferSyntaxUID = UID("1.2.840.10008.1.2.1.99")
    dataset.save_as(file, enforce_file_format=True)
    assert read_slice(file.read_bytes()).rows == SHAPE[1] and MOST_INFLATED >= 2**30
    monkeypatch.setattr("fedshift.data.dicom.MOST_INFLATED", 400)
    with raises("too-large", naming="400"):
        read_slice(file.read_bytes())
    with pytest.raises(ScanError, match=r"IM0000\.dcm|400 bytes"):
        read_scan(folder)
