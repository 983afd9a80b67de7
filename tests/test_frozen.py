"""Predictions, messages and results of short runs are, bit for bit, those written down in ``golden/frozen.json``.

The final weights of ten jobs are held in the same way by ``test_weights_unchanged.py``, which says for which machines.
Left out are times, versions, identifiers that are drawn, and sentences that are written for people.

To write the values of this machine, check out a commit whose numbers are right, and run
``python tests/test_frozen.py``.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
import torch
from conftest import make_image_site, make_site
from dicomstudies import write_enhanced, write_slices
from nvflare.apis.dxo import from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs
from PIL import Image
from scanfiles import volume
from test_weights_unchanged import PICTURES, SCANS, SITES, machine
from volumesites import BLOBS, TASK, make_volume_site

from fedshift.cli import main
from fedshift.federation.in_process import SITE_STATE, run_in_process
from fedshift.federation.resolve import resolve
from fedshift.schema.identity import own_identity
from fedshift.schema.job import JobSpec
from fedshift.schema.results import FILE_NAME, LAST
from fedshift_testing.serialised import Federation, leaves

RECORD = Path(__file__).parent / "golden" / "frozen.json"
IN_3D = TASK % (
    "{patch: [16, 16, 32], spacing: [1.5, 1.2, null], samples_per_case: 4, sequences: [T2, ADC]}",
    "{rounds: 2, local_epochs: 3, batch_size: 2, precision: fp32, threads: 1}",
)
TWO_ROUNDS = "schedule.rounds=2"
RUNS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "slices": (
        SCANS,
        "fedfa+fedrdn",
        ("sites=[A, B]", "held_out=[C]", "evaluation.local=true", "evaluation.start=true", "evaluation.every=1"),
    ),
    "personal slices": (SCANS, "fedbn", ("schedule.local_epochs=4",)),
    "contributions": (SCANS, "fedce", (TWO_ROUNDS,)),
    "pictures": (PICTURES, "fedrdn", ("schedule.rounds=12", "evaluation.gradient_norm=true")),
    "patches": (BLOBS, "fedavg", (TWO_ROUNDS, "evaluation.reference=true")),
    "mirrored patches": (BLOBS, "fedavg", (TWO_ROUNDS, "evaluation.mirror=true", "evaluation.largest_component=true")),
    "patches in 3D": (IN_3D, "fedrdn", ("evaluation.largest_component=true",)),
}
"""Task file, methods and options of each run."""
MESSAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "fp32": (BLOBS, "fedrdn", ("schedule.rounds=1", "schedule.local_epochs=1", "evaluation.reference=true")),
    "int8": (
        SCANS,
        "scaffold",
        (
            *("schedule.rounds=2", "schedule.local_epochs=1", "federation.weights_as=int8", "evaluation.every=1"),
            *("optimizer.name=sgd", "optimizer.lr=0.02", "optimizer.weight_decay=0"),
        ),
    ),
}
TURNED = (0, 1, 0, 1, 0, 0, 0, 0, -1)
CODES = "codes: {prostate: {category: [91723000, SCT, Anatomical Structure], type: [41216001, SCT, Prostate]}}\n"
OF_A_SITE = ("--site", "A")
EVERY_FORMAT = [word for name in ("mask", "seg", "rtstruct", "sr") for word in ("--format", name)]
PREDICTIONS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "NIfTI": ("slices", ("scan.nii.gz",), OF_A_SITE),
    "turned NRRD": ("slices", ("turned.nrrd",), ("--statistics", "own")),
    "DICOM series": ("slices", ("series",), (*OF_A_SITE, "--codes", "codes.yaml", *EVERY_FORMAT)),
    "enhanced DICOM": ("slices", ("enhanced.dcm",), (*OF_A_SITE, "--codes", "codes.yaml")),
    "personal": ("personal slices", ("scan.nii.gz", "turned.nrrd"), ("--site-state", f"{SITE_STATE}/B")),
    "patches": ("patches", ("blobs/A/volumes/case00.nii.gz",), ()),
    "mirrored patches": ("mirrored patches", ("blobs/B/volumes/case03.nii.gz",), ()),
    "patches at the true spacing": ("mirrored patches", ("blobs/A/volumes/case00.nii.gz",), ("--true-spacing",)),
    "patches in 3D": ("patches in 3D", ("sequences/blobs/B/volumes/case03_0000.nii.gz",), ("--site", "B")),
    "volumes of a 4D file": ("patches in 3D", ("4d.nii.gz",), ("--statistics", "own")),
    "pictures": ("pictures", ("0.png", "1.png", "2.png"), OF_A_SITE),
    "pictures of 12 bits": ("pictures", ("deep.png",), (*OF_A_SITE, "--bits", "12")),
}
"""Run, images and options of each; of the options, paths below the run's folder or that of the images."""
DATUM = re.compile(rb"(?<=datum_id\xd9\$)[0-9a-f-]{36}")
"""The identifier that NVFlare draws for a large array within a message."""
SECONDS = re.compile(rb"(?<=seconds\xcb).{8}", re.DOTALL)
DRAWN = {"SoftwareVersions", "AlgorithmVersion", "DeviceSerialNumber"}
"""DICOM attributes with a version or a hash of the model file, which holds one."""
FOR_PEOPLE = {"warnings", "statistics", "reading", "error", "note", "fedshift"}


