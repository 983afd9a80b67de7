"""FedHarmo: HarmoFL's normalisation combined with the authors' weight perturbation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import golden, make_context, small_image_job

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.methods import fedharmo
from fedshift.schema.results import LAST


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("wp_alpha0.05_sgd_lr0.1_mom0.9_wd1e-4", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-4)),
        ("wp_alpha0.05_adam_lr0.01_wd1e-4", lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-4)),
    ],
)
def test_steps_are_the_authors(name: str, optimizer: object) -> None:
    g = golden("sam_weight_perturbation")
    a, b = torch.from_numpy(g["A"]), torch.from_numpy(g["b"])
    net = torch.nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(g["w0"])[None])
    ctx = make_context("fedharmo", net)
    ctx.run.optimizer = optimizer(net.parameters())  # type: ignore[operator]

    def closure() -> torch.Tensor:
        w = net.weight[0]
        net.zero_grad()
        loss = 0.5 * w @ a @ w - b @ w + (w**4).sum() / 4
        loss.backward()
        return loss.detach()

    client = fedharmo.Client(fedharmo.Config())
    for expected in g[name]:
        client.step(closure, ctx)
        np.testing.assert_allclose(net.weight.detach().numpy()[0], expected, rtol=1e-10)


@pytest.mark.slow
def test_without_perturbation_it_is_harmofl_bit_for_bit(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    content = {}
    for methods, options in {"harmofl": (), "fedharmo": ("fedharmo.alpha=0",), "fedavg+fedharmo": ()}.items():
        job = small_image_job(methods, *options)
        results = run_in_process(job, three_image_sites, tmp_path / methods).results
        assert [record.rejected for record in results.rounds] == [[], []]
        content[methods] = read_model_file(tmp_path / methods / LAST)
    one, other = content["harmofl"], content["fedharmo"]
    assert all(torch.equal(one["weights"][key], other["weights"][key]) for key in one["weights"])
    assert torch.equal(one["methods"]["harmofl"]["amplitude"], other["methods"]["fedharmo"]["amplitude"])
    perturbed = content["fedavg+fedharmo"]["weights"]
    assert not all(torch.equal(one["weights"][key], perturbed[key]) for key in perturbed)
