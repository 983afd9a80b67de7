"""All: training on the union of all images; where a centralised reference may run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import small_image_job, train_batches
from errors import raises

from fedshift.federation.in_process import PooledSite, run_pooled
from fedshift.federation.site.site import SiteOptions
from fedshift.flare.export import write_job

from .domains import training_of

REFERENCES = ("all", "groupdro", "mmrex", "vrex", "irm")


def test_it_trains_on_every_image_of_every_site_and_scores_at_each(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("all", "schedule.rounds=4")
    results = run_pooled(job, three_image_sites, tmp_path / "run").results
    n = sum(record.n["train"] for record in results.data.values())
    for record in results.rounds:
        assert {told.steps for told in record.sites.values()} == {n // 8}
        assert len({told.train_loss for told in record.sites.values()}) == 1, "one model, trained once"
    assert results.final is not None and results.final.personal == {} and results.final.newcomers == []
    assert min(splits["test"]["accuracy"] for splits in results.final.best.sites.values()) > 0.6


def test_batches_of_the_other_references_hold_every_site_alike(three_image_sites: dict[str, Path]) -> None:
    trainer = PooledSite(small_image_job("groupdro"), three_image_sites, SiteOptions(Path("unused")))
    own = [set(map(bytes, np.load(path / "arrays/16/images.npy"))) for path in three_image_sites.values()]
    rng = torch.Generator().manual_seed(0)
    batches = list(train_batches(training_of(trainer), batch_size=8, order=rng))
    assert batches
    for x, y in batches:
        assert len(x) == len(y) == 24
        for site, part in enumerate((x * 255).round().to(torch.uint8).chunk(3)):
            assert all(bytes(image.numpy()) in own[site] for image in part)


@pytest.mark.parametrize("name", REFERENCES)
def test_there_is_no_flare_job_for_it(name: str, tmp_path: Path) -> None:
    with raises("centralised-only", naming=(name, "fedshift pooled")):
        write_job(small_image_job(name), tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_layers_that_send_nothing_change_the_training(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    losses = []
    for names in ("groupdro", "groupdro+fedfa"):
        options = ("fedfa.fusion=local", "fedfa.p=1") if "fedfa" in names else ()
        coordinator = run_pooled(small_image_job(names, *options), three_image_sites, tmp_path / names)
        losses.append(coordinator.results.rounds[-1].sites["A"].train_loss)
    assert losses[0] != losses[1]
