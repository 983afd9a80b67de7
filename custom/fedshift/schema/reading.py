"""What was decided in reading one file of an image or a mask, for the record."""

from __future__ import annotations

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from fedshift.schema.strict import Strict


class Reading(Strict):
    """How one image or mask was read, in words; what does not apply is None.

    It is kept in ``manifest.json`` and ``predictions.json``, and ``fedshift data check --explain`` prints it. It never
    leaves the site, and holds no tag that tells of a patient.
    """

    format: str
    """Such as ``NIfTI-1``, ``NRRD``, ``DICOM series``, ``enhanced DICOM image``, ``DICOM SEG``."""
    transfer_syntax: str | None = None
    """Name of DICOM's encoding, such as ``JPEG Lossless, Non-Hierarchical, First-Order Prediction``."""
    bits: str | None = None
    """Such as ``12 of 16 bits, signed``."""
    rescale: str | None = None
    """From stored values to intensities, such as ``x 1 - 1024``."""
    photometric: str | None = None
    """Whether intensities were turned, such as ``MONOCHROME1, turned``."""
    units: str | None = None
    """Of intensities, and of lengths where the header names another than mm."""
    geometry: str | None = None
    """What the voxels' places were taken from, such as ``sform`` or ``image positions of 40 slices``."""
    volume: str | None = None
    """Which volume of several in one file or series, such as ``2 of 3, by TemporalPositionIdentifier``."""
    gaps: str | None = None
    """Distances between slices that differ, and slices without a contour."""
    tilt: str | None = None
    """How far slices are shifted against a box, in mm."""
    resampled: str | None = None
    """Onto which grid, and how."""
    structures: str | None = None
    """Which segments or structures became which class."""
    remarks: tuple[str, ...] = ()
    """What else was decided, a sentence each."""

    @model_serializer(mode="wrap")
    def _what_applies(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in write(self).items() if value}


COMPUTED = Reading(format="computed")
"""Of voxels that come from no file."""
