"""DICOM SEG, RT Structure Sets and reports are the mask, voxel for voxel, by other programs' reading too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dicomforms
import highdicom as hd
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from dicomstudies import write_enhanced, write_slices
from errors import raises
from matplotlib.path import Path as Polygon
from pydicom.sr.coding import Code
from scanfiles import rotation, volume, write_dicom

from fedshift.data.dicom_objects import quiet
from fedshift.data.scans import Scan, read_scan
from fedshift.federation.resolve import resolve
from fedshift.inference import dicom_source
from fedshift.inference.dicom_rtstruct import write_structure_set
from fedshift.inference.dicom_seg import write_segmentation
from fedshift.inference.dicom_source import Origin, open_source
from fedshift.inference.dicom_sr import write_report
from fedshift.inference.masks import volume_ml, write_mask
from fedshift.inference.model import open_model
from inference.conftest import brightness_model

CLASSES = ("Anterior", "Posterior")
OBLIQUE = tuple((np.reshape(rotation(25, 0), (3, 3)) @ np.reshape(rotation(12, 2), (3, 3))).ravel().tolist())
SAGITTAL, CORONAL = (0, 0, 1, 1, 0, 0, 0, -1, 0), (1, 0, 0, 0, 0, 1, 0, -1, 0)
SHUFFLED = (4, 1, 0, 3, 2, 8, 5, 7, 6)


def doubled(folder: Path) -> Path:
    """The series with copies of two slices, as archives send them again."""
    for number in (2, 6):
        file = folder / f"IM{number:04d}.dcm"
        (folder / f"again{number}.dcm").write_bytes(file.read_bytes())
    return folder


SERIES: dict[str, Callable[[Path], Path]] = {
    "axial": lambda to: write_slices(to / "s", volume()[0]),
    "numbered against the positions, gaps between slices": lambda to: write_slices(
        to / "s", volume()[0], reverse=True, thickness=2.2
    ),
    "feet first in the file": lambda to: write_slices(to / "s", volume(direction=(1, 0, 0, 0, -1, 0, 0, 0, -1))[0]),
    "oblique": lambda to: write_slices(to / "s", volume(direction=OBLIQUE)[0]),
    "sagittal": lambda to: write_slices(to / "s", volume(direction=SAGITTAL)[0], reverse=True),
    "coronal": lambda to: write_slices(to / "s", volume(direction=CORONAL)[0]),
    "copies of instances": lambda to: doubled(write_slices(to / "s", volume(direction=OBLIQUE)[0])),
    "as SimpleITK writes it, with few attributes": lambda to: (write_dicom(to / "s", volume()[0]), to / "s")[1],
    "enhanced": lambda to: write_enhanced(to / "e.dcm", volume(direction=OBLIQUE)[0], order=SHUFFLED),
    "enhanced, sagittal": lambda to: write_enhanced(to / "e.dcm", volume(direction=SAGITTAL)[0]),
}


def origin(**changes: Any) -> Origin:
    given: dict[str, Any] = {
        "task": "hippocampus",
        "program": "fedshift fedfa",
        "version": "0.1.0",
        "model": "0123456789abcdef",
        "simulated": False,
        "codes": resolve("hippocampus", "fedavg").task.codes,
    }
    return Origin(**(given | changes))


def uneven(scan: Scan) -> np.ndarray:
    """Two classes of no symmetry: with a hole, a lone voxel, a corner of the volume, and a slice without any."""
    mask = np.zeros(scan.voxels.shape, np.uint8)
    z, y, x = (n // 3 for n in mask.shape)
    mask[z : 2 * z, y : 2 * y + 1, x : 2 * x] = 1
    mask[z + 1, y + 1 : y + 3, x + 2] = 0
    mask[z : 2 * z, : y - 1, 1 : x - 1] = 2
    mask[-1, -1, -1] = mask[0, 2, 1] = 2
    return mask


def on_grid(made: sitk.Image, grid: sitk.Image) -> np.ndarray:
    return sitk.GetArrayFromImage(sitk.Resample(made, grid, sitk.Transform(), sitk.sitkNearestNeighbor, 0))


def by_highdicom(path: Path) -> sitk.Image:
    """The label map as highdicom reads it."""
    segmentation = hd.seg.segread(path).get_volume(combine_segments=True, dtype=np.uint8)
    matrix = segmentation.affine[:3, :3][:, ::-1]
    spacing = np.linalg.norm(matrix, axis=0)
    image = sitk.GetImageFromArray(segmentation.array)
    image.SetSpacing(spacing.tolist())
    image.SetOrigin(segmentation.affine[:3, 3].tolist())
    image.SetDirection((matrix / spacing).ravel().tolist())
    return image


@pytest.mark.parametrize("which", SERIES)
def test_the_segmentation_is_the_mask_and_refers_to_its_slices(which: str, tmp_path: Path) -> None:
    path = SERIES[which](tmp_path)
    scan, source = read_scan(path), open_source(path)
    mask = uneven(scan)
    write_mask(mask, scan, tmp_path / "mask.nii.gz", source=path)
    write_segmentation(mask, scan, tmp_path / "seg.dcm", source=source, origin=origin(), classes=CLASSES)
    nifti = sitk.ReadImage(tmp_path / "mask.nii.gz")
    wanted = sitk.GetArrayFromImage(nifti)
    np.testing.assert_array_equal(on_grid(by_highdicom(tmp_path / "seg.dcm"), nifti), wanted)
    # One frame for each slice of each segment that has any, and each refers to the slice at its place.
    seg = hd.seg.segread(tmp_path / "seg.dcm")
    per_slice = wanted.any((1, 2)).sum()
    assert seg.NumberOfFrames == sum((wanted == n).any((1, 2)).sum() for n in (1, 2)) and per_slice < len(wanted)
    assert seg.pixel_array.any((1, 2)).all()
    first = source.first
    assert (seg.PatientID, seg.StudyInstanceUID) == (first.PatientID, first.StudyInstanceUID)
    assert seg.FrameOfReferenceUID == first.FrameOfReferenceUID and seg.SeriesInstanceUID != first.SeriesInstanceUID
    assert [one.SeriesInstanceUID for one in seg.ReferencedSeriesSequence] == [first.SeriesInstanceUID]
    places = {one.SOPInstanceUID: one for one in source.objects}
    for frame in seg.PerFrameFunctionalGroupsSequence:
        of = frame.DerivationImageSequence[0].SourceImageSequence[0]
        at = frame.PlanePositionSequence[0].ImagePositionPatient
        if source.is_enhanced:
            group = pydicom.dcmread(path).PerFrameFunctionalGroupsSequence[int(of.ReferencedFrameNumber) - 1]
            there = group.PlanePositionSequence[0].ImagePositionPatient
        else:
            there = places[of.ReferencedSOPInstanceUID].ImagePositionPatient
        np.testing.assert_allclose(np.array(at, float), np.array(there, float), atol=1e-6)


@pytest.mark.parametrize("which", ["numbered against the positions, gaps between slices", "oblique", "enhanced"])
def test_simpleitk_reads_the_mask_of_one_segment(which: str, tmp_path: Path) -> None:
    path = SERIES[which](tmp_path)
    scan = read_scan(path)
    mask = (uneven(scan) == 1).astype(np.uint8)
    write_mask(mask, scan, tmp_path / "mask.nii.gz", source=path)
    one = origin(codes={"Anterior": origin().codes["Anterior"]})
    write_segmentation(mask, scan, tmp_path / "seg.dcm", source=open_source(path), origin=one, classes=CLASSES[:1])
    nifti = sitk.ReadImage(tmp_path / "mask.nii.gz")
    found = on_grid(sitk.ReadImage(tmp_path / "seg.dcm"), nifti)
    np.testing.assert_array_equal(found > 0, sitk.GetArrayFromImage(nifti) > 0)


def test_codes_names_and_the_note_are_those_of_task_and_model(tmp_path: Path) -> None:
    path = SERIES["axial"](tmp_path)
    scan = read_scan(path)
    of = origin(simulated=True)
    write_segmentation(uneven(scan), scan, tmp_path / "s.dcm", source=open_source(path), origin=of, classes=CLASSES)
    seg = hd.seg.segread(tmp_path / "s.dcm")
    assert seg.SeriesDescription == "PHANTOM-TRAINED hippocampus: research use, not for diagnosis"
    for segment, name, modifier in zip(seg.SegmentSequence, CLASSES, ("255549009", "255551008"), strict=True):
        kind = segment.SegmentedPropertyTypeCodeSequence[0]
        assert (segment.SegmentLabel, segment.SegmentAlgorithmType) == (name, "AUTOMATIC")
        assert (kind.CodeValue, kind.CodingSchemeDesignator) == ("5366008", "SCT")
        assert kind.SegmentedPropertyTypeModifierCodeSequence[0].CodeValue == modifier
        assert segment.SegmentedPropertyCategoryCodeSequence[0].CodeValue == "91723000"
        algorithm = segment.SegmentationAlgorithmIdentificationSequence[0]
        assert algorithm.AlgorithmName == "PHANTOM-TRAINED fedshift fedfa on hippocampus"
        assert algorithm.AlgorithmVersion == "0.1.0, model 0123456789abcdef"
    long = origin(simulated=True, task="t" * 128)
    assert len(long.description) == 64 and long.description.endswith(": research use, not for diagnosis")
    of_prostate = dicom_source.origin(open_model(brightness_model(tmp_path / "model.pt")))
    assert of_prostate.simulated and of_prostate.codes["prostate"].type.same_as == ("41216001", "SCT")


@pytest.mark.parametrize("which", ["axial", "oblique", "sagittal", "enhanced"])
def test_contours_filled_by_another_program_are_the_mask(which: str, tmp_path: Path) -> None:
    path = SERIES[which](tmp_path)
    scan, source = read_scan(path), open_source(path)
    mask = uneven(scan)
    write_structure_set(mask, scan, tmp_path / "rt.dcm", source=source, origin=origin(), classes=CLASSES)
    dataset = pydicom.dcmread(tmp_path / "rt.dcm")
    assert [roi.ROIName for roi in dataset.StructureSetROISequence] == list(CLASSES)
    assert dataset.RTROIObservationsSequence[1].RTROIIdentificationCodeSequence[0].CodeValue == "5366008"
    instances = {one.SOPInstanceUID for one in source.objects}
    z, y, x = np.indices(scan.voxels.shape).reshape(3, -1)
    matrix = np.reshape(scan.direction, (3, 3)) * np.array(scan.spacing)
    world = np.stack([x, y, z], 1) @ matrix.T + np.array(scan.origin)
    for number, roi in enumerate(dataset.ROIContourSequence, start=1):
        inside, area = np.zeros(len(world), bool), 0.0
        for contour in roi.ContourSequence:
            assert contour.ContourImageSequence[0].ReferencedSOPInstanceUID in instances
            points = np.array(contour.ContourData, float).reshape(-1, 3)
            across = np.linalg.svd(points - points.mean(0))[2] if len(points) > 3 else None
            assert across is not None and np.abs((points - points.mean(0)) @ across[2]).max() < 1e-3, "in one plane"
            flat = (points - points[0]) @ across[:2].T
            near = np.abs((world - points[0]) @ across[2]) < 0.1
            inside[near] ^= Polygon(flat).contains_points((world[near] - points[0]) @ across[:2].T)
            rolled = np.roll(flat, -1, 0)
            area += abs(float(np.sum(flat[:, 0] * rolled[:, 1] - flat[:, 1] * rolled[:, 0]))) / 2
        np.testing.assert_array_equal(inside.reshape(mask.shape), mask == number)
        if number == 1:  # corners are cut, and the hole's are filled
            slices = scan.spacing["RLAPSI".index(scan.stored[2]) // 2]
            assert area * slices / 1000 == pytest.approx(volume_ml(mask == 1, scan), rel=0.03)


def test_the_report_has_volumes_codes_and_warnings(tmp_path: Path) -> None:
    path = SERIES["axial"](tmp_path)
    scan, source = read_scan(path), open_source(path)
    mask = uneven(scan)
    seg = write_segmentation(mask, scan, tmp_path / "s.dcm", source=source, origin=origin(), classes=CLASSES)
    volumes = {name: volume_ml(mask == n, scan) for n, name in enumerate(CLASSES, start=1)}
    write_report(
        tmp_path / "sr.dcm",
        segmentation=seg,
        source=source,
        origin=origin(),
        volumes=volumes,
        classes=CLASSES,
        remarks=["the mask has 99 ml: look at it"],
    )
    report = hd.sr.srread(tmp_path / "sr.dcm")
    assert pydicom.dcmread(tmp_path / "sr.dcm").ContentTemplateSequence[0].TemplateIdentifier == "1500"
    groups = report.content.get_volumetric_roi_measurement_groups()
    assert [group.tracking_identifier for group in groups] == list(CLASSES)
    for number, (group, name) in enumerate(zip(groups, CLASSES, strict=True), start=1):
        measured = group.get_measurements(name=Code("118565006", "SCT", "Volume"))
        assert measured[0].value == pytest.approx(volumes[name], abs=1e-3) and measured[0].unit.value == "mL"
        assert group.referenced_segment[0].ReferencedSOPSequence[0].ReferencedSegmentNumber == number
        assert group.finding_type.value == group.finding_sites[0].value.value == "5366008"
        assert group.finding_sites[0].topographical_modifier.value == ("255549009", "255551008")[number - 1]
    said = [one.value for one in pydicom.dcmread(tmp_path / "sr.dcm").iterall() if one.keyword == "TextValue"]
    assert said.count("the mask has 99 ml: look at it") == 2
    assert said.count("research use, not for diagnosis; fedshift fedfa on hippocampus") == 2


def write_all(folder: Path, path: Path, mask: np.ndarray, of: Origin) -> dict[str, list[str]]:
    """Every UID in a SEG, a structure set and a report of a mask, in order."""
    folder.mkdir()
    scan, about = read_scan(path), {"source": open_source(path), "origin": of, "classes": CLASSES}
    seg = write_segmentation(mask, scan, folder / "seg.dcm", **about)
    write_structure_set(mask, scan, folder / "rt.dcm", **about)
    write_report(folder / "sr.dcm", segmentation=seg, volumes=dict.fromkeys(CLASSES, 1.0), **about)
    return {
        file.name: [str(one.value) for one in pydicom.dcmread(file).iterall() if one.VR == "UI"]
        for file in sorted(folder.iterdir())
    }


@pytest.mark.slow
def test_the_same_images_model_and_mask_give_the_same_uids_and_any_other_gives_others(tmp_path: Path) -> None:
    path = SERIES["axial"](tmp_path)
    mask = uneven(read_scan(path))
    first = write_all(tmp_path / "1", path, mask, origin())
    assert write_all(tmp_path / "2", path, mask, origin()) == first
    smaller = mask.copy()
    smaller[tuple(np.argwhere(mask == 1)[0])] = 0
    codes = {name: origin().codes["Anterior"] for name in CLASSES}
    others = [(mask, origin(model="fedcba9876543210")), (smaller, origin()), (mask, origin(codes=codes))]
    objects = {name: pydicom.dcmread(tmp_path / "1" / name).SOPInstanceUID for name in first}
    for number, (drawn, of) in enumerate(others, start=3):
        other = write_all(tmp_path / str(number), path, drawn, of)
        assert all(objects[name] not in uids for name, uids in other.items())
    assert len(set(objects.values())) == 3


@pytest.mark.parametrize(
    ("characters", "patient"),
    [("ISO_IR 100", "Müller^Änne"), (["", "ISO 2022 IR 87"], "Yamada^Tarou=山田^太郎=やまだ^たろう")],
)
def test_names_are_written_whatever_the_characters_of_the_source(
    characters: str | list[str], patient: str, tmp_path: Path
) -> None:
    def name(made: pydicom.Dataset, number: int) -> None:
        made.SpecificCharacterSet, made.PatientName = characters, patient

    path = write_slices(tmp_path / "s", volume()[0], change=name)
    names = ("Drüse", "Čapí")
    codes = dict(zip(names, origin().codes.values(), strict=True))
    scan = read_scan(path)
    about = {"source": open_source(path), "origin": origin(codes=codes), "classes": names}
    seg = write_segmentation(uneven(scan), scan, tmp_path / "seg.dcm", **about)
    write_structure_set(uneven(scan), scan, tmp_path / "rt.dcm", **about)
    write_report(tmp_path / "sr.dcm", segmentation=seg, volumes=dict.fromkeys(names, 1.0), **about)
    made = [pydicom.dcmread(tmp_path / f"{kind}.dcm") for kind in ("seg", "rt", "sr")]
    assert [each.PatientName for each in made] == [patient] * 3
    assert [segment.SegmentLabel for segment in made[0].SegmentSequence] == list(names)
    assert [roi.ROIName for roi in made[1].StructureSetROISequence] == list(names)
    assert set(names) <= {one.value for one in made[2].iterall() if one.keyword == "TextValue"}


def test_a_source_that_no_result_can_refer_to_is_refused_without_a_value_of_its_tags(tmp_path: Path) -> None:
    def spoil(made: pydicom.Dataset, number: int) -> None:
        made.PatientSex, made.PatientName = "secret", "Müller^Jörg^secret"
        made.StudyDate = "no date at all"

    with quiet():
        path = write_slices(tmp_path / "s", volume()[0], change=spoil)
    scan = read_scan(path)
    with raises("dicom-attributes", naming="DICOM SEG") as error:
        write_segmentation(
            uneven(scan), scan, tmp_path / "s.dcm", source=open_source(path), origin=origin(), classes=CLASSES
        )
    assert "secret" not in str(error.value) and "no date" not in str(error.value)
    assert not (tmp_path / "s.dcm").exists()


SHAPE = (9, 20, 24)
TIMES = [{"TemporalPositionIdentifier": 1 + k // SHAPE[0]} for k in range(2 * SHAPE[0])]


def parts(folder: Path) -> Path:
    """An enhanced image in three files."""
    pixels = np.random.default_rng(0).integers(0, 900, SHAPE).astype(np.uint16)
    for number, part in enumerate((slice(0, 4), slice(4, 5), slice(5, 9)), start=1):

        def change(made: pydicom.Dataset, number: int = number, begin: int = part.start) -> None:
            made.ConcatenationUID, made.InConcatenationNumber, made.InConcatenationTotalNumber = "1.2.3", number, 3
            made.ConcatenationFrameOffsetNumber = begin

        dicomforms.write_enhanced(
            folder / f"{number}.dcm", pixels[part], at=dicomforms.places(SHAPE[0])[part], change=change
        )
    return folder


def two_times(folder: Path, *, enhanced: bool) -> Path:
    """A series with two time points."""
    pixels = np.random.default_rng(0).integers(0, 900, (2 * SHAPE[0], *SHAPE[1:])).astype(np.uint16)
    write = dicomforms.write_enhanced if enhanced else dicomforms.write_classic
    return write(folder / ("e.dcm" if enhanced else "s"), pixels, at=dicomforms.places(SHAPE[0]) * 2, marks=TIMES)


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (parts, None),
        (lambda folder: two_times(folder, enhanced=True), 2),
        (lambda folder: two_times(folder, enhanced=False), 2),
    ],
    ids=["in several files", "second of an enhanced image", "second of a series"],
)
def test_results_refer_to_the_files_and_frames_of_the_volume(
    make: Callable[[Path], Path], number: int | None, tmp_path: Path
) -> None:
    path = make(tmp_path / "scan")
    scan, source = read_scan(path, volume=number), open_source(path, volume=number)
    mask = uneven(scan)
    write_segmentation(mask, scan, tmp_path / "seg.dcm", source=source, origin=origin(), classes=CLASSES)
    write_structure_set(mask, scan, tmp_path / "rt.dcm", source=source, origin=origin(), classes=CLASSES)
    files = [path] if path.is_file() else sorted(path.iterdir())
    there = {one.SOPInstanceUID: one for one in map(pydicom.dcmread, files)}

    def place(uid: str, frame: int) -> tuple[list[float], int]:
        """Where an image or a frame (from 1) lies, and of which time point it is."""
        one = there[uid]
        if "PerFrameFunctionalGroupsSequence" not in one:
            return list(one.ImagePositionPatient), int(one.TemporalPositionIdentifier)
        group = one.PerFrameFunctionalGroupsSequence[frame - 1]
        time = group.FrameContentSequence[0].get("TemporalPositionIndex", number or 1)
        return list(group.PlanePositionSequence[0].ImagePositionPatient), int(time)

    dataset = pydicom.dcmread(tmp_path / "seg.dcm")
    for group in dataset.PerFrameFunctionalGroupsSequence:
        (image,) = group.DerivationImageSequence[0].SourceImageSequence
        found = place(image.ReferencedSOPInstanceUID, int(image.get("ReferencedFrameNumber", 1)))
        assert found == (list(group.PlanePositionSequence[0].ImagePositionPatient), number or 1)
    named = {one.ReferencedSOPInstanceUID for one in dataset.ReferencedSeriesSequence[0].ReferencedInstanceSequence}
    assert named <= there.keys() and len(named) == (SHAPE[0] if path.name == "s" else len(files))
    drawn = pydicom.dcmread(tmp_path / "rt.dcm")
    for roi in drawn.ROIContourSequence:
        for contour in roi.ContourSequence:
            (image,) = contour.ContourImageSequence
            position, time = place(image.ReferencedSOPInstanceUID, int(image.get("ReferencedFrameNumber", 1)))
            assert position[2] == pytest.approx(float(contour.ContourData[2])) and time == (number or 1)
