"""Write volumes as DICOM SR: a measurement report (PS3.16, TID 1500) on the segments of a DICOM SEG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift.inference.dicom_seg import concept
from fedshift.inference.dicom_source import NOTE, Origin, Source, making, uids_of


def write_report(
    path: Path,
    *,
    segmentation: Any,
    source: Source,
    origin: Origin,
    volumes: Mapping[str, float],
    classes: Sequence[str],
    remarks: Sequence[str] = (),
) -> None:
    """Write a report with the volume of each class that was found, and remarks as comments on each.

    Args:
        path: the file.
        segmentation: of `fedshift.inference.dicom_seg.write_segmentation`.
        source: the scan's DICOM objects.
        origin: what is said of the model.
        volumes: class -> ml; a class of 0 ml has no measurement.
        classes: all classes without the background, in their order.
        remarks: warnings on the result.

    Raises:
        DataError: the source lacks what a report needs; there is no file then.
    """
    import highdicom as hd
    from pydicom.sr.codedict import codes
    from pydicom.sr.coding import Code

    uid = uids_of(source, origin, "sr", str(segmentation.SOPInstanceUID), *volumes.items(), *remarks)
    with making(path, "DICOM SR"):
        device = device_of(origin, uid("device"))
        algorithm = hd.sr.AlgorithmIdentification(name=origin.algorithm, version=origin.full_version)
        comments = [f"{NOTE}; {origin.algorithm}", *remarks]
        groups = []
        for number, name in enumerate(classes, start=1):
            if not volumes[name]:
                continue
            segment, code = segmentation.SegmentSequence[number - 1], origin.codes[name]
            modifier = None if code.modifier is None else concept(code.modifier)
            group = hd.sr.VolumetricROIMeasurementsAndQualitativeEvaluations(
                tracking_identifier=hd.sr.TrackingIdentifier(uid=segment.TrackingUID, identifier=name),
                referenced_segment=hd.sr.ReferencedSegment(
                    sop_class_uid=segmentation.SOPClassUID,
                    sop_instance_uid=segmentation.SOPInstanceUID,
                    segment_number=number,
                    source_series=hd.sr.SourceSeriesForSegmentation(source.first.SeriesInstanceUID),
                ),
                finding_category=concept(code.category),
                finding_type=concept(code.type),
                finding_sites=[hd.sr.FindingSite(concept(code.type), topographical_modifier=modifier)],
                algorithm_id=algorithm,
                measurements=[
                    hd.sr.Measurement(
                        name=codes.SCT.Volume,
                        value=round(volumes[name], 3),
                        unit=Code("mL", "UCUM", "milliliter"),
                    )
                ],
            )
            for comment in comments:
                group[0].ContentSequence.append(
                    hd.sr.TextContentItem(
                        name=codes.DCM.Comment, value=comment, relationship_type=hd.sr.RelationshipTypeValues.CONTAINS
                    )
                )
            groups.append(group)
        report = hd.sr.MeasurementReport(
            observation_context=hd.sr.ObservationContext(observer_device_context=device),
            procedure_reported=Code("363679005", "SCT", "Imaging procedure"),
            imaging_measurements=groups,
            title=codes.DCM.ImagingMeasurementReport,
        )
        made = hd.sr.Comprehensive3DSR(
            evidence=[segmentation, *source.objects],
            content=report,
            series_instance_uid=hd.UID(uid("series")),
            series_number=source.series_number,
            sop_instance_uid=hd.UID(uid("object")),
            instance_number=1,
            manufacturer="fedshift",
            manufacturer_model_name="fedshift",
            software_versions=origin.version,
            device_serial_number=origin.model,
            series_description=origin.description,
        )
        made.save_as(path)


def device_of(origin: Origin, uid: str) -> Any:
    """The program as the observer of a report."""
    import highdicom as hd
    from pydicom.sr.codedict import codes

    return hd.sr.ObserverContext(
        observer_type=codes.DCM.Device,
        observer_identifying_attributes=hd.sr.DeviceObserverIdentifyingAttributes(
            uid=hd.UID(uid),
            name=origin.algorithm,
            manufacturer_name="fedshift",
            model_name="fedshift",
            serial_number=origin.model,
        ),
    )
