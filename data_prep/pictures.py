"""Write prepared sites from pictures: decode and resize each picture once, split, cache, and write a manifest.

A site folder is either written completely or not at all. A picture is given as a `Source`, which has an id, a label and
a function that reads it. The module of a data set has ``plan(source, **options)``, which finds its pictures and returns
a `Plan`, and may have ``add_options(parser)`` for options of its own. ``fedshift data prepare`` finds the module by its
name, which is the name of the task.

The plan assigns pictures to splits, mostly by content, see `data_prep.dealing`. A picture with the same content as one
of an earlier site is left out.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from data_prep.replace_folder import replace_folder
from fedshift.data.arrays import class_labels
from fedshift.data.blocks import write_hashes
from fedshift.data.decode import cached_picture, picture_sha256
from fedshift.data.depth import DeepPicture, Depth, warnings_of
from fedshift.data.scan_file import LOOK_AT_SCAN
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import DEPTH, FILE_NAME, Manifest, Picture, Split, classes_of, count
from fedshift.schema.names import also_in

log = logging.getLogger(__name__)

MONTAGE, TILE, PER_ROW, MARGIN = "montage.png", 72, 8, 150
SHOWN = 20
DEEP_LEVEL = 257
"""Between two levels of 8 bits, in 16."""
FEW = 20
"""Up to this many sites have a montage each. With more sites there is one for all, because drawing takes longest."""


@dataclass(frozen=True)
class PictureSet:
    """A public data set: its content, its terms and where it is described. ``channels`` is 1 for grey pictures."""

    dataset: str
    name: str
    sites: tuple[str, ...]
    classes: tuple[str, ...]
    described: str
    licence: str
    citation: str
    channels: Literal[1, 3] = 3


@dataclass(frozen=True)
class Source:
    """A picture that is not read yet. ``id`` is ``<class>/<file>``; ``read`` raises DataError.

    ``label`` (empty with findings), ``findings``, ``subject``, ``strata``: as a `Picture` has them.
    """

    id: str
    label: str
    read: Callable[[], Image.Image | DeepPicture]
    findings: Mapping[str, bool] = field(default_factory=dict)
    subject: str = ""
    strata: Mapping[str, str] = field(default_factory=dict)


PicturesBySite = dict[str, list[Source]]
"""Pictures by site."""
Hashed = Sequence[tuple[Source, str]]
"""Pictures of one site with their content hashes."""


@dataclass(frozen=True)
class Dealing:
    """How pictures are assigned to splits.

    ``deal`` maps each id of a site to its split. ``rule`` describes it in the manifest. With ``keep_copies`` every
    picture stays even if other sites have copies, as in splits that papers publish; the manifest then records how many
    pictures have copies in another split or site. ``notes`` are added to the manifest. Set ``whole`` for data that are
    distributed to many sites here: sites of an earlier, different partition must not stay in the same folder, because
    one site's test images could be another's training images.
    """

    deal: Callable[[str, Hashed], Mapping[str, Split]]
    rule: str
    keep_copies: bool = False
    notes: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False


@dataclass(frozen=True)
class Plan:
    """What a module's ``plan`` found in a download: pictures by site, their split, and the sizes to cache them at."""

    picture_set: PictureSet
    by_site: PicturesBySite
    sizes: tuple[int, ...]
    dealing: Dealing

    @property
    def total(self) -> int:
        """Number of pictures to read."""
        return sum(map(len, self.by_site.values()))


