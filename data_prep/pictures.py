"""From folders of pictures to prepared sites: decoded, resized, split by content, cached; whole or not at all.

Pictures may be RGB, grey, CMYK, with a palette, with transparency (shown on white), 16 bits deep, or turned by an
EXIF tag; all become upright RGB of 8 bits. They are resized to a square with Pillow's antialiased bilinear filter,
which is what torchvision's ``Resize((S, S))`` does to a PIL image and so what the papers' loaders do.

Splits are by content. Within a class, contents are put in the order of their hash and dealt out 60/20/20: validation
and test get ``round(n / 5)`` each, at least one from three on. Pictures of the same content are one: they go to one
split together, and one that an earlier site has already is left out.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from data_prep.whole import write_whole
from fedshift.data.manifest import Manifest, Picture, Split
from fedshift.errors import DataError
from fedshift.strict import nearest

log = logging.getLogger(__name__)

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
BY_CONTENT = "by content 60/20/20 within each class"
MONTAGE, TILE, PER_CLASS, MARGIN = "montage.png", 72, 8, 150
SHOWN = 20
UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)
"""What Pillow raises over files that are damaged or no pictures."""


@dataclass(frozen=True)
class PictureSet:
    """A public data set of ``<site>/<class>/<picture>``: what it holds, on what terms, where it is described."""

    dataset: str
    name: str
    sites: tuple[str, ...]
    classes: tuple[str, ...]
    described: str
    licence: str
    citation: str


@dataclass(frozen=True)
class PictureFile:
    """A picture found but not yet read. ``id`` is ``<class>/<file>``."""

    id: str
    path: Path
    label: str


Found = dict[str, list[PictureFile]]
"""Pictures by site."""
Splits = Mapping[str, Mapping[str, Split]]
"""The split of each picture by site and id."""


def find_pictures(source: Path, of: PictureSet) -> Found:
    """All pictures of a download, site by site, each in the order of its ids.

    Folders that are no class are passed over with a warning.

    Raises:
        DataError: not the layout of the data set, or a class without a picture at a site.
    """
    expected = f"expected {of.name} as folders {', '.join(of.sites)}, each with a folder for each class; {of.described}"
    if not source.is_dir():
        raise DataError(f"{source} is not a folder: {expected}")
    here = _folders(source)
    missing = [site for site in of.sites if site not in here]
    if missing:
        inner = next((name for name in here if set(of.sites) <= set(_folders(source / name))), None)
        hint = f"did you mean {source / inner}? " if inner else ""
        holds = f"it holds {_some(here)}" if here else "it holds no folder"
        raise DataError(f"{source} has no folder {', '.join(missing)}, {holds}: {hint}{expected}")
    return {site: list(_of_site(source / site, of, expected)) for site in of.sites}


def write_pictures(
    found: Found,
    root: Path,
    of: PictureSet,
    *,
    sizes: Sequence[int],
    splits: Splits | None = None,
    split_rule: str = BY_CONTENT,
    progress: Callable[[str], None] | None = None,
) -> list[Path]:
    """Read all pictures once and write the sites; returns their folders ``root/dataset/site``.

    Nothing is put in place before every site is finished, so former sites stay as they are if anything fails.

    Args:
        found: pictures by site; the order of the sites decides who keeps what several have.
        root: where the site folders go.
        of: the data set.
        sizes: sides in pixels, each cached as ``arrays/<size>/``.
        splits: a split that is given; by content otherwise. Given splits keep every picture, wherever its copies are.
        split_rule: what a reader shall know of given splits.
        progress: told site and name before each picture is read.

    Raises:
        DataError: a size that makes no sense, or pictures that cannot be read, each named in a sentence.
    """
    for size in sizes:
        if not 8 <= size <= 4096:
            raise DataError(f"size {size} is out of reach: ask for 8 to 4096 pixels")
    before: set[str] = set()  # contents of the sites that are done
    errors: list[str] = []
    with ExitStack() as finished:
        targets = [root / of.dataset / site for site in found]
        for (site, files), target in zip(found.items(), targets, strict=True):
            beside = finished.enter_context(write_whole(target))
            tell = (lambda name, site=site: progress(f"{site} {name}")) if progress else None
            cache = _cache(
                files, beside, of.classes, sizes=sizes, others=() if splits else before, errors=errors, tell=tell
            )
            if errors:
                continue  # only to name all of them at once
            split_of = splits[site] if splits else deal_by_content(cache)
            pictures = [Picture(id=f.id, sha256=sha, label=f.label, split=split_of[f.id]) for f, sha in cache]
            if not pictures:
                raise DataError(f"site {site} has no picture that no other site has: give the data set as downloaded")
            notes = _notes(pictures, before, left_out=len(files) - len(pictures))
            before |= {picture.sha256 for picture in pictures}
            Manifest(
                schema=1,
                dataset=of.dataset,
                site=site,
                kind="images",
                preparation={
                    "source": of.name,
                    "pixels": "upright 8-bit RGB, resized to a square: bilinear, antialiased",
                    "sizes": sorted(set(sizes)),
                    "split_rule": split_rule,
                    **notes,
                },
                classes=of.classes,
                pictures=tuple(pictures),
                licence=of.licence,
                citation=of.citation,
            ).write(beside)
            write_montage(beside, pictures, of.classes, size=max(sizes))
            if notes["pictures_straddling"]:
                log.warning("site %s: %d pictures straddle splits or sites", site, notes["pictures_straddling"])
        if errors:
            more = "".join(f"\n  {error}" for error in errors[:SHOWN])
            raise DataError(f"{of.name} was not prepared, {len(errors)} of its pictures cannot be used:{more}")
    return targets


def deal_by_content(pictures: Sequence[tuple[PictureFile, str]]) -> dict[str, Split]:
    """Split by id, of pictures with the hash of their content. See the module's text for the rule."""
    labels: dict[str, str] = {}
    for file, sha in pictures:
        labels.setdefault(sha, file.label)
    split_of: dict[str, Split] = {}
    for label in sorted(set(labels.values())):
        contents = sorted(sha for sha in labels if labels[sha] == label)
        held_out = max(1, round(len(contents) / 5)) if len(contents) >= 3 else 0
        for number, sha in enumerate(contents):
            split_of[sha] = "test" if number < held_out else "val" if number < 2 * held_out else "train"
    return {file.id: split_of[sha] for file, sha in pictures}


