"""Segmentations as 3D Slicer saves them (``.seg.nrrd``), header and all."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import SimpleITK as sitk

PROSTATE = (
    "Segmentation.TerminologyEntry:Segmentation category and type - 3D Slicer General Anatomy list~"
    "SCT^123037004^Anatomical Structure~SCT^41216001^Prostate~^^~Anatomic codes - DICOM master list~^^~^^|"
)
TISSUE = PROSTATE.replace("SCT^41216001^Prostate", "SCT^85756007^Tissue")
"""What 3D Slicer writes where nobody has chosen a code."""


def write_segments(
    path: Path,
    image: sitk.Image,
    layers: Sequence[np.ndarray],
    segments: Sequence[Mapping[str, object]],
    *,
    start: tuple[int, int, int] = (0, 0, 0),
) -> Path:
    """Write layers [z, y, x] of values that lie on an image's voxels from index ``start`` (x, y, z) on.

    ``segments``: keys of each, such as ``Name``, ``Layer``, ``LabelValue`` and ``Tags``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    voxels = np.stack(layers, -1).astype(np.uint8)  # the layer is the fastest
    several = len(layers) > 1
    sizes = ([len(layers)] if several else []) + list(voxels.shape[2::-1])
    matrix = np.reshape(image.GetDirection(), (3, 3)) * np.array(image.GetSpacing())
    axes = ["none"] * several + ["(" + ",".join(f"{v:.10g}" for v in matrix[:, k]) + ")" for k in range(3)]
    origin = image.TransformIndexToPhysicalPoint(start)
    lines = [
        "NRRD0004",
        "# Complete NRRD file format specification at:",
        "# http://teem.sourceforge.net/nrrd/format.html",
        "type: unsigned char",
        f"dimension: {3 + several}",
        "space: left-posterior-superior",
        "sizes: " + " ".join(map(str, sizes)),
        "space directions: " + " ".join(axes),
        "kinds: " + "list " * several + "domain domain domain",
        "encoding: gzip",
        "space origin: (" + ",".join(f"{v:.10g}" for v in origin) + ")",
        *(
            f"Segment{number}_{key}:={value}"
            for number, segment in enumerate(segments)
            for key, value in {"ID": f"Segment_{number + 1}", "Color": "0.5 0.68 0.5", **segment}.items()
        ),
        "Segmentation_ContainedRepresentationNames:=Binary labelmap|",
        "Segmentation_MasterRepresentation:=Binary labelmap",
        "Segmentation_ReferenceImageExtentOffset:=" + " ".join(map(str, start)),
    ]
    path.write_bytes("\n".join([*lines, "", ""]).encode() + gzip.compress(voxels.tobytes()))
    return path


def segment(name: str, value: int = 1, layer: int = 0, tags: str = TISSUE) -> dict[str, object]:
    """The keys of a segment."""
    return {"Name": name, "LabelValue": value, "Layer": layer, "Tags": tags}
