"""SiloBN: what stays and what is averaged, what a new site uses, and other server rules beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Samples, make_context, small_image_job, small_job
from torch import Tensor, nn

from fedshift.federation.in_process import run_in_process
from fedshift.methods import fedbn, silobn
from fedshift.methods.method_set import MethodSet
from fedshift.tasks.kinds import build_task

from .made import last_weights, shifted_sites, site_state


@pytest.mark.parametrize("kind", ["images", "slices"])
def test_statistics_stay_and_scale_and_shift_do_not(kind: str) -> None:
    job = small_image_job("silobn") if kind == "images" else small_job("silobn")
    net = build_task(job).network()
    kept = silobn.Client(silobn.Config()).personal(net)
    assert {key.rpartition(".")[2] for key in kept} == {"running_mean", "running_var", "num_batches_tracked"}
    others = fedbn.Client(fedbn.Config()).personal(net) - kept
    assert {key.rpartition(".")[2] for key in others} == {"weight", "bias"}
    assert MethodSet(job, net).withheld == kept


def test_buffers_of_other_layers_are_averaged() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(2)
            self.register_buffer("shift", torch.zeros(2))

    assert silobn.Client(silobn.Config()).personal(Net()) == {
        f"bn.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_every_site_ends_with_its_own_statistics_and_common_scales(tmp_path: Path) -> None:
    job = small_image_job("silobn+fedavgm", "fedavgm.server_lr=0.5")
    results = run_in_process(job, shifted_sites(tmp_path / "data"), tmp_path).results
    first, last = build_task(job).network().state_dict(), last_weights(tmp_path)
    kept = [site_state(tmp_path, site, 2)["personal"] for site in "ABC"]
    assert not torch.equal(kept[0]["fc1.1.running_mean"], kept[1]["fc1.1.running_mean"])
    assert torch.equal(last["fc1.1.running_mean"], first["fc1.1.running_mean"]), "none has left a site"
    assert not torch.equal(last["fc1.1.weight"], first["fc1.1.weight"])
    assert results.final is not None and set(results.final.personal) == set("ABC")


def test_a_new_site_measures_its_own_images() -> None:
    x = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 3 + 5
    net = nn.Sequential(nn.BatchNorm2d(3))
    silobn.Client(silobn.Config()).newcomer(Samples(x), make_context("silobn", net))
    assert isinstance(net[0].running_mean, Tensor)
    np.testing.assert_allclose(net[0].running_mean.numpy(), x.mean((0, 2, 3)).numpy(), rtol=1e-5)