class Bench:
    """The data, and the runs that have been made with them."""

    def __init__(self, root: Path) -> None:
        torch.set_num_threads(1)
        self.root = root
        self.run = cache(self._run)
        for site, (gain, offset) in SITES.items():
            make_site(root, site, cases=4 if site == "B" else 3, gain=gain, offset=offset)
            make_image_site(root, site, images=36 if site == "B" else 48, gain=gain, offset=offset)
        for folder, sequences in ((root, ()), (root / "sequences", ("T2", "ADC"))):
            make_volume_site(folder, "A", sequences=sequences)
            shifted = {"gain": 3.0, "offset": 100.0, "spacing": (1.5, 0.9, 1.1)}
            make_volume_site(folder, "B", sequences=sequences, **shifted)  # type: ignore[arg-type]
        self._write_images()

    def _write_images(self) -> None:
        ball: dict[str, Any] = {"size": (50, 45, 13), "spacing": (0.7, 0.8, 3.0), "radius": 11.0}
        scan, _ = volume(1, **ball)
        sitk.WriteImage(scan, str(self.root / "scan.nii.gz"))
        sitk.WriteImage(volume(2, **ball, direction=TURNED)[0], str(self.root / "turned.nrrd"))
        write_slices(self.root / "series", scan, reverse=True)
        write_enhanced(self.root / "enhanced.dcm", scan, order=[12, *range(12)])
        files = [self.root / "sequences/blobs/A/volumes" / f"case00_{number:04d}.nii.gz" for number in range(2)]
        sitk.WriteImage(sitk.JoinSeries([sitk.ReadImage(str(file)) for file in files]), str(self.root / "4d.nii.gz"))
        (self.root / "codes.yaml").write_text(CODES, encoding="utf-8")
        pictures = np.load(self.root / "shapes" / "A" / "arrays" / "16" / "images.npy")
        for number in range(3):
            Image.fromarray(pictures[number].transpose(1, 2, 0)).save(self.root / f"{number}.png")
        Image.fromarray(16 * pictures[3, 0].astype(np.uint16)).save(self.root / "deep.png")

    def job(self, task: str, methods: str, options: tuple[str, ...]) -> tuple[JobSpec, dict[str, Path]]:
        """A job and its sites' data."""
        file = self.root / "task.yaml"
        file.write_text(task, encoding="utf-8")
        job = resolve(str(file), methods, options=options, seed=3)
        root = self.root / "sequences" if "sequences" in task else self.root
        return job, {site: root / job.task.dataset / site for site in job.task.everyone}

    def _run(self, name: str) -> Path:
        job, sites = self.job(*RUNS[name])
        folder = self.root / "runs" / name
        run_in_process(job, sites, folder, device="cpu")
        return folder

    def results(self, name: str) -> Any:
        """All of a run's ``results.json`` but times, versions and machines."""
        content = json.loads((self.run(name) / FILE_NAME).read_text(encoding="utf-8"))
        return without(content, {"seconds", "versions", "machines"})

    def messages(self, name: str) -> list[dict[str, str]]:
        """Of each message, in order: its kind and round, and sha256 of all it says and of its bytes."""
        sent: list[dict[str, str]] = []
        pack: Callable[..., bytes] = fobs.dumps

        def packed(message: Any, *args: Any, **options: Any) -> bytes:
            data = pack(message, *args, **options)
            if isinstance(message, Shareable):
                dxo = from_shareable(message)
                content = [(*p, value) for p, value in leaves(dxo) if not {"meta:fedshift", "seconds"} & {*p}]
                line = {"keys": " ".join(map(str, dxo.data)), "round": str(dxo.meta.get("round", ""))}
                sent.append({**line, "content": sha256(*map(plain, content)), "bytes": sha256(lasting(data))})
            return data

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fobs, "dumps", packed)
            job, sites = self.job(*MESSAGES[name])
            Federation(job, sites, self.root / "messages" / name).run()
        return sent

    def prediction(self, name: str) -> dict[str, str]:
        """sha256 of each file that ``fedshift predict`` writes."""
        run, images, options = PREDICTIONS[name]
        folder, out = self.run(run), self.root / "out" / name
        places = {"codes.yaml": self.root / "codes.yaml", f"{SITE_STATE}/B": folder / SITE_STATE / "B"}
        words = [str(folder / LAST), *(str(self.root / image) for image in images), "--out", str(out)]
        assert main(["predict", *words, "--device", "cpu", *(str(places.get(word, word)) for word in options)]) == 0
        return {path.name: sha256(*content_of(path)) for path in sorted(out.iterdir())}


