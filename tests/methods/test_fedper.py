"""FedPer: heads stay at the sites, both parts are trained in every step, and PartialFed with [head] is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import small_image_job, small_job

from fedshift.federation.in_process import run_in_process
from fedshift.methods import fedper
from fedshift.tasks.kinds import build_task

from .made import last_weights, site_state

HEAD = {"head.weight", "head.bias"}


@pytest.mark.parametrize(("kind", "head"), [("images", HEAD), ("slices", {"conv.weight", "conv.bias"})])
def test_the_head_is_the_layer_that_gives_the_classes(kind: str, head: set[str]) -> None:
    net = build_task(small_image_job("fedper") if kind == "images" else small_job("fedper")).network()
    assert fedper.Client(fedper.Config()).personal(net) == head


@pytest.mark.slow
def test_a_head_is_one_sites_and_partialfed_trains_the_same(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    options = ("schedule.rounds=3", "optimizer.momentum=0.5", "optimizer.weight_decay=0.1")
    job = small_image_job("fedper", *options)
    results = run_in_process(job, three_image_sites, tmp_path / "fedper").results
    other = small_image_job("partialfed", "partialfed.keep=[head]", *options)
    same = run_in_process(other, three_image_sites, tmp_path / "partialfed").results
    first, last = build_task(job).network().state_dict(), last_weights(tmp_path / "fedper")
    assert all(torch.equal(last[key], first[key]) for key in HEAD), "no head has left a site"
    body = last_weights(tmp_path / "partialfed")
    assert all(torch.equal(last[key], body[key]) for key in last.keys() - HEAD)
    heads = [site_state(tmp_path / "fedper", site, 3)["personal"] for site in "ABC"]
    assert all(head.keys() == HEAD for head in heads)
    assert not torch.equal(heads[0]["head.weight"], heads[1]["head.weight"])
    for head, site in zip(heads, "ABC", strict=True):
        kept = site_state(tmp_path / "partialfed", site, 3)["methods"]["partialfed"]
        assert all(torch.equal(head[key], kept[f"own.{key}"]) for key in HEAD)
    assert results.final is not None and same.final is not None and results.final.last == same.final.last


def test_body_and_head_are_trained_in_the_same_step(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job("fedper", "schedule.rounds=1", "schedule.local_steps=1")
    run_in_process(job, three_image_sites, tmp_path)
    first, last = build_task(job).network().state_dict(), last_weights(tmp_path)
    head = site_state(tmp_path, "A", 1)["personal"]
    assert not torch.equal(head["head.weight"], first["head.weight"])
    assert not torch.equal(last["fc1.0.weight"], first["fc1.0.weight"])
