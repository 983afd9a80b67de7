"""Write volumes as DICOM SR: a measurement report (PS3.16, TID 1500) on the segments of a DICOM SEG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift.inference.dicom_report import comment, save_report
from fedshift.inference.dicom_seg import concept
from fedshift.inference.dicom_source import Origin, Source, making, uids_of


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
        algorithm = hd.sr.AlgorithmIdentification(name=origin.algorithm, version=origin.full_version)
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
            comment(group, origin, remarks)
            groups.append(group)
        evidence = [segmentation, *source.objects]
        save_report(path, hd.sr.Comprehensive3DSR, groups, evidence=evidence, source=source, origin=origin, uid=uid)