def write_pictures(
    plan: Plan,
    root: Path,
    *,
    sizes: Sequence[int] | None = None,
    bits: int | None = None,
    skip_damaged: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Path]:
    """Read all pictures once and write the sites; returns their folders ``root/dataset/site``.

    Folders are renamed into place only after every site is finished; if anything fails, existing sites do not change.

    Args:
        plan: the pictures; if several sites have the same picture, the first site in the plan's order keeps it.
        root: where the site folders go.
        sizes: sides in pixels, each cached as ``arrays/<size>/``; default the plan's.
        bits: that grey pictures of 16 bits use; by default those of each site's largest value (`Depth`).
        skip_damaged: leave out pictures that cannot be read, with a warning for each; the manifest counts them.
        progress: called with site and picture name before each picture is read.

    Raises:
        DataError: a size out of range, existing sites of another partition, or pictures that cannot be read and are
            not skipped; the error names each picture.
    """
    picture_set, dealing, sizes = plan.picture_set, plan.dealing, sizes or plan.sizes
    for size in sizes:
        if not 8 <= size <= 4096:
            raise DataError("invalid-value", f"size {size} is out of range: choose 8 to 4096 pixels")
    if dealing.whole:
        _refuse_others(root / picture_set.dataset, plan.by_site)
    before: set[str] = set()  # content hashes of the sites that are finished
    errors: list[str] = []
    damaged = log.warning if skip_damaged else errors.append
    rows: list[Row] = []  # rows of the montage of many sites
    with ExitStack() as finished:
        targets = [root / picture_set.dataset / site for site in plan.by_site]
        for (site, sources), target in zip(plan.by_site.items(), targets, strict=True):
            folder = finished.enter_context(replace_folder(target))
            announce = (lambda name, site=site: progress(f"{site} {name}")) if progress else None
            others = () if dealing.keep_copies else before
            depth = Depth([source.read for source in sources], bits=bits)
            cache, unreadable = _cache(
                sources,
                folder,
                picture_set,
                sizes=sizes,
                depth=depth,
                others=others,
                damaged=damaged,
                announce=announce,
            )
            if errors:
                continue  # keep reading so that the error names all damaged pictures
            split_of = dealing.deal(site, cache)
            pictures = [
                Picture(
                    id=p.id,
                    sha256=sha,
                    label=p.label,
                    split=split_of[p.id],
                    findings=dict(p.findings),
                    subject=p.subject,
                    strata=dict(p.strata),
                )
                for p, sha in cache
            ]
            if not pictures and unreadable == len(sources):
                raise DataError(
                    "pictures-damaged",
                    f"site {site} has no picture that can be read, all {unreadable} are damaged: download it again",
                )
            if not pictures:
                raise DataError(
                    "picture-missing",
                    f"site {site} has no picture that no other site has: give the data set as downloaded",
                )
            labels = class_labels(pictures, picture_set.classes)
            for size in sizes:
                np.save(folder / "arrays" / str(size) / "labels.npy", labels)
            notes = _notes(pictures, before, left_out=len(sources) - len(pictures) - unreadable)
            before |= {picture.sha256 for picture in pictures}
            Manifest(
                schema=1,
                dataset=picture_set.dataset,
                site=site,
                kind="images",
                preparation={
                    "source": picture_set.name,
                    "pixels": f"upright {_bits(folder, sizes)}-bit {'RGB' if picture_set.channels == 3 else 'grey'}, "
                    "resized to a square: bilinear, antialiased",
                    "sizes": sorted(set(sizes)),
                    **({} if depth.description is None else {DEPTH: depth.description}),
                    "split_rule": dealing.rule,
                    **dealing.notes,
                    **notes,
                    "pictures_left_out_as_damaged": unreadable,
                },
                classes=picture_set.classes,
                counts=count(pictures, picture_set.classes),
                arrays={str(size): write_hashes(folder / "arrays" / str(size)) for size in sorted(set(sizes))},
                pictures=tuple(pictures),
                licence=picture_set.licence,
                citation=picture_set.citation,
            ).write(folder)
            if len(targets) <= FEW:
                by_class = [_row(folder, c, _of_class(pictures, c), size=max(sizes)) for c in picture_set.classes]
                draw_montage(by_class).save(folder / MONTAGE)
            elif len(rows) * len(targets) <= targets.index(target) * FEW:
                numbers = [number for c in picture_set.classes for number in _of_class(pictures, c)]
                classes = f"{len({name for picture in pictures for name in classes_of(picture)})} classes"
                rows.append(_row(folder, site, numbers, classes, size=max(sizes)))
            if notes["pictures_straddling"]:
                log.warning("site %s: %d pictures straddle splits or sites", site, notes["pictures_straddling"])
        if errors:
            more = "".join(f"\n  {error}" for error in errors[:SHOWN])
            if len(errors) > SHOWN:
                more += f"\n  … and {len(errors) - SHOWN} others"
            raise DataError(
                "pictures-damaged",
                f"{picture_set.name} was not prepared, {len(errors)} of its pictures cannot be used "
                f"(--skip-damaged leaves them out):{more}",
            )
    if rows:
        draw_montage(rows).save(root / picture_set.dataset / MONTAGE)
    return targets


def _refuse_others(folder: Path, sites: Container[str]) -> None:
    prepared = sorted(path.parent.name for path in folder.glob(f"*/{FILE_NAME}"))
    others = [name for name in prepared if not name.startswith(".") and name not in sites]
    if others:
        raise DataError(
            "folder-in-use",
            f"{folder} holds {len(others)} sites of another partition, such as {others[0]}: delete {folder}, or give "
            "another --out",
        )


Row = tuple[str, list[np.ndarray]]
"""A row of a montage: its text, and images (C, S, S)."""


