"""Single: a site ends with the model that it would train without a federation; no weights leave it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from conftest import small_image_job

from fedshift.federation.in_process import run_in_process
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.tasks.kinds import build_task

from .made import last_weights, site_state


def test_a_site_ends_as_if_it_were_alone_bit_for_bit(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    options = ("schedule.rounds=3", "optimizer.momentum=0.5")
    results = run_in_process(small_image_job("single", *options), three_image_sites, tmp_path / "together").results
    assert results.final is not None
    for name, path in three_image_sites.items():
        job = small_image_job("fedavg", *options, sites=(name,))
        alone = run_in_process(job, {name: path}, tmp_path / name).results
        expected = last_weights(tmp_path / name)
        state = site_state(tmp_path / "together", name, 3)
        assert state["personal"].keys() == expected.keys()
        assert all(torch.equal(state["personal"][key], value) for key, value in expected.items())
        assert alone.final is not None
        assert results.final.last.sites[name] == alone.final.last.sites[name]
    assert set(results.final.personal) == set(three_image_sites)


def test_nothing_of_the_network_leaves_and_the_servers_stays(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("single")
    coordinator = run_in_process(job, three_image_sites, tmp_path / "run")
    assert {told.bytes_up for record in coordinator.results.rounds for told in record.sites.values()} == {0}
    site = Site(job, "A", three_image_sites["A"], SiteOptions(tmp_path / "state"))
    broadcast = coordinator.open(1)
    update = site.train(broadcast)
    assert update.weights == {} and update.arrays == {}
    fresh = build_task(job).network().state_dict()
    assert all(np.array_equal(fresh[key].numpy(), value) for key, value in broadcast.weights.items())
