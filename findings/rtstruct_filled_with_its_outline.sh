#!/bin/sh
# The volume of an RT Structure Set, as a mask that rt-utils makes of it.
#
# Expected: closed contours of a cylinder of 12 mm radius on twelve slices of 3 mm hold 16.29 ml, and pixels of 1 mm that have
# their centre inside 15.73 ml. With a contour on every second slice planning systems show the same volume (area times distance
# of contours), or interpolate.
# What happens: rt-utils fills with OpenCV, which takes the pixels on the outline as inside too, 17.89 ml, 10 % too much; and of
# the contours on every second slice it makes every second slice, half of it, without a word.
# Seen with rt-utils 1.2.7, opencv-python 5.0.0.93 and pydicom 3.0.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q rt-utils==1.2.7 opencv-python==5.0.0.93 pydicom==3.0.2
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import importlib.metadata as versions
import pathlib
import sys

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid
from rt_utils import RTStructBuilder

folder = pathlib.Path(sys.argv[1])
(folder / "ct").mkdir()
uids = {name: generate_uid() for name in ("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID")}
CT, STRUCTURES = "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.481.3"


def item(**values):
    made = Dataset()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def file(sop_class, **values):
    made = item(SOPClassUID=sop_class, SOPInstanceUID=generate_uid(), **{**uids, **values})
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    for name in ("PatientBirthDate", "PatientSex", "StudyID", "AccessionNumber", "StudyDate", "StudyTime"):
        setattr(made, name, "")
    made.PatientName, made.PatientID, made.ReferringPhysicianName = "X^Y", "1", ""
    made.SeriesNumber = 1
    return made


slices = []
for k in range(24):
    made = file(CT, Modality="CT", InstanceNumber=k + 1, Rows=60, Columns=60, PixelSpacing=[1, 1], SliceThickness=3)
    made.ImageOrientationPatient, made.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 3 * k]
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated, made.BitsStored, made.HighBit, made.PixelRepresentation = 16, 16, 15, 0
    made.RescaleSlope, made.RescaleIntercept = 1, 0
    made.PixelData = np.zeros((60, 60), np.uint16).tobytes()
    made.save_as(folder / "ct" / f"{k}.dcm", enforce_file_format=True)
    slices.append(item(ReferencedSOPClassUID=CT, ReferencedSOPInstanceUID=made.SOPInstanceUID))
angle = np.linspace(0, 2 * np.pi, 360, endpoint=False)


def ml(numbers):
    series = item(SeriesInstanceUID=uids["SeriesInstanceUID"], ContourImageSequence=slices)
    study = item(
        ReferencedSOPClassUID="1.2.840.10008.3.1.2.3.1",
        ReferencedSOPInstanceUID=uids["StudyInstanceUID"],
        RTReferencedSeriesSequence=[series],
    )
    frame = uids["FrameOfReferenceUID"]
    made = file(STRUCTURES, Modality="RTSTRUCT", SeriesInstanceUID=generate_uid(), StructureSetLabel="X")
    made.ReferencedFrameOfReferenceSequence = [item(FrameOfReferenceUID=frame, RTReferencedStudySequence=[study])]
    made.StructureSetROISequence = [
        item(ROINumber=1, ROIName="gland", ReferencedFrameOfReferenceUID=frame, ROIGenerationAlgorithm="MANUAL")
    ]
    contours = []
    for k in numbers:
        points = np.stack([30 + 12 * np.cos(angle), 30 + 12 * np.sin(angle), np.full(360, 3.0 * k)], 1)
        contours.append(
            item(
                ContourImageSequence=[slices[k]],
                ContourGeometricType="CLOSED_PLANAR",
                NumberOfContourPoints=360,
                ContourData=[round(float(value), 3) for value in points.ravel()],
            )
        )
    made.ROIContourSequence = [item(ReferencedROINumber=1, ROIDisplayColor=[255, 0, 0], ContourSequence=contours)]
    made.RTROIObservationsSequence = [
        item(ObservationNumber=1, ReferencedROINumber=1, RTROIInterpretedType="", ROIInterpreter="")
    ]
    made.save_as(folder / "rs.dcm", enforce_file_format=True)
    found = RTStructBuilder.create_from(dicom_series_path=str(folder / "ct"), rt_struct_path=str(folder / "rs.dcm"))
    return found.get_roi_mask_by_name("gland").sum() * 3 / 1000


y, x = np.indices((60, 60))
centres = ((x - 30) ** 2 + (y - 30) ** 2 < 144).sum() * 12 * 3 / 1000
every, second = ml(range(5, 17)), ml(range(5, 17, 2))
print({name: versions.version(name) for name in ("rt-utils", "opencv-python", "pydicom")})
print(f"contours hold                          {np.pi * 1.44 * 3.6:.2f} ml")
print(f"pixels with their centre inside        {centres:.2f} ml")
print(f"rt-utils                               {every:.2f} ml")
print(f"rt-utils, contour on every 2nd slice   {second:.2f} ml")
sys.exit(not (every > 1.05 * np.pi * 1.44 * 3.6 and np.isclose(second, every / 2)))
PYTHON
