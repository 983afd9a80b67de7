"""What all DICOM SR of results share: a measurement report (PS3.16, TID 1500), its comments and who observed it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedshift.inference.dicom_source import NOTE, Origin, Source, object_fields


def comment(group: Any, origin: Origin, remarks: Sequence[str]) -> None:
    """Add comments to a group of measurements: for what it is, by what it was made, and ``remarks``."""
    import highdicom as hd
    from pydicom.sr.codedict import codes

    for text in [f"{NOTE}; {origin.algorithm}", *remarks]:
        group[0].ContentSequence.append(
            hd.sr.TextContentItem(
                name=codes.DCM.Comment, value=text, relationship_type=hd.sr.RelationshipTypeValues.CONTAINS
            )
        )


def save_report(
    path: Path,
    kind: Any,
    groups: Sequence[Any],
    *,
    evidence: Sequence[Any],
    source: Source,
    origin: Origin,
    uid: Callable[[str], str],
) -> None:
    """Write a report of these groups.

    Args:
        path: the file.
        kind: highdicom's class of the object.
        groups: of measurements, each with its comments.
        evidence: the objects that it speaks of.
        source: the DICOM objects of the image.
        origin: what is said of the model.
        uid: as `fedshift.inference.dicom_source.uids_of` gives it.
    """
    import highdicom as hd
    from pydicom.sr.codedict import codes
    from pydicom.sr.coding import Code

    program = hd.sr.DeviceObserverIdentifyingAttributes(
        uid=hd.UID(uid("device")),
        name=origin.algorithm,
        manufacturer_name="fedshift",
        model_name="fedshift",
        serial_number=origin.model,
    )
    observer = hd.sr.ObserverContext(observer_type=codes.DCM.Device, observer_identifying_attributes=program)
    report = hd.sr.MeasurementReport(
        observation_context=hd.sr.ObservationContext(observer_device_context=observer),
        procedure_reported=Code("363679005", "SCT", "Imaging procedure"),
        imaging_measurements=groups,
        title=codes.DCM.ImagingMeasurementReport,
    )
    kind(evidence=list(evidence), content=report, **object_fields(source, origin, uid)).save_as(path)
