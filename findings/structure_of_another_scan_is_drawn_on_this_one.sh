#!/bin/sh
# Each structure of an RT Structure Set says in which frame of reference its coordinates are (Referenced Frame of
# Reference UID, PS3.3, C.8.8.5). One set may have several, such as those of a CT and of an MR that was contoured beside
# it: the same millimetres are different places of the patient then, until a registration relates them.
#
# Expected: on the CT only the structures of its own frame are drawn, or others are refused.
# Seen: plastimatch and DicomRTTool draw the lesion of the MR on the CT, at the MR's coordinates, and say nothing.
# rt-utils refuses such a set, whose images are not all in the folder.
# Versions: plastimatch 1.10.0, DicomRTTool 6.2.0, pydicom 3.0.2, SimpleITK 2.5.7.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q plastimatch==1.10.0 dicomrttool==6.2.0 pydicom==3.0.2 simpleitk==2.5.7
cd "$folder"
PATH="$folder/venv/bin:$PATH" "$folder/venv/bin/python" - <<'PYTHON'
import subprocess
from importlib.metadata import version
from pathlib import Path

import SimpleITK as sitk
from DicomRTTool.ReaderWriter import DicomReaderWriter
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, MRImageStorage, RTStructureSetStorage, generate_uid

print(*(f"{name} {version(name)}" for name in ("plastimatch", "DicomRTTool", "pydicom", "SimpleITK")))
SIDE, SLICES = 40, 6
study, ct, ct_frame, mr_frame = (generate_uid() for _ in range(4))


def item(**values):
    made = Dataset()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def save(path, kind, **values):
    made = item(SOPClassUID=kind, SOPInstanceUID=generate_uid(), StudyInstanceUID=study, FrameOfReferenceUID=ct_frame)
    made.update(item(PatientName="Made", PatientID="1", SeriesNumber=1, **values))
    for name in ("PatientBirthDate", "PatientSex", "StudyID", "AccessionNumber", "StudyDate", "StudyTime"):
        setattr(made, name, "")
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.save_as(path, enforce_file_format=True)
    return item(ReferencedSOPClassUID=kind, ReferencedSOPInstanceUID=made.SOPInstanceUID)


def used(frame, series, images):
    of_study = item(ReferencedSOPClassUID="1.2.840.10008.3.1.2.3.1", ReferencedSOPInstanceUID=study)
    of_study.RTReferencedSeriesSequence = [item(SeriesInstanceUID=series, ContourImageSequence=images)]
    return item(FrameOfReferenceUID=frame, RTReferencedStudySequence=[of_study])


scan = Path("scan")
scan.mkdir()
common = dict(Modality="CT", SeriesInstanceUID=ct, Rows=SIDE, Columns=SIDE, SliceThickness=3, PixelSpacing=[1, 1])
common |= dict(SamplesPerPixel=1, PhotometricInterpretation="MONOCHROME2", PixelRepresentation=0, BitsAllocated=16)
common |= dict(BitsStored=16, HighBit=15, ImageOrientationPatient=[1, 0, 0, 0, 1, 0], RescaleSlope=1)
common |= dict(RescaleIntercept=0, PixelData=bytes(2 * SIDE * SIDE))
slices = [
    save(scan / f"{k}.dcm", CTImageStorage, InstanceNumber=k + 1, ImagePositionPatient=[0, 0, 3 * k], **common)
    for k in range(SLICES)
]
of_mr = [item(ReferencedSOPClassUID=MRImageStorage, ReferencedSOPInstanceUID=generate_uid()) for _ in slices]
rois = {"organ": (ct_frame, slices, 4.5, 14.5), "lesion": (mr_frame, of_mr, 4.5, 24.5)}
named, drawn = [], []
for number, (name, (frame, images, low, high)) in enumerate(rois.items(), start=1):
    contours = []
    for k in range(1, 5):
        points = [low, low, 3 * k, high, low, 3 * k, high, high, 3 * k, low, high, 3 * k]
        contour = item(ContourImageSequence=[images[k]], ContourGeometricType="CLOSED_PLANAR", ContourData=points)
        contour.NumberOfContourPoints = 4
        contours.append(contour)
    named.append(item(ROINumber=number, ROIName=name, ReferencedFrameOfReferenceUID=frame))
    named[-1].ROIGenerationAlgorithm = "MANUAL"
    drawn.append(item(ReferencedROINumber=number, ROIDisplayColor=[255, 0, 0], ContourSequence=contours))
save(
    scan / "set.dcm",
    RTStructureSetStorage,
    Modality="RTSTRUCT",
    SeriesInstanceUID=generate_uid(),
    StructureSetLabel="Made",
    ReferencedFrameOfReferenceSequence=[used(mr_frame, generate_uid(), of_mr), used(ct_frame, ct, slices)],
    StructureSetROISequence=named,
    ROIContourSequence=drawn,
    RTROIObservationsSequence=[
        item(ObservationNumber=number, ReferencedROINumber=number, RTROIInterpretedType="", ROIInterpreter="")
        for number in (1, 2)
    ],
)
command = ["plastimatch", "convert", "--input", "scan/set.dcm", "--referenced-ct", "scan", "--output-prefix", "drawn"]
said = subprocess.run([*command, "--prefix-format", "nrrd"], check=True, capture_output=True, text=True)
assert "warn" not in (said.stdout + said.stderr).lower()
seen = {}
for name in rois:
    by_plastimatch = sitk.GetArrayFromImage(sitk.ReadImage(f"drawn/{name}.nrrd")) > 0
    reader = DicomReaderWriter(Contour_Names=[name], arg_max=True)
    reader.walk_through_folders("scan")
    reader.get_images_and_mask()
    seen[name] = int(by_plastimatch.sum()), int((reader.mask > 0).sum())
    print(f"{name}: {seen[name][0]} voxels of the CT by plastimatch, {seen[name][1]} by DicomRTTool")
assert all(min(counts) > 0 for counts in seen.values()), "a structure of another frame of reference is not drawn now"
PYTHON
