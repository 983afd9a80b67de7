"""Shared fixtures: golden numbers, real data where it is present, and small sites made on the spot."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK
import torch
from kits import provision
from torch.nn import functional

from fedshift.data import samples
from fedshift.data.arrays import class_labels
from fedshift.data.blocks import write_hashes
from fedshift.data.draws import sample_seeds
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site
from fedshift.methods import base
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import Manifest, Picture
from fedshift.schema.messages import Broadcast
from fedshift.schema.optimizer import OptimizerSpec

GOLDEN = Path(__file__).parent / "golden"
SHAPES = Path(__file__).parent / "shapes.yaml"
SHAPE_CLASSES = ("disc", "square", "bar")


LONGEST = (
    "flare/test_runbook.py",
    "documents/test_commands.py",
    "flare/test_deployed_faults.py",
    "flare/test_deployed.py",
    "flare/test_faults.py",
    "flare/test_deployed_absences.py",
    "cli/test_run.py",
    "flare/test_console.py",
    "flare/test_same_numbers.py",
    "flare/test_deployed_hostile.py",
    "flare/test_deployed_slow_line.py",
)
"""Files with a minute of slow tests and more, the longest first."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m slow``, leave out files that have no such test: importing all of them takes each process 20 s."""
    if config.option.markexpr != "slow" or not collection_path.match("test_*.py"):
        return None
    return None if "mark.slow" in collection_path.read_text(encoding="utf-8") else True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Without garbage collections: what is imported stays, and looking through it is a fifth of the time."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``-m slow``, begin with the longest files, so that no process has one of them left when others are done."""
    if config.option.markexpr == "slow":
        first = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: first.get(item.path, len(LONGEST)))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Results depend on the number of threads; every test uses one, as jobs do."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _no_sync() -> Iterator[None]:
    """What `os.fsync` does shows only when the power fails; here it would be a tenth of a short run's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with real images, for tests that need them."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("FEDSHIFT_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set FEDSHIFT_SHARED_DATA to a folder that holds prostate_mri/")
    return folder


@pytest.fixture(scope="session")
def kits_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes the startup kits of a task's project in ``deploy/``, each project's once; copy a kit to change it."""
    return functools.cache(lambda task: provision(task, tmp_path_factory.mktemp(task)))


def golden(name: str) -> dict[str, np.ndarray]:
    """Arrays of a golden file."""
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def rule_weights(net: torch.nn.Module) -> None:
    """Fill parameters by the rule of the golden files, so that weights need not be stored."""
    with torch.no_grad():
        for i, (name, parameter) in enumerate(net.named_parameters()):
            k = torch.arange(parameter.numel(), dtype=torch.float64)
            v = torch.sin(0.7 * k + 1.3 * i + 0.5).reshape(parameter.shape)
            if parameter.dim() > 1:
                v = v * 2 / np.sqrt(parameter[0].numel())
            else:
                v = 1 + 0.1 * v if name.endswith("weight") else 0.1 * v
            parameter.copy_(v)