def read_picture(path: Path) -> Image.Image:
    """A file as upright 8-bit RGB.

    Raises:
        DataError: absent, no picture, cut short, or of numbers that are no intensities.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist: download it again")
    try:
        with Image.open(path) as stored:
            stored.load()
            picture = ImageOps.exif_transpose(stored)
            if picture.mode.startswith(("I", "F")):
                return _from_numbers(picture, path)
            if picture.has_transparency_data:
                picture = picture.convert("RGBA")
                return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
            return picture.convert("RGB")
    except UNREADABLE as error:
        reason = str(error).replace(f" {str(path)!r}", "").replace(str(path), "it")
        raise DataError(f"{path} cannot be read ({reason}): download it again") from None


def picture_sha256(picture: Image.Image) -> str:
    """SHA-256 of size and pixels, the same for any file format or name."""
    digest = hashlib.sha256(repr(picture.size).encode())
    digest.update(picture.tobytes())
    return digest.hexdigest()


def resize_picture(picture: Image.Image, size: int) -> np.ndarray:
    """uint8 (3, size, size)."""
    return np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def write_montage(site: Path, pictures: Sequence[Picture], classes: Sequence[str], *, size: int) -> None:
    """``montage.png``: a row for each class with its name and some of its pictures, evenly spaced over all."""
    images = np.load(site / "arrays" / str(size) / "images.npy", mmap_mode="r")
    sheet = Image.new("RGB", (MARGIN + PER_CLASS * TILE, len(classes) * TILE), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for row, name in enumerate(classes):
        rows = [number for number, picture in enumerate(pictures) if picture.label == name]
        text = f"{name}\n{len(rows)} pictures".encode("ascii", "replace").decode()
        draw.multiline_text((6, row * TILE + TILE // 3), text, fill="black", font=font)
        for column in range(min(PER_CLASS, len(rows))):
            pixels = images[rows[column * len(rows) // min(PER_CLASS, len(rows))]].transpose(1, 2, 0)
            tile = Image.fromarray(np.ascontiguousarray(pixels)).resize((TILE - 2, TILE - 2), Image.Resampling.BILINEAR)
            sheet.paste(tile, (MARGIN + column * TILE, row * TILE + 1))
    sheet.save(site / MONTAGE)


class _Rows:
    """An ``.npy`` file that grows row by row: neither all pictures in memory, nor their number known before."""

    def __init__(self, path: Path, *shape: int) -> None:
        self._file: BinaryIO = path.open("wb")
        self._shape = shape
        self._n = 0
        self._start = self._header()

    def append(self, row: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(row, np.uint8).tobytes())
        self._n += 1

    def close(self) -> None:
        """NumPy leaves room in a header for any number of rows, so the true one fits in."""
        self._file.seek(0)
        if self._header() != self._start:
            raise RuntimeError("the header of an .npy file has changed its length")
        self._file.close()

    def _header(self) -> int:
        about = {"descr": "|u1", "fortran_order": False, "shape": (self._n, *self._shape)}
        np.lib.format.write_array_header_1_0(self._file, about)
        return self._file.tell()


def _cache(
    files: Sequence[PictureFile],
    site: Path,
    classes: Sequence[str],
    *,
    sizes: Sequence[int],
    others: Container[str],
    errors: list[str],
    tell: Callable[[str], None] | None,
) -> list[tuple[PictureFile, str]]:
    """Write the arrays of every picture whose content is not among ``others``; these pictures and their hashes."""
    with ExitStack() as opened:

        def rows(path: Path, *shape: int) -> _Rows:
            path.parent.mkdir(parents=True, exist_ok=True)
            return opened.enter_context(closing(_Rows(path, *shape)))

        folders = {size: site / "arrays" / str(size) for size in sizes}
        images = {size: rows(folder / "images.npy", 3, size, size) for size, folder in folders.items()}
        labels = [rows(folder / "labels.npy") for folder in folders.values()]
        kept = []
        for file in files:
            if tell:
                tell(file.id)
            try:
                picture = read_picture(file.path)
            except DataError as error:
                errors.append(str(error))
                continue
            sha = picture_sha256(picture)
            if sha in others:
                continue
            kept.append((file, sha))
            for size, array in images.items():
                array.append(resize_picture(picture, size))
            for column in labels:
                column.append(np.array(classes.index(file.label)))
    return kept


def _notes(pictures: Sequence[Picture], before: Container[str], *, left_out: int) -> dict[str, int]:
    """What a reader of the manifest shall know about copies: a picture straddles if one is in another split or site."""
    splits: dict[str, set[str]] = defaultdict(set)
    for picture in pictures:
        splits[picture.sha256].add(picture.split)
    return {
        "pictures_same_as_another": len(pictures) - len(splits),
        "pictures_straddling": sum(len(splits[p.sha256]) > 1 or p.sha256 in before for p in pictures),
        "pictures_left_out_as_another_site_has_them": left_out,
    }


def _from_numbers(picture: Image.Image, path: Path) -> Image.Image:
    """Grey of 16 bits to 8; Pillow itself would cut off all above 255."""
    values = np.asarray(picture)
    if picture.mode == "F" or values.min() < 0 or values.max() > 0xFFFF:
        raise DataError(f"{path} holds numbers of 32 bits, no intensities: save it as a picture of 8 or 16 bits")
    grey = (values.astype(np.uint32) + 128) // 257
    return Image.fromarray(grey.astype(np.uint8)).convert("RGB")


def _of_site(folder: Path, of: PictureSet, expected: str) -> Iterator[PictureFile]:
    here = _folders(folder)
    for name in here:
        if name not in of.classes:
            log.warning("%s is passed over, it is no class%s", folder / name, nearest(name, of.classes))
    for label in of.classes:
        files = sorted(path for path in (folder / label).glob("*") if path.suffix.lower() in SUFFIXES)
        files = [path for path in files if not path.name.startswith(".")]
        if not files:
            holds = "no picture in it" if label in here else f"no such folder, but {_some(here)}"
            raise DataError(f"{folder / label}: the class has {holds}; {expected}")
        for path in files:
            yield PictureFile(f"{label}/{_text(path.name)}", path, label)


def _folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "") or "nothing"


def _text(name: str) -> str:
    """A file name as text that can be written: bytes that are not UTF-8 appear in hexadecimal."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
