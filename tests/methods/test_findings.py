"""Every method on pictures with several findings each, some unknown: it trains, or is refused when the job is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from conftest import findings, make_image_site, small_image_job
from errors import raises
from shallow import shallow_networks

from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.federation.model_files import read_model_file
from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.results import LAST

OF_ONE_CLASS = {"fedalign", "fedmix", "fedproto", "fedrod", "fedsr", "fpl", "fraug"}
"""They read which one class an image has."""
OF_VOLUMES = {"landmarks"}
SITES = {"A": (18, 1.0), "B": (36, 0.5), "C": (24, 1.4)}
Data = Mapping[str, Path]

_shallow = pytest.fixture(autouse=True, scope="module")(shallow_networks)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    root = tmp_path_factory.mktemp("data")
    return {s: make_image_site(root, s, images=n, gain=g, labelled=findings) for s, (n, g) in SITES.items()}


def job_for(name: str, *options: str) -> JobSpec:
    chosen = ("data.multi_label=true", "schedule.rounds=2", "network.options.width=2", *options)
    try:
        return small_image_job(name, *chosen)
    except ConfigError as error:
        if error.code != "method-needs" or "optimizer.name=sgd" not in str(error):
            raise
        return small_image_job(name, *chosen, "optimizer.name=sgd", "optimizer.lr=0.02", "optimizer.weight_decay=0")


@pytest.mark.parametrize(
    "described", [*sorted(set(method_set.available()) - OF_ONE_CLASS - OF_VOLUMES), "fedalign fedalign.contrast=0"]
)
def test_a_method_trains_on_findings(described: str, data: Data, tmp_path: Path) -> None:
    job = job_for(*described.split())
    run = run_pooled if method_set.pooled_reference(job.methods) else run_in_process
    results = run(job, data, tmp_path).results
    sites = [site for record in results.rounds for site in record.sites.values()]
    assert sites and all(site.steps > 0 and math.isfinite(site.train_loss or math.nan) for site in sites)
    assert not any(record.rejected for record in results.rounds)
    weights = read_model_file(tmp_path / LAST)["weights"]
    assert all(np.isfinite(value.numpy()).all() for value in weights.values())
    assert results.final is not None and all(parts["test"]["auroc"] for parts in results.final.best.sites.values())


@pytest.mark.parametrize("name", sorted(OF_ONE_CLASS))
def test_a_method_of_one_class_is_refused(name: str) -> None:
    with raises("method-needs", naming=f"method {name}"):
        job_for(name)
    small_image_job(name)


@pytest.mark.parametrize("name", ["fedproto", "fpl"])
def test_methods_that_count_the_images_of_a_class_want_each_once(name: str) -> None:
    with raises("method-needs", naming="data.sampling=shuffled"):
        small_image_job(name, "data.sampling=balanced")
    small_image_job(name, "data.sampling=balanced", f"{name}.min_samples=1")


@pytest.mark.parametrize("name", ["fedmix", "fedrod"])
def test_methods_that_rewrite_cross_entropy_want_it(name: str) -> None:
    with raises("method-needs", naming="loss=ce"):
        small_image_job(name, "loss=weighted_ce")
