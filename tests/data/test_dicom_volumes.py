"""Which frames are one volume, where it lies, and what is refused because a box would not be true."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from dicomforms import DISTANCE, SHAPE, SPACING, in_file, places, write_classic, write_enhanced, write_forms
from errors import raises

from fedshift.data.dicom_scan import dicom_source
from fedshift.data.scan_file import ScanError
from fedshift.data.scans import read_scan
from fedshift.data.series import series_in

FORMS = ("classic", "enhanced")


def frames(seed: int = 0, count: int = SHAPE[0]) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4096, (count, *SHAPE[1:])).astype(np.uint16)


# --- tilt and distances ---------------------------------------------------------------------------------------------


def tilted(shift: float, count: int) -> list[tuple[float, float, float]]:
    """Shifted along y by so much over the whole stack."""
    return [(-8.0, -6.0 + shift * k / (count - 1), DISTANCE * k) for k in range(count)]


GEOMETRY: dict[str, tuple[list[tuple[float, float, float]], str]] = {
    # spacing of rows is 1.25 mm, of slices 3 mm, and a tenth of that is read
    "tilted by 5 degrees": (tilted(3 * 19 * np.tan(np.deg2rad(5)), 20), "tilted gantry, and by 4.99 mm over the whole"),
    "tilted by half a degree": (tilted(3 * 19 * np.tan(np.deg2rad(0.5)), 20), "and by 0.50 mm over the whole scan"),
    "a little beside": (tilted(0.12, 20), ""),
    "twice that": (tilted(0.14, 20), "by 0.14 mm over the whole scan"),
    "slowly farther apart": (
        [(-8.0, -6.0, float(z)) for z in np.cumsum(np.r_[0, np.full(10, 3.0), np.full(9, 3.25)])],
        "3.00 to 3.25 mm apart, up to 1.18 mm beside even distances",
    ),
    "rounded places": ([(-8.0, -6.0, round(k * 2 / 3, 1)) for k in range(20)], ""),
    "one missing": ([(-8.0, -6.0, 3.0 * (k + (k > 12))) for k in range(20)], "so one is missing or duplicated"),
    "one missing near the end": ([(-8.0, -6.0, 3.0 * (k + (k > 17))) for k in range(20)], "so one is missing"),
}


@pytest.mark.reads("DICOM image: slices shifted by a tilted gantry, or at uneven distances")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", GEOMETRY)
def test_no_voxel_may_lie_beside_its_place_over_the_whole_stack(what: str, form: str, tmp_path: Path) -> None:
    at, words = GEOMETRY[what]
    path = write_forms(tmp_path, frames(count=20), at=at)[form]
    if words:
        with pytest.raises(ScanError, match=words):
            read_scan(path)
        return
    scan = read_scan(path)
    matrix = np.reshape(scan.direction, (3, 3)) * scan.spacing
    corner = np.array(scan.origin) + matrix @ [SHAPE[2] - 1, SHAPE[1] - 1, 0]  # where RAS begins, LPS has its end
    box = corner + np.arange(20)[:, None] * matrix[:, 2]
    assert (np.abs(box - at) <= 0.1 * np.array([*SPACING[::-1], scan.spacing[2]]) + 1e-6).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_turned_slice_is_refused(form: str, tmp_path: Path) -> None:
    angle = np.deg2rad(1)  # within the tolerance of a cosine only where there are few pixels
    path = write_forms(tmp_path, frames(), orientation=(np.cos(angle), np.sin(angle), 0, 0, 1, 0))[form]
    with raises("orientation"):
        read_scan(path)


# --- several volumes of one series ------------------------------------------------------------------------------------

SEVERAL: dict[str, tuple[list[dict[str, Any]], str]] = {
    "time points": (
        [{"TemporalPositionIdentifier": 1}, {"TemporalPositionIdentifier": 2}, {"TemporalPositionIdentifier": 10}],
        "3 volumes, which are time points",
    ),
    "echoes": ([{"EchoTime": 30.5}, {"EchoTime": 100.0}], "2 volumes, which are echoes"),
    "b-values": ([{"DiffusionBValue": 0.0}, {"DiffusionBValue": 800.0}], "2 volumes, which are b-values"),
    "b-values and directions": (
        [
            {"DiffusionBValue": 0.0},
            {"DiffusionBValue": 800.0, "DiffusionGradientOrientation": [1.0, 0.0, 0.0]},
            {"DiffusionBValue": 800.0, "DiffusionGradientOrientation": [0.0, 1.0, 0.0]},
        ],
        "3 volumes, which are ",
    ),
    "cardiac phases": (
        [{"NominalPercentageOfCardiacPhase": 0.0}, {"NominalPercentageOfCardiacPhase": 50.0}],
        "2 volumes, which are cardiac phases",
    ),
    "trigger times": ([{"TriggerTime": 10.0}, {"TriggerTime": 300.0}], "2 volumes, which are cardiac phases"),
    "magnitude and phase": (
        [{"ComplexImageComponent": "MAGNITUDE"}, {"ComplexImageComponent": "PHASE"}],
        "2 volumes, which are components",
    ),
    "in and out of phase": (
        [{"ImageType": ["ORIGINAL", "PRIMARY", "IP"]}, {"ImageType": ["ORIGINAL", "PRIMARY", "OP"]}],
        "2 volumes, which are kinds of images",
    ),
    "acquisitions": ([{"AcquisitionNumber": 3}, {"AcquisitionNumber": 4}], "2 volumes, which are acquisitions"),
}


def several(tmp_path: Path, form: str, marks: Sequence[dict[str, Any]], *, by_slice: bool = True) -> Path:
    """Volumes of one series; each slice is followed by that of the next volume, or each volume by the next one."""
    order = [(k, v) for k in range(SHAPE[0]) for v in range(len(marks))]
    order = order if by_slice else sorted(order, key=lambda pair: pair[1])
    volumes = [frames(v) for v in range(len(marks))]
    return write_forms(
        tmp_path,
        np.stack([volumes[v][k] for k, v in order]),
        at=[places()[k] for k, _ in order],
        marks=[marks[v] for _, v in order],
    )[form]


@pytest.mark.reads("DICOM image: several volumes in one series (time points, echoes, b-values, phases, components)")
@pytest.mark.parametrize("by_slice", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", SEVERAL)
def test_each_of_several_volumes_is_named_and_can_be_chosen(
    what: str, form: str, by_slice: bool, tmp_path: Path
) -> None:
    marks, words = SEVERAL[what]
    path = several(tmp_path, form, marks, by_slice=by_slice)
    with raises("several-volumes", naming=(words, "--volume N")):
        read_scan(path)
    for number in range(1, len(marks) + 1):
        scan = read_scan(path, volume=number)
        match = [v for v in range(len(marks)) if np.array_equal(in_file(scan.voxels), frames(v))]
        assert match == [number - 1] or what.endswith("directions"), "in the order of their values"
        assert match and (scan.reading.volume or "").startswith(f"{number} of {len(marks)}, by ")
        source = dicom_source(path, volume=number)
        assert len(source.frames or source.files) == SHAPE[0]
    with raises("volume-missing", naming=(f"{len(marks)} volumes", "9")):
        read_scan(path, volume=9)


@pytest.mark.parametrize("form", FORMS)
def test_one_volume_is_read_whatever_number_is_wanted(form: str, tmp_path: Path) -> None:
    path = write_forms(tmp_path, frames())[form]
    np.testing.assert_array_equal(in_file(read_scan(path, volume=2).voxels), frames())


@pytest.mark.reads("DICOM image: several volumes in one series, of which one lacks slices")
@pytest.mark.parametrize("form", FORMS)
def test_a_volume_without_all_slices_is_refused(form: str, tmp_path: Path) -> None:
    stack = np.concatenate([frames(0), frames(1)[:4]])
    marks = [{"TemporalPositionIdentifier": 1}] * 6 + [{"TemporalPositionIdentifier": 2}] * 4
    path = write_forms(tmp_path, stack, at=[*places(), *places()[:4]], marks=marks)[form]
    np.testing.assert_array_equal(in_file(read_scan(path, volume=1).voxels), frames(0))
    with raises("slices-missing", naming="volume 2"):
        read_scan(path, volume=2)


@pytest.mark.reads("DICOM image: several slices at each place, which nothing tells apart")
@pytest.mark.parametrize("form", FORMS)
def test_what_nothing_tells_apart_is_refused(form: str, tmp_path: Path) -> None:
    stack = np.concatenate([frames(0), frames(1)])
    path = write_forms(tmp_path, stack, at=[*places(), *places()])[form]
    for volume in (None, 1):
        with raises("volumes-unclear", naming=("2 slices", "6 places")):
            read_scan(path, volume=volume)


@pytest.mark.reads("DICOM image: slices of one volume that say they are of several")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["TemporalPositionIdentifier", "DiffusionBValue"])
def test_volumes_that_lie_between_each_other_are_not_one(name: str, form: str, tmp_path: Path) -> None:
    path = write_forms(tmp_path, frames(), marks=[{name: 1 + k % 2} for k in range(SHAPE[0])])[form]
    with raises("volumes-mixed"):
        read_scan(path)


# --- one acquisition in several files ---------------------------------------------------------------------------------


def split(folder: Path, *, concatenation: bool, sizes: Sequence[int] = (3, 3), leave_out: int | None = None) -> Path:
    """An enhanced image in several files."""
    begin = 0
    for number, size in enumerate(sizes, start=1):
        part = slice(begin, begin + size)

        def change(made: pydicom.Dataset, number: int = number, begin: int = begin) -> None:
            if concatenation:
                made.ConcatenationUID = "1.2.3.4"
                made.SOPInstanceUIDOfConcatenationSource = "1.2.3.5"
                made.InConcatenationNumber, made.InConcatenationTotalNumber = number, len(sizes)
                made.ConcatenationFrameOffsetNumber = begin

        if number != leave_out:  # names against the order
            write_enhanced(folder / f"part{9 - number}.dcm", frames()[part], at=places()[part], change=change)
        begin += size
    return folder


@pytest.mark.reads("DICOM image: one enhanced image in several files (a concatenation, or instances with a part each)")
@pytest.mark.parametrize("concatenation", [True, False])
@pytest.mark.parametrize("sizes", [(3, 3), (4, 2), (1, 4, 1)])
def test_parts_of_an_image_are_one_volume(sizes: Sequence[int], concatenation: bool, tmp_path: Path) -> None:
    folder = split(tmp_path / "parts", concatenation=concatenation, sizes=sizes)
    assert series_in(folder) == [folder], "and not a scan each"
    np.testing.assert_array_equal(in_file(read_scan(folder).voxels), frames())
    source = dicom_source(folder)
    assert len(source.files) == len(sizes) and sorted(source.frames) == list(range(SHAPE[0]))
    for file in folder.iterdir():
        with raises("part-of-scan", naming=f"{len(sizes)} files"):
            read_scan(file)


@pytest.mark.reads("DICOM image: a concatenation of which a part is missing")
@pytest.mark.parametrize("leave_out", [1, 2])
def test_a_missing_part_is_named(leave_out: int, tmp_path: Path) -> None:
    folder = split(tmp_path / "parts", concatenation=True, leave_out=leave_out)
    for path in (folder, next(folder.iterdir())):
        with pytest.raises(ScanError, match=rf"has part {3 - leave_out} \(part{6 + leave_out}\.dcm\)"):
            read_scan(path)


def test_a_part_that_a_second_image_lacks_is_named(tmp_path: Path) -> None:
    """… beside a whole one of the same series."""
    folder = split(tmp_path / "parts", concatenation=True)
    lone = folder / "other.dcm"

    def second(made: pydicom.Dataset) -> None:
        made.ConcatenationUID, made.InConcatenationNumber, made.InConcatenationTotalNumber = "1.2.3.9", 1, 2

    write_enhanced(lone, frames(1)[:3], at=places()[:3], change=second)
    with pytest.raises(ScanError, match=r"other\.dcm"):
        read_scan(folder)


def test_one_uid_with_other_pixels_is_refused(tmp_path: Path) -> None:
    def same(made: pydicom.Dataset) -> None:
        made.SOPInstanceUID = "1.2.3.7"

    for number in range(2):
        write_enhanced(tmp_path / f"{number}.dcm", frames(number), change=same)
    with pytest.raises(ScanError, match="other content"):
        read_scan(tmp_path)


@pytest.mark.reads("DICOM image: enhanced images of one series at the same places")
def test_whole_images_of_one_series_are_a_scan_each(tmp_path: Path) -> None:
    files = [write_enhanced(tmp_path / f"{k}.dcm", frames(k)) for k in range(2)]
    assert series_in(tmp_path) == files
    for number, file in enumerate(files):
        np.testing.assert_array_equal(in_file(read_scan(file).voxels), frames(number))
    with raises("several-series"):
        read_scan(tmp_path)


def test_parts_of_two_images_of_one_series_are_told_apart(tmp_path: Path) -> None:
    folder = split(tmp_path / "both", concatenation=True)
    other = write_enhanced(folder / "whole.dcm", frames(1))
    assert sorted(series_in(folder)) == sorted([folder / "1.2.3.4", other])
    np.testing.assert_array_equal(in_file(read_scan(folder / "1.2.3.4").voxels), frames())
    np.testing.assert_array_equal(in_file(read_scan(other).voxels), frames(1))


@pytest.mark.reads("DICOM image: slices of several acquisitions that lie one after the other")
def test_slabs_of_classic_slices_are_one_volume(tmp_path: Path) -> None:
    marks = [{"AcquisitionNumber": 1 + (k > 2)} for k in range(SHAPE[0])]
    folder = write_classic(tmp_path / "slabs", frames(), marks=marks)
    np.testing.assert_array_equal(in_file(read_scan(folder).voxels), frames())


@pytest.mark.reads("DICOM image: copies of a slice")
def test_a_copy_of_a_slice_is_left_out(tmp_path: Path) -> None:
    folder = write_classic(tmp_path / "copies", frames())
    shutil.copy(folder / "IM0002.dcm", folder / "IM0002 copy.dcm")
    np.testing.assert_array_equal(in_file(read_scan(folder).voxels), frames())


@pytest.mark.reads("DICOM image: slices in several frames of reference")
def test_places_that_cannot_be_compared_are_warned_of(tmp_path: Path) -> None:
    marks = [{"FrameOfReferenceUID": f"1.2.{3 + k // 4}"} for k in range(SHAPE[0])]
    (remark,) = read_scan(write_classic(tmp_path / "two", frames(), marks=marks)).reading.remarks
    assert "2 frames of reference" in remark
    assert not read_scan(write_classic(tmp_path / "one", frames())).reading.remarks
