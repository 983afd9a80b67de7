#!/bin/sh
# A structure may have several closed contours in a slice (PS3.3, C.8.8.6.1): two parts, or an outline that was drawn in
# two goes and overlaps itself. Only contours that call themselves CLOSEDPLANAR_XOR are combined by exclusive or
# (C.8.8.6.3).
#
# Expected: what lies in either of two CLOSED_PLANAR contours is inside, as plastimatch and planning systems have it.
# Seen: rt-utils and DicomRTTool leave a hole where the two overlap, and say nothing: being called XOR makes no
# difference. plastimatch writes no file of a structure that says XOR, and ends without an error.
# Versions: rt-utils 1.2.7, DicomRTTool 6.2.0, plastimatch 1.10.0, opencv-python-headless 5.0.0.93, pydicom 3.0.2,
# SimpleITK 2.5.7.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q rt-utils==1.2.7 dicomrttool==6.2.0 plastimatch==1.10.0 pydicom==3.0.2 \
  opencv-python==5.0.0.93 opencv-python-headless==5.0.0.93 simpleitk==2.5.7
cd "$folder"
PATH="$folder/venv/bin:$PATH" "$folder/venv/bin/python" - <<'PYTHON'
import subprocess
from importlib.metadata import version
from pathlib import Path

import SimpleITK as sitk
from DicomRTTool.ReaderWriter import DicomReaderWriter
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, RTStructureSetStorage, generate_uid
from rt_utils import RTStructBuilder

print(*(f"{name} {version(name)}" for name in ("rt-utils", "DicomRTTool", "plastimatch", "pydicom", "SimpleITK")))
SIDE, SLICES, SLICE = 40, 6, 2
BOTH, FIRST, SECOND, NEITHER = (19, 19), (8, 8), (31, 31), (8, 31)  # pixels in both squares, one, and none
study, series, frame = (generate_uid() for _ in range(3))


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


def inside(kind):
    """Of each reader, whether these pixels are in a structure of two squares of a kind that overlap."""
    scan = Path(kind)
    scan.mkdir()
    common = dict(Modality="CT", SeriesInstanceUID=series, Rows=SIDE, Columns=SIDE, SliceThickness=3)
    common |= dict(SamplesPerPixel=1, PhotometricInterpretation="MONOCHROME2", PixelRepresentation=0, BitsAllocated=16)
    common |= dict(BitsStored=16, HighBit=15, ImageOrientationPatient=[1, 0, 0, 0, 1, 0], RescaleSlope=1)
    common |= dict(RescaleIntercept=0, PixelSpacing=[1, 1], PixelData=bytes(2 * SIDE * SIDE))
    slices = [
        save(scan / f"{k}.dcm", CTImageStorage, InstanceNumber=k + 1, ImagePositionPatient=[0, 0, 3 * k], **common)
        for k in range(SLICES)
    ]
    contours = []
    for k in range(1, 5):
        for low, high in ((4.5, 24.5), (14.5, 34.5)):
            points = [low, low, 3 * k, high, low, 3 * k, high, high, 3 * k, low, high, 3 * k]
            contour = item(ContourImageSequence=[slices[k]], ContourGeometricType=kind, ContourData=points)
            contour.NumberOfContourPoints = 4
            contours.append(contour)
    used = item(SeriesInstanceUID=series, ContourImageSequence=slices)
    used = item(ReferencedSOPInstanceUID=study, RTReferencedSeriesSequence=[used])
    used.ReferencedSOPClassUID = "1.2.840.10008.3.1.2.3.1"
    region = item(ROINumber=1, ROIName="organ", ReferencedFrameOfReferenceUID=frame, ROIGenerationAlgorithm="MANUAL")
    save(
        scan / "set.dcm",
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
    command = ["plastimatch", "convert", "--input", f"{kind}/set.dcm", "--referenced-ct", kind]
    command += ["--output-prefix", f"{kind}-drawn", "--prefix-format", "nrrd"]
    subprocess.run(command, check=True, capture_output=True)
    reader = DicomReaderWriter(Contour_Names=["organ"], arg_max=True)
    reader.walk_through_folders(kind)
    reader.get_images_and_mask()
    (scan / "set.dcm").rename(f"{kind}.dcm")
    built = RTStructBuilder.create_from(dicom_series_path=kind, rt_struct_path=f"{kind}.dcm")
    masks = {
        "rt-utils": built.get_roi_mask_by_name("organ")[..., SLICE],
        "DicomRTTool": reader.mask[SLICE],
    }
    if (drawn := Path(f"{kind}-drawn/organ.nrrd")).exists():
        masks["plastimatch"] = sitk.GetArrayFromImage(sitk.ReadImage(drawn))[SLICE]
    return {name: [bool(mask[pixel]) for pixel in (BOTH, FIRST, SECOND, NEITHER)] for name, mask in masks.items()}


cut, united = [False, True, True, False], [True, True, True, False]
for kind in ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR"):
    seen = inside(kind)
    for name in ("rt-utils", "DicomRTTool", "plastimatch"):
        said = "no mask" if name not in seen else "inside" if seen[name][0] else "outside"
        print(f"{kind}, {name}: what is in both squares is {said}")
    right = {"rt-utils": cut, "DicomRTTool": cut} | ({"plastimatch": united} if kind == "CLOSED_PLANAR" else {})
    assert seen == right, f"it is otherwise now: {seen}"
PYTHON
