"""What is read or written again and again, against the size of what it is about: rounds, sites, cases, DICOM series.

    OMP_NUM_THREADS=1 python -m benchmarks.performance.growth

Processor seconds, children's included, and bytes that the process reads and writes (Linux counts them as they pass the
system call). Sites do not train, networks are small and scans tiny, so that what grows is what is seen. An
exponent is that of the size between one size and the next: 0 does not grow, 1 grows as the size does.
"""

from __future__ import annotations

import logging
import math
import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import highdicom as hd
import nibabel
import numpy as np
import psutil  # type: ignore[import-untyped]
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sr.coding import Code
from pydicom.uid import ExplicitVRLittleEndian

from benchmarks import frame
from benchmarks.performance.flare_overhead import idle_job
from data_prep.own_scans import prepare_own
from fedshift.cli import main as fedshift
from fedshift.data.check import check
from fedshift.data.scan_folders import scans_in
from fedshift.data.scans import read_scan
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.privacy.ledger import Ledger, Release
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.reporting.events import Events
from fedshift.reporting.progress import ProgressFile, read_progress
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import SiteInfo, Update
from fedshift.schema.policy import PrivacyBudget

SIZES = (10, 100, 1000)
SHAPE = (8, 32, 32)
"""Slices, rows, columns of a scan."""
WINDOW = 5
"""Rounds, releases or readings that one figure is the mean of."""


