"""Masks with a file for each structure, of pictures and of scans; of pictures polygons and run lengths as in COCO, too.

Such a mask has a path of its own: ``masks/*/P1.*`` is the files of P1 in a folder for each structure, ``masks/P1_*``
those that are called by the picture and the structure, and ``annotations.json/P1.jpg`` what COCO's file says of one. Of
scans ``P1/segmentations/*`` is the files in a folder, and ``P1/*_mask`` those that are called by the structure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedshift.data.contours import filled
from fedshift.data.labels import Labels
from fedshift.data.picture_scan import as_voxels, read_picture_mask
from fedshift.data.scan_file import ScanError, has_picture_name
from fedshift.data.scan_folders import scan_files
from fedshift.data.scans import ORIGIN_TOLERANCE, Scan, read_scan, stem_of
from fedshift.data.structures import Drawing, Remark, Structure, paint
from fedshift.schema.codes import plain_name
from fedshift.schema.manifest import DIRECTION_TOLERANCE, SPACING_TOLERANCE
from fedshift.schema.names import one_line
from fedshift.schema.reading import Reading

EACH = "*"
"""In a path: each of the structures."""
KEYS = ("images", "annotations", "categories")
"""Of a file as COCO has it."""
AGAIN = "export it again, as COCO's instances"
BEYOND = 1
"""Pixels by which corners may lie beyond the picture: programs round differently."""
NOTHING = Remark("no pixel in the picture", "look whether its numbers are pixels of this picture, and not parts of 1")
CUT_OFF = Remark(
    "corners beyond the picture, where it is cut off", "look whether it was drawn on a picture of this size"
)
NO_HOLE = Remark("a polygon within another, which is filled, as COCO has no holes", "export holes as run lengths (RLE)")


def in_folders(masks: Path, case: str) -> Path:
    """The mask of a case with a folder for each structure."""
    return masks / EACH / f"{case}.*"


def by_suffix(masks: Path, case: str) -> Path:
    """The mask of a case whose files are called by the case and the structure."""
    return masks / f"{case}_{EACH}"


def names_picture_structures(path: Path) -> bool:
    """Whether a path is one of several structures; see the module's docstring."""
    return path.parent.name == EACH or EACH in path.name or polygons_of(path) is not None


def structures_in_picture(path: Path) -> tuple[str, ...]:
    """Their names.

    Raises:
        ScanError: the file with the polygons cannot be read.
    """
    if (named := polygons_of(path)) is None:
        return tuple(_files(path))
    file, picture = named
    return tuple(category for category, shapes in read_coco(file).entry(picture, file).drawn.items() if shapes)


def read_picture_structures(path: Path, image: Scan, labels: Labels | None) -> tuple[Scan, list[Remark]]:
    """Draw the structures that are wanted on the picture; see `fedshift.data.structures.paint`.

    Raises:
        ScanError: a file cannot be read, is of another size, or structures are not the classes or overlap.
    """
    if (named := polygons_of(path)) is not None:
        structures, form = list(_drawn(*named, image, labels)), "polygons of COCO"
    else:
        files = _files(path)
        structures, form = [_of_file(name, file, image) for name, file in files.items()], "a file for each structure"
        if not structures:
            raise ScanError("file-missing", path, "stands for no file", "name the masks")
    return paint(structures, image, labels, path, Reading(format=form))


# --- a file for each structure ----------------------------------------------------------------------------------------