def make_site(
    root: Path,
    site: str,
    *,
    seed: int = 0,
    cases: int = 4,
    depth: int = 8,
    matrix: int = 32,
    gain: float = 1.0,
    offset: float = 0.0,
    empty: Sequence[int] = (),
) -> Path:
    """A prepared site of bright blobs on noise, its arrays written straight; shifted by gain and offset.

    The cases numbered in ``empty`` have no blob.
    """
    rng = np.random.default_rng([seed, sum(site.encode())])
    folder = root / "prostate" / site
    y, x = np.mgrid[:matrix, :matrix]
    images, labels, records = [], [], []
    splits = ["train"] * (cases - 2) + ["val", "test"] if cases > 2 else ["train"] * cases
    for number in range(cases):
        centre = rng.uniform(0.35, 0.65, 2) * matrix
        for z in range(depth):
            radius = matrix * 0.22 * np.sin(np.pi * (z + 0.01) / (depth - 1)) * rng.uniform(0.9, 1.1)
            mask = ((y - centre[0]) ** 2 + (x - centre[1]) ** 2 < radius**2 * (number not in empty)).astype(np.uint8)
            image = 60 + 80 * mask + rng.normal(0, 12, mask.shape)
            images.append(np.clip(gain * image + offset, 0, 255).astype(np.uint8))
            labels.append(mask)
        records.append(
            {
                "id": f"Case{number:02d}",
                "sha256_image": f"{site}-image-{number}",
                "sha256_label": f"{site}-label-{number}",
                "split": splits[number],
                "shape": (depth, matrix, matrix),
                "spacing": (3.0, 1.0, 1.0),
                "direction": (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
                "array": "arrays",
                "offset": number * depth,
            }
        )
    arrays = folder / "arrays" / str(matrix)
    arrays.mkdir(parents=True)
    np.save(arrays / "images.npy", np.stack(images))
    np.save(arrays / "labels.npy", np.stack(labels))
    hashes = write_hashes(arrays)
    (folder / "volumes").mkdir()
    for number, record in enumerate(records):
        mask = SimpleITK.GetImageFromArray(np.stack(labels[number * depth :][:depth])[:, ::-1, ::-1])
        mask.SetSpacing(record["spacing"][::-1])
        mask.SetDirection((-1, 0, 0, 0, -1, 0, 0, 0, 1))
        SimpleITK.WriteImage(mask, folder / "volumes" / f"{record['id']}_mask.nii.gz")
    Manifest.parse(
        {
            "schema": 1,
            "dataset": "prostate",
            "site": site,
            "kind": "phantom",
            "preparation": {"source": "made by the tests"},
            "classes": ["background", "prostate"],
            "cases": records,
            "arrays": {str(matrix): hashes},
            "licence": "Apache-2.0",
            "citation": "none",
        },
        where="test site",
    ).write(folder)
    return folder


def make_image_site(
    root: Path,
    site: str,
    *,
    seed: int = 0,
    images: int = 48,
    size: int = 16,
    gain: float = 1.0,
    offset: float = 0.0,
    labelled: Callable[[int, int], Mapping[str, object]] = lambda number, label: {"label": SHAPE_CLASSES[label]},
) -> Path:
    """A prepared site of coloured discs, squares and bars on noise; shifted by gain and offset.

    ``labelled``: what the manifest says of a picture, by its number and what it shows.
    """
    rng = np.random.default_rng([seed, sum(site.encode())])
    folder = root / "shapes" / site
    y, x = np.mgrid[:size, :size]
    pictures, records = [], []
    for number in range(images):
        label = number % 3
        cy, cx = rng.uniform(0.4, 0.6, 2) * size
        r = size * rng.uniform(0.2, 0.3)
        inside = (
            (y - cy) ** 2 + (x - cx) ** 2 < r**2,
            (abs(y - cy) < 0.8 * r) & (abs(x - cx) < 0.8 * r) & ((y + x) % 2 == 0),
            (abs(y - cy) < r / 3) & (abs(x - cx) < 1.5 * r),
        )[label]
        colour = rng.uniform(60, 100, 3)[:, None, None]
        picture = gain * (60 + colour * inside + rng.normal(0, 10, (3, size, size))) + offset
        pictures.append(np.clip(picture, 0, 255).astype(np.uint8))
        records.append(
            {
                "id": f"{number:04d}",
                "sha256": f"{site}-image-{number}",
                **labelled(number, label),
                "split": ("train", "train", "train", "train", "val", "test")[number // 3 % 6],
            }
        )
    arrays = folder / "arrays" / str(size)
    arrays.mkdir(parents=True)
    np.save(arrays / "images.npy", np.stack(pictures))
    stored = class_labels([Picture.parse(record, where="test site") for record in records], SHAPE_CLASSES)
    np.save(arrays / "labels.npy", stored)
    hashes = write_hashes(arrays)
    Manifest.parse(
        {
            "schema": 1,
            "dataset": "shapes",
            "site": site,
            "kind": "phantom",
            "preparation": {"source": "made by the tests"},
            "classes": SHAPE_CLASSES,
            "pictures": records,
            "arrays": {str(size): hashes},
            "licence": "Apache-2.0",
            "citation": "none",
        },
        where="test site",
    ).write(folder)
    return folder


def findings(number: int, label: int) -> dict[str, object]:
    """What a picture shows as findings, of which nobody has said some; two pictures are of one subject."""
    known = {name: place == label for place, name in enumerate(SHAPE_CLASSES) if (number // 3 + place) % 4}
    return {"findings": known, "subject": f"p{number // 2}"}


SMALL = (
    "data.matrix=32",
    "network.options.features=4",
    "schedule.batch_size=8",
    "schedule.local_epochs=1",
    "schedule.rounds=2",
    "schedule.precision=fp32",
)
"""Options that make the short protocol of the prostate task fit the sites of `make_site`."""


def shifted_sites(root: Path) -> dict[str, Path]:
    """Sites whose images differ in gain and offset."""
    shifts = {"BIDMC": (1.0, 0.0), "HK": (0.5, 20.0), "UCL": (1.4, -30.0)}
    return {s: make_site(root / "data", s, gain=g, offset=o) for s, (g, o) in shifts.items()}


@pytest.fixture
def three_sites(tmp_path: Path) -> dict[str, Path]:
    """`shifted_sites` of the test's own."""
    return shifted_sites(tmp_path)


class Samples:
    """Training samples as a method's client half sees them."""

    def __init__(
        self,
        x: np.ndarray | torch.Tensor,
        y: np.ndarray | torch.Tensor | None = None,
        *,
        validation: Samples | None = None,
    ) -> None:
        self.x = torch.as_tensor(x)
        self.y = torch.zeros(len(self.x), dtype=torch.int64) if y is None else torch.as_tensor(y)
        self.n_train = self.n_images = len(self.x)
        self._validation = validation

    def chunks(self, order: torch.Generator | None = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        index = torch.arange(len(self.x)) if order is None else torch.randperm(len(self.x), generator=order)
        yield from zip(self.x[index].split(2), self.y[index].split(2), strict=True)

    def images_alone(self, order: torch.Generator | None = None) -> Iterator[torch.Tensor]:
        return (x for x, _ in self.chunks(order))

    def validation(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield from () if self._validation is None else self._validation.chunks()


def train_batches(
    data: samples.Samples,
    *,
    batch_size: int,
    order: torch.Generator,
    seed: int = 0,
    drop_last: bool = True,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of an epoch, as local training draws them."""
    place = 0
    for index in data.epoch(batch_size=batch_size, order=order, drop_last=drop_last):
        yield data.train_batch(index, seeds=sample_seeds(seed, torch.arange(place, place + len(index))))
        place += len(index)


def make_context(method: str, net: torch.nn.Module | None = None, **changes: Any) -> base.Context:
    """A method's view of a site's round; ``changes`` are fields of `fedshift.methods.base.Run`."""
    net = net or torch.nn.Identity()
    fields: dict[str, Any] = {
        "seed": 0,
        "site": "A",
        "round": 1,
        "rounds": 1,
        "sites": ("A", "B", "C"),
        "net": net,
        "objective": functional.cross_entropy,
        "n_classes": 3,
        "received": {key: value.numpy().copy() for key, value in net.state_dict().items()},
    }
    return base.Context(base.Run(**(fields | changes)), method, {})


def server_context(*trainable: str, **changes: Any) -> base.ServerContext:
    """A server half's view of a round; ``trainable`` names the parameters."""
    fields: dict[str, Any] = {
        "round": 1,
        "rounds": 1,
        "sites": ("A", "B", "C"),
        "trainable": frozenset(trainable),
        "optimizer": OptimizerSpec(name="sgd", lr=0.1),
    }
    return base.ServerContext(**(fields | changes))


@dataclass
class Sent:
    """An accepted update as a server half sees it."""

    site: str
    weights: dict[str, np.ndarray]
    n_samples: int = 1
    n_steps: int = 1
    metrics: dict[str, float] = field(default_factory=dict)
    arrays: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    scaled: dict[str, float] = field(default_factory=dict)


@pytest.fixture
def three_image_sites(tmp_path: Path) -> dict[str, Path]:
    """Sites whose images differ in gain and offset."""
    shifts = {"A": (1.0, 0.0), "B": (0.5, 20.0), "C": (1.4, -30.0)}
    return {s: make_image_site(tmp_path / "data", s, gain=g, offset=o) for s, (g, o) in shifts.items()}


def latest(*options: str) -> tuple[str, ...]:
    """Of several options with one path the last, as `resolve` refuses them; another network discards options before it.

    For tests that change a few of the options that a job has by default.
    """
    kept: dict[str, str] = {}
    for option in options:
        path = option.partition("=")[0]
        if path in ("network.name", "network.options"):
            kept = {other: text for other, text in kept.items() if not other.startswith("network.options")}
        kept[path] = option
    return tuple(kept.values())


def small_image_job(methods: str, *options: str, sites: Sequence[str] = ("A", "B", "C"), seed: int = 0) -> JobSpec:
    """A job on the sites of `make_image_site` that trains in a second."""
    return resolve(str(SHAPES), methods, sites=sites, options=latest(*options), seed=seed)


def small_job(methods: str, *options: str, sites: Sequence[str] = ("BIDMC", "HK", "UCL"), seed: int = 0) -> JobSpec:
    """A job on the sites of `make_site` that trains in a second or two."""
    return resolve("prostate", methods, protocol="quick", sites=sites, options=latest(*SMALL, *options), seed=seed)


def first_round(coordinator: Coordinator, sites: Mapping[str, Site]) -> Broadcast:
    """What the server sends for round 1, after the statistics round with these sites."""
    coordinator.open(0)
    for site in sites.values():
        coordinator.register(site.info())
        assert coordinator.accept(site.statistics())
    coordinator.close()
    return coordinator.open(1)
