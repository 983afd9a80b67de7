"""Pictures to segment: read as slices whose colours are sequences, with masks that are pictures, or refused."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dicompictures import write_dicom
from errors import raises
from PIL import Image
from pydicom.uid import SecondaryCaptureImageStorage
from segmentpictures import disc, prepare_discs, write_discs

from data_prep.own_scans import prepare_own
from fedshift.data.check import check
from fedshift.data.labels import Labels, colours_as_values
from fedshift.data.picture_scan import as_picture, read_picture_mask
from fedshift.data.prepared import read_images, read_labels
from fedshift.data.scans import read_scan, read_volumes
from fedshift.runtime.grids import radiological
from fedshift.schema.manifest import FILE_NAME, read_manifest

CLASSES = ("background", "disc")
COLOURS = ("red", "green", "blue")
UPSIDE_DOWN, QUARTER_TURN = 3, 6  # values of EXIF's orientation


def codes(folder: Path, **options: object) -> set[str]:
    options = {"classes": CLASSES, "wanted": COLOURS, **options}
    return {finding.code for finding in check(folder, **options)}  # type: ignore[arg-type]


def test_a_picture_is_a_slice_that_is_shown_upright(tmp_path: Path) -> None:
    picture, _ = disc(1)
    Image.fromarray(picture).save(tmp_path / "a.png")
    scans = read_volumes(tmp_path / "a.png", (0, 1, 2))
    assert [scan.voxels.shape for scan in scans] == [(1, 24, 32)] * 3
    np.testing.assert_array_equal(radiological(scans[2].voxels)[0], picture[..., 2])


@pytest.mark.reads("picture to segment: PNG, TIFF or BMP of 8 bits")
@pytest.mark.parametrize("suffix", [".png", ".tif", ".bmp"])
def test_a_prepared_site_has_the_pixels_and_the_mask_of_its_pictures(tmp_path: Path, suffix: str) -> None:
    source = write_discs(tmp_path / "raw", suffix=suffix)
    site = prepare_own(None, None, "A", tmp_path, dataset="discs", source=source, classes=CLASSES)
    manifest = read_manifest(site)
    assert manifest.pictured and manifest.sequences == COLOURS
    for case in manifest.cases:
        picture, inside = disc(int(case.id[1:]))
        images = read_images(site, manifest, case)
        np.testing.assert_array_equal(np.stack([as_picture(colour) for colour in images], -1), picture)
        np.testing.assert_array_equal(as_picture(read_labels(site, case, "png")), inside)
    assert check(site) == []


@pytest.mark.reads("picture to segment: grey of 16 bits, as a file or in DICOM")
def test_sixteen_bits_of_grey_are_kept(tmp_path: Path) -> None:
    source = write_discs(tmp_path / "raw", grey=True)
    deep = np.arange(24 * 32, dtype=np.uint16).reshape(24, 32) * 80
    Image.fromarray(deep).save(source / "images" / "p0.png")
    site = prepare_own(None, None, "A", tmp_path, dataset="discs", source=source, classes=CLASSES, wanted=())
    manifest = read_manifest(site)
    assert manifest.sequences == ()
    images = read_images(site, manifest, manifest.cases[0])
    assert images.dtype == np.uint16
    np.testing.assert_array_equal(as_picture(images[0]), deep)


@pytest.mark.reads("picture to segment: grey where colours are asked for, equal colours where grey is")
def test_grey_pictures_and_colours_stand_for_each_other_where_nothing_is_lost(tmp_path: Path) -> None:
    picture, _ = disc(1)
    grey = picture[..., :1].repeat(3, -1)
    for name, pixels in (("colour", picture), ("grey", grey), ("plain", grey[..., 0])):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    np.testing.assert_array_equal(read_scan(tmp_path / "grey.png").voxels, read_scan(tmp_path / "plain.png").voxels)
    blue = read_scan(tmp_path / "plain.png", channel=2).voxels
    np.testing.assert_array_equal(blue, read_scan(tmp_path / "plain.png").voxels)
    with raises("colour-voxels", naming="colour.png"):
        read_scan(tmp_path / "colour.png")


def test_grey_of_sixteen_bits_among_colours_is_refused_or_in_eight_where_its_range_is_known(tmp_path: Path) -> None:
    source = write_discs(tmp_path / "raw")
    grey = np.asarray(Image.open(source / "images" / "p0.png").convert("L"))
    Image.fromarray(grey.astype(np.uint16) * 16).save(source / "images" / "p0.png")
    assert codes(source) == {"picture-form"}
    read = read_volumes(write_dicom(tmp_path / "a.dcm", grey), (0, 1, 2))
    assert all(np.array_equal(as_picture(colour.voxels), grey) for colour in read) and read[0].voxels.dtype == np.uint8


@pytest.mark.reads("picture to segment: a DICOM whose pixels are not square, and of no known size")
def test_pixels_that_are_not_square_are_warned_of_unless_their_size_is_known(tmp_path: Path) -> None:
    source = write_discs(tmp_path / "raw", grey=True)
    for file in sorted((source / "images").iterdir()):
        grey = np.asarray(Image.open(file).convert("L"))
        write_dicom(file.with_suffix(".dcm"), grey, PixelAspectRatio=[4, 3])
        file.unlink()
    found = check(source, classes=CLASSES)
    assert [finding.code for finding in found] == ["scan-remark"] * 6 and "4, 3" not in found[0].message
    assert "1.33 times as high as wide" in found[0].message and found[0].file.name == "p0.dcm"
    kind = {"SOPClassUID": SecondaryCaptureImageStorage, "PixelSpacing": [0.4, 0.3]}
    (scan,) = read_volumes(write_dicom(tmp_path / "a.dcm", grey, **kind), (None,))
    assert scan.spacing[:2] == (0.3, 0.4) and not scan.warnings


def test_masks_in_which_black_and_white_are_exchanged_are_warned_of(tmp_path: Path) -> None:
    source = write_discs(tmp_path / "raw")
    for number, file in enumerate(sorted((source / "masks").iterdir())):
        if number < 4:
            Image.fromarray(255 - np.asarray(Image.open(file))).save(file)
    (finding,) = check(source, classes=CLASSES)
    assert finding.code == "mask-inverted" and "4 mask(s) among 6" in finding.message


def test_one_colour_can_be_taken(tmp_path: Path) -> None:
    source = write_discs(tmp_path / "raw")
    site = prepare_own(
        None, None, "A", tmp_path, dataset="discs", source=source, classes=CLASSES, sequences={"green": ""}
    )
    manifest = read_manifest(site)
    assert manifest.sequences == ("green",)
    np.testing.assert_array_equal(as_picture(read_images(site, manifest, manifest.cases[0])[0]), disc(0)[0][..., 1])


def test_sequences_that_are_no_colours_are_refused(tmp_path: Path) -> None:
    source = write_discs(tmp_path / "raw")
    with raises("sequence-unknown", naming="T2"):
        check(source, sequences={"T2": "", "green": "", "blue": ""})
    with raises("sequence-count"):
        check(source, sequences={"red": "", "green": ""})


@pytest.mark.reads("picture to segment: palettes, CMYK, transparency, 1 bit")
@pytest.mark.parametrize("form", ["palette", "cmyk", "transparent", "one bit", "interlaced"])
def test_forms_of_files_are_read(tmp_path: Path, form: str) -> None:
    picture, inside = disc(1)
    image = Image.fromarray(picture)
    made = {
        "palette": image.quantize(200),
        "cmyk": image.convert("CMYK"),
        "transparent": Image.fromarray(np.dstack([picture, np.uint8(255) * inside])),
        "one bit": Image.fromarray(inside),
        "interlaced": image,
    }[form]
    path = tmp_path / ("a.tif" if form == "cmyk" else "a.png")
    made.save(path, **({"interlace": 1} if form == "interlaced" else {}))
    scans = read_volumes(path, (0, 1, 2))
    shown = np.stack([as_picture(scan.voxels) for scan in scans], -1).astype(int)
    white = np.full_like(picture, 255)
    expected = {
        "transparent": np.where(inside[..., None], picture, white),
        "one bit": 255 * inside[..., None].repeat(3, -1),
    }.get(form, picture)
    assert np.abs(shown - expected).max() <= (30 if form == "palette" else 0)
    assert bool(scans[0].reading.remarks) == (form != "interlaced")


@pytest.mark.reads("picture to segment: several pages, files cut short")
def test_several_pages_and_files_cut_short_are_refused(tmp_path: Path) -> None:
    pages = [Image.fromarray(disc(seed)[0]) for seed in range(2)]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    with raises("several-pictures", naming="pages.tif"):
        read_volumes(tmp_path / "pages.tif", (0,))
    pages[0].save(tmp_path / "whole.png")
    content = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    with raises("file-damaged", naming="cut.png"):
        read_volumes(tmp_path / "cut.png", (0,))


# --- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.reads("picture to segment: a mask in black and white")
def test_black_and_white_is_the_one_class_and_numbers_are_kept(tmp_path: Path) -> None:
    values = np.array([[0, 255], [255, 0]], np.uint8)
    Image.fromarray(values).save(tmp_path / "bw.png")
    Image.fromarray(values).convert("1").save(tmp_path / "bit.png")
    Image.fromarray(values // 255 * 2).save(tmp_path / "two.png")
    np.testing.assert_array_equal(as_picture(read_picture_mask(tmp_path / "bw.png").voxels), values // 255)
    np.testing.assert_array_equal(as_picture(read_picture_mask(tmp_path / "bit.png").voxels), values // 255)
    np.testing.assert_array_equal(as_picture(read_picture_mask(tmp_path / "two.png").voxels), values // 255 * 2)
    prepared = read_picture_mask(tmp_path / "bw.png", prepared=True)
    np.testing.assert_array_equal(as_picture(prepared.voxels), values)


def test_white_of_two_classes_has_to_be_named(tmp_path: Path) -> None:
    source = write_discs(tmp_path / "raw")
    assert codes(source, labels={"disc": (1,), "rim": (2,)}, classes=None) == {"mask-values"}
    assert codes(source, labels={"disc": (255,), "rim": (2,)}, classes=None) == {"class-missing"}


@pytest.mark.reads("picture to segment: a mask that changes along edges: JPEG, or smoothed")
@pytest.mark.parametrize(
    ("suffix", "code"), [(".jpg", "mask-lossy"), (".png", "mask-values")], ids=["lossy", "smoothed"]
)
def test_masks_whose_edges_are_not_as_drawn_are_refused(tmp_path: Path, suffix: str, code: str) -> None:
    source = write_discs(tmp_path / "raw")
    (source / "masks" / "p0.png").unlink()
    smooth = Image.fromarray(np.uint8(255) * disc(0)[1]).resize((160, 120)).resize((32, 24))
    smooth.save(source / "masks" / f"p0{suffix}")
    assert codes(source) == {code}


def test_a_mask_that_is_smoothed_a_little_is_refused_for_that(tmp_path: Path) -> None:
    source = write_discs(tmp_path / "raw")
    values = np.uint8(255) * disc(0)[1]
    values[0, :4] = (10, 90, 160, 250)
    Image.fromarray(values).save(source / "masks" / "p0.png")
    (finding,) = check(source, classes=CLASSES)
    assert finding.code == "mask-values" and finding.remedy.startswith("if it was smoothed")


def test_a_lossy_mask_is_told_by_its_content(tmp_path: Path) -> None:
    Image.fromarray(np.uint8(255) * disc(0)[1]).save(tmp_path / "mask.png", format="JPEG")
    with raises("mask-lossy", naming="mask.png"):
        read_picture_mask(tmp_path / "mask.png")


def with_palette(path: Path, inside: np.ndarray, *colours: tuple[int, int, int]) -> Path:
    """A mask of numbers from 0 with a palette."""
    image = Image.fromarray(inside.astype(np.uint8)).convert("P")
    image.putpalette([level for colour in colours for level in colour])
    image.save(path)
    return path


BLACK, WHITE, RED = (0, 0, 0), (255, 255, 255), (255, 0, 0)


@pytest.mark.reads(
    "picture to segment: a mask with a palette in which 0 is not black, and another number is black or white"
)
@pytest.mark.parametrize("suffix", [".png", ".tif", ".bmp"])
def test_numbers_of_a_palette_count_unless_its_colours_say_that_0_is_inside(tmp_path: Path, suffix: str) -> None:
    inside = disc(1)[1]
    for name, colours in (("plain", (BLACK, RED)), ("paper", (WHITE, RED))):
        file = with_palette(tmp_path / f"{name}{suffix}", inside, *colours)
        np.testing.assert_array_equal(as_picture(read_picture_mask(file).voxels), inside)
    for name, colours in (("turned", (WHITE, BLACK)), ("sorted", (RED, BLACK))):
        with raises("mask-palette", naming=f"{name}{suffix} is a mask with a palette in which 0 is #ff"):
            read_picture_mask(with_palette(tmp_path / f"{name}{suffix}", inside, *colours))
    named = Labels.named(colours_as_values({"disc": ("#ff0000",)}))  # type: ignore[arg-type]
    by_colour = as_picture(read_picture_mask(tmp_path / f"sorted{suffix}", named).voxels)
    np.testing.assert_array_equal(by_colour != 0, ~inside)


@pytest.mark.reads("picture to segment: a mask as a TIFF in which 0 is white, as ImageJ writes it")
@pytest.mark.parametrize("bits", [1, 8])
def test_a_mask_in_which_0_is_white_is_refused(tmp_path: Path, bits: int) -> None:
    values = np.uint8(255) * disc(1)[1]
    image = Image.fromarray(values).convert("1") if bits == 1 else Image.fromarray(values)
    image.save(tmp_path / "mask.tif", tiffinfo={262: 0})
    with raises("mask-form", naming="0 is white"):
        read_picture_mask(tmp_path / "mask.tif")


def grey_png(values: np.ndarray, bits: int) -> bytes:
    """A PNG of fewer bits than Pillow writes."""
    rows = ["".join(f"{value:0{bits}b}" for value in row) for row in values.tolist()]
    packed = b"".join(b"\0" + int(row, 2).to_bytes(len(row) // 8, "big") for row in rows)
    head = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(packed)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def pgm(values: np.ndarray, most: int, magic: str = "P5") -> bytes:
    numbers = values.astype(">u2" if most > 255 else np.uint8).tobytes()
    return f"{magic}\n{values.shape[1]} {values.shape[0]}\n{most}\n".encode() + numbers


def bmp_of_15_bits(values: np.ndarray) -> bytes:
    pixels = (values[::-1].astype("<u2") * 0x421).tobytes()
    head = struct.pack("<IiiHHIIiiII", 40, values.shape[1], values.shape[0], 1, 16, 0, len(pixels), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54) + head + pixels


@pytest.mark.reads("picture to segment: a mask in grey of 2 or 4 bits, or as a PGM or BMP of other than 8 or 16")
@pytest.mark.parametrize(
    ("form", "white"),
    [
        (lambda values: grey_png(values, 2), 3),
        (lambda values: grey_png(values, 4), 15),
        (lambda values: pgm(values, 3), 3),
        (lambda values: pgm(values, 254), 254),
        (lambda values: pgm(values, 4095), None),
        (lambda values: pgm(values.repeat(3).reshape(24, -1), 65535, "P6").replace(b"\n96 ", b"\n32 "), None),
        (bmp_of_15_bits, None),
    ],
    ids=["PNG of 2 bits", "PNG of 4 bits", "PGM of 2 bits", "PGM to 254", "PGM of 12 bits", "PPM of 16 bits", "BMP"],
)
def test_numbers_that_readers_stretch_are_refused(
    tmp_path: Path, form: Callable[[np.ndarray], bytes], white: int | None
) -> None:
    inside = disc(1)[1].astype(np.uint8)
    (tmp_path / "mask.png").write_bytes(form(inside))
    with raises("mask-form", naming="mask.png is a mask of other than 8 or 16 bits"):
        read_picture_mask(tmp_path / "mask.png")
    if white is not None:
        (tmp_path / "white.png").write_bytes(form(inside * white))
        np.testing.assert_array_equal(as_picture(read_picture_mask(tmp_path / "white.png").voxels), inside)


@pytest.mark.parametrize("most", [255, 65535])
def test_numbers_of_a_pgm_of_8_or_16_bits_are_kept(tmp_path: Path, most: int) -> None:
    inside = disc(1)[1].astype(np.uint8)
    (tmp_path / "mask.png").write_bytes(pgm(inside * 2, most))
    np.testing.assert_array_equal(as_picture(read_picture_mask(tmp_path / "mask.png").voxels), inside * 2)


@pytest.mark.parametrize("value", [-1, 70_000, 2**31 - 1])
def test_numbers_that_no_class_can_have_are_refused(tmp_path: Path, value: int) -> None:
    Image.fromarray(disc(1)[1].astype(np.int32) * value).save(tmp_path / "mask.tif")
    with raises("mask-values", naming=str(value)):
        read_picture_mask(tmp_path / "mask.tif")


@pytest.mark.reads("picture to segment: a mask of another size")
def test_another_size_is_refused_with_both(tmp_path: Path) -> None:
    source = write_discs(tmp_path / "raw")
    Image.fromarray(disc(0, size=(20, 30))[1]).save(source / "masks" / "p0.png")
    (finding,) = check(source, classes=CLASSES)
    assert finding.code == "mask-grid" and "30 x 20" in finding.message and "32 x 24" in finding.message


@pytest.mark.reads("picture to segment: a mask that was not turned with its picture by an EXIF tag")
@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize(
    ("turn", "mask", "found"),
    [
        (QUARTER_TURN, "as stored", {"mask-grid"}),
        (QUARTER_TURN, "upright", set()),
        (UPSIDE_DOWN, "as stored", {"mask-turned"}),
    ],
)
def test_a_mask_that_is_not_turned_with_its_image_is_told(
    tmp_path: Path, turn: int, mask: str, found: set[str], suffix: str
) -> None:
    source = write_discs(tmp_path / "raw", suffix=suffix)
    picture, inside = disc(0)
    exif = Image.Exif()
    exif[0x0112] = turn
    Image.fromarray(picture).save(source / "images" / f"p0{suffix}", exif=exif)
    drawn = np.rot90(inside, -1) if mask == "upright" else inside
    Image.fromarray(np.uint8(255) * drawn).save(source / "masks" / "p0.png")
    assert codes(source) == found


# --- masks in colour --------------------------------------------------------------------------------------------------

CUP, DISC = (255, 0, 0), (0, 0, 255)


def write_coloured(source: Path, *, smooth: bool = False) -> None:
    """Masks in which the upper half of the disc is the cup."""
    for number in range(6):
        inside = disc(number)[1]
        upper = inside & (np.arange(24)[:, None] < 10)
        mask = np.zeros((24, 32, 3), np.uint8)
        mask[inside], mask[upper] = DISC, CUP
        if smooth and number == 0:
            mask[0, :3] = (250, 10, 0)
        Image.fromarray(mask).save(source / "masks" / f"p{number}.png")


NESTED = ("background", "cup", "disc")


@pytest.mark.reads("picture to segment: a mask in colours that are named as classes")
@pytest.mark.parametrize(
    "labels",
    [{"cup": CUP, "disc": DISC}, {"cup": ("#ff0000",), "disc": ("#0000FF",)}],
    ids=["three numbers", "as in HTML"],
)
def test_colours_stand_for_classes(tmp_path: Path, labels: dict[str, tuple[int | str, ...]]) -> None:
    source = write_discs(tmp_path / "raw")
    write_coloured(source)
    site = prepare_own(None, None, "A", tmp_path, dataset="eyes", source=source, classes=NESTED, labels=labels)
    manifest = read_manifest(site)
    assert manifest.preparation["labels"] == {"cup": ["#ff0000"], "disc": ["#0000ff"]}
    mask = as_picture(read_labels(site, manifest.cases[0], "png"))
    inside = disc(int(manifest.cases[0].id[1:]))[1]
    np.testing.assert_array_equal(mask, np.where(inside, np.where(np.arange(24)[:, None] < 10, 1, 2), 0))
    assert check(site) == []
    more = write_discs(tmp_path / "more", seed=1)
    write_coloured(more)
    for kind in ("images", "masks"):
        (more / kind / "p0.png").rename(more / kind / "q0.png")
        for number in range(1, 6):
            (more / kind / f"p{number}.png").unlink()
    Image.fromarray(disc(77)[0]).save(more / "images" / "q0.png")
    again = prepare_own(None, None, "A", tmp_path, dataset="eyes", source=more, classes=NESTED)
    assert len(read_manifest(again).cases) == 7  # the colours are remembered


def test_colours_that_no_class_has_are_refused_with_the_nearest(tmp_path: Path) -> None:
    source = write_discs(tmp_path / "raw")
    write_coloured(source, smooth=True)
    (finding,) = check(source, classes=NESTED, labels={"cup": CUP, "disc": DISC})
    assert finding.code == "mask-colours"
    assert all(word in finding.message for word in ("3 pixel(s)", "#fa0a00", "#ff0000 (cup)"))
    assert codes(source, classes=None) == {"mask-colours"}


def test_three_numbers_are_values_of_grey_masks(tmp_path: Path) -> None:
    source = write_discs(tmp_path / "raw")
    for number in range(6):
        values = disc(number)[1] * np.uint8(number % 3 + 1)
        Image.fromarray(values).save(source / "masks" / f"p{number}.png")
    assert codes(source, labels={"disc": (1, 2, 3)}) == set()


# --- folders ----------------------------------------------------------------------------------------------------------


def test_pictures_beside_scans_are_passed_over(tmp_path: Path) -> None:
    """Such as a screenshot that somebody keeps with the scans."""
    from scanfiles import write_pair

    write_pair(tmp_path / "raw", "P1")
    Image.fromarray(disc(0)[0]).save(tmp_path / "raw" / "overview.png")
    assert codes(tmp_path / "raw", classes=None, wanted=None) == set()


def test_pictures_beside_their_masks_are_paired_and_others_are_no_layout(tmp_path: Path) -> None:
    site = tmp_path / "all" / "A"
    source = write_discs(tmp_path / "raw")
    site.mkdir(parents=True)
    for file in (source / "images").iterdir():
        file.rename(site / file.name)
        (source / "masks" / file.name).rename(site / f"{file.stem}_mask.png")
    Image.fromarray(disc(0)[0]).save(tmp_path / "all" / "overview.png")
    assert codes(tmp_path / "all") == set()
    (tmp_path / "loose").mkdir()
    Image.fromarray(disc(0)[0]).save(tmp_path / "loose" / "overview.png")
    assert codes(tmp_path / "loose") == {"layout-unknown"}


def test_the_same_picture_twice_is_refused_and_an_empty_colour_is_not(tmp_path: Path) -> None:
    source = write_discs(tmp_path / "raw")
    for number in range(6):
        picture = disc(number)[0] * np.array([0, 1, 0], np.uint8)
        Image.fromarray(picture).save(source / "images" / f"p{number}.png")
    assert codes(source) == set()
    (source / "images" / "p1.png").write_bytes((source / "images" / "p0.png").read_bytes())
    assert codes(source) == {"same-content"}


def test_a_site_has_pictures_or_volumes(tmp_path: Path) -> None:
    from scanfiles import write_pair

    prepare_discs(tmp_path / "raw", tmp_path)
    write_pair(tmp_path / "scans", "P1")
    with raises("kind-of-data"):
        prepare_own(None, None, "A", tmp_path, dataset="discs", source=tmp_path / "scans", classes=CLASSES)


# --- subjects ---------------------------------------------------------------------------------------------------------


def write_eyes(source: Path) -> Path:
    """Both eyes of six people."""
    write_discs(source, cases=12)
    for kind in ("images", "masks"):
        for number in range(12):
            file = source / kind / f"p{number}.png"
            file.rename(file.with_name(f"Image_{number // 2:02d}{'LR'[number % 2]}.png"))
    return source


@pytest.mark.parametrize("pattern", ["Image_*[LR]", "Image_*?", r"Image_(\d+).", "(Image_..)[LR]"])
def test_both_eyes_are_in_one_split(tmp_path: Path, pattern: str) -> None:
    source = write_eyes(tmp_path / "raw")
    site = prepare_own(None, None, "A", tmp_path, dataset="d", source=source, classes=CLASSES, subject=pattern)
    splits: dict[str, set[str]] = {}
    for case in read_manifest(site).cases:
        splits.setdefault(case.id[:-1], set()).add(case.split)
    assert len(splits) == 6 and all(len(each) == 1 for each in splits.values())
    assert check(site) == []


@pytest.mark.parametrize(
    ("pattern", "code"), [("Eye_*", "subject-unmatched"), ("a*b*", "option-form"), ("((", "option-form")]
)
def test_patterns_of_subjects_that_do_not_fit_are_refused(tmp_path: Path, pattern: str, code: str) -> None:
    source = write_eyes(tmp_path / "raw")
    with raises(code):
        prepare_own(None, None, "A", tmp_path, dataset="d", source=source, classes=CLASSES, subject=pattern)


def test_a_subject_said_of_a_prepared_site_that_divides_it_is_refused(tmp_path: Path) -> None:
    """As where the warning about both eyes is followed: known cases keep their splits."""
    source = write_eyes(tmp_path / "raw")
    site = prepare_own(None, None, "A", tmp_path, dataset="d", source=source, classes=CLASSES)
    before = (site / FILE_NAME).read_bytes()
    with raises("subject-divided", naming=str(site)):
        prepare_own(None, None, "A", tmp_path, dataset="d", source=source, classes=CLASSES, subject="Image_*[LR]")
    assert (site / FILE_NAME).read_bytes() == before

    prepare_own(None, None, "A", tmp_path, dataset="d", source=source, classes=CLASSES, subject="*")
    prepare_own(None, None, "B", tmp_path, dataset="d", source=source, classes=CLASSES, subject="*[LR]")
    prepare_own(None, None, "B", tmp_path, dataset="d", source=source, classes=CLASSES, subject="Image_*[LR]")
    assert check(tmp_path / "d" / "B") == [], "subjects of other names, as before together"


def test_pictures_of_both_sides_without_a_subject_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_eyes(tmp_path / "raw")
    (warning,) = check(source, labels={"disc": (1,)})
    assert (warning.level, warning.code) == ("warning", "subject-unsaid") and "--subject '*[LR]'" in warning.sentence()
    prepare_own(None, None, "A", tmp_path / "unsaid", dataset="d", source=source, classes=CLASSES)
    assert "Image_00L and Image_00R" in caplog.text
    caplog.clear()
    prepare_own(None, None, "A", tmp_path / "said", dataset="d", source=source, classes=CLASSES, subject="*[LR]")
    assert not caplog.text
    for file in sorted(source.glob("*/Image_*R.png")):
        file.unlink()
    assert check(source, labels={"disc": (1,)}) == [], "one side of each person"
