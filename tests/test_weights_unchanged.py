"""The final weights of ten short jobs are, bit for bit, those written down in ``golden/final_weights.json``.

Each job runs in one process and in FLARE's simulator. Bits depend on the processor and on the versions of torch and
numpy, so the file holds one set of hashes for each machine type it was recorded on. On any other machine the
comparison with the file is skipped, and the simulator's weights are compared with those of one process.

To record the hashes on this machine, check out a commit whose numbers are right, and run
``python tests/test_weights_unchanged.py``.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_image_site, make_site

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.flare.export import write_job
from fedshift.flare.simulate import simulate
from fedshift.schema.job import JobSpec
from fedshift.schema.results import BEST, LAST
from fedshift.tasks.device import processor_model

RECORD = Path(__file__).parent / "golden" / "final_weights.json"
SITES = {"A": (1.0, 0.0), "B": (0.5, 20.0), "C": (1.4, -30.0)}
"""Gain and offset of each site's images."""
NUMBERED = 6

# The tasks name every setting that the weights depend on, so that a new default does not change them.
SCANS = """
name: blobs
kind: segmentation
dataset: prostate
sites: [A, B, C]
classes: [background, prostate]
data: {matrix: 32, context: 3, scale: 1.0, split: case, fraction: 1.0, train_slices: all, augmentation: none}
network: {name: unet, options: {features: 4}}
loss: ce_dice
optimizer: {name: adam, lr: 0.02, weight_decay: 0.0001, keep: true}
schedule: {rounds: 3, local_epochs: 2, batch_size: 4, precision: fp32, threads: 1}
"""
PICTURES = """
name: shapes
kind: classification
dataset: shapes
sites: [A, B, C]
classes: [disc, square, bar]
data: {size: 16, channels: 3}
network: {name: digits_cnn, options: {size: 16, width: 4}}
loss: ce
optimizer: {name: sgd, lr: 0.02}
schedule: {rounds: 3, local_epochs: 2, batch_size: 4, precision: fp32, threads: 1}
"""
SGD = ("optimizer.name=sgd", "optimizer.lr=0.02", "optimizer.weight_decay=0")


@dataclass(frozen=True)
class Short:
    """A job that trains in a second or two."""

    methods: str
    task: str
    options: tuple[str, ...] = ()

    def job(self, folder: Path) -> JobSpec:
        """The resolved job; its task file is written to ``folder``."""
        path = folder / "task.yaml"
        path.write_text(self.task, encoding="utf-8")
        return resolve(str(path), self.methods, options=self.options, seed=3)


JOBS = {
    "fedavg": Short("fedavg", SCANS),
    "fedfa+fedrdn": Short("fedfa+fedrdn", SCANS),
    "scaffold": Short("scaffold", SCANS, SGD),
    "fedbn": Short("fedbn", SCANS),
    "fraug": Short("fraug", PICTURES),
    "fedmix": Short("fedmix", SCANS, ("fedmix.images=2",)),
    "afl": Short("afl", PICTURES),
    "int8": Short("fedavg", SCANS, ("federation.weights_as=int8",)),
    "held-out site": Short("fedavg", SCANS, ("sites=[A, B]", "held_out=[C]")),
    # Two FLARE clients do the work of six sites, four of which are drawn for each round.
    "virtual sites": Short(
        "fedavg",
        PICTURES.replace("[A, B, C]", f"{{prefix: site_, count: {NUMBERED}}}"),
        ("federation.hosts=2", "federation.sites_per_round=4"),
    ),
}
QUICK = ("virtual sites",)
"""Jobs whose simulator run is not marked ``slow``."""


def make_data(root: Path) -> Path:
    """Prepare the sites of all jobs below ``root``, laid out as ``$FEDSHIFT_DATA``."""
    for site, (gain, offset) in SITES.items():
        # One site has another number of samples, or weighting by samples would be the same as weighting equally.
        make_site(root, site, cases=4 if site == "B" else 3, gain=gain, offset=offset)
        make_image_site(root, site, images=36 if site == "B" else 48, gain=gain, offset=offset)
    for number in range(NUMBERED):
        make_image_site(root, f"site_{number:03d}", images=36 + 6 * number, gain=1 - number / 10)
    return root


def fingerprint(folder: Path) -> str:
    """sha256 over the best and the last model's weights: key, dtype, shape and bytes of each, sorted by key."""
    digest = hashlib.sha256()
    for file in (BEST, LAST):
        for key, value in sorted(read_model_file(folder / file)["weights"].items()):
            array = value.numpy()
            digest.update(f"{file} {key} {array.dtype.str} {array.shape}\n".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def in_process(name: str, data: Path, folder: Path) -> str:
    """The hash after a run of job ``name`` in this process."""
    job = JOBS[name].job(folder)
    sites = {site: data / job.task.dataset / site for site in job.task.everyone}
    run_in_process(job, sites, folder / "run", device="cpu")
    return fingerprint(folder / "run")


def machine() -> dict[str, str]:
    """What the bits of a result depend on besides this project's code."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "processor": processor_model(),
    }


def read_record() -> list[dict[str, Any]]:
    """One entry for each machine type: ``machine`` and ``weights``, which maps jobs to hashes."""
    entries: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return entries


def recorded() -> dict[str, str] | None:
    """The hashes of a machine like this one, if there are any."""
    here = machine()
    return next((entry["weights"] for entry in read_record() if entry["machine"] == here), None)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_final_weights_are_those_recorded(name: str, data: Path, tmp_path: Path) -> None:
    hashes = recorded()
    if hashes is None:
        known = "; ".join(
            f"torch {of['torch']}, numpy {of['numpy']} on {of['processor']} ({of['cpu_capability']})"
            for of in (entry["machine"] for entry in read_record())
        )
        pytest.skip(f"recorded with {known}: run `python tests/test_weights_unchanged.py` to record on this machine")
    assert in_process(name, data, tmp_path) == hashes[name], f"the final weights of job {name!r} have changed"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow, id=name) for name in JOBS]
)
def test_the_simulator_gives_the_same_weights(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded hash, or that of a run in one process on a machine without a record."""
    monkeypatch.setenv("FEDSHIFT_DATA", str(data))
    monkeypatch.setenv("FEDSHIFT_DEVICE", "cpu")
    job = JOBS[name].job(tmp_path)
    write_job(job, tmp_path / "job")
    run = simulate(job, tmp_path / "job", tmp_path / "workspace", parallel=2, ignore_memory=True)
    hashes = recorded()
    expected = hashes[name] if hashes is not None else in_process(name, data, tmp_path)
    assert fingerprint(run.server) == expected, f"under FLARE the final weights of job {name!r} are others"


def record() -> None:
    """Write this machine's hashes into `RECORD`, in place of those it may have there."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        data = make_data(Path(scratch) / "data")
        hashes = {}
        for number, name in enumerate(JOBS):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            hashes[name] = in_process(name, data, folder)
    here = machine()
    others = [entry for entry in read_record() if entry["machine"] != here] if RECORD.is_file() else []
    content = [*others, {"machine": here, "weights": hashes}]
    RECORD.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
