"""Write what a model says an image is as DICOM SR: a report (PS3.16, TID 1500) with a group for each class."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift.inference.dicom_report import comment, save_report
from fedshift.inference.dicom_source import Origin, Source, making, uids_of
from fedshift.schema.codes import SHORT

FEDSHIFT_SCHEME = "99FEDSHIFT"
"""The coding scheme of classes: a model's class is what its training data called so, and no concept of SNOMED CT."""
DIGITS = 4
"""Of a probability: further ones differ between processors."""


def write_classes(
    path: Path,
    *,
    source: Source,
    origin: Origin,
    probabilities: Mapping[str, float],
    present: Collection[str],
    exclusive: bool,
    remarks: Sequence[str] = (),
) -> None:
    """Write a report with the probability of each class, and what the model says of it.

    Args:
        path: the file.
        source: the image's DICOM objects.
        origin: what is said of the model.
        probabilities: of each class.
        present: the classes that the model says are there.
        exclusive: whether it says one class; of the others then nothing but the probability.
        remarks: what to know about it, as comments.

    Raises:
        DataError: the source lacks what a report needs; there is no file then.
    """
    import highdicom as hd
    from pydicom.sr.codedict import codes
    from pydicom.sr.coding import Code

    rounded = {name: round(probability, DIGITS) for name, probability in probabilities.items()}
    uid = uids_of(source, origin, "classes", *rounded.items(), *sorted(present), *remarks)
    with making(path, "DICOM SR"):
        algorithm = hd.sr.AlgorithmIdentification(name=origin.algorithm, version=origin.full_version)
        images = [
            hd.sr.SourceImageForMeasurementGroup(each.SOPClassUID, each.SOPInstanceUID) for each in source.objects
        ]
        groups = []
        for number, (name, probability) in enumerate(rounded.items(), start=1):
            decisions = []
            if name in present or not exclusive:
                decision = codes.SCT.Present if name in present else codes.SCT.Absent
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
            comment(group, origin, remarks)
            groups.append(group)
        evidence = source.objects
        save_report(path, hd.sr.ComprehensiveSR, groups, evidence=evidence, source=source, origin=origin, uid=uid)


def own_code(name: str) -> Any:
    """The code of a name in the scheme of one's own: the name, or a digest of it where that is too long for a code."""
    from pydicom.sr.coding import Code

    short = len(name) <= SHORT and "\\" not in name
    value = name if short else hashlib.sha256(name.encode()).hexdigest()[:SHORT]
    return Code(value, FEDSHIFT_SCHEME, name.replace("\\", "/")[:64])
