"""3D Slicer's segmentations (``.seg.nrrd``): values of voxels with names, in one layer or, where they overlap, several.

The header has for each segment ``Segment0_Name``, ``Segment0_Layer``, ``Segment0_LabelValue`` and ``Segment0_Tags``,
where the code is. Slicer cuts the voxels to the segments' extent, and the origin moves with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.labels import Labels
from fedshift.data.scan_file import ScanError, SeveralVolumes, reading
from fedshift.data.scans import ORIENTATION, Scan, file_of, require_text
from fedshift.data.segmentations import drawing
from fedshift.data.slabs import Slab, matrix_of
from fedshift.data.structures import CodeKey, Drawing, Remark, Structure, modern, paint
from fedshift.schema.names import one_line

FORMAT = "3D Slicer segmentation (.seg.nrrd)"
AGAIN = "save it from 3D Slicer's Segment Editor again"
MAGIC = b"NRRD"
_SEGMENT = re.compile(r"Segment(\d+)_(\w+)")
_TERMINOLOGY = "Segmentation.TerminologyEntry:"
_UNCODED = {("85756007", "SCT"), ("T-D0050", "SRT")}  # tissue, which 3D Slicer gives to segments that nobody has coded


@dataclass(frozen=True)
class Segment:
    """One segment of a header: ``layer`` and ``value`` say which voxels are its own."""

    name: str
    layer: int
    value: int
    code: CodeKey | None
    meaning: str


def is_slicer_mask(path: Path) -> bool:
    """Whether a file is an NRRD file that names its segments; another one has values only."""
    return path.name.lower().endswith(".nrrd") and path.is_file() and bool(_named(_header(path)))


def segment_names(path: Path) -> tuple[str, ...]:
    return tuple(segment.name for segment in _segments(_header(path), None, path))


def refuse_layers(path: Path) -> None:
    """Refuse an NRRD file with several layers of a segmentation and no names, which nothing can be made of."""
    if not path.name.lower().endswith(".seg.nrrd") or _named(_header(path)):
        return
    reader = _reader(path)
    layers = reader.GetNumberOfComponents() if reader is not None else 1
    if layers > 1:
        what = f"has {layers} layers of segments, which may overlap, and names none of them"
        remedy = f"{AGAIN}, which names them, or save a mask with one value for each class"
        raise SeveralVolumes("mask-layers", path, what, remedy)


def read_slicer_mask(
    path: Path, image: Scan, labels: Labels | None, *, direction: tuple[float, ...] | None = None
) -> tuple[Scan, list[Remark]]:
    """Read a segmentation on the grid of its image; for ``labels`` see `fedshift.data.structures.paint`.

    ``direction``: its geometry is not to be used, but that of the image with voxels in this direction, if both have the
    same number of voxels.
    """
    require_text(path)
    with reading(path):
        stored, header = file_of(path).open(trusted=direction is not None)
        named = _header(path)
    if stored.GetDimension() != 3:
        raise ScanError("mask-segments", path, f"is {stored.GetDimension()}D", AGAIN)
    if direction is not None:
        stored.SetDirection(direction)
    turned = sitk.DICOMOrient(stored, ORIENTATION)
    voxels = sitk.GetArrayFromImage(turned)
    layers = voxels[..., None] if voxels.ndim == 3 else voxels  # [z, y, x, layer]
    segments = _segments(named, layers.shape[-1], path)
    _refuse_unnamed(layers, segments, path)
    grid = Scan(np.empty(0), turned.GetSpacing(), turned.GetOrigin(), turned.GetDirection(), "", stored.GetDirection())
    trusted = direction is not None and layers.shape[:3] == image.voxels.shape

    def structure(segment: Segment) -> Structure:
        def draw_it() -> Drawing:
            inside = layers[..., segment.layer] == segment.value
            return Drawing(inside) if trusted else _on_grid(inside, grid, image, path, segment.name)

        return Structure(segment.name, segment.code, segment.meaning, draw_it, value=segment.value)

    record = header.reading.model_copy(update={"format": FORMAT, "geometry": _geometry(layers, image, trusted=trusted)})
    return paint([structure(segment) for segment in segments], image, labels, path, record)


def _geometry(layers: np.ndarray, image: Scan, *, trusted: bool) -> str:
    if trusted:
        return "that of its image (--trust-voxels)"
    stored, onto = (" x ".join(map(str, shape[::-1])) for shape in (layers.shape[:3], image.voxels.shape))
    return f"{stored} voxels, placed among {onto}" if stored != onto else "space directions and origin"


def _on_grid(inside: np.ndarray, grid: Scan, image: Scan, path: Path, name: str) -> Drawing:
    """A segment on the image's voxels, of which the file may have a part, or others."""
    matrix = matrix_of(grid)
    half = grid.spacing[2] / 2
    slabs = [
        Slab(plane, np.array(grid.origin) + matrix[:, 2] * k, matrix[:, :2], half, half)
        for k, plane in enumerate(inside)
        if plane.any()
    ]
    return drawing(slabs, image, path, name)