def _files(path: Path) -> dict[str, Path]:
    """Structure -> its file."""
    if path.parent.name == EACH:
        stem, above = path.name.removesuffix(f".{EACH}"), path.parent.parent
        folders = sorted(entry for entry in above.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        named = [(folder.name, file) for folder in folders for file in _pictures(folder) if stem_of(file) == stem]
        return _once_each(named)
    begin, _, end = path.name.partition(EACH)
    return _once_each(
        (stem[len(begin) : len(stem) - len(end)], file)
        for file in _pictures(path.parent) or scan_files(path.parent)
        for stem in (stem_of(file),)
        if stem.startswith(begin) and stem.endswith(end) and len(stem) > len(begin) + len(end)
    )


def _once_each(named: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """Structure -> its file; refused if it has two, as ``P1.png`` and ``P1.tif`` (`ScanError`)."""
    files: dict[str, Path] = {}
    for name, file in named:
        first = files.setdefault(name, file)
        if first != file:
            raise ScanError("structure-twice", file, f"is a mask of {name}, as {first.name} is", "keep one of the two")
    return files


def _pictures(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if has_picture_name(entry) and not entry.name.startswith("."))


def _of_file(name: str, file: Path, image: Scan) -> Structure:
    def draw() -> Drawing:
        if not image.is_picture:
            return Drawing(_of_scan(file, image))
        voxels = read_picture_mask(file).voxels
        if voxels.max() > 1:
            what = f"has values up to {voxels.max()}, and is the mask of one structure"
            raise ScanError("mask-values", file, what, "save it as black and white")
        _require_size(file, image, *voxels.shape[:0:-1])
        return Drawing(voxels > 0)

    return Structure(name, None, "", draw)


def _of_scan(file: Path, image: Scan) -> np.ndarray:
    """The voxels of a structure of a scan, on whose grid it must lie; it has one value beside 0."""
    mask = read_scan(file)
    if mask.voxels.shape != image.voxels.shape or not all(
        np.allclose(ours, theirs, rtol=0, atol=tolerance)
        for ours, theirs, tolerance in (
            (mask.spacing, image.spacing, SPACING_TOLERANCE),
            (mask.direction, image.direction, DIRECTION_TOLERANCE),
            (mask.origin, image.origin, ORIGIN_TOLERANCE),
        )
    ):
        raise ScanError("mask-grid", file, "lies on another grid than its image", "export it on the image's grid")
    values = np.unique(mask.voxels)
    if len(values[values != 0]) > 1:
        what = f"has {len(values)} different values, and is the mask of one structure"
        raise ScanError("mask-values", file, what, "save it with 0 outside and 1 inside")
    return np.asarray(mask.voxels != 0)


def _require_size(file: Path, image: Scan, columns: int, rows: int) -> None:
    wanted = image.voxels.shape[:0:-1]
    if (columns, rows) != wanted:
        turned = ", and is turned by an EXIF tag" if image.as_stored else ""
        what = f"has {columns} x {rows} pixels, its image {' x '.join(map(str, wanted))}{turned}"
        raise ScanError("mask-grid", file, what, "export the mask in the image's size")


# --- COCO -------------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """What a file says of a picture: its size, and for each category what is drawn of it."""

    columns: int
    rows: int
    drawn: dict[str, list[Any]]


class Coco(NamedTuple):
    """What a file says of each picture, by its name."""

    pictures: Mapping[str, Entry]

    def entry(self, picture: str, file: Path) -> Entry:
        """What it says of one picture (`ScanError` if nothing)."""
        if picture not in self.pictures:
            raise ScanError("image-unknown", file, f"says nothing of {picture}", "add it, or leave the picture out")
        return self.pictures[picture]


def polygons_of(path: Path) -> tuple[Path, str] | None:
    """The file and the name of the picture in it, where a path is one of COCO's."""
    for parent in path.parents:
        if parent.suffix.lower() == ".json" and parent.is_file():
            return parent, path.relative_to(parent).as_posix()
    return None


def is_coco(file: Path) -> bool:
    """Whether a file holds polygons as COCO has them."""
    try:
        _loaded(file)
    except (ScanError, OSError):
        return False
    return True


def read_coco(file: Path) -> Coco:
    """Read a file.

    Raises:
        ScanError: it is none of COCO's.
    """
    return _read_coco(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read_coco(file: Path, changed: int) -> Coco:
    content = _loaded(file)
    try:
        _refuse_twice(content, file)
        categories = {each["id"]: one_line(str(each["name"])) for each in content["categories"]}
        entries = {
            each["id"]: (_name(each["file_name"]), Entry(int(each["width"]), int(each["height"]), {}))
            for each in content["images"]
        }
        for _, entry in entries.values():
            entry.drawn.update({name: [] for name in categories.values()})
        for annotation in content["annotations"]:
            for known, key, what in ((entries, "image_id", "image"), (categories, "category_id", "category")):
                if annotation[key] not in known:
                    fault = f"has an annotation of the {what} {annotation[key]!r}, which it does not list"
                    raise ScanError("mask-unreadable", file, fault, AGAIN)
            entries[annotation["image_id"]][1].drawn[categories[annotation["category_id"]]].append(
                annotation["segmentation"]
            )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ScanError):
            raise
        what = f"lacks, or has in another form, {error} of an image, a category or an annotation"
        raise ScanError("mask-unreadable", file, what, AGAIN) from None
    return Coco(dict(entries.values()))


def _name(text: str) -> str:
    """A picture's name, whichever system wrote it, below the folder of the pictures."""
    return str(text).replace("\\", "/").lstrip("/")


def _refuse_twice(content: Mapping[str, Any], file: Path) -> None:
    """Refuse ids and pictures that are there twice, as in two files put together."""
    names = [_name(each["file_name"]) for each in content["images"]]
    for what, entries in (
        ("picture", names),
        ("id of an image", [each["id"] for each in content["images"]]),
        ("id of a category", [each["id"] for each in content["categories"]]),
        ("category", [one_line(str(each["name"])) for each in content["categories"]]),
    ):
        twice = next((each for each, times in Counter(entries).items() if times > 1), None)
        if twice is not None:
            remedy = "keep one of them, or put the files together with ids of their own"
            raise ScanError("mask-unreadable", file, f"has the {what} {twice!r} twice", remedy)


@lru_cache(maxsize=1)
def _parsed(file: Path, changed: int) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError):
        raise ScanError("mask-unreadable", file, "is not valid JSON", AGAIN) from None


def _loaded(file: Path) -> Mapping[str, Any]:
    content = _parsed(file, file.stat().st_mtime_ns)
    if not (isinstance(content, dict) and all(isinstance(content.get(key), list) for key in KEYS)):
        raise ScanError("mask-unreadable", file, f"has no lists {', '.join(KEYS)}", AGAIN)
    return content


def _drawn(file: Path, picture: str, image: Scan, labels: Labels | None) -> Iterator[Structure]:
    """The categories that are drawn in a picture, and those that are wanted."""
    entry = read_coco(file).entry(picture, file)
    _require_size(file / picture, image, entry.columns, entry.rows)
    wanted = {*map(plain_name, labels.classes), *labels.structures} if labels else set()
    for name, drawn in entry.drawn.items():
        if drawn or plain_name(name) in wanted:
            yield _of_category(name, drawn, entry, file / picture)


def _of_category(name: str, drawn: Sequence[Any], entry: Entry, path: Path) -> Structure:
    def draw() -> Drawing:
        inside = np.zeros((entry.rows, entry.columns), bool)
        times: Counter[Remark] = Counter()
        for shape in drawn:
            if not shape:
                what = f"has an annotation of {name} without a shape, such as a box alone"
                raise ScanError("mask-unreadable", path, what, "draw its outline, or remove it")
            try:
                pixels = _filled(shape, entry)
                remarks = [] if isinstance(shape, dict) else list(_remarks(shape, entry))
            except (TypeError, ValueError, KeyError, IndexError):
                what = f"has a shape of {name} that is neither polygons nor run lengths of the picture"
                raise ScanError("mask-unreadable", path, what, AGAIN) from None
            inside |= pixels
            for remark in remarks if pixels.any() else [NOTHING]:
                times[remark] += 1
        remarks = [
            Remark(f"has {count} shape(s) of {name!r} with {what}", remedy) for (what, remedy), count in times.items()
        ]
        return Drawing(as_voxels(inside), tuple(remarks))

    return Structure(name, None, "", draw)


def _filled(shape: Any, entry: Entry) -> np.ndarray:
    """The pixels (rows, columns) of one annotation."""
    if isinstance(shape, dict):
        counts = shape["counts"]
        lengths = np.array(_lengths(counts) if isinstance(counts, str) else counts, np.int64)
        size = [entry.rows, entry.columns]
        if list(shape["size"]) != size or lengths.min() < 0 or lengths.sum() != entry.rows * entry.columns:
            raise ValueError("another size")
        return np.repeat(np.arange(len(lengths)) % 2 == 1, lengths).reshape(entry.columns, entry.rows).T
    inside = np.zeros((entry.rows, entry.columns), bool)
    for numbers in shape:
        inside |= _polygon(numbers, entry)
    return inside


def _polygon(numbers: Any, entry: Entry) -> np.ndarray:
    corners = _corners(numbers)
    if len(corners) < 3 or not np.isfinite(corners).all():
        raise ValueError("no polygon")
    return filled([corners - 0.5], (entry.rows, entry.columns))  # whole numbers are corners of pixels, not centres


def _corners(numbers: Any) -> np.ndarray:
    return np.array(numbers, float).reshape(-1, 2)


def _remarks(polygons: Sequence[Any], entry: Entry) -> Iterator[Remark]:
    """What is odd in the polygons of one annotation."""
    corners = [_corners(numbers) for numbers in polygons]
    if any((each < -BEYOND).any() or (each > (entry.columns + BEYOND, entry.rows + BEYOND)).any() for each in corners):
        yield CUT_OFF
    if any(_is_within(inner, outer, entry) for inner in corners for outer in corners if inner is not outer):
        yield NO_HOLE


def _is_within(inner: np.ndarray, outer: np.ndarray, entry: Entry) -> bool:
    """Whether a polygon lies in another one."""
    if (inner.min(0) < outer.min(0)).any() or (inner.max(0) > outer.max(0)).any():
        return False
    drawn = _polygon(inner, entry)
    return bool(drawn.any() and not (drawn & ~_polygon(outer, entry)).any())


def _lengths(text: str) -> list[int]:
    """Run lengths from their compressed form: 5 bits a character, from the fourth on as differences of two apart."""
    lengths: list[int] = []
    value = shift = 0
    for character in text.encode("ascii"):
        bits = character - 48
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value = shift = 0
    return lengths
