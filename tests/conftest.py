"""Shared fixtures: golden numbers, real data where it is present, and small sites made on the spot."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kits import provision
from torch.nn import functional

from fedshift.data import samples
from fedshift.data.draws import sample_seeds
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site
from fedshift.methods import base
from fedshift.schema.messages import Broadcast
from fedshift.schema.optimizer import OptimizerSpec
from fedshift_testing.jobs import SHAPES as SHAPES
from fedshift_testing.jobs import SMALL as SMALL
from fedshift_testing.jobs import latest as latest
from fedshift_testing.jobs import small_image_job as small_image_job
from fedshift_testing.jobs import small_job as small_job
from fedshift_testing.sites import SHAPE_CLASSES, make_image_site, make_site

pytest.register_assert_rewrite("fedshift_testing.every_method", "fedshift_testing.wire")

GOLDEN = Path(__file__).parent / "golden"


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


def findings(number: int, label: int) -> dict[str, object]:
    """What a picture shows as findings, of which nobody has said some; two pictures are of one subject."""
    known = {name: place == label for place, name in enumerate(SHAPE_CLASSES) if (number // 3 + place) % 4}
    return {"findings": known, "subject": f"p{number // 2}"}


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


def first_round(coordinator: Coordinator, sites: Mapping[str, Site]) -> Broadcast:
    """What the server sends for round 1, after the statistics round with these sites."""
    coordinator.open(0)
    for site in sites.values():
        coordinator.register(site.info())
        assert coordinator.accept(site.statistics())
    coordinator.close()
    return coordinator.open(1)
