"""Odd DICOM is refused with a sentence before ITK makes a volume of it, and what is in its tags stays in it."""

from __future__ import annotations

import gzip
import logging
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from dicomfiles import (
    COLUMNS,
    DISTANCE,
    ORIENTATION,
    PIXELS,
    POSITION,
    ROWS,
    SERIES,
    SHAPE,
    SPACING,
    SYNTAX,
    Element,
    elements,
    encode,
    nested,
    put,
    write_series,
)
from errors import raises
from scanfiles import volume, write_dicom

from data_prep.own_scans import prepare_own
from fedshift.cli import main
from fedshift.data.scan_file import ScanError
from fedshift.data.scans import read_scan
from fedshift.data.series import series_in

Change = Callable[[list[Element], int], list[Element]]
PATIENT = {
    "name": ((0x0010, 0x0010), "Müller^Jörg\x1b[2J\nINFO forged".encode("latin-1"), "PN"),
    "id": ((0x0010, 0x0020), b"../../PID-4711", "LO"),
    "birth date": ((0x0010, 0x0030), b"19450102", "DA"),
    "description": ((0x0008, 0x103E), b"/../t2 of Mr Mueller" * 100, "LO"),
    "institution": ((0x0008, 0x0080), b"St. Elsewhere", "LO"),
    "private": ((0x0009, 0x1001), b"\xff\0\1secret-4712", "UN"),
}


def size(number: int) -> bytes:
    return struct.pack("<H", number)


def both(first: Change, second: Change) -> Change:
    return lambda content, slice_: second(first(content, slice_), slice_)