class Table:
    """The measurements of each row, by its name, in order of sizes."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, float]]] = {}

    @contextmanager
    def measured(self, row: str, size: int, *, times: int = 1) -> Iterator[None]:
        """Measure work that is done so many times."""
        process = psutil.Process()
        before, bytes_before = cpu_seconds(), process.io_counters()
        yield
        after, bytes_after = cpu_seconds(), process.io_counters()
        figures = {
            "size": size,
            "cpu_seconds": round((after - before) / times, 5),
            "bytes_read": round((bytes_after.read_chars - bytes_before.read_chars) / times),
            "bytes_written": round((bytes_after.write_chars - bytes_before.write_chars) / times),
        }
        self.rows.setdefault(row, []).append(figures)
        print(row, figures, flush=True)

    def exponents(self, row: str) -> dict[str, list[float]]:
        """Of the size in each figure, between each size and the next one; none of figures that are zero."""
        pairs = list(pairwise(self.rows[row]))
        return {
            name: [round(math.log(b[name] / a[name]) / math.log(b["size"] / a["size"]), 2) for a, b in pairs]
            for name in ("cpu_seconds", "bytes_read", "bytes_written")
            if all(figures[name] for figures in self.rows[row])
        }


def cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("--only", nargs="+", default=list(GROUPS), choices=list(GROUPS), help="groups of rows")
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    table = Table()
    for group in args.only:
        with tempfile.TemporaryDirectory() as warm, tempfile.TemporaryDirectory() as scratch:
            GROUPS[group](Table(), Path(warm), [3])  # imports, and what is cached for the life of a process
            GROUPS[group](table, Path(scratch), args.sizes)
    rows = {name: {"sizes": figures, "exponents": table.exponents(name)} for name, figures in table.rows.items()}
    frame.write_measured("growth", {"shape_of_a_scan": SHAPE, "rows": rows})


# --- rounds, sites and releases ---------------------------------------------------------------------------------------


def by_rounds(table: Table, folder: Path, sizes: Sequence[int]) -> None:
    job = job_of(6, rounds=sizes[-1] + 2 * WINDOW)
    server = Server(job, folder)
    for rounds in sizes:
        server.run_until(rounds)
        with table.measured("a round, by rounds before it", rounds, times=WINDOW):
            server.run_until(rounds + WINDOW)
        with table.measured("a server that resumes, by rounds", rounds, times=WINDOW):
            for _ in range(WINDOW):
                assert Coordinator(job, folder).resume() == rounds + WINDOW
        with table.measured("a look of fedshift watch, by rounds", rounds, times=WINDOW):
            for _ in range(WINDOW):
                assert read_progress(folder) is not None
        with table.measured("fedshift report, by rounds", rounds), redirect_stdout(StringIO()):
            assert not fedshift(["report", str(folder), "--out", str(folder / "report.html")])


def by_sites(table: Table, folder: Path, sizes: Sequence[int]) -> None:
    for sites in sizes:
        server = Server(job_of(sites, rounds=2 * WINDOW), folder / str(sites))
        server.run_until(2)
        with table.measured("a round, by sites", sites, times=WINDOW):
            server.run_until(2 + WINDOW)


def by_releases(table: Table, folder: Path, sizes: Sequence[int]) -> None:
    ledger, budget = Ledger(folder), PrivacyBudget(epsilon=1e9, delta=1e-5)
    for releases in sizes:
        fill(ledger, releases)
        with table.measured("a release in a privacy ledger, by releases before it", releases, times=WINDOW):
            fill(ledger, releases + WINDOW, budget)
        with table.measured("a privacy ledger that is verified, by releases", releases, times=WINDOW):
            for _ in range(WINDOW):
                assert ledger.trusted().head is not None


def fill(ledger: Ledger, size: int, budget: PrivacyBudget | None = None) -> None:
    """Record releases until there are so many."""
    for number in range(len(ledger.read().releases), size):
        ledger.record(release(number), budget=budget, site="A")


def release(number: int) -> Release:
    return Release(
        date="2026-01-02T10:11:12+00:00",
        job="job",
        run="run",
        round=number,
        dataset="prostate",
        what="network",
        mechanism="sampled gaussian",
        sensitivity=1.0,
        unit="gradient",
        deviation=1.0,
        multiplier=1.0,
        sampling_rate=0.01,
        steps=10,
        epsilon=0.5,
        delta=1e-5,
        question=f"{number:064x}",
    )


def job_of(sites: int, *, rounds: int) -> JobSpec:
    """A job with a small network and so many sites."""
    raw = idle_job(rounds).dump()
    raw["task"]["network"]["options"]["features"] = 1
    raw["federation"]["min_sites"] = 1
    raw["task"]["sites"] = [f"site{number:04d}" for number in range(sites)]
    return JobSpec.parse(raw, where="growth")


class Server:
    """A coordinator with its curves and its ``progress.json``, and sites that send back the weights they got."""

    def __init__(self, job: JobSpec, folder: Path) -> None:
        self._events = Events(folder)
        self._coordinator = Coordinator(job, folder, on_progress=ProgressFile(folder).update)
        self._requests = self._coordinator.requests()
        self._infos = [SiteInfo(site, "images", 20, 5, 5, "ab" * 32, "by-case") for site in job.task.sites]

    def run_until(self, closed: int) -> None:
        """Answer requests until so many training rounds are closed; the next one is open then."""
        while self._coordinator.next_round <= closed:
            broadcast = next(self._requests).broadcast
            self._events.update(self._coordinator.results)
            round_ = broadcast.round
            metrics = {"dice": 0.5 + 0.3 * round_ / (round_ + 10), "hd95": 4.0, "train_loss": 0.1, "seconds": 1.0}
            for info in self._infos:
                weights, steps = dict(broadcast.weights), int(round_ > 0)
                update = Update(info.site, round_, info.n_train, steps, weights, metrics if round_ else {})
                assert self._coordinator.take(update, info), self._coordinator.rejected


# --- cases ------------------------------------------------------------------------------------------------------------


def by_cases(kind: str, make: Callable[[Path, int], Scans]) -> Measure:
    """The rows of ``data check`` and ``data prepare own`` for scans that ``make`` writes."""

    def measure(table: Table, folder: Path, sizes: Sequence[int]) -> None:
        for cases in sizes:
            root = folder / str(cases)
            scans = make(root, cases)
            with table.measured(f"data check, by {kind}", cases):
                findings = check(scans.images, masks=scans.masks, labels=scans.labels)
            assert not any(finding.level == "error" for finding in findings), findings[:3]
            for file in (file for file in root.rglob("*") if file.is_file()):
                file.touch()  # so that nothing is known of it, as in another command
            with table.measured(f"data prepare own, by {kind}", cases):
                prepared = prepare(scans, root)
            if make is nifti_cases:
                as_prepared(table, prepared, cases)

    return measure


def as_prepared(table: Table, prepared: Path, cases: int) -> None:
    with table.measured("data check of a prepared site, by cases", cases):
        check(prepared)
    job, root = job_of(1, rounds=1), prepared.parents[2]
    options = SiteOptions(root / "state")
    Site(job, prepared.name, prepared, options)  # caches the slices
    with table.measured("a site that opens, by cases", cases, times=WINDOW):
        for _ in range(WINDOW):
            Site(job, prepared.name, prepared, options)
    another = nifti_cases(root / "another", 1, first=cases)
    with table.measured("a case that is added, by cases of the site", cases):
        prepare(another, root)


def in_one_folder(table: Table, folder: Path, sizes: Sequence[int]) -> None:
    for series in sizes:
        for number in range(series):
            write_series(folder / str(series), number)
        with table.measured("scans that are read, by DICOM series in one folder", series):
            scans = [read_scan(path) for path in scans_in([folder / str(series)])]
        assert len(scans) == series


class Scans(NamedTuple):
    """A folder of images, and one of their masks, which may lie among them."""

    images: Path
    masks: Path | None
    labels: Mapping[str, Sequence[int | str]]


def prepare(scans: Scans, root: Path) -> Path:
    images, source = (scans.images, None) if scans.masks else (None, scans.images)
    return prepare_own(
        images, scans.masks, "site0000", root / "prepared", dataset="prostate", source=source, labels=scans.labels
    )


def made_scan(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Voxels (slice, row, column) of an image and its mask."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[2:6, 10:20, 12:22] = 1
    return np.random.default_rng(number).integers(0, 900, SHAPE, np.uint16) + 300 * mask.astype(np.uint16), mask


def nifti_cases(folder: Path, cases: int, *, first: int = 0, affine: Sequence[float] = (0.7, 0.8, 3.0)) -> Scans:
    images, masks = folder / "images", folder / "masks"
    for subfolder in (images, masks):
        subfolder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + cases):
        image, mask = made_scan(number)
        for voxels, at in ((image.astype(np.int16), images), (mask, masks)):
            file = nibabel.Nifti1Image(voxels.T, np.diag([*affine, 1.0]))
            nibabel.save(file, at / f"case{number:04d}.nii.gz")
    return Scans(images, masks, {"prostate": [1]})


def dicom_series(folder: Path, cases: int) -> Scans:
    """A folder for each series, and masks in NIfTI."""
    scans = nifti_cases(folder, cases, affine=(-0.7, -0.8, 3.0))
    for number, file in enumerate(sorted(scans.images.iterdir())):
        file.unlink()
        write_series(scans.images / f"case{number:04d}", number)
    return scans


def dicom_studies(folder: Path, cases: int) -> Scans:
    """A folder for each patient with a series and its DICOM SEG."""
    for number in range(cases):
        patient = folder / "images" / f"case{number:04d}"
        slices = write_series(patient / "t2", number)
        segment = hd.seg.SegmentDescription(1, "prostate", ANATOMY, PROSTATE, "MANUAL")
        segmentation = hd.seg.Segmentation(
            slices,
            made_scan(number)[1],
            "BINARY",
            [segment],
            series_instance_uid=f"1.2.826.7.{number + 1}.2",
            series_number=300,
            sop_instance_uid=f"1.2.826.7.{number + 1}.2.1",
            instance_number=1,
            manufacturer="Reader",
            manufacturer_model_name="Drawing",
            software_versions="1",
            device_serial_number="1",
        )
        segmentation.save_as(patient / "mask.dcm")
    return Scans(folder / "images", None, {"prostate": ["prostate"]})


PROSTATE = Code("41216001", "SCT", "Prostate")
ANATOMY = Code("91723000", "SCT", "Anatomical Structure")
MR = "1.2.840.10008.5.1.4.1.1.4"


def write_series(folder: Path, number: int) -> list[Dataset]:
    """A series of single slices, as a scanner writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    uid, slices = f"1.2.826.7.{number + 1}", []
    for k, pixels in enumerate(made_scan(number)[0]):
        dataset = Dataset()
        dataset.file_meta = FileMetaDataset()
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset.SOPClassUID, dataset.SOPInstanceUID = MR, f"{uid}.1.{k + 1}"
        dataset.StudyInstanceUID, dataset.SeriesInstanceUID, dataset.FrameOfReferenceUID = uid, f"{uid}.1", f"{uid}.0"
        dataset.PatientName, dataset.PatientID, dataset.PatientBirthDate, dataset.PatientSex = (
            f"Doe^{number}",
            uid,
            "",
            "M",
        )
        dataset.StudyDate = dataset.SeriesDate = dataset.ContentDate = dataset.AcquisitionDate = "20260102"
        dataset.StudyTime = dataset.SeriesTime = dataset.ContentTime = dataset.AcquisitionTime = "101112"
        dataset.StudyID, dataset.AccessionNumber, dataset.ReferringPhysicianName = "1", "A1", ""
        dataset.Modality, dataset.SeriesNumber, dataset.InstanceNumber = "MR", 4, k + 1
        dataset.Manufacturer, dataset.PositionReferenceIndicator = "Maker", ""
        dataset.ImagePositionPatient, dataset.ImageOrientationPatient = [0, 0, 3 * k], [1, 0, 0, 0, 1, 0]
        dataset.PixelSpacing, dataset.SliceThickness = [0.8, 0.7], 3
        dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 16, 15, 0
        dataset.Rows, dataset.Columns = SHAPE[1:]
        dataset.PixelData = pixels.astype(np.uint16).tobytes()
        dataset.save_as(folder / f"S{number:04d}IM{k + 1:04d}.dcm", enforce_file_format=True)
        slices.append(dataset)
    return slices


Measure = Callable[[Table, Path, Sequence[int]], None]
GROUPS: dict[str, Measure] = {
    "rounds": by_rounds,
    "sites": by_sites,
    "releases": by_releases,
    "nifti": by_cases("NIfTI cases", nifti_cases),
    "series": by_cases("DICOM series with NIfTI masks", dicom_series),
    "studies": by_cases("DICOM studies with DICOM SEG", dicom_studies),
    "folder": in_one_folder,
}


if __name__ == "__main__":
    main()
