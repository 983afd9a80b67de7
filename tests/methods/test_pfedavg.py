"""pFedAvg: each site's fine-tuned model, evaluated separately."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import small_image_job

from fedshift.federation.in_process import run_in_process
from fedshift.federation.site.site import Site, SiteOptions


@pytest.mark.parametrize(("method", "sites"), [("fedavg", ""), ("pfedavg", "ABC")])
def test_only_fine_tuned_models_have_personal_scores(
    method: str, sites: str, three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    final = run_in_process(small_image_job(method, "schedule.rounds=1"), three_image_sites, tmp_path).results.final
    assert final is not None and set(final.personal) == set(sites)


def test_the_model_that_is_scored_has_trained_for_so_many_epochs_more(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    """Equal to a site that receives the last model and trains another round."""
    job = small_image_job("pfedavg", "pfedavg.epochs=2", "schedule.rounds=1", "optimizer.keep=false")
    coordinator = run_in_process(job, three_image_sites, tmp_path / "run")
    last = coordinator.open(2)
    site = Site(job, "B", three_image_sites["B"], SiteOptions(tmp_path / "run" / "site_state"))
    scores = site.validate(last)
    tuned = {key: value.clone() for key, value in site.network.state_dict().items()}
    longer = small_image_job("fedavg", "schedule.local_epochs=2", "optimizer.keep=false")
    expected = Site(longer, "B", three_image_sites["B"], SiteOptions(tmp_path / "other")).train(last).weights
    assert all(np.array_equal(tuned[key].numpy(), expected[key]) for key in expected)
    assert scores.personal["test"] != {} and scores.values["test"] != {}
    assert [path.name for path in (tmp_path / "run/site_state/B").iterdir() if "2" in path.name] == [], (
        "no state is saved"
    )
