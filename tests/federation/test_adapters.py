"""Adapters in a federation: what travels, what stays, what is left of a run, and the files that it starts from."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapted import ON_ATTENTION, VIT, with_base
from conftest import make_site, small_image_job, small_job
from errors import raises

from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.federation.model_files import ADAPTED, read_model_file
from fedshift.federation.protocols import cross_site
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, make_ready
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.policy import Policy
from fedshift.schema.protocol_results import own_model
from fedshift.schema.results import LAST
from fedshift.tasks.pretrained import identify
from fedshift.tasks.starting import starting_network

PRIVATE = "network.adapters={on: attention, rank: 4, private: 2}"


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this machine keeps files of weights."""
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "weights"))
    return tmp_path / "weights"


def sent(job: Any, data: dict[str, Path], folder: Path, **options: Any) -> tuple[Coordinator, list[Update]]:
    """A run and the updates of its sites."""
    updates: list[Update] = []

    def keep(_: Broadcast, update: Update) -> None:
        updates.append(update)

    return run_in_process(job, data, folder, on_update=keep, **options), updates


def test_only_adapters_and_the_head_travel(three_image_sites: dict[str, Path], tmp_path: Path, weights: Path) -> None:
    adapted, whole = with_base(small_image_job, weights, "fedavg", *VIT)
    coordinator, updates = sent(adapted, three_image_sites, tmp_path / "run")
    keys = {key for update in updates for key in update.weights}
    assert keys and all(".lora_" in key or key.startswith("classification_head.") for key in keys)
    told = coordinator.results.rounds[0].sites["A"]
    full = run_in_process(whole, three_image_sites, tmp_path / "whole").results.rounds[0].sites["A"]
    assert told.bytes_up == told.bytes_down == sum(array.nbytes for array in updates[0].weights.values())
    assert told.bytes_up < full.bytes_up / 5
    assert "weights are trained" in coordinator.results.job.initial_weights


def test_a_runs_model_is_merged_and_predicts_as_sites_have_scored_it(
    three_image_sites: dict[str, Path], tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = with_base(small_image_job, weights, "fedavg", *VIT)
    run_in_process(job, three_image_sites, tmp_path / "run")
    content = read_model_file(tmp_path / "run" / LAST)
    net, _ = starting_network(job)
    net.load_state_dict(content[ADAPTED])
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "none"))
    monkeypatch.setitem(sys.modules, "peft", None)  # as where it is not installed
    model = open_model(tmp_path / "run" / LAST)
    assert model.header.adapters is not None and model.header.job.task.network.adapters is None
    ready = make_ready(model, Choice(), device="cpu")
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ready.predictor.net(x), net.eval()(x), rtol=1e-4, atol=1e-5)


def test_a_run_goes_on_where_it_was_interrupted(
    three_image_sites: dict[str, Path], tmp_path: Path, weights: Path
) -> None:
    job, _ = with_base(small_image_job, weights, "fedavg", *VIT)
    whole = tmp_path / "whole"
    run_in_process(job, three_image_sites, whole)

    class Killed(Exception):
        pass

    def end(coordinator: Coordinator) -> None:
        if coordinator.next_round == 2:
            raise Killed

    with pytest.raises(Killed):
        run_in_process(job, three_image_sites, tmp_path / "cut", on_progress=end)
    run_in_process(job, three_image_sites, tmp_path / "cut", resume=True)
    one, two = (read_model_file(folder / LAST) for folder in (whole, tmp_path / "cut"))
    for part in ("weights", ADAPTED):
        assert all(torch.equal(value, two[part][key]) for key, value in one[part].items())


def test_private_adapters_stay_and_are_added_to_predictions_of_their_site(
    three_image_sites: dict[str, Path], tmp_path: Path, weights: Path
) -> None:
    job, _ = with_base(small_image_job, weights, "fedavg", *VIT, "optimizer.lr=0.5", adapted=PRIVATE)
    coordinator, updates = sent(job, three_image_sites, tmp_path / "run")
    assert not any(".private." in key for update in updates for key in update.weights)
    assert coordinator.own_models
    model = open_model(tmp_path / "run" / LAST)
    ready = {
        site: make_ready(model, Choice(state=tmp_path / "run" / "site_state" / site), device="cpu") for site in "AB"
    }
    shared = make_ready(model, Choice(), device="cpu")
    assert "--site-state" in " ".join(shared.notes)
    kept = torch.load(tmp_path / "run/site_state/A/round_000002.pt", weights_only=True)["personal"]
    assert kept and all(".private." in key for key in kept)
    net, _ = starting_network(job)
    net.load_state_dict(read_model_file(tmp_path / "run" / LAST)[ADAPTED] | kept)
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ready["A"].predictor.net(x), net.eval()(x), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(ready["A"].predictor.net(x), ready["B"].predictor.net(x), atol=1e-4)
        assert not torch.allclose(ready["A"].predictor.net(x), shared.predictor.net(x), atol=1e-4)


def test_masks_hide_single_adapters_and_leave_their_mean(
    three_image_sites: dict[str, Path], tmp_path: Path, weights: Path
) -> None:
    options = ("schedule.rounds=1", "federation.min_sites=3")
    job, _ = with_base(small_image_job, weights, "fedavg", *VIT, *options)
    masked = job.model_copy(update={"federation": job.federation.model_copy(update={"encryption": "masks"})})
    plain, _ = sent(job, three_image_sites, tmp_path / "plain")
    hidden, updates = sent(masked, three_image_sites, tmp_path / "masked")
    assert not hidden.rejected and not any(".lora_" in key for update in updates for key in update.weights)
    for key, value in plain.model.weights.items():
        np.testing.assert_allclose(hidden.model.weights[key], value, atol=1e-5)


