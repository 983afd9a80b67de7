"""Passes that are captured as graphs have the bits of passes that go layer by layer, whatever a method does to them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from shallow import shallow_networks
from tasks.graphs import make_graphs
from torch import nn

from fedshift.federation.site import job_network
from fedshift.schema.task import Precision
from fedshift.tasks.captured import Captured, Graphed, MakeGraphs
from fedshift_testing.every_method import Data, assert_same, run
from fedshift_testing.jobs import job_for
from fedshift_testing.sites import small_sites

_shallow = pytest.fixture(autouse=True, scope="module")(shallow_networks)

WHOLE = (
    "fedalign",
    "feddyn",
    "fedprox",
    "fedrep",
    "fedsam",
    "fedsgd",
    "fedwon",
    "harmofl",
    "moon",
    "partialfed",
    "fedavg+mixup",
)
"""Change loss, inputs, gradients, steps, or which parameters train: the network is one graph."""
IN_PARTS = ("fedfa", "fedrod", "fedsr", "fraug", "manifold_mixup", "mixstyle")
"""Attach layers to the network."""
LAYER_BY_LAYER = ("elcfs", "fediir", "fedirm", "fedmix")
"""Take gradients of the pass by themselves."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    return small_sites(tmp_path_factory.mktemp("data"))


def capturing(monkeypatch: pytest.MonkeyPatch, make: MakeGraphs) -> list[Captured]:
    """Have the networks of all jobs captured, as on a GPU. Returns them once they are made."""
    made: list[Captured] = []

    def make_captured(net: nn.Module, precision: Precision, device: torch.device) -> Captured:
        made.append(Captured(net, precision, make=make))
        return made[-1]

    monkeypatch.setattr(job_network, "make_captured", make_captured)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("names", [*WHOLE, *IN_PARTS, *LAYER_BY_LAYER])
def test_captured_passes_change_no_bit(
    names: str, data: dict[str, Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    kind = "segmentation" if names in ("fedfa", "fedavg+mixup") else "classification"
    job = job_for(names, kind)
    plain = run(job, data[kind], tmp_path / "plain")
    capture = capturing(monkeypatch, make_graphs)
    assert_same(plain, run(job, data[kind], tmp_path / "graphs"))
    assert capture
    parts = [len(captured.parts) for captured in capture]
    assert all((count > 1 if names == "fedfa" else count >= 1) != (names in LAYER_BY_LAYER) for count in parts)


@pytest.mark.parametrize("fault", ["other values", "error"])
def test_graphs_that_go_wrong_are_not_used(
    fault: str,
    data: dict[str, Data],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def wrong(modules: tuple[nn.Module, ...], arguments: object, **options: bool) -> list[Graphed]:
        if fault == "error":
            raise RuntimeError("no graph of this")
        return [lambda x, module=module: 2 * module(x) for module in modules]

    job = job_for("fedavg", "classification")
    plain = run(job, data["classification"], tmp_path / "plain")
    capture = capturing(monkeypatch, wrong)
    assert_same(plain, run(job, data["classification"], tmp_path / "graphs"))
    assert not capture[0].parts and sum("CUDA graphs" in line for line in caplog.messages) == 1