# --- header -------------------------------------------------------------------------------------------------------


def _reader(path: Path) -> sitk.ImageFileReader | None:
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    try:
        reader.ReadImageInformation()
    except RuntimeError:  # whoever reads it says what is wrong with it
        return None
    return reader


def _header(path: Path) -> dict[str, str]:
    require_text(path)
    with reading(path), path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return {}
    reader = _reader(path)
    if reader is None:
        return {}
    return {key: reader.GetMetaData(key) for key in reader.GetMetaDataKeys() if _SEGMENT.fullmatch(key)}


def _named(header: Mapping[str, str]) -> list[int]:
    return sorted(
        int(match[1]) for key in header if (match := _SEGMENT.fullmatch(key)) is not None and match[2] == "Name"
    )


def _segments(header: Mapping[str, str], layers: int | None, path: Path) -> list[Segment]:
    """The segments of a header; ``layers``: how many there are in the file, None if that is not looked at."""
    numbers = _named(header)
    segments: list[Segment] = []
    names: dict[tuple[int, int], str] = {}
    for place, number in enumerate(numbers):
        name = one_line(header[f"Segment{number}_Name"])
        own_layers = layers is not None and layers == len(numbers)  # as before version 4.11, without layer and value
        layer = _whole(header.get(f"Segment{number}_Layer", str(place if own_layers else 0)), name, path)
        value = _whole(header.get(f"Segment{number}_LabelValue", "1"), name, path)
        if value < 1 or layer < 0 or (layers is not None and layer >= layers):
            what = f"says of its segment {name!r} that it is value {value} in layer {layer}, which cannot be"
            raise ScanError("segment-value", path, what, AGAIN)
        if (layer, value) in names:
            what = f"gives value {value} to two segments, {names[layer, value]!r} and {name!r}"
            raise ScanError("segment-twice", path, what, AGAIN)
        names[layer, value] = name
        code, meaning = _code(header.get(f"Segment{number}_Tags", ""))
        segments.append(Segment(name, layer, value, code, meaning))
    return segments


def _whole(text: str, name: str, path: Path) -> int:
    try:
        return int(text)
    except ValueError:
        what = f"has no whole number for the value or layer of its segment {name!r}"
        raise ScanError("segment-number", path, what, AGAIN) from None


def _refuse_unnamed(layers: np.ndarray, segments: list[Segment], path: Path) -> None:
    for layer in range(layers.shape[-1]):
        known = [0, *(segment.value for segment in segments if segment.layer == layer)]
        values = np.unique(layers[..., layer])
        unknown = values[~np.isin(values, known)]
        if unknown.size:
            shown = ", ".join(f"{value:g}" for value in unknown[:5])
            what = f"has voxels of the value(s) {shown}, which none of its segments has"
            raise ScanError("mask-values", path, what, AGAIN)


def _code(tags: str) -> tuple[CodeKey | None, str]:
    """The code of a segment by its terminology entry: context~category~type~modifier~…, each scheme^value^meaning."""
    entry = next((tag for tag in tags.split("|") if tag.startswith(_TERMINOLOGY)), "")
    parts = [part.split("^") for part in entry.split("~")]
    if len(parts) < 3 or len(parts[2]) < 3 or not parts[2][1] or (parts[2][1], parts[2][0]) in _UNCODED:
        return None, ""
    modifier = parts[3] if len(parts) > 3 and len(parts[3]) == 3 and parts[3][1] else None
    key = (modern(parts[2][1], parts[2][0]), None if modifier is None else modern(modifier[1], modifier[0]))
    return key, one_line(parts[2][2])
