"""A site's own model beside the federation: it is that of the method single, and it changes nothing else."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import small_image_job
from volumesites import blob_job, make_volume_site

from fedshift.federation.in_process import SITE_STATE, run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.federation.site.passes import Passes
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.site.state import StateStore
from fedshift.methods.base import Batch
from fedshift.schema.errors import ConfigError, Stopped
from fedshift.schema.messages import Broadcast
from fedshift.schema.paired import COMPARISON_FILE, LocalComparison
from fedshift.schema.policy import Policy, WeightNoise
from fedshift.schema.results import BEST, LAST

ROUNDS = 4
OPTIONS = (f"schedule.rounds={ROUNDS}", "optimizer.lr=0.02", "optimizer.keep=true")
LOCAL = "evaluation.local=true"


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def weights(path: Path) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = read_model_file(path)["weights"]
    return model


def state_of(folder: Path, site: str, round_: int = ROUNDS) -> Any:
    state = StateStore(folder / SITE_STATE / site).before(round_ + 1)
    assert state is not None
    return state


@pytest.mark.parametrize("methods", ["fedavg", "fedbn+fedrdn"])
def test_the_federation_stays_the_same_and_the_local_model_is_that_of_single(
    methods: str, three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    runs = {}
    for name, names, options in (
        ("plain", methods, ()),
        ("local", methods, (LOCAL,)),
        ("single", "single", ("evaluation.every=1",)),
    ):
        job = small_image_job(names, *OPTIONS, *options)
        runs[name] = run_in_process(job, three_image_sites, tmp_path / name).results
    for file in (BEST, LAST):
        assert same(weights(tmp_path / "plain" / file), weights(tmp_path / "local" / file))
    plain, local, alone = (runs[name].final for name in ("plain", "local", "single"))
    assert plain is not None and local is not None and alone is not None
    assert plain.best == local.best and plain.against_local == {} and [*local.against_local] == [*three_image_sites]
    for site, told in local.against_local.items():
        kept = state_of(tmp_path / "local", site)
        assert same(kept.personal, state_of(tmp_path / "plain", site).personal)
        for round_ in (ROUNDS, ROUNDS - 1):
            of_single = state_of(tmp_path / "single", site, round_)
            ours = state_of(tmp_path / "local", site, round_)
            assert ours.local["round"] == round_ and same(ours.local["weights"], of_single.personal)
        assert told.round == alone.site_best[site].round
        assert told.local == alone.site_best[site].test["accuracy"]
        assert told.federated == local.best.sites[site]["test"]["accuracy"] and told.n == 6
        assert told.cases is not None and told.test == "mcnemar"


def test_a_repeated_task_gives_the_same_own_model_and_a_stop_writes_nothing(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("fedavg", *OPTIONS, LOCAL)
    site = Site(job, "A", three_image_sites["A"], SiteOptions(tmp_path / SITE_STATE))
    initial = {key: value.numpy().copy() for key, value in site.network.state_dict().items()}
    with pytest.raises(Stopped):
        site.train(Broadcast(1, 0, initial), stop=lambda: True)
    assert not (tmp_path / SITE_STATE / "A").exists()
    kept = []
    for round_ in (1, 2, 2):
        site.train(Broadcast(round_, 0, initial))
        kept.append(state_of(tmp_path, "A", round_).local)
    assert same(kept[1]["weights"], kept[2]["weights"]) and not same(kept[0]["weights"], kept[1]["weights"])
    assert same(kept[2]["best"]["weights"], kept[0]["weights"]) and kept[2]["best"]["round"] == 1
    # A site that comes late starts from the same initial weights, whatever the federation's are by now.
    late = Site(job, "A", three_image_sites["A"], SiteOptions(tmp_path / "late" / SITE_STATE))
    late.train(Broadcast(2, 0, {key: value * 0 for key, value in initial.items()}))
    there = Site(job, "A", three_image_sites["A"], SiteOptions(tmp_path / "there" / SITE_STATE))
    there.train(Broadcast(2, 0, initial))
    assert same(*(state_of(tmp_path / name, "A", 2).local["weights"] for name in ("late", "there")))


@pytest.mark.parametrize("dims", [2, 3])
def test_sessions_of_one_subject_count_as_one_in_the_comparison(dims: int, tmp_path: Path) -> None:
    ids = ["sub-1", "sub-2", *(f"sub-{3 + number // 2}_ses-{number % 2}" for number in range(4))]
    sites = {
        "A": make_volume_site(tmp_path, "A", cases=6, val=1, test=4, ids=ids),
        "B": make_volume_site(tmp_path, "B", cases=6, val=1, test=4),
    }
    patch = "[16, 16]" if dims == 2 else "[8, 16, 16]"
    job = blob_job(tmp_path, "schedule.rounds=1", LOCAL, f"data.dims={dims}", f"data.patch={patch}")
    final = run_in_process(job, sites, tmp_path / "run").results.final
    assert final is not None
    told, spread = final.against_local, {site: final.best.evaluations[site]["test"].distributions for site in sites}
    assert (told["A"].n, told["A"].subjects, told["B"].subjects) == (4, 2, None)
    assert spread["A"]["dice"].subjects == 2 and spread["B"]["dice"].subjects is None


def test_only_what_the_policy_allows_leaves(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job("fedavg", "schedule.rounds=1", LOCAL)
    policies = {"A": Policy(), "B": Policy(case_scores=True)}
    final = run_in_process(job, three_image_sites, tmp_path / "run", privacy=policies).results.final
    assert final is not None
    few, told = final.against_local["A"], final.against_local["B"]
    assert few.p is not None  # six cases are enough for a test
    assert few.interval is few.std is few.quantiles is few.cases is None
    assert told.cases is not None and told.interval is not None
    own = tmp_path / "run" / SITE_STATE / "A" / COMPARISON_FILE
    assert len(LocalComparison.model_validate_json(own.read_text(encoding="utf-8")).cases or ()) == few.n
    assert not (tmp_path / "run" / SITE_STATE / "B" / COMPARISON_FILE).exists()
    noise = Policy(weights=WeightNoise(multiplier=1.0, clip=1.0))
    job = small_image_job("fedbn", "schedule.rounds=1", LOCAL)
    noisy = run_in_process(job, three_image_sites, tmp_path / "noisy", privacy={"A": noise}).results.final
    assert noisy is not None and [*noisy.against_local] == ["B", "C"]


def test_an_own_model_that_diverges_does_not_disturb_the_federation(
    three_image_sites: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = small_image_job("fedavg", "schedule.rounds=2", LOCAL)
    site = Site(job, "A", three_image_sites["A"], SiteOptions(tmp_path / SITE_STATE))
    initial = {key: value.numpy().copy() for key, value in site.network.state_dict().items()}
    site.train(Broadcast(1, 0, initial))
    state = state_of(tmp_path, "A", 1)
    for value in state.local["weights"].values():
        value.mul_(float("nan") if value.is_floating_point() else 1)
    StateStore(tmp_path / SITE_STATE / "A").write(1, state, best_round=0)
    assert site.train(Broadcast(2, 0, initial)).n_steps > 0
    assert "model diverged" in caplog.text


@pytest.mark.parametrize("optimizer", [("optimizer.name=sgd", "optimizer.momentum=0.9"), ("optimizer.name=adam",)])
def test_a_round_that_diverges_leaves_the_optimiser_as_it_was_too(
    optimizer: tuple[str, ...], three_image_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_image_job("fedavg", *OPTIONS, *optimizer, LOCAL)
    site = Site(job, "A", three_image_sites["A"], SiteOptions(tmp_path / SITE_STATE))
    initial = {key: value.numpy().copy() for key, value in site.network.state_dict().items()}
    site.train(Broadcast(1, 0, initial))
    own, before = site._local, copy.deepcopy(state_of(tmp_path, "A", 1).local)
    assert own is not None

    def broken(passes: Passes, batch: Batch) -> torch.Tensor:
        loss = original(passes, batch)
        for parameter in passes.run.net.parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(float("nan"))
        return loss * float("nan")

    original = Passes.gradients
    with monkeypatch.context() as during:
        during.setattr(Passes, "gradients", broken)
        after = own.train(2, copy.deepcopy(before), received=initial, stop=lambda: False)
    assert after["round"] == 1 and same(after["weights"], before["weights"])
    kept, left = (state["optimizer"]["state"] for state in (before, after))
    assert left.keys() == kept.keys() and left
    for number, tensors in left.items():
        assert same(tensors, kept[number])
    assert own.train(3, after, received=initial, stop=lambda: False)["round"] == 3


@pytest.mark.parametrize(
    ("method", "options", "named"),
    [("single", [], "single"), ("all", [], "all"), ("fedavg", ["schedule.minutes=5"], r"schedule\.minutes")],
)
def test_what_has_nothing_to_compare_is_refused(method: str, options: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"evaluation\.local.*{named}"):
        resolve("digits", method, options=[LOCAL, *options])
    assert "local" not in str(resolve("digits", "fedavg").dump().get("evaluation"))