def test_a_site_trains_adapters_by_dp_sgd(three_image_sites: dict[str, Path], tmp_path: Path, weights: Path) -> None:
    job, _ = with_base(small_image_job, weights, "fedavg", *VIT, "schedule.rounds=1")
    policy = Policy.parse({"dp_sgd": {"epsilon": 8, "delta": 1e-3, "clip": 0.5}}, where="test")
    coordinator, updates = sent(job, three_image_sites, tmp_path / "dp", privacy={"A": policy})
    assert not coordinator.rejected and [update.site for update in updates] == ["A", "B", "C"]
    assert all(value.any() for key, value in updates[0].weights.items() if ".lora_B." in key)
    kept, _ = with_base(small_image_job, weights, "fedavg", *VIT, adapted=PRIVATE)
    site = Site(kept, "A", three_image_sites["A"], SiteOptions(tmp_path / "state", policy=policy))
    with raises("cannot-protect", naming="network.adapters.private"):
        site.statistics()


def test_a_segmentation_trains_adapters_too(tmp_path: Path, weights: Path) -> None:
    data = {site: make_site(tmp_path / "data", site, depth=4) for site in ("BIDMC", "HK", "UCL")}
    net = ("network.name=monai.BasicUNet", "network.options={features: [4, 4, 8, 8, 8, 4]}", "schedule.rounds=1")
    job, _ = with_base(small_job, weights, "fedavg", *net, adapted="network.adapters={on: conv, rank: 2}")
    coordinator, updates = sent(job, data, tmp_path / "run")
    assert not coordinator.rejected and len(updates) == 3
    merged, base = read_model_file(tmp_path / "run" / LAST)["weights"], torch.load(weights / "base.pt")
    changed = {key for key, value in base.items() if not torch.equal(value, merged[key])}
    assert changed and all(".conv" in key or key.startswith("final_conv") for key in changed)


# --- the base ---------------------------------------------------------------------------------------------


def test_a_site_without_the_base_or_with_another_is_refused(
    three_image_sites: dict[str, Path], tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = with_base(small_image_job, weights, "fedavg", *VIT)
    own = tmp_path / "own"
    own.mkdir()
    (weights / "base.pt").rename(own / "base.pt")
    with raises("weights-missing", naming=("base.pt", str(weights))):
        Site(job, "A", three_image_sites["A"], SiteOptions(tmp_path / "state"))
    Site(job, "A", three_image_sites["A"], SiteOptions(tmp_path / "state", weights=own))
    other = torch.load(own / "base.pt")
    torch.save({key: value + 1 for key, value in other.items()}, own / "base.pt")
    with raises("weights-missing", naming=(str(own / "base.pt"), "sha256")):
        Site(job, "A", three_image_sites["A"], SiteOptions(tmp_path / "state", weights=own))


@pytest.mark.parametrize(("left_out", "is_trained"), [("classification_head.", True), ("patch_embedding.", False)])
def test_a_base_must_have_what_is_frozen(left_out: str, is_trained: bool, weights: Path) -> None:
    with_base(small_image_job, weights, "fedavg", *VIT)
    path = weights / "base.pt"
    torch.save({key: v for key, v in torch.load(path).items() if not key.startswith(left_out)}, path)
    start = f"network.weights={json.dumps(identify(path, partial=True).model_dump())}"
    job = small_image_job("fedavg", *VIT, start, ON_ATTENTION)
    with nullcontext() if is_trained else raises("adapters-unfit", naming=("base.pt", left_out)):
        starting_network(job)


@pytest.mark.parametrize(
    ("methods", "adapted", "code"),
    [
        ("fedbn", ON_ATTENTION, "method-needs"),
        ("fedper", "network.adapters={on: attention, rank: 4, trained: []}", "method-needs"),
        ("scaffold", PRIVATE, "methods-clash"),
        ("ditto", PRIVATE, "methods-clash"),
    ],
)
def test_methods_that_do_not_fit_frozen_weights_are_refused(
    methods: str, adapted: str, code: str, weights: Path
) -> None:
    sgd = ("optimizer.name=sgd", "optimizer.weight_decay=0")
    with raises(code):
        with_base(small_image_job, weights, methods, *VIT, *sgd, adapted=adapted)


def test_a_centralised_reference_trains_adapters_but_no_private_ones(
    three_image_sites: dict[str, Path], tmp_path: Path, weights: Path
) -> None:
    job, _ = with_base(small_image_job, weights, "all", *VIT, "schedule.rounds=1")
    assert run_pooled(job, three_image_sites, tmp_path / "all").results.final is not None
    with raises("options-clash", naming="network.adapters.private"):
        with_base(small_image_job, weights, "all", *VIT, adapted=PRIVATE)


def test_models_of_single_sites_are_merged_with_their_private_adapters(
    three_image_sites: dict[str, Path], tmp_path: Path, weights: Path
) -> None:
    job, _ = with_base(small_image_job, weights, "fedavg", *VIT, "optimizer.lr=0.5", adapted=PRIVATE)
    cross_site(job, three_image_sites, tmp_path / "cross", keep_models=True)
    model = open_model(own_model(tmp_path / "cross", "A"))
    kept = torch.load(tmp_path / "cross/site_state/A/round_000002.pt", weights_only=True)["personal"]
    assert all(torch.equal(model.adapter_weights[key], value) for key, value in kept.items())
    net, _ = starting_network(job)
    net.load_state_dict(model.adapter_weights)
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = make_ready(model, Choice(), device="cpu").predictor.net(x), net.eval()(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