REFUSED: dict[str, tuple[Change, str]] = {
    "no spacing": (put(SPACING, None), "slice000.dcm whose pixel spacing is missing"),
    "no spacing in one": (put(SPACING, None, only=4), "slice004.dcm whose pixel spacing is missing"),
    "empty spacing": (put(SPACING, b""), "pixel spacing is missing"),
    "negative spacing": (put(SPACING, b"-0.8\\0.7"), "spacing is not between 0.001 and 1000 mm"),
    "no number": (put(SPACING, b"nan\\nan"), "pixel spacing is missing"),
    "text": (put(SPACING, b"0.8\\secret"), "pixel spacing is missing"),
    "huge spacing": (put(SPACING, b"1e300\\1e300"), "pixel spacing is missing or is not 2 such numbers"),
    "zero spacing": (put(SPACING, b"0\\0"), "spacing is not between"),
    "one number": (put(SPACING, b"0.7"), "not 2 such numbers"),
    "other spacing in one": (put(SPACING, b"1.5\\1.5", only=4), "slice004.dcm with another pixel spacing"),
    "no position": (put(POSITION, None), "whose position is missing"),
    "text as position": (put(POSITION, b"a\\b\\c", only=4), "whose position is missing"),
    "short position": (put(POSITION, b"1\\2", only=4), "position is missing or is not 3 such numbers"),
    "position nan": (put(POSITION, b"nan\\nan\\nan", only=0), "position is missing"),
    "position at infinity": (put(POSITION, b"-8\\-8\\1e308", only=8), "position is missing"),
    "one place": (put(POSITION, b"1\\2\\3"), "0 mm apart"),
    "a shifted slice": (put(POSITION, b"20\\-8\\12", only=4), "mm apart, so one is missing"),
    "a tilted gantry": (
        lambda content, k: put(POSITION, f"{-8 + k}\\-8\\{DISTANCE * k}".encode())(content, k),
        "shifted against each other by 1.00 mm",
    ),
    "no orientation": (put(ORIENTATION, None), "orientation is missing"),
    "no right angle": (put(ORIENTATION, b"1\\0\\0\\0.5\\0.866\\0"), "not two directions at right angles"),
    "zero orientation": (put(ORIENTATION, b"0\\0\\0\\0\\0\\0"), "not two directions at right angles"),
    "other orientation in one": (
        put(ORIENTATION, b"0\\1\\0\\1\\0\\0", only=4),
        "slice004.dcm with another orientation",
    ),
    "more rows than pixels": (put(ROWS, size(60000)), "960 bytes of pixels, by its size it has 2880000"),
    "all rows and columns": (both(put(ROWS, size(65535)), put(COLUMNS, size(65535))), "bytes of pixels, by its size"),
    "fewer rows": (put(ROWS, size(10), only=4), "slice004.dcm with 960 bytes of pixels, by its size it has 480"),
    "no rows": (put(ROWS, None), "slice000.dcm that does not say its size"),
    "few pixels": (put(PIXELS, b"x" * 100, only=8), "slice008.dcm with 100 bytes of pixels, by its size it has 960"),
    "no pixels in the last": (put(PIXELS, None, only=8), "slice008.dcm without pixels"),
    "pixels twice": (put(PIXELS, b"x" * 10, twice=True), "with 10 bytes of pixels"),
    "position twice": (
        put(POSITION, b"0\\0\\77", twice=True, only=4),
        "an element of its geometry or its pixels twice",
    ),
    "rows twice": (put(ROWS, size(7), twice=True), "an element of its geometry or its pixels twice"),
    "wrong kind of rows": (put(ROWS, b"twenty", "LO"), "slice000.dcm that does not say its size"),
    "wrong kind of spacing": (put(SPACING, size(3), "US"), "slice000.dcm whose pixel spacing is missing"),
    "colour": (put((0x0028, 0x0002), size(3)), "several values per pixel"),
    "a palette": (put((0x0028, 0x0004), b"PALETTE COLOR"), "slice000.dcm that is in colour (PALETTE COLOR)"),
    "frames": (put((0x0028, 0x0008), b"2147483647", "IS"), "holds several frames"),
    "other bits": (put((0x0028, 0x0100), size(64)), "bytes of pixels, by its size"),
    "a huge slope": (put((0x0028, 0x1053), b"1e300", "DS"), "has intensities up to 9."),
    "two series": (put(SERIES, b"1.9", only=4), "holds 2 DICOM series"),
    "not compressed": (put(SYNTAX, b"1.2.840.10008.1.2.4.70"), "says its pixels are compressed, which they are not"),
    "unknown syntax": (put(SYNTAX, b"1.2.3.4"), "9 DICOM file(s), none of which can be read"),
    "a report": (put((0x0008, 0x0016), b"1.2.840.10008.5.1.4.1.1.88.11"), "9 DICOM file(s), none of which is an image"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_one_volume_is_refused(what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change, words = REFUSED[what]
    folder = write_series(tmp_path / "series", change)
    with pytest.raises(ScanError) as error:
        read_scan(folder)
    message = str(error.value)
    assert words in message and message.isprintable() and len(message) < 300 and "secret" not in message
    assert capfd.readouterr() == ("", ""), "nothing else on the terminal"


def test_an_ordinary_series_is_read_with_its_geometry(tmp_path: Path) -> None:
    scan = read_scan(write_series(tmp_path / "series"))
    assert scan.voxels.shape == SHAPE and scan.spacing == pytest.approx((0.7, 0.8, DISTANCE))
    assert scan.stored == "LPS"


def test_a_file_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    for series in ("1.2.3.4", "1.2.3.6"):
        for slice_ in range(SHAPE[0]):
            (tmp_path / f"{series}-{slice_}.dcm").write_bytes(encode(elements(slice_, series=series)))
    assert [read_scan(path).voxels.shape for path in series_in(tmp_path)] == [SHAPE, SHAPE]
    last = SHAPE[0] - 1
    (tmp_path / f"1.2.3.4-{last}.dcm").write_bytes(encode(elements(last, series="1.2.3.7")))
    assert read_scan(tmp_path / "1.2.3.4").voxels.shape == (last, *SHAPE[1:])
    assert read_scan(tmp_path / "1.2.3.6").voxels.shape == SHAPE
    assert tmp_path / "1.2.3.7" in series_in(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        *(put(tag, value, kind) for tag, value, kind in PATIENT.values()),
        put((0x0008, 0x0005), b"NONSENSE \\ISO 2022 IR 999", "CS"),
        put((0x0008, 0x1140), nested(50), "SQ"),
        put((0x0008, 0x1140), nested(5000), "SQ"),
        put(SERIES, b"../../x"),
        put((0x0020, 0x0013), b"77", only=4),
    ],
)
def test_what_else_is_in_the_tags_does_not_matter(change: Change, tmp_path: Path) -> None:
    """The pixels and the geometry are the same."""
    plain, odd = (read_scan(write_series(tmp_path / name, *changes)) for name, changes in (("a", ()), ("b", (change,))))
    assert np.array_equal(plain.voxels, odd.voxels) and plain.spacing == odd.spacing and plain.origin == odd.origin


SCALED: dict[str, tuple[Change, Callable[[np.ndarray, int], np.ndarray]]] = {
    "intercept": (
        lambda content, k: put((0x0028, 0x1052), b"-40000" if k else b"0", "DS")(content, k),
        lambda voxels, k: voxels - 40000.0 * bool(k),
    ),
    "whole slope first": (
        lambda content, k: put((0x0028, 0x1053), b"0.37" if k else b"1", "DS")(content, k),
        lambda voxels, k: voxels * (0.37 if k else 1),
    ),
    "large slope": (
        lambda content, k: put((0x0028, 0x1053), b"4000" if k else b"1", "DS")(content, k),
        lambda voxels, k: voxels * (4000.0 if k else 1),
    ),
    "sign": (
        lambda content, k: both(put((0x0028, 0x0103), size(0 if k == 0 else 1)), put(PIXELS, low(k), "OW"))(content, k),
        lambda voxels, k: np.frombuffer(low(k), "<u2" if k == 0 else "<i2").reshape(voxels.shape),
    ),
}


def low(slice_: int) -> bytes:
    voxels = np.arange(SHAPE[1] * SHAPE[2], dtype="<i2") + slice_
    return (voxels if slice_ == 0 else voxels - 200).tobytes()


@pytest.mark.parametrize("what", SCALED)
def test_slices_of_several_types_keep_their_values(what: str, tmp_path: Path) -> None:
    change, expected = SCALED[what]
    plain = read_scan(write_series(tmp_path / "plain")).voxels.astype(float)
    assert read_scan(tmp_path / "plain").voxels.dtype == np.int16, "as it was, where all are of one type"
    voxels = read_scan(write_series(tmp_path / "series", change)).voxels
    for k in range(SHAPE[0]):
        stored = expected(plain[k, ::-1, ::-1], k)  # the file is LPS
        np.testing.assert_allclose(voxels[k, ::-1, ::-1], stored, rtol=0, atol=1e-9)


def test_a_slice_that_was_not_fetched_is_missed(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series")
    (folder / "slice008.dcm").unlink()
    (folder / "slice008.dcm").symlink_to(tmp_path / "annex" / "slice008.dcm")
    with raises("file-missing", naming="slice008.dcm"):
        read_scan(folder)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[:300],
        lambda content: content[:-100],
        lambda content: b"",
        lambda content: content[:132],
        lambda content: content[:140] + b"\xff" * 400,
    ],
)
@pytest.mark.parametrize("which", [0, 8])
def test_a_damaged_slice_at_the_edge_is_not_left_out(
    spoil: Callable[[bytes], bytes], which: int, tmp_path: Path
) -> None:
    """In the middle its place would be missing; here only its file says that there was one."""
    folder = write_series(tmp_path / "series")
    file = folder / f"slice00{which}.dcm"
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(ScanError, match=rf"slice00{which}\.dcm"):
        read_scan(folder)


def test_other_files_beside_the_slices_do_not_matter(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series")
    (folder / "notes.txt").write_text("x", encoding="utf-8")
    (folder / "DICOMDIR").write_bytes(bytes(128) + b"DICM")
    assert read_scan(folder).voxels.shape == SHAPE


@pytest.mark.parametrize("compressor", ["JPEG2000", "JPEG"])
def test_compressed_slices_are_read_and_damaged_ones_refused(compressor: str, tmp_path: Path) -> None:
    write_dicom(tmp_path / "plain", volume()[0])
    folder = tmp_path / compressor
    folder.mkdir()
    writer = sitk.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    writer.UseCompressionOn()
    writer.SetCompressor(compressor)
    for file in sorted((tmp_path / "plain").iterdir()):
        writer.SetFileName(str(folder / file.name))
        writer.Execute(sitk.ReadImage(str(file)))
    whole = read_scan(folder)
    assert np.array_equal(whole.voxels, read_scan(tmp_path / "plain").voxels)
    last = sorted(folder.iterdir())[-1]
    content = last.read_bytes()
    assert content.find(struct.pack("<HH", *PIXELS) + b"OB\0\0\xff\xff\xff\xff") > 0, "they are compressed"
    last.write_bytes(content[:-200])
    with pytest.raises(ScanError):
        read_scan(folder)


def test_nothing_of_a_patient_gets_into_a_prepared_site_or_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)

    def tagged(content: list[Element], slice_: int) -> list[Element]:
        for tag, value, kind in PATIENT.values():
            content = put(tag, value, kind)(content, slice_)
        return content

    for number in range(3):
        folder = write_series(tmp_path / "images" / f"case{number}", tagged)
        file = folder / "slice000.dcm"
        file.write_bytes(file.read_bytes()[:-2] + struct.pack("<h", number))
        mask = sitk.GetImageFromArray((read_scan(folder).voxels[:, ::-1, ::-1] > 500).astype(np.uint8))
        mask.SetSpacing((0.7, 0.8, DISTANCE))
        mask.SetOrigin((-8, -8, 0))
        (tmp_path / "masks").mkdir(exist_ok=True)
        sitk.WriteImage(mask, str(tmp_path / "masks" / f"case{number}.nii.gz"))
    images, masks = tmp_path / "images", tmp_path / "masks"
    site = prepare_own(images, masks, "HK", tmp_path / "root", dataset="brain", labels={"brain": (1,)}, matrices=(16,))
    main(["data", "check", str(images), "--masks", str(masks)])
    main(["data", "check", str(site)])
    bad = write_series(tmp_path / "bad" / "case9", lambda c, k: put(SPACING, b"19450102\\secret")(tagged(c, k), k))
    with pytest.raises(ScanError) as error:
        read_scan(bad)
    out, err = capfd.readouterr()
    texts = [out.encode(), err.encode(), caplog.text.encode(), str(error.value).encode()]
    for path in (path for path in site.rglob("*") if path.is_file()):
        content = path.read_bytes()
        texts += [path.name.encode(), gzip.decompress(content) if path.suffix == ".gz" else content]
    assert len(texts) > 12
    for what in (b"ller", b"4711", b"4712", b"19450102", b"Elsewhere", b"secret", b"t2 of Mr", b"slice000.dcm/"):
        assert not any(what in text for text in texts), what
