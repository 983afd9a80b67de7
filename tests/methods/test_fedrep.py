"""FedRep: which part a step trains, that heads stay at the sites, and a site with its own meaning of the classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_context, small_image_job, small_job

from fedshift.federation.in_process import run_in_process
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.tensors import read_weights
from fedshift.methods import fedrep
from fedshift.schema.messages import Broadcast
from fedshift.tasks.kinds import build_task

from .made import last_weights, site_state


@pytest.mark.parametrize(
    ("steps", "share", "head"), [(11, 0.91, 10), (2, 0.5, 1), (2, 0.9, 1), (3, 0.1, 1), (10, 0.5, 5), (1, 0.5, 0)]
)
def test_number_of_head_steps(steps: int, share: float, head: int) -> None:
    assert fedrep.head_steps(steps, share) == head


@pytest.mark.parametrize("kind", ["images", "slices"])
def test_the_heads_steps_come_first_and_each_step_trains_one_part(kind: str) -> None:
    job = small_image_job("fedrep") if kind == "images" else small_job("fedrep")
    net = build_task(job).network()
    head = {key for key in fedrep.Client(fedrep.Config()).personal(net)}
    assert head == ({"head.weight", "head.bias"} if kind == "images" else {"conv.weight", "conv.bias"})
    client, ctx = fedrep.Client(fedrep.Config(head=0.25)), make_context("fedrep", net, steps=4)
    client.begin(None, ctx)  # type: ignore[arg-type]
    for step in range(4):
        ctx.run.step = step
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        client.gradients(ctx)
        trained = {name for name, parameter in net.named_parameters() if parameter.grad is not None}
        assert trained == (head if step == 0 else {name for name, _ in net.named_parameters()} - head)


@pytest.mark.parametrize(("options", "steps"), [(("schedule.local_steps=3",), 3), (("schedule.local_epochs=2",), 8)])
def test_the_head_is_trained_on_the_received_body(
    options: tuple[str, ...],
    steps: int,
    three_image_sites: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """32 training images in batches of 8 are four steps an epoch."""
    job = small_image_job("fedrep", "optimizer.momentum=0.9", "optimizer.weight_decay=0.1", *options)
    site = Site(job, "A", three_image_sites["A"], SiteOptions(tmp_path))
    site.statistics()
    received = read_weights(build_task(job).network())
    seen: list[dict[str, np.ndarray]] = []
    gradients = fedrep.Client.gradients

    def look(self: fedrep.Client, ctx: object) -> None:
        assert ctx.run.steps == steps  # type: ignore[attr-defined]
        seen.append(read_weights(site.network))
        gradients(self, ctx)  # type: ignore[arg-type]

    monkeypatch.setattr(fedrep.Client, "gradients", look)
    update = site.train(Broadcast(1, 0, received))
    assert len(seen) == steps and update.n_steps == steps
    turn = fedrep.head_steps(steps, 0.5)
    np.testing.assert_array_equal(seen[turn]["fc1.0.weight"], received["fc1.0.weight"])
    assert not np.array_equal(seen[turn]["head.weight"], received["head.weight"])
    last = read_weights(site.network)
    np.testing.assert_array_equal(last["head.weight"], seen[turn]["head.weight"])
    assert not np.array_equal(last["fc1.0.weight"], received["fc1.0.weight"])
    assert not {"head.weight", "head.bias"} & update.weights.keys()


def test_every_site_ends_with_its_own_head_on_one_body(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job("fedrep")
    results = run_in_process(job, three_image_sites, tmp_path).results
    first, last = build_task(job).network().state_dict(), last_weights(tmp_path)
    assert torch.equal(last["head.weight"], first["head.weight"]), "no head has left a site"
    assert not torch.equal(last["fc1.0.weight"], first["fc1.0.weight"])
    heads = [site_state(tmp_path, site, 2)["personal"] for site in "ABC"]
    assert all(head.keys() == {"head.weight", "head.bias"} for head in heads)
    assert not torch.equal(heads[0]["head.weight"], heads[1]["head.weight"])
    assert results.final is not None and set(results.final.personal) == set("ABC")
