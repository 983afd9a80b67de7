"""DICOM of one frame becomes a picture as the standard says: window, VOI LUT, photometric interpretation, 16 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dicomforms import item
from dicompictures import write_dicom
from errors import raises
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.pixels.processing import apply_windowing
from pydicom.uid import DigitalMammographyXRayImageStorageForProcessing, EnhancedXAImageStorage

from fedshift.data.decode import cached_picture, picture_sha256, read_picture
from fedshift.data.depth import WHITE, DeepPicture, Depth, warnings_of


@pytest.fixture
def ramp() -> np.ndarray:
    return np.linspace(0, 4095, 64 * 64).astype(np.uint16).reshape(64, 64)


def deep(path: Path) -> DeepPicture:
    picture = read_picture(path)
    assert isinstance(picture, DeepPicture)
    return picture


@pytest.mark.reads("picture: grey DICOM of one frame with a window or a VOI LUT")
@pytest.mark.parametrize("shape", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_a_window_is_applied_as_a_viewer_does_whatever_the_slope(shape: str, ramp: np.ndarray, tmp_path: Path) -> None:
    window = {"WindowCenter": [1000, 5], "WindowWidth": [800, 9], "VOILUTFunction": shape}
    plain = deep(write_dicom(tmp_path / "a.dcm", ramp, **window))
    expected = Dataset()
    for name, value in {**window, "BitsStored": 12, "PixelRepresentation": 0}.items():
        setattr(expected, name, value)
    expected.PhotometricInterpretation = "MONOCHROME2"
    shown = apply_windowing(ramp, expected) / 4095
    assert np.abs(plain.values / WHITE - shown).max() < 1e-4 and len(np.unique(plain.values)) > 600
    falling = {"WindowCenter": -1000, "WindowWidth": 800, "VOILUTFunction": shape}
    turned = deep(write_dicom(tmp_path / "b.dcm", ramp, RescaleSlope=-1, RescaleIntercept=0, **falling))
    assert turned.values[0, 0] > turned.values[-1, -1], "a falling slope is shown falling"
    assert plain.known == "by its window" and plain.reading(12).bits == "12 of 16 bits, unsigned"


def test_a_voi_table_comes_before_a_window(ramp: np.ndarray, tmp_path: Path) -> None:
    table = Dataset()
    table.LUTDescriptor, table.LUTData = [4096, 0, 10], [k // 4 for k in range(4096)]
    table["LUTData"].VR = "US"
    picture = deep(write_dicom(tmp_path / "a.dcm", ramp, VOILUTSequence=[table], WindowCenter=10, WindowWidth=20))
    assert np.abs(picture.values / WHITE - (ramp // 4) / 1023).max() < 1e-4 and picture.known == "by its VOI LUT"


def voi_table(descriptor: list[int], data: object, vr: str) -> Dataset:
    table = Dataset()
    table.LUTDescriptor, table.LUTData = descriptor, data
    table["LUTData"].VR = vr
    table["LUTDescriptor"].VR = "SS" if min(descriptor) < 0 else "US"
    return table


def test_a_voi_table_is_read_however_it_is_packed(ramp: np.ndarray, tmp_path: Path) -> None:
    """Two entries of 8 bits in a word (C.11.2.1.1), more bits than it says, and a first value below 0."""
    packed = voi_table([4096, 0, 8], bytes(k // 16 for k in range(4096)), "OW")
    picture = deep(write_dicom(tmp_path / "a.dcm", ramp, VOILUTSequence=[packed]))
    assert np.abs(picture.values / WHITE - (ramp // 16) / 255).max() < 1e-4
    deeper = voi_table([4096, 0, 12], [k * 16 for k in range(4096)], "US")
    picture = deep(write_dicom(tmp_path / "b.dcm", ramp, VOILUTSequence=[deeper]))
    assert np.abs(picture.values / WHITE - ramp * 16 / 65535).max() < 1e-4
    assert picture.known == "by its VOI LUT, whose values have 16 bits and not 12"
    for number, first in enumerate((-1000, 2**16 - 1000)):
        table = voi_table([4096, first, 12], list(range(4096)), "US")
        tags = {"RescaleSlope": 1, "RescaleIntercept": -1000, "VOILUTSequence": [table]}
        picture = deep(write_dicom(tmp_path / f"c{number}.dcm", ramp, **tags))
        assert np.abs(picture.values / WHITE - ramp / 4095).max() < 1e-4


@pytest.mark.parametrize(("centre", "width", "said"), [(5, 0, "without a width"), (9000, 10, "the same colour")])
def test_a_window_that_shows_nothing_is_refused(
    ramp: np.ndarray, tmp_path: Path, centre: int, width: int, said: str
) -> None:
    with raises("picture-range", naming=said):
        read_picture(write_dicom(tmp_path / "a.dcm", ramp, WindowCenter=centre, WindowWidth=width))


@pytest.mark.reads("picture: grey DICOM of one frame with neither")
def test_without_a_window_the_stored_bits_are_the_range(ramp: np.ndarray, tmp_path: Path) -> None:
    dark = ramp // 16
    picture = deep(write_dicom(tmp_path / "a.dcm", dark))
    assert np.abs(picture.values / WHITE - dark / 4095).max() < 1e-4, "and not the largest value of a dark picture"
    sixteen = deep(write_dicom(tmp_path / "b.dcm", dark, BitsStored=16))
    assert not sixteen.known and sixteen.bits == 8 and np.array_equal(sixteen.values, dark)


@pytest.mark.reads("picture: grey DICOM with neither, of 16 signed bits or 16 with a rescale slope")
def test_without_a_range_it_is_refused(ramp: np.ndarray, tmp_path: Path) -> None:
    with raises("picture-range", naming="a.dcm"):
        read_picture(write_dicom(tmp_path / "a.dcm", ramp.astype(np.int16), BitsStored=16))
    with raises("picture-range", naming="b.dcm"):
        read_picture(write_dicom(tmp_path / "b.dcm", ramp, BitsStored=16, RescaleSlope=2, RescaleIntercept=1))


@pytest.mark.reads("picture: grey DICOM that is MONOCHROME1 or has an inverse presentation LUT")
@pytest.mark.parametrize(
    "said",
    [{"PhotometricInterpretation": "MONOCHROME1"}, {"PresentationLUTShape": "INVERSE"}],
)
def test_where_zero_is_white_it_is_turned_once(said: dict[str, str], ramp: np.ndarray, tmp_path: Path) -> None:
    window = {"WindowCenter": 1000, "WindowWidth": 800}
    plain, turned = (write_dicom(tmp_path / name, ramp, **window) for name in ("a.dcm", "b.dcm"))
    write_dicom(turned, ramp, **window, **said)
    arrays = [cached_picture(read_picture(file), Depth([]), size=32, channels=1) for file in (plain, turned)]
    assert arrays[0].dtype == np.uint16 and np.array_equal(arrays[0], WHITE - arrays[1])
    assert "turned" in str(deep(turned).reading(12).photometric)


@pytest.mark.reads("picture: pixel padding of a grey DICOM")
@pytest.mark.parametrize("window", [{"WindowCenter": 2048, "WindowWidth": 2000}, {}, {"BitsStored": 16}])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize(("first", "last"), [(0, None), (4095, None), (0, 400), (1500, 1700)])
def test_padding_is_as_dark_as_the_image_gets(
    first: int, last: int | None, photometric: str, window: dict[str, int], ramp: np.ndarray, tmp_path: Path
) -> None:
    padding = {"PixelPaddingValue": first} | ({} if last is None else {"PixelPaddingRangeLimit": last})
    stored = np.clip(ramp, 401, 4000)
    stored[:8] = first
    picture = deep(write_dicom(tmp_path / "a.dcm", stored, PhotometricInterpretation=photometric, **window, **padding))
    bits = Depth([lambda: picture]).bits_of(picture)
    shown = np.asarray(picture.shown(bits))[..., 0]
    outside = (stored >= first) & (stored <= (last or first))
    assert shown[outside].max() <= shown[~outside].min() < shown[~outside].max()
    if (photometric, first) in (("MONOCHROME1", 0), ("MONOCHROME2", 4095)):
        (warning,) = warnings_of(picture)
        assert "pixel padding" in warning


@pytest.mark.reads("picture: a DICOM whose pixels are not square, by their spacing or aspect ratio")
def test_pixels_that_are_not_square_are_warned_of(ramp: np.ndarray, tmp_path: Path) -> None:
    colour = np.zeros((8, 9, 3), np.uint8)
    for tags, words in (
        ({"PixelAspectRatio": [4, 3]}, "1.33 times as high as wide (PixelAspectRatio)"),
        ({"PixelAspectRatio": [1, 1]}, ""),
        ({"PixelAspectRatio": ["0", "1"]}, ""),
        ({"PixelSpacing": [0.2, 0.1], "PixelAspectRatio": [1, 1]}, "2 times as high as wide (PixelSpacing)"),
        ({"ImagerPixelSpacing": [0.1, 0.2]}, "0.5 times as high as wide (ImagerPixelSpacing)"),
        ({"PixelSpacing": [0.2, 0.2001]}, ""),
    ):
        for pixels in (ramp, colour):
            said = warnings_of(read_picture(write_dicom(tmp_path / "a.dcm", pixels, **tags)))
            assert [words in each for each in said] == [True] * bool(words)


@pytest.mark.reads("picture: DICOM in colour, also YBR and palettes, of 8 bits")
def test_colours_are_read_as_rgb(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    picture = read_picture(write_dicom(tmp_path / "a.dcm", pixels))
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert picture_sha256(picture) == picture_sha256(read_picture(tmp_path / "a.png"))
    ybr = np.asarray(Image.fromarray(pixels).convert("YCbCr"))
    again = read_picture(write_dicom(tmp_path / "b.dcm", ybr, PhotometricInterpretation="YBR_FULL"))
    assert isinstance(again, Image.Image) and np.abs(np.asarray(again).astype(int) - pixels).max() <= 3
    colours = {
        f"{colour}PaletteColorLookupTableData": (pixels[0, :4, k].astype(np.uint16) * 257).tobytes()
        for k, colour in enumerate(("Red", "Green", "Blue"))
    }
    described = {f"{colour}PaletteColorLookupTableDescriptor": [4, 0, 16] for colour in ("Red", "Green", "Blue")}
    index = rng.integers(0, 4, (16, 16), dtype=np.uint8)
    palette = write_dicom(tmp_path / "c.dcm", index, PhotometricInterpretation="PALETTE COLOR", **described, **colours)
    assert np.array_equal(np.asarray(read_picture(palette)), pixels[0, :4][index])
    colours = {
        f"{colour}PaletteColorLookupTableData": pixels[0, :4, k].astype(np.uint16).tobytes()
        for k, colour in enumerate(("Red", "Green", "Blue"))
    }
    in_words = write_dicom(tmp_path / "d.dcm", index, PhotometricInterpretation="PALETTE COLOR", **described, **colours)
    assert np.array_equal(np.asarray(read_picture(in_words)), pixels[0, :4][index])


@pytest.mark.reads("picture: DICOM in colour or with colours burnt in, for a task of grey pictures")
def test_burnt_in_colours_are_refused_where_grey_is_asked(tmp_path: Path) -> None:
    grey = np.repeat(np.random.default_rng(0).integers(0, 256, (16, 16, 1), dtype=np.uint8), 3, 2)
    plain = read_picture(write_dicom(tmp_path / "a.dcm", grey))
    assert cached_picture(plain, Depth([]), size=16, channels=1).shape == (1, 16, 16)
    grey[2, 3] = (255, 0, 0)
    burnt = read_picture(write_dicom(tmp_path / "b.dcm", grey))
    with raises("colour-voxels", naming="b.dcm"):
        cached_picture(burnt, Depth([]), size=16, channels=1)
    assert cached_picture(burnt, Depth([]), size=16, channels=3).shape == (3, 16, 16)


@pytest.mark.reads("picture: DICOM of several frames, or without pixels")
def test_several_frames_and_none_are_refused(ramp: np.ndarray, tmp_path: Path) -> None:
    with raises("several-frames", naming="a.dcm"):
        read_picture(write_dicom(tmp_path / "a.dcm", ramp, NumberOfFrames=2))
    with raises("pixels-missing", naming="b.dcm"):
        read_picture(write_dicom(tmp_path / "b.dcm", ramp, SOPClassUID="1.2.840.10008.5.1.4.1.1.88.11"))
    cut = write_dicom(tmp_path / "c.dcm", ramp)
    cut.write_bytes(cut.read_bytes()[:-500])
    with raises("file-damaged", naming="c.dcm"):
        read_picture(cut)


@pytest.mark.reads("picture: raw radiographs (for processing), of DX, mammography and within the mouth")
@pytest.mark.parametrize(
    "tags",
    [{"SOPClassUID": DigitalMammographyXRayImageStorageForProcessing}, {"PresentationIntentType": "FOR PROCESSING"}],
)
def test_raw_radiographs_are_refused(tags: dict[str, str], ramp: np.ndarray, tmp_path: Path) -> None:
    write_dicom(tmp_path / "a.dcm", ramp, PresentationIntentType="FOR PRESENTATION")
    read_picture(tmp_path / "a.dcm")
    with raises("picture-form", naming="raw.dcm"):
        read_picture(write_dicom(tmp_path / "raw.dcm", ramp, **tags))


@pytest.mark.reads("picture: enhanced DICOM of one frame")
@pytest.mark.parametrize("shared", [True, False])
def test_the_window_of_an_enhanced_image_is_that_of_its_frame(shared: bool, ramp: np.ndarray, tmp_path: Path) -> None:
    rescale = {"RescaleSlope": 2, "RescaleIntercept": -100, "RescaleType": "US"}
    window = {"WindowCenter": 1000, "WindowWidth": 600}
    classic = write_dicom(tmp_path / "classic.dcm", ramp, **rescale, **window)
    group = item(PixelValueTransformationSequence=[item(**rescale)], FrameVOILUTSequence=[item(**window)])
    groups = {"Shared" if shared else "PerFrame": [group], "PerFrame" if shared else "Shared": [item()]}
    sequences = {f"{name}FunctionalGroupsSequence": items for name, items in groups.items()}
    enhanced = write_dicom(tmp_path / "e.dcm", ramp, SOPClassUID=EnhancedXAImageStorage, NumberOfFrames=1, **sequences)
    np.testing.assert_array_equal(deep(enhanced).values, deep(classic).values)
