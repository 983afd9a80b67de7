"""Which scores a site has of a round's model and of a final one, and on which of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import make_image_site, small_image_job

from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.tensors import read_weights
from fedshift.schema.messages import Broadcast


def site_of(tmp_path: Path, *words: str, sites: Sequence[str] = ("A", "B", "C")) -> Site:
    job = small_image_job("fedavg", *words, sites=sites)
    return Site(job, "A", make_image_site(tmp_path / "data", "A"), SiteOptions(tmp_path / "state"))


@pytest.mark.parametrize(
    ("option", "scored"),
    [
        ((), {1: set(), 2: {"accuracy"}, 3: {"accuracy"}}),
        (("evaluation.start=true",), {1: {"accuracy"}, 2: {"accuracy"}}),
        (("evaluation.every=2",), {1: set(), 2: {"accuracy"}, 3: {"accuracy", "test_accuracy"}, 4: {"accuracy"}}),
    ],
    ids=["from round 2", "the starting weights too", "test scores every second round"],
)
def test_a_round_scores_the_aggregate_before_it(
    option: tuple[str, ...], scored: dict[int, set[str]], tmp_path: Path
) -> None:
    site = site_of(tmp_path, "schedule.rounds=4", *option)
    weights = read_weights(site.network)
    for round_, names in scored.items():
        metrics = site.train(Broadcast(round_, 0, weights)).metrics
        assert {name for name in metrics if name.endswith("accuracy")} == names, round_


def test_validation_scores_and_evaluates_each_split(tmp_path: Path) -> None:
    site = site_of(tmp_path, "schedule.rounds=1")
    scores = site.validate(Broadcast(2, 1, read_weights(site.network)))
    assert scores.round == 1 and set(scores.values) == {"val", "test"} and set(scores.evaluations) == {"test"}
    assert scores.evaluations["test"].scores == scores.values["test"] and scores.personal == {}


def test_a_site_that_is_held_out_scores_all_its_samples(tmp_path: Path) -> None:
    site = site_of(tmp_path, "schedule.rounds=1", "held_out=[A]", sites=["B", "C"])
    scores = site.validate(Broadcast(2, 1, read_weights(site.network)))
    info = site.info()
    assert set(scores.values) == set(scores.evaluations) == {"all", "test"}
    confusion = scores.evaluations["all"].confusion
    assert confusion is not None and sum(map(sum, confusion)) == info.n_train + info.n_val + info.n_test