def draw_montage(rows: Sequence[Row]) -> Image.Image:
    """Draw one line of pictures per row, after the row's text."""
    sheet = Image.new("RGB", (MARGIN + PER_ROW * TILE, len(rows) * TILE), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for line, (text, images) in enumerate(rows):
        draw.multiline_text((6, line * TILE + TILE // 3), text, fill="black", font=font)
        for column, image in enumerate(images):
            levels = image if image.dtype == np.uint8 else (image >> 8).astype(np.uint8)
            pixels = np.broadcast_to(levels.transpose(1, 2, 0), (*image.shape[1:], 3))
            tile = Image.fromarray(np.ascontiguousarray(pixels)).resize((TILE - 2, TILE - 2), Image.Resampling.BILINEAR)
            sheet.paste(tile, (MARGIN + column * TILE, line * TILE + 1))
    return sheet


def _bits(site: Path, sizes: Sequence[int]) -> int:
    images = np.load(site / "arrays" / str(sizes[0]) / "images.npy", mmap_mode="r", allow_pickle=False)
    return int(8 * images.dtype.itemsize)


def _of_class(pictures: Sequence[Picture], label: str) -> list[int]:
    return [number for number, picture in enumerate(pictures) if label in classes_of(picture)]


def _row(site: Path, name: str, numbers: Sequence[int], *more: str, size: int) -> Row:
    """A montage row with some of a site's pictures, evenly spaced over ``numbers``."""
    images = np.load(site / "arrays" / str(size) / "images.npy", mmap_mode="r", allow_pickle=False)
    shown = min(PER_ROW, len(numbers))
    text = "\n".join([name, f"{len(numbers)} pictures", *more]).encode("ascii", "replace").decode()
    return text, [np.array(images[numbers[column * len(numbers) // shown]]) for column in range(shown)]


class _Rows:
    """An ``.npy`` file that is written row by row, without keeping all pictures in memory or knowing their number.

    It has 8 bits until the first row of 16; those before are then written again, and later ones of 8 bits scaled.
    """

    def __init__(self, path: Path, *shape: int) -> None:
        self._path, self._shape = path, shape
        self._open(np.dtype(np.uint8))

    def append(self, row: np.ndarray) -> None:
        if row.dtype.itemsize > self._dtype.itemsize:
            self._widen()
        if row.dtype.itemsize < self._dtype.itemsize:
            row = row.astype(self._dtype) * DEEP_LEVEL
        self._file.write(np.ascontiguousarray(row).tobytes())
        self._n += 1

    def _open(self, dtype: np.dtype[Any]) -> None:
        self._file: BinaryIO = self._path.open("wb")
        self._dtype, self._n = dtype, 0
        self._start = self._header()

    def _widen(self) -> None:
        self.close()
        before = self._path.with_suffix(".8-bits")
        self._path.rename(before)
        with before.open("rb") as file:
            file.seek(self._start)
            n, self._n = self._n, 0
            self._open(np.dtype(np.uint16))
            for _ in range(n):
                self.append(np.fromfile(file, np.uint8, math.prod(self._shape)))
        before.unlink()

    def close(self) -> None:
        """Write the final number of rows into the header; NumPy pads headers so that any number fits."""
        self._file.seek(0)
        if self._header() != self._start:
            raise RuntimeError("the header of an .npy file has changed its length")
        self._file.close()

    def _header(self) -> int:
        about = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._n, *self._shape),
        }
        np.lib.format.write_array_header_1_0(self._file, about)
        return self._file.tell()


def _cache(
    sources: Sequence[Source],
    site: Path,
    picture_set: PictureSet,
    *,
    sizes: Sequence[int],
    depth: Depth,
    others: Container[str],
    damaged: Callable[[str], None],
    announce: Callable[[str], None] | None,
) -> tuple[list[tuple[Source, str]], int]:
    """Write the images of every picture whose content is not in ``others``.

    Returns these pictures with their hashes, and the number of pictures that could not be read; ``damaged`` is called
    with the reason for each.
    """
    with ExitStack() as opened:

        def rows(path: Path, *shape: int) -> _Rows:
            path.parent.mkdir(parents=True, exist_ok=True)
            return opened.enter_context(closing(_Rows(path, *shape)))

        folders = {size: site / "arrays" / str(size) for size in sizes}
        images = {
            size: rows(folder / "images.npy", picture_set.channels, size, size) for size, folder in folders.items()
        }
        kept: list[tuple[Source, str]] = []
        unreadable, mode = 0, "RGB" if picture_set.channels == 3 else "L"
        remarks: dict[str, list[str]] = {}
        for source in sources:
            if announce:
                announce(source.id)
            try:
                stored = source.read()
                cached = {
                    size: cached_picture(stored, depth, size=size, channels=picture_set.channels) for size in sizes
                }
            except DataError as error:
                damaged(str(error))
                unreadable += 1
                continue
            sha = picture_sha256(stored if isinstance(stored, DeepPicture) else stored.convert(mode))
            if sha in others:
                continue
            kept.append((source, sha))
            for remark in warnings_of(stored):
                remarks.setdefault(remark, []).append(source.id)
            for size, pixels in cached.items():
                images[size].append(pixels)
    for remark, ids in remarks.items():
        log.warning("%s %s%s: %s", ids[0], remark, also_in("picture(s)", ids[1:]), LOOK_AT_SCAN)
    return kept, unreadable


def _notes(pictures: Sequence[Picture], before: Container[str], *, left_out: int) -> dict[str, int]:
    """Counts of copies for the manifest; a picture straddles if a copy of it is in another split or an earlier site."""
    splits: dict[str, set[str]] = defaultdict(set)
    for picture in pictures:
        splits[picture.sha256].add(picture.split)
    return {
        "pictures_same_as_another": len(pictures) - len(splits),
        "pictures_straddling": sum(len(splits[p.sha256]) > 1 or p.sha256 in before for p in pictures),
        "pictures_left_out_as_another_site_has_them": left_out,
    }