def sha256(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def lasting(message: bytes) -> bytes:
    """A message without its times, without identifiers that are drawn, and without the hash of the source."""
    for name in DATUM.findall(message):
        message = message.replace(name, b"").replace(uuid.UUID(name.decode()).bytes, b"")
    return SECONDS.sub(b"", message).replace(own_identity().source.encode(), b"")


def plain(value: object) -> bytes:
    """A value as bytes; an array's with its type and shape."""
    if isinstance(value, tuple):
        return b"\0".join(map(plain, value))
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str} {value.shape}\n".encode() + value.tobytes()
    return repr(value).encode()


def without(value: Any, keys: set[str]) -> Any:
    """A JSON value without some keys at any depth."""
    if isinstance(value, dict):
        return {key: without(inner, keys) for key, inner in value.items() if key not in keys}
    return [without(inner, keys) for inner in value] if isinstance(value, list) else value


def content_of(path: Path) -> Iterator[bytes]:
    """What of a prediction's file does not change from day to day."""
    if path.name.endswith(".nii.gz"):
        mask = gzip.decompress(path.read_bytes())
        assert np.frombuffer(mask[352:], np.uint8).any(), "an empty mask would be no test"
        yield mask
    elif path.suffix == ".nrrd":
        image = sitk.ReadImage(str(path))
        assert sitk.GetArrayViewFromImage(image).any(), "an empty mask would be no test"
        yield plain((sitk.GetArrayFromImage(image), image.GetSpacing(), image.GetOrigin(), image.GetDirection()))
    elif path.suffix == ".dcm":
        dataset = pydicom.dcmread(path)
        for item in list(dataset.iterall()):
            if item.VR in ("UI", "DA", "TM", "DT") or item.keyword in DRAWN:
                item.value = None
        yield dataset.to_json(bulk_data_threshold=1 << 30).encode()
    elif path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            rows = [{**row, "file": Path(row["file"]).name} for row in csv.DictReader(file)]
        yield json.dumps([list(rows[0]), without(rows, FOR_PEOPLE)]).encode()
    else:
        content = json.loads(path.read_text(encoding="utf-8"))
        for entry in content["images"]:
            entry["file"] = Path(entry["file"]).name
        yield json.dumps(without(content, FOR_PEOPLE)).encode()


def read_record() -> list[dict[str, Any]]:
    """One entry for each machine type: ``machine``, and ``results``, ``messages`` and ``predictions`` by name."""
    entries: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return entries


@pytest.fixture(scope="module")
def frozen() -> dict[str, Any]:
    """The values of a machine like this one."""
    here = machine()
    entry = next((entry for entry in read_record() if entry["machine"] == here), None)
    if entry is None:
        known = "; ".join(", ".join(entry["machine"].values()) for entry in read_record())
        pytest.skip(f"recorded on {known}: run `python tests/test_frozen.py` to record on this machine")
    return entry


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("frozen"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_results_are_those_recorded(name: str, bench: Bench, frozen: dict[str, Any]) -> None:
    assert bench.results(name) == frozen["results"][name]


@pytest.mark.slow
@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_those_recorded(name: str, bench: Bench, frozen: dict[str, Any]) -> None:
    """What they say, in which order, and their bytes on the wire."""
    assert bench.messages(name) == frozen["messages"][name]


@pytest.mark.parametrize("name", PREDICTIONS)
def test_predictions_are_those_recorded(name: str, bench: Bench, frozen: dict[str, Any]) -> None:
    assert bench.prediction(name) == frozen["predictions"][name]


def record() -> None:
    """Write this machine's values into `RECORD`, in place of those it may have there."""
    here = machine()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch))
        values = {
            "results": {name: bench.results(name) for name in RUNS},
            "messages": {name: bench.messages(name) for name in MESSAGES},
            "predictions": {name: bench.prediction(name) for name in PREDICTIONS},
        }
    others = [entry for entry in read_record() if entry["machine"] != here] if RECORD.is_file() else []
    RECORD.write_text(lines([*others, {"machine": here, **values}]) + "\n", encoding="utf-8")


def lines(value: Any, depth: int = 3) -> str:
    """JSON with a line for each value at this depth."""
    if depth == 0 or not isinstance(value, dict | list):
        return json.dumps(value)
    items = value.items() if isinstance(value, dict) else (("", inner) for inner in value)
    parts = [f"{json.dumps(key)}: " * isinstance(value, dict) + lines(inner, depth - 1) for key, inner in items]
    start, end = "{}" if isinstance(value, dict) else "[]"
    return start + "\n" + ",\n".join(parts) + "\n" + end


if __name__ == "__main__":
    record()
