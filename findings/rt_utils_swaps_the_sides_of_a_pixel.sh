#!/bin/sh
# Pixel Spacing (0028,0030) is the distance between rows, and then that between columns (PS3.3, 10.7.1.3): along a row
# pixels are the second value apart. Of MR and ultrasound the two may differ.
#
# Expected: a contour of an RT Structure Set is filled where it lies in the scan.
# Seen: rt-utils takes the first value along a row. With pixels that are 1 mm high and 1.5 mm wide an organ lies elsewhere
# and has another shape: 0.19 of Dice with the pixels that have their centre inside. Nothing is said. With the two values
# exchanged in the files it would be right, and with square pixels nobody sees it.
# Versions: rt-utils 1.2.7, opencv-python 5.0.0.93, pydicom 3.0.2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q rt-utils==1.2.7 opencv-python==5.0.0.93 pydicom==3.0.2
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version
from pathlib import Path

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, RTStructureSetStorage, generate_uid
from rt_utils import RTStructBuilder

print(*(f"{name} {version(name)}" for name in ("rt-utils", "opencv-python", "pydicom")))
SIDE, MIDDLE, RADIUS, SLICES = 80, (45.0, 30.0), 15.0, 6  # pixels; mm to the left and to the back; mm
study, series, frame = generate_uid(), generate_uid(), generate_uid()
angle = np.linspace(0, 2 * np.pi, 120, endpoint=False)
circle = np.stack([MIDDLE[0] + RADIUS * np.cos(angle), MIDDLE[1] + RADIUS * np.sin(angle)], 1)


def item(**values):
    made = Dataset()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def save(path, kind, **values):
    made = item(SOPClassUID=kind, SOPInstanceUID=generate_uid(), StudyInstanceUID=study, FrameOfReferenceUID=frame)
    made.update(item(PatientName="Made", PatientID="1", SeriesNumber=1, **values))
    for name in ("PatientBirthDate", "PatientSex", "StudyID", "AccessionNumber", "StudyDate", "StudyTime"):
        setattr(made, name, "")
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.save_as(path, enforce_file_format=True)
    return item(ReferencedSOPClassUID=kind, ReferencedSOPInstanceUID=made.SOPInstanceUID)


def dice(height, width):
    """Of rt-utils' mask with the pixels that have their centre inside the circle."""
    scan = Path(f"mr-{height}-{width}")
    scan.mkdir()
    common = dict(Modality="MR", SeriesInstanceUID=series, Rows=SIDE, Columns=SIDE, SliceThickness=3)
    common |= dict(SamplesPerPixel=1, PhotometricInterpretation="MONOCHROME2", PixelRepresentation=0)
    common |= dict(BitsAllocated=16, BitsStored=16, HighBit=15, ImageOrientationPatient=[1, 0, 0, 0, 1, 0])
    files = []
    for k in range(SLICES):
        own = dict(InstanceNumber=k + 1, ImagePositionPatient=[0, 0, 3 * k], PixelSpacing=[height, width])
        files.append(save(scan / f"{k}.dcm", MRImageStorage, PixelData=bytes(2 * SIDE * SIDE), **common, **own))
    contours = []
    for k, file in enumerate(files):
        points = np.column_stack([circle, np.full(len(circle), 3.0 * k)]).ravel().round(3).tolist()
        contour = item(ContourImageSequence=[file], ContourGeometricType="CLOSED_PLANAR", ContourData=points)
        contour.NumberOfContourPoints = len(circle)
        contours.append(contour)
    used = item(SeriesInstanceUID=series, ContourImageSequence=files)
    used = item(ReferencedSOPInstanceUID=study, RTReferencedSeriesSequence=[used])
    used.ReferencedSOPClassUID = "1.2.840.10008.3.1.2.3.1"
    region = item(ROINumber=1, ROIName="organ", ReferencedFrameOfReferenceUID=frame, ROIGenerationAlgorithm="MANUAL")
    save(
        scan.with_suffix(".dcm"),
        RTStructureSetStorage,
        Modality="RTSTRUCT",
        SeriesInstanceUID=generate_uid(),
        StructureSetLabel="Made",
        ReferencedFrameOfReferenceSequence=[item(FrameOfReferenceUID=frame, RTReferencedStudySequence=[used])],
        StructureSetROISequence=[region],
        ROIContourSequence=[item(ReferencedROINumber=1, ROIDisplayColor=[255, 0, 0], ContourSequence=contours)],
        RTROIObservationsSequence=[
            item(ObservationNumber=1, ReferencedROINumber=1, RTROIInterpretedType="", ROIInterpreter="")
        ],
    )
    built = RTStructBuilder.create_from(dicom_series_path=str(scan), rt_struct_path=str(scan.with_suffix(".dcm")))
    found = built.get_roi_mask_by_name("organ")
    row, column = np.indices((SIDE, SIDE))
    right = (column * width - MIDDLE[0]) ** 2 + (row * height - MIDDLE[1]) ** 2 <= RADIUS**2
    right = np.repeat(right[..., None], SLICES, 2)
    middles = [np.round(np.argwhere(mask).mean(0)[:2], 1).tolist() for mask in (right, found)]
    score = round(float(2 * (right & found).sum() / (right.sum() + found.sum())), 2)
    print(f"pixels {height} mm high and {width} mm wide: middle at row and column {middles[0]}")
    print(f"  rt-utils' mask: middle at {middles[1]}, Dice {score}")
    return score


seen = [dice(1.0, 1.0), dice(1.0, 1.5), dice(1.5, 1.0)]
assert seen[0] > 0.95 and seen[1:] == [0.19, 0.19], f"it is otherwise now: {seen}"
PYTHON
