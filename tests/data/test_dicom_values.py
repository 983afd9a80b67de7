"""Stored values and intensities are those of the standard, the same for classic slices and enhanced images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicomforms import SHAPE, STORAGE, in_file, item, write_classic, write_enhanced, write_forms
from errors import raises

from fedshift.data.scans import read_scan

FORMS = ("classic", "enhanced")


def numbers(low: int, high: int) -> np.ndarray:
    drawn = np.random.default_rng(0).integers(low, high, SHAPE)
    drawn.flat[:2] = low, high - 1
    return drawn


def read(path: Path) -> np.ndarray:
    return in_file(read_scan(path).voxels)


BITS = {
    # allocated, stored, highest, signed, what lies in the other bits
    "all bits": (16, 16, 15, False, 0),
    "signed": (16, 16, 15, True, 0),
    "12 of 16 signed": (16, 12, 11, True, 0),
    "12 of 16 with an overlay": (16, 12, 11, False, 0x8000),
    "12 of 16 signed with an overlay": (16, 12, 11, True, 0xF000),
    "10 of 16 signed": (16, 10, 9, True, 0),
    "the upper 12 of 16": (16, 12, 15, False, 0x000F),
    "the upper 12 of 16 signed": (16, 12, 15, True, 0x000F),
    "8 bits": (8, 8, 7, False, 0),
    "8 bits signed": (8, 8, 7, True, 0),
    "6 of 8": (8, 6, 5, False, 0xC0),
    "32 bits": (32, 32, 31, False, 0),
    "20 of 32 signed": (32, 20, 19, True, 0x7FF00000),
}


@pytest.mark.reads("DICOM image: fewer bits stored than allocated, signed, or with content in the unused bits")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", BITS)
def test_only_the_stored_bits_are_read(kind: str, form: str, tmp_path: Path) -> None:
    allocated, stored, high, signed, others = BITS[kind]
    right = numbers(-(2 ** (stored - 1)), 2 ** (stored - 1)) if signed else numbers(0, 2**stored)
    bits = (right & (2**stored - 1)) << (high + 1 - stored)
    bits = np.where(np.arange(right.size).reshape(SHAPE) % 3, bits, bits | others)
    header = {"BitsAllocated": allocated, "BitsStored": stored, "HighBit": high, "PixelRepresentation": int(signed)}
    path = write_forms(tmp_path, bits.astype(f"u{allocated // 8}"), header=header)[form]
    np.testing.assert_array_equal(read(path), right)
    said = f"{stored} of {allocated} bits, {'' if signed else 'un'}signed"
    assert read_scan(path).reading.bits == said


@pytest.mark.reads("DICOM image: rescale slope and intercept, also of each slice or frame")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("modality", ["MR", "CT", "PT"])
@pytest.mark.parametrize("slopes", [(1.0, -1024.0), (0.37, 5.0), None])
def test_each_slice_is_rescaled_by_its_own_slope(
    slopes: tuple[float, float] | None, modality: str, form: str, tmp_path: Path
) -> None:
    stored = numbers(0, 4000)
    of_slice = [slopes or (0.5 + k, 10.0 * k) for k in range(SHAPE[0])]
    rescale = [{"RescaleSlope": a, "RescaleIntercept": b, "RescaleType": "US"} for a, b in of_slice]
    path = write_forms(tmp_path, stored.astype(np.uint16), modality=modality, rescale=rescale)[form]
    factors = np.array(of_slice)[:, :, None, None]
    np.testing.assert_allclose(read(path), stored * factors[:, 0] + factors[:, 1], rtol=0, atol=1e-9)
    assert (read_scan(path).reading.rescale or "").startswith("x " if slopes else "slopes 0.5 to 5.5")


def inverted(header: dict[str, Any], tmp_path: Path, form: str, modality: str, **said: Any) -> Path:
    stored = numbers(0, 4096).astype(np.uint16)
    bits = {"BitsStored": 12, "HighBit": 11}
    return write_forms(tmp_path, stored, modality=modality, header={**bits, **header}, **said)[form]


PRESENTATION: list[dict[str, Any]] = [
    {"PhotometricInterpretation": "MONOCHROME1"},
    {"PresentationLUTShape": "INVERSE"},
    {"PhotometricInterpretation": "MONOCHROME1", "PresentationLUTShape": "INVERSE"},
]


@pytest.mark.reads("DICOM image: MONOCHROME1 or an inverse presentation LUT, of CT, PET and other values with units")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("header", PRESENTATION)
@pytest.mark.parametrize(("modality", "unit"), [("CT", "HU"), ("PT", "BQML"), ("MR", "10^-6 mm2/s")])
def test_what_is_for_display_changes_no_value_with_a_unit(
    modality: str, unit: str, header: dict[str, Any], form: str, tmp_path: Path
) -> None:
    rescale = [{"RescaleSlope": 1, "RescaleIntercept": -1024, "RescaleType": unit}] * SHAPE[0]
    units = {"Units": "BQML"} if modality == "PT" else {}
    path = inverted({**header, **units}, tmp_path, form, modality, rescale=rescale)
    np.testing.assert_array_equal(read(path), numbers(0, 4096) - 1024)
    reading = read_scan(path).reading
    assert reading.units == unit and (reading.photometric or "").endswith(", not turned")


@pytest.mark.reads("DICOM image: MONOCHROME1 or an inverse presentation LUT, of MRI, whose values have no units")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("header", PRESENTATION)
@pytest.mark.parametrize("signed", [False, True])
def test_an_inverted_scan_without_units_is_turned(
    signed: bool, header: dict[str, Any], form: str, tmp_path: Path
) -> None:
    path = inverted({**header, "PixelRepresentation": int(signed)}, tmp_path, form, "MR")
    stored = numbers(0, 4096)
    right = -1 - (((stored & 0xFFF) ^ 0x800) - 0x800) if signed else 4095 - stored
    np.testing.assert_array_equal(read(path), right)
    assert (read_scan(path).reading.photometric or "").endswith(", turned")


@pytest.mark.reads("DICOM image: a modality LUT")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("words", [True, False])
def test_a_modality_table_gives_the_intensities(words: bool, form: str, tmp_path: Path) -> None:
    stored = numbers(0, 300)
    entries = (np.arange(200) ** 2 % 60000).astype(np.uint16)
    table = item(LUTDescriptor=[200, 50, 16], ModalityLUTType="HU")
    if words:
        table.add_new("LUTData", "OW", entries.tobytes())
    else:
        table.add_new("LUTData", "US", entries.tolist())
    path = write_forms(tmp_path, stored.astype(np.uint16), modality="CT", header={"ModalityLUTSequence": [table]})[form]
    np.testing.assert_array_equal(read(path), entries[np.clip(stored - 50, 0, 199)])
    reading = read_scan(path).reading
    assert (reading.rescale, reading.units, reading.remarks) == ("modality LUT", "HU", ())


@pytest.mark.reads("DICOM image: a modality LUT beside a rescale slope")
def test_two_modality_transforms_are_refused(tmp_path: Path) -> None:
    table = item(LUTDescriptor=[2, 0, 16], ModalityLUTType="HU")
    table.add_new("LUTData", "US", [0, 1])
    header = {"ModalityLUTSequence": [table], "RescaleSlope": 1, "RescaleIntercept": 0}
    with raises("rescale", naming="modality LUT"):
        read_scan(write_classic(tmp_path / "both", numbers(0, 9).astype(np.uint16), header=header))


def world(slope: float) -> Any:
    units = item(CodeValue="ms", CodingSchemeDesignator="UCUM", CodeMeaning="ms")
    return item(
        RealWorldValueSlope=slope,
        RealWorldValueIntercept=7.0,
        RealWorldValueFirstValueMapped=0,
        RealWorldValueLastValueMapped=4095,
        LUTLabel="x",
        LUTExplanation="x",
        MeasurementUnitsCodeSequence=[units],
    )


@pytest.mark.reads("DICOM image: real world values beside the rescale slope")
@pytest.mark.parametrize("rescaled", [True, False])
def test_real_world_values_are_not_used_and_that_is_said(rescaled: bool, tmp_path: Path) -> None:
    stored = numbers(0, 4096).astype(np.uint16)
    rescale = [{"RescaleSlope": 2, "RescaleIntercept": 1, "RescaleType": "US"}] * SHAPE[0] if rescaled else None
    classic = write_classic(
        tmp_path / "classic", stored, rescale=rescale, header={"RealWorldValueMappingSequence": [world(9.0)]}
    )
    mapped = [{"RealWorldValueMappingSequence": [world(9.0)]}] * SHAPE[0]
    enhanced = write_enhanced(tmp_path / "enhanced.dcm", stored, rescale=rescale, groups=mapped)
    for path in (classic, enhanced):
        np.testing.assert_array_equal(read(path), stored * (2.0 if rescaled else 1) + (1 if rescaled else 0))
        (remark,) = read_scan(path).reading.remarks
        assert "real world values" in remark


def philips(made: Any, k: int = 0) -> None:
    block = made.private_block(0x2005, "Philips MR Imaging DD 001", create=True)
    block.add_new(0x0D, "FL", 3.0)
    block.add_new(0x0E, "FL", 0.01)


@pytest.mark.reads("DICOM image: a private scale beside the rescale slope")
def test_a_private_scale_is_not_taken(tmp_path: Path) -> None:
    stored = numbers(0, 4096).astype(np.uint16)
    np.testing.assert_array_equal(read(write_classic(tmp_path / "classic", stored, change=philips)), stored)
    np.testing.assert_array_equal(read(write_enhanced(tmp_path / "e.dcm", stored, change=philips)), stored)


@pytest.mark.reads("DICOM image: CT in another unit than Hounsfield's, or without a rescale slope")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("said", "remark"), [("MGML", "is CT in MGML"), ("US", "is CT in US"), ("HU", ""), (None, "has no rescale slope")]
)
def test_ct_that_is_not_in_hounsfield_units_is_warned_of(
    said: str | None, remark: str, form: str, tmp_path: Path
) -> None:
    rescale = None if said is None else [{"RescaleSlope": 1, "RescaleIntercept": 0, "RescaleType": said}] * SHAPE[0]
    path = write_forms(tmp_path, numbers(0, 4096).astype(np.uint16), modality="CT", rescale=rescale)[form]
    reading = read_scan(path).reading
    assert reading.units == (said or "HU")
    assert [one for one in reading.remarks if remark in one] if remark else not reading.remarks


@pytest.mark.reads("DICOM image: slices in several units")
@pytest.mark.parametrize("form", FORMS)
def test_several_units_are_refused(form: str, tmp_path: Path) -> None:
    rescale = [{"RescaleSlope": 1, "RescaleIntercept": 0, "RescaleType": unit} for unit in ["HU"] * 5 + ["MGML"]]
    path = write_forms(tmp_path, numbers(0, 9).astype(np.uint16), modality="CT", rescale=rescale)[form]
    with raises("units-differ", naming="(HU, MGML)"):
        read_scan(path)


@pytest.mark.reads("DICOM image: pixel padding, also of floating point")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("modality", ["CT", "MR", "PT"])
@pytest.mark.parametrize("signed", [True, False])
def test_padding_gets_the_lowest_intensity_of_the_image(signed: bool, modality: str, form: str, tmp_path: Path) -> None:
    stored = numbers(100, 4000)
    outside = np.zeros(SHAPE, bool)
    outside[:, :2] = outside[:, :, -1] = True
    padding = -2000 if signed else 63536
    header = {"PixelRepresentation": int(signed), "PixelPaddingValue": padding}
    kind = np.int16 if signed else np.uint16
    rescale = [{"RescaleSlope": 1, "RescaleIntercept": -1024, "RescaleType": "HU"}] * SHAPE[0]
    options: dict[str, Any] = {"header": header, "rescale": rescale, "modality": modality}
    path = write_forms(tmp_path, np.where(outside, padding, stored).astype(kind), **options)[form]
    right = np.where(outside, stored[~outside].min(), stored) - 1024
    np.testing.assert_array_equal(read(path), right)
    (remark,) = read_scan(path).reading.remarks
    assert "lowest intensity" in remark


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("modality", "header", "intercept", "right"),
    [
        ("MR", {}, 0, 0),
        ("PT", {}, 0, 0),
        ("MR", {}, -50, 50),
        ("CT", {}, -1024, -924),
        ("MR", {"PhotometricInterpretation": "MONOCHROME1"}, 0, 4095 - 3999),
    ],
)
def test_padding_of_0_stays_where_that_is_the_background(
    modality: str, header: dict[str, Any], intercept: float, right: float, form: str, tmp_path: Path
) -> None:
    stored = np.where(np.arange(SHAPE[2]) < 2, 0, numbers(100, 4000)).astype(np.uint16)
    stored[..., 2:4] = 100, 3999
    rescale = [{"RescaleSlope": 1, "RescaleIntercept": intercept}] * SHAPE[0]
    bits = {"BitsStored": 12, "HighBit": 11, "PixelPaddingValue": 0}
    path = write_forms(tmp_path, stored, modality=modality, header={**bits, **header}, rescale=rescale)[form]
    assert set(read(path)[..., :2].ravel().tolist()) == {right}


@pytest.mark.reads("DICOM image: in colour or with a palette")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("photometric", ["RGB", "YBR_FULL", "PALETTE COLOR"])
def test_colour_is_refused_by_name(photometric: str, form: str, tmp_path: Path) -> None:
    header: dict[str, Any] = {"PhotometricInterpretation": photometric}
    frames = numbers(0, 200).astype(np.uint8)
    if photometric != "PALETTE COLOR":
        header |= {"SamplesPerPixel": 3, "PlanarConfiguration": 0}
    header |= {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7}
    path = write_forms(tmp_path, frames, header=header)[form]
    with raises("colour-voxels"):
        read_scan(path)


@pytest.mark.reads("DICOM image: a parametric map, of whole numbers or floating point")
@pytest.mark.parametrize("kind", ["u2", "f4", "f8"])
def test_a_parametric_map_has_its_real_world_values(kind: str, tmp_path: Path) -> None:
    stored = numbers(0, 4096).astype(kind)

    def as_map(made: Any) -> None:
        made.SOPClassUID = made.file_meta.MediaStorageSOPClassUID = f"{STORAGE}30"
        if kind != "u2":
            name = {"f4": "FloatPixelData", "f8": "DoubleFloatPixelData"}[kind]
            setattr(made, name, made.PixelData)
            made.BitsAllocated = 8 * int(kind[1])
            for other in ("PixelData", "BitsStored", "HighBit", "PixelRepresentation"):
                delattr(made, other)

    mapped = [{"RealWorldValueMappingSequence": [world(0.5)]}] * SHAPE[0]
    path = write_enhanced(tmp_path / "map.dcm", stored, groups=mapped, change=as_map)
    np.testing.assert_allclose(read(path), stored.astype(float) * 0.5 + 7, rtol=0, atol=1e-9)
    assert read_scan(path).reading.units == "ms"
    if kind != "u2":
        outside = stored < 50
        padding = {"f4": "FloatPixelPaddingValue", "f8": "DoubleFloatPixelPaddingValue"}[kind]

        def padded(made: Any) -> None:
            as_map(made)
            setattr(made, padding, -9999.1)

        path = write_enhanced(
            tmp_path / "padded.dcm", np.where(outside, -9999.1, stored).astype(kind), groups=mapped, change=padded
        )
        assert read(path).min() == stored[~outside].min() * 0.5 + 7
