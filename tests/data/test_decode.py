"""Picture files of every kind are upright 8-bit RGB, or refused with a sentence."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
from picturefiles import pixels
from PIL import Image, TiffImagePlugin

from fedshift.data.decode import picture_sha256, read_picture
from fedshift.data.depth import DeepPicture
from fedshift.schema.errors import DataError

GREY = pixels(2, channels=1)[..., 0]
COLOURS = pixels(1)


def saved(picture: Image.Image, path: Path, **options: Any) -> np.ndarray:
    """The pixels of a picture that Pillow writes."""
    picture.save(path, **options)
    return rgb(path)


def rgb(path: Path) -> np.ndarray:
    picture = read_picture(path)
    assert isinstance(picture, Image.Image) and picture.mode == "RGB"
    return np.asarray(picture)


def deep(path: Path) -> DeepPicture:
    picture = read_picture(path)
    assert isinstance(picture, DeepPicture)
    return picture


def three(grey: np.ndarray) -> np.ndarray:
    return np.stack([grey] * 3, -1)


def close(found: np.ndarray, wanted: np.ndarray, *, within: int = 0) -> bool:
    return bool(np.abs(found.astype(int) - wanted.astype(int)).max() <= within)


def write_tiff(
    path: Path,
    values: np.ndarray,
    *,
    bits: int,
    photometric: int = 1,
    sample_format: int = 1,
    order: str = "<",
    extra: int | None = None,
    planes: bool = False,
) -> Path:
    """An uncompressed TIFF of one strip, or one for each sample; ``values`` (rows, columns[, samples])."""
    rows, columns, *more = values.shape
    samples = more[0] if more else 1
    strips = samples if planes else 1
    values = np.moveaxis(values, -1, 0) if planes else values
    if bits == 12:
        even = values.reshape(-1, 2).astype(np.uint32)
        packed = even[:, 0] << 12 | even[:, 1]
        data = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], -1).astype(np.uint8).tobytes()
    else:
        data = values.astype(values.dtype.newbyteorder(order)).tobytes()
    tags: list[tuple[int, int, list[int]]] = [
        (256, 4, [columns]),
        (257, 4, [rows]),
        (258, 3, [bits] * samples),
        (259, 3, [1]),
        (262, 3, [photometric]),
        (273, 4, [8 + k * len(data) // strips for k in range(strips)]),
        (277, 3, [samples]),
        (278, 4, [rows]),
        (279, 4, [len(data) // strips] * strips),
        (284, 3, [2 if planes else 1]),
        *([(338, 3, [extra])] if extra is not None else []),
        (339, 3, [sample_format] * samples),
    ]
    begin = 8 + len(data) + len(data) % 2
    table, aside = struct.pack(order + "H", len(tags)), b""
    place = begin + 2 + 12 * len(tags) + 4
    for number, kind, given in tags:
        packed_value = struct.pack(f"{order}{len(given)}{'H' if kind == 3 else 'I'}", *given)
        if len(packed_value) > 4:
            aside, packed_value = aside + packed_value, struct.pack(order + "I", place + len(aside))
        table += struct.pack(order + "HHI", number, kind, len(given)) + packed_value.ljust(4, b"\0")
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", begin)
    path.write_bytes(head + data + b"\0" * (len(data) % 2) + table + b"\0" * 4 + aside)
    return path


def write_png(path: Path, values: np.ndarray, *, colour_type: int, transparent: int | None = None) -> Path:
    """A PNG of 16 bits; ``values`` uint16 (rows, columns, samples)."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows, columns = values.shape[:2]
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)
    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 16, colour_type, 0, 0, 0))]
    parts += [] if transparent is None else [chunk(b"tRNS", struct.pack(">H", transparent))]
    parts += [chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path


def write_ppm(path: Path, values: np.ndarray) -> Path:
    """A PPM of 16 bits; ``values`` uint16 (rows, columns, 3)."""
    rows, columns, _ = values.shape
    path.write_bytes(b"P6 %d %d 65535\n" % (columns, rows) + values.astype(">u2").tobytes())
    return path


@pytest.mark.reads("picture: colour or grey of 8 bits")
@pytest.mark.reads("picture: 1 bit")
@pytest.mark.reads("picture: palette")
@pytest.mark.reads("picture: CMYK")
@pytest.mark.reads("picture: turned by an EXIF tag")
def test_every_kind_of_picture_is_upright_rgb(tmp_path: Path) -> None:
    assert close(saved(Image.fromarray(COLOURS), tmp_path / "rgb.png"), COLOURS)
    assert close(saved(Image.fromarray(GREY), tmp_path / "grey.png"), three(GREY))
    cmyk = Image.fromarray(COLOURS).convert("CMYK")
    assert close(saved(cmyk, tmp_path / "cmyk.jpg", quality=100, subsampling=0), COLOURS, within=6)
    assert close(saved(cmyk, tmp_path / "cmyk.tif"), COLOURS)
    assert close(saved(Image.fromarray(COLOURS).quantize(256), tmp_path / "palette.gif"), COLOURS, within=24)
    for bits in ("bits.png", "bits.tif"):
        assert close(saved(Image.fromarray(GREY > 127), tmp_path / bits), three((GREY > 127) * 255))
    assert close(rgb(write_tiff(tmp_path / "planes.tif", COLOURS, bits=8, photometric=2, planes=True)), COLOURS)
    white_is_0 = write_tiff(tmp_path / "white.tif", GREY, bits=8, photometric=0)
    assert close(rgb(white_is_0), 255 - three(GREY).astype(int))
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held upright: turn by 90 degrees, clockwise
    assert close(saved(Image.fromarray(COLOURS), tmp_path / "turned.png", exif=turned), np.rot90(COLOURS, -1))
    Image.fromarray(GREY.astype(np.uint16) * 257).save(tmp_path / "deep.png", exif=turned)
    assert close(deep(tmp_path / "deep.png").values, np.rot90(GREY.astype(int), -1) * 257)


@pytest.mark.reads("picture: transparent pixels")
def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    rgba = np.dstack([COLOURS, np.full((20, 24), 255, np.uint8)])
    rgba[:5, :, 3] = 0
    read = saved(Image.fromarray(rgba), tmp_path / "a.png")
    assert (read[:5] == 255).all() and (read[5:] == COLOURS[5:]).all()
    Image.fromarray(COLOURS).quantize(8).save(tmp_path / "b.png", transparency=0)
    with Image.open(tmp_path / "b.png") as stored:
        clear = np.asarray(stored) == 0
    assert clear.any() and (rgb(tmp_path / "b.png")[clear] == 255).all()
    half = np.dstack([GREY // 2, np.full_like(GREY, 128)])  # half of the picture's grey on half of white
    for name, values, extra in (
        ("la.tif", np.dstack([GREY, np.full_like(GREY, 128)]), 2),
        ("premultiplied.tif", half, 1),
    ):
        pixels = rgb(write_tiff(tmp_path / name, values, bits=8, extra=extra))
        assert close(pixels, three(GREY * (128 / 255) + 127), within=3), name
    multiplied = np.dstack([COLOURS // 2, np.full_like(GREY, 128)])
    pixels = rgb(write_tiff(tmp_path / "rgba.tif", multiplied, bits=8, photometric=2, extra=1))
    assert close(pixels, COLOURS * (128 / 255) + 127, within=3)


@pytest.mark.reads("picture: grey of 16 or 32 bits, signed or not, with values from 0 to 65535")
@pytest.mark.parametrize(
    ("order", "bits", "sample_format", "dtype"),
    [
        ("<", 16, 1, np.uint16),
        (">", 16, 1, np.uint16),
        ("<", 16, 2, np.int16),
        (">", 16, 2, np.int16),
        ("<", 32, 1, np.uint32),
        ("<", 32, 2, np.int32),
        (">", 32, 2, np.int32),
    ],
)
def test_whole_numbers_are_read_as_they_are(
    order: str, bits: int, sample_format: int, dtype: type, tmp_path: Path
) -> None:
    values = (GREY.astype(dtype) * 16) + 15
    path = write_tiff(tmp_path / "x.tif", values, bits=bits, sample_format=sample_format, order=order)
    picture = deep(path)
    assert np.array_equal(picture.values, values) and picture.values.dtype == np.uint16
    assert (picture.bits, picture.stored, picture.turned) == (12, 16, False)


@pytest.mark.reads("picture: grey TIFF of 12 bits")
def test_twelve_bits_of_a_tiff_are_its_range_whatever_it_holds(tmp_path: Path) -> None:
    for values in (GREY.astype(np.uint16) * 16, GREY // 2):
        picture = deep(write_tiff(tmp_path / "x.tif", values, bits=12))
        assert np.array_equal(picture.values, values) and picture.bits == 12


@pytest.mark.reads("picture: grey TIFF of 16 bits in which 0 is white")
def test_where_0_is_white_the_picture_is_turned_within_its_range(tmp_path: Path) -> None:
    picture = deep(write_tiff(tmp_path / "x.tif", GREY.astype(np.uint16) * 16 + 15, bits=16, photometric=0))
    assert picture.turned and close(np.asarray(picture.shown(12)), 255 - three(GREY).astype(int), within=1)


@pytest.mark.reads("picture: colour of 16 bits")
def test_colours_of_16_bits_keep_the_upper_half(tmp_path: Path) -> None:
    deep_colours = COLOURS.astype(np.uint16) * 257
    for path in (
        write_png(tmp_path / "rgb.png", deep_colours, colour_type=2),
        write_tiff(tmp_path / "rgb.tif", deep_colours, bits=16, photometric=2),
        write_ppm(tmp_path / "rgb.ppm", deep_colours),
    ):
        assert close(rgb(path), COLOURS)
    opaque = np.dstack([GREY.astype(np.uint16) * 257, np.full(GREY.shape, 65535, np.uint16)])
    assert close(rgb(write_png(tmp_path / "la.png", opaque, colour_type=4)), three(GREY))


@pytest.mark.reads("picture: reduced copies in a TIFF, further pictures of a telephone's JPEG (MPO)")
def test_only_the_first_is_the_picture(tmp_path: Path) -> None:
    first, other = Image.fromarray(COLOURS), Image.fromarray(COLOURS[::2, ::2])
    first.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[other], quality=100, subsampling=0)
    assert close(rgb(tmp_path / "a.jpg"), COLOURS, within=6)
    with TiffImagePlugin.AppendingTiffWriter(str(tmp_path / "a.tif"), new=True) as file:
        first.save(file, format="TIFF")
        file.newFrame()
        other.save(file, format="TIFF", tiffinfo={254: 1})
    assert close(rgb(tmp_path / "a.tif"), COLOURS)


def _several(path: Path) -> None:
    pictures = [Image.fromarray(pixels(seed)) for seed in (1, 2)]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=100)


def _dark_colours(path: Path) -> None:
    write_png(path, COLOURS.astype(np.uint16) * 16, colour_type=2)


def _dark_with_alpha(path: Path) -> None:
    opaque = np.full(GREY.shape, 65535, np.uint16)
    write_png(path, np.dstack([GREY.astype(np.uint16) * 16, opaque]), colour_type=4)


def _two_colours(path: Path) -> None:
    image = Image.fromarray((GREY > 127).astype(np.uint8)).convert("P")
    image.putpalette([0, 0, 0, 255, 255, 255])
    image.save(path)


def _float(path: Path) -> None:
    Image.fromarray(GREY.astype(np.float32) / 255).save(path)


REFUSED = {
    "float.tif": (_float, "holds fractional values, of which nothing says which one is white: save it as"),
    "signed.tif": (
        lambda path: write_tiff(path, GREY.astype(np.int16) - 1000, bits=16, sample_format=2),
        "holds values from -999 to -",
    ),
    "large.tif": (
        lambda path: write_tiff(path, GREY.astype(np.int32) * 1000, bits=32, sample_format=2),
        "and those of a picture are from 0 to 65535",
    ),
    "signed 8 bits.tif": (
        lambda path: write_tiff(path, GREY.astype(np.int8), bits=8, sample_format=2),
        "holds 8 bits with a sign, which are not read: save it as",
    ),
    "planes.tif": (
        lambda path: write_tiff(path, COLOURS.astype(np.uint16) * 257, bits=16, photometric=2, planes=True),
        "holds each colour by itself with 16 bits, which is not read",
    ),
    "two colours.bmp": (_two_colours, "has a palette of black and white and several bits for each pixel"),
    "lab.tif": (
        lambda path: Image.fromarray(COLOURS, "LAB").save(path),
        "has colours of the space LAB: save it as",
    ),
    "dark.png": (
        _dark_colours,
        "is a colour picture of 16 bits that uses 14 of them at most: save it as",
    ),
    "dark.ppm": (
        lambda path: write_ppm(path, COLOURS.astype(np.uint16) * 16),
        "is a colour picture of 16 bits that uses 14 of them at most: save it as",
    ),
    "dark alpha.png": (_dark_with_alpha, "is a colour picture of 16 bits that uses 14 of them at most"),
    "clear.png": (
        lambda path: write_png(path, GREY.astype(np.uint16)[..., None] * 257, colour_type=0, transparent=0),
        "is grey with 16 bits and transparent pixels: save it without transparency",
    ),
    "unseen.png": (
        lambda path: Image.fromarray(np.dstack([COLOURS, np.zeros_like(GREY)])).save(path),
        "is transparent everywhere, so that nothing of it is seen: save it without transparency",
    ),
    "moving.gif": (_several, "holds 2 pictures: save the one that is meant by itself"),
    "moving.png": (_several, "holds 2 pictures"),
    "moving.webp": (_several, "holds 2 pictures"),
    "pages.tif": (_several, "holds 2 pictures"),
    "double.tif": (
        lambda path: write_tiff(path, GREY.astype(np.float64), bits=64, sample_format=3),
        "is a TIFF of a form that is not read: save it as a picture of 8 bits, or as a grey one of 16 bits, as PNG",
    ),
    "unsigned.tif": (
        lambda path: write_tiff(path, GREY.astype(np.uint32), bits=32, order=">"),
        "is a TIFF of a form that is not read",
    ),
}


@pytest.mark.reads("picture: colours in LAB")
@pytest.mark.reads("picture: values below 0 or above 65535")
@pytest.mark.reads("picture: fractional values")
@pytest.mark.reads("picture: grey of 16 bits with transparent pixels")
@pytest.mark.reads("picture: transparent everywhere")
@pytest.mark.reads("picture: colour of 16 bits, of which 14 or fewer are used")
@pytest.mark.reads("picture: several pictures in one file")
@pytest.mark.reads("picture: a TIFF of other bits or samples")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_right_is_refused_by_name(name: str, tmp_path: Path) -> None:
    write, reason = REFUSED[name]
    write(tmp_path / name)
    with pytest.raises(DataError) as raised:
        read_picture(tmp_path / name)
    assert str(raised.value).startswith(f"{tmp_path / name} {reason}") or reason in str(raised.value)


@pytest.mark.reads("picture: several pictures in one page of a TIFF, as ImageJ and tifffile write stacks")
@pytest.mark.parametrize("program", ["ImageJ", "tifffile"])
def test_a_stack_in_one_page_is_several_pictures(program: str, tmp_path: Path) -> None:
    path, shape = tmp_path / "a.tif", [3, *GREY.shape]
    description = (
        f'{{"shape": {shape}, "truncated": true}}' if program == "tifffile" else "ImageJ=1.53t\nimages=3\nslices=3\n"
    )
    Image.fromarray(GREY).save(path, tiffinfo={270: description})
    first = np.asarray(read_picture(path))[..., 0]
    assert np.array_equal(first, GREY), "by itself, with what was said of all"
    path.write_bytes(path.read_bytes() + 2 * GREY.tobytes())
    with pytest.raises(DataError, match="holds 3 pictures"):
        read_picture(path)


def test_a_deep_picture_is_the_same_by_its_values_in_any_format(tmp_path: Path) -> None:
    values = GREY.astype(np.uint16) * 16
    Image.fromarray(values).save(tmp_path / "a.png")
    sitk.WriteImage(sitk.GetImageFromArray(values), str(tmp_path / "b.tif"))
    one, other = deep(tmp_path / "a.png"), deep(tmp_path / "b.tif")
    assert picture_sha256(one) == picture_sha256(other) != picture_sha256(one.shown(12))
