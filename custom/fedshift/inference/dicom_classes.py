"""Write what a model says an image is as DICOM SR: a report (PS3.16, TID 1500) with a group for each class."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift.inference.dicom_source import NOTE, Origin, Source, making, uids_of
from fedshift.inference.dicom_sr import device_of
from fedshift.schema.codes import SHORT

OWN = "99FEDSHIFT"
"""The coding scheme of classes: a model's class is what its training data called so, and no concept of SNOMED CT."""
DIGITS = 4
"""Of a probability: further ones differ between processors."""


def write_classes(
    path: Path,
    *,
    source: Source,
    origin: Origin,
    probabilities: Mapping[str, float],
    said: Collection[str],
    exclusive: bool,
    remarks: Sequence[str] = (),
) -> None:
    """Write a report with the probability of each class, and what the model says of it.

    Args:
        path: the file.
        source: the image's DICOM objects.
        origin: what is said of the model.
        probabilities: of each class.
        said: the classes that the model says are there.
        exclusive: whether it says one class; of the others then nothing but the probability.
        remarks: what to know about it, as comments.

    Raises:
        DataError: the source lacks what a report needs; there is no file then.
    """
    import highdicom as hd
    from pydicom.sr.codedict import codes
    from pydicom.sr.coding import Code

    rounded = {name: round(probability, DIGITS) for name, probability in probabilities.items()}
    uid = uids_of(source, origin, "classes", *rounded.items(), *sorted(said), *remarks)
    with making(path, "DICOM SR"):
        algorithm = hd.sr.AlgorithmIdentification(name=origin.algorithm, version=origin.full_version)
        images = [
            hd.sr.SourceImageForMeasurementGroup(each.SOPClassUID, each.SOPInstanceUID) for each in source.objects
        ]
        groups = []
        for number, (name, probability) in enumerate(rounded.items(), start=1):
            decisions = []
            if name in said or not exclusive:
                decision = codes.SCT.Present if name in said else codes.SCT.Absent
                decisions = [hd.sr.QualitativeEvaluation(own_code("What the model says"), decision)]
            group = hd.sr.MeasurementsAndQualitativeEvaluations(
                tracking_identifier=hd.sr.TrackingIdentifier(uid=hd.UID(uid(f"class {number}")), identifier=name),
                finding_type=own_code(name),
                algorithm_id=algorithm,
                measurements=[
                    hd.sr.Measurement(
                        name=own_code("Probability"), value=probability, unit=Code("1", "UCUM", "no units")
                    )
                ],
                qualitative_evaluations=decisions,
                source_images=images,
            )
            for comment in [f"{NOTE}; {origin.algorithm}", *remarks]:
                group[0].ContentSequence.append(
                    hd.sr.TextContentItem(
                        name=codes.DCM.Comment, value=comment, relationship_type=hd.sr.RelationshipTypeValues.CONTAINS
                    )
                )
            groups.append(group)
        report = hd.sr.MeasurementReport(
            observation_context=hd.sr.ObservationContext(observer_device_context=device_of(origin, uid("device"))),
            procedure_reported=Code("363679005", "SCT", "Imaging procedure"),
            imaging_measurements=groups,
            title=codes.DCM.ImagingMeasurementReport,
        )
        made = hd.sr.ComprehensiveSR(
            evidence=list(source.objects),
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


def own_code(name: str) -> Any:
    """The code of a name in the scheme of one's own: the name, or a digest of it where that is too long for a code."""
    from pydicom.sr.coding import Code

    short = len(name) <= SHORT and "\\" not in name
    value = name if short else hashlib.sha256(name.encode()).hexdigest()[:SHORT]
    return Code(value, OWN, name.replace("\\", "/")[:64])
