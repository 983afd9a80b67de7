"""A whole job in one process: identities between methods, repeatability, learning, selection, faults."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import first_round, make_site, shifted_sites, small_image_job, small_job
from errors import raises
from pydantic import ValidationError
from rich.console import Console
from shallow import shallow_networks

from fedshift import cli
from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.federation.model_files import read_model_file
from fedshift.federation.server import run_files
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.run_record import Selection
from fedshift.federation.site import local_training
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.reporting.table import scores_table
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast
from fedshift.schema.results import BEST, LAST, Results, read_results
from fedshift.tasks.kinds import build_task

_shallow = pytest.fixture(autouse=True, scope="module")(shallow_networks)


def final_weights(job: JobSpec, data: Mapping[str, Path], folder: Path) -> dict[str, torch.Tensor]:
    run_in_process(job, data, folder)
    weights: dict[str, torch.Tensor] = read_model_file(folder / LAST)["weights"]
    return weights


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Those of `three_sites`, for runs that several tests look at."""
    return shifted_sites(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="module")
def first(sites: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedFA with FedRDN."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("first")
    run_in_process(small_job("fedfa+fedrdn"), sites, folder)
    return folder


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(
    first: Path, sites: dict[str, Path], tmp_path: Path
) -> None:
    weights = read_model_file(first / LAST)["weights"]
    torch.manual_seed(123)
    np.random.seed(5)
    assert same(weights, final_weights(small_job("fedrdn+fedfa"), sites, tmp_path / "b"))
    assert not same(weights, final_weights(small_job("fedfa+fedrdn", seed=1), sites, tmp_path / "c"))


def test_models_carry_the_arrays_of_their_methods(first: Path) -> None:
    for name in (BEST, LAST):
        checkpoint = read_model_file(first / name)
        assert checkpoint["methods"]["fedrdn"]["means"].shape == (3, 3)
        assert checkpoint["methods"]["fedfa"]["gamma_mean.2"].shape == (8,)
        assert set(checkpoint["scores"]) == {"val_dice"}
        assert not any("fedfa" in key for key in checkpoint["weights"])


def test_the_initial_weights_are_scored_if_the_job_asks_for_it(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    plain = run_in_process(small_image_job("fedavg"), three_image_sites, tmp_path / "plain").results
    job = small_image_job("fedavg", "evaluation.start=true")
    scored = run_in_process(job, three_image_sites, tmp_path / "scored").results
    assert plain.statistics is not None and plain.statistics.sites == {}
    assert scored.statistics is not None and scored.selected is not None and scored.selected.round > 0
    initial = Coordinator(job, tmp_path / "server").model.broadcast(1, best_round=0, sites=("A",))
    site = Site(job, "A", three_image_sites["A"], SiteOptions(tmp_path / "state"))
    with site.loaded(initial) as model:
        assert scored.statistics.sites["A"].val == model.scores("val")
    assert [told.val for told in scored.rounds[0].sites.values()] == [t.val for t in plain.rounds[0].sites.values()]
    console = Console(width=200, record=True, file=StringIO())
    console.print(scores_table(scored))
    mean = np.mean([told.val["accuracy"] for told in scored.statistics.sites.values()])
    assert f"initial weights: {100 * mean:.1f} %" in console.export_text()


@pytest.mark.slow
def test_test_scores_of_rounds_are_recorded_and_select_nothing(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    options = ["schedule.rounds=5", "optimizer.lr=0.02"]
    plain = run_in_process(small_image_job("fedbn", *options), three_image_sites, tmp_path / "plain").results
    job = small_image_job("fedbn", *options, "evaluation.every=1")
    every = run_in_process(job, three_image_sites, tmp_path / "every").results
    second = small_image_job("fedbn", *options, "evaluation.every=2")
    some = run_in_process(second, three_image_sites, tmp_path / "some").results
    assert same(*(read_model_file(tmp_path / name / LAST)["weights"] for name in ("plain", "every")))
    assert plain.final is not None and every.final is not None and some.final is not None
    assert plain.selected == every.selected and plain.final.best.sites == every.final.best.sites
    ends = {plain.final.best.round, plain.final.last.round}

    def tested(results: Results) -> set[int]:
        return {record.round for record in results.rounds if all(site.test for site in record.sites.values())}

    assert tested(plain) == ends and tested(every) == {1, 2, 3, 4, 5} and tested(some) == {2, 4} | ends
    for told, known in zip(every.rounds, plain.rounds, strict=True):
        assert {s: one.val for s, one in told.sites.items()} == {s: one.val for s, one in known.sites.items()}
    assert plain.final.site_best == some.final.site_best == {} and set(every.final.site_best) == {"A", "B", "C"}
    for site, best in every.final.site_best.items():
        values = [record.sites[site].val["accuracy"] for record in every.rounds]
        assert best.round == 1 + values.index(max(values)) and best.val["accuracy"] == max(values)
        assert best.test == every.rounds[best.round - 1].sites[site].test


def test_a_pooled_reference_has_test_scores_of_rounds_too(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job("all", "schedule.rounds=3", "evaluation.every=1")
    results = run_pooled(job, three_image_sites, tmp_path).results
    assert all(site.test for record in results.rounds for site in record.sites.values())


def test_sites_without_a_test_part_are_scored_on_validation(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job("fedbn", "data.shares=[0.75, 0.25, 0]", "evaluation.every=1", "schedule.rounds=3")
    results = run_in_process(job, three_image_sites, tmp_path).results
    assert results.final is not None and not results.final.site_best and not results.final.personal
    assert all(set(splits) == {"val"} for splits in results.final.best.sites.values())
    assert results.data["A"].n == {"train": 36, "val": 12, "test": 0}
    assert scores_table(results).row_count == 4
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "report.html")]) == 0


@pytest.mark.parametrize(
    ("methods", "options"),
    [
        ("fedfa+fedrdn", []),
        ("scaffold", []),
        ("fraug", []),
        ("fedmix", []),
        ("fedavg", ["federation.weights_as=int8"]),
    ],
)
def test_the_best_model_is_scored_as_it_was_sent(
    methods: str,
    options: list[str],
    three_image_sites: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits in its file, without what only training needs."""
    sent: dict[int, Broadcast] = {}

    class Watched(Coordinator):
        def open(self, round_: int) -> Broadcast:
            sent[round_] = super().open(round_)
            return sent[round_]

        def open_best(self) -> Broadcast | None:
            best = super().open_best()
            assert best is not None
            sent[0] = best
            return best

    consider = Selection.consider
    monkeypatch.setattr(Selection, "consider", lambda self, round_: round_ == 1 and consider(self, round_))
    monkeypatch.setattr("fedshift.federation.in_process.Coordinator", Watched)
    job = small_image_job(methods, "schedule.rounds=3", *options)
    final = run_in_process(job, three_image_sites, tmp_path / "run").results.final
    assert final is not None and final.best.round == 1 and set(final.best.sites) == set("ABC")
    best, then = sent[0], sent[2]
    assert best.round == then.round == 2
    assert all(np.array_equal(value, then.weights[key]) for key, value in best.weights.items())
    assert all(np.array_equal(value.unpack(), then.packed[key].unpack()) for key, value in best.packed.items())
    assert best.weights.keys() == then.weights.keys() and best.packed.keys() == then.packed.keys()
    for method, named in best.arrays.items():
        assert all(np.array_equal(value, then.arrays[method][name]) for name, value in named.items())


def test_one_site_is_local_training(tmp_path: Path) -> None:
    data = make_site(tmp_path / "data", "BIDMC")
    job = small_job("fedavg", "schedule.rounds=2", sites=("BIDMC",))
    federated = final_weights(job, {"BIDMC": data}, tmp_path / "a")
    coordinator = Coordinator(job, tmp_path / "b")
    site = Site(job, "BIDMC", data, SiteOptions(tmp_path / "state"))
    broadcast = coordinator.open(1)
    update = site.train(broadcast)
    again = site.train(Broadcast(round=2, best_round=0, weights=update.weights))
    assert same(federated, {k: torch.from_numpy(v) for k, v in again.weights.items()})


@pytest.mark.slow
def test_weights_by_samples_matter_when_sites_differ_in_size(three_sites: dict[str, Path], tmp_path: Path) -> None:
    def run(data: Mapping[str, Path], option: str) -> dict[str, torch.Tensor]:
        return final_weights(
            small_job("fedavg", option, "schedule.rounds=1"),
            data,
            tmp_path / f"{option}{len(list(tmp_path.iterdir()))}",
        )

    by_samples, uniform = (run(three_sites, f"fedavg.weights={w}") for w in ("samples", "uniform"))
    for key, value in by_samples.items():
        torch.testing.assert_close(value, uniform[key], msg="all three sites have as many slices")
    larger = {**three_sites, "HK": make_site(tmp_path / "larger", "HK", cases=8)}
    by_samples, uniform = (run(larger, f"fedavg.weights={w}") for w in ("samples", "uniform"))
    assert (by_samples["conv.weight"] - uniform["conv.weight"]).abs().max() > 1e-5


def test_the_order_of_arrival_does_not_matter(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedfa", "schedule.rounds=1")
    results = []
    for order in (list(three_sites), list(reversed(three_sites))):
        folder = tmp_path / order[0]
        coordinator = Coordinator(job, folder)
        sites = {n: Site(job, n, three_sites[n], SiteOptions(folder / "state")) for n in order}
        broadcast = first_round(coordinator, sites)
        for name in order:
            coordinator.accept(sites[name].train(broadcast))
        coordinator.close()
        results.append(coordinator.open(2))
    assert all(np.array_equal(results[0].weights[k], results[1].weights[k]) for k in results[0].weights)
    for name, array in results[0].arrays["fedfa"].items():
        np.testing.assert_array_equal(array, results[1].arrays["fedfa"][name])


def test_it_learns_and_records_what_happened(three_sites: dict[str, Path], tmp_path: Path) -> None:
    options = ("schedule.rounds=7", "schedule.local_epochs=2", "schedule.batch_size=4", "optimizer.lr=0.01")
    job = small_job("fedfa+fedrdn", *options)
    coordinator = run_in_process(job, three_sites, tmp_path / "run")
    results = read_results(tmp_path / "run")
    losses = [np.mean([s.train_loss for s in r.sites.values()]) for r in results.rounds]
    assert losses[-1] < 0.6 * losses[0]
    assert results.final is not None and results.selected is not None
    means = [np.mean([s.val["dice"] for s in r.sites.values()]) for r in results.rounds]
    assert results.selected.round == 1 + int(np.argmax(means))
    test = [s["test"]["dice"] for s in results.final.best.sites.values()]
    assert np.mean(test) > 0.75, test
    best = read_model_file(tmp_path / "run" / BEST)
    assert best["round"] == results.selected.round == coordinator.best_round
    assert best["scores"]["val_dice"] == pytest.approx(max(means))
    assert results.final.last.round == 7 and results.is_phantom
    assert {r.split_rule for r in results.data.values()} == {"case"}
    json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "network",
    [
        ("network.name=monai.UNet", "network.options={channels: [4, 8, 8, 8, 8], norm: batch}"),
        ("network.name=monai.BasicUNet", "network.options={features: [4, 4, 8, 8, 8, 4], norm: batch}"),
    ],
)
def test_methods_work_on_monais_networks(
    network: tuple[str, str], three_sites: dict[str, Path], tmp_path: Path
) -> None:
    options = ("schedule.rounds=1", "schedule.precision=bf16", "network.options={}", *network)
    coordinator = run_in_process(small_job("fedfa+fedrdn", *options), three_sites, tmp_path / "run")
    assert coordinator.results.rounds[0].absent == []
    gamma = coordinator.open(2).arrays["fedfa"]["gamma_mean.5"]
    assert gamma.shape == (8,) and gamma.std() > 0


def test_fedfa_channel_weights_follow_the_sites(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedfa")
    coordinator = run_in_process(job, three_sites, tmp_path / "run")
    arrays = coordinator.open(3).arrays["fedfa"]
    gamma = arrays["gamma_mean.1"]
    assert gamma.sum() == pytest.approx(len(gamma), rel=1e-5) and gamma.std() > 0
    released = run_in_process(small_job("fedfa", "fedfa.variant=released"), three_sites, tmp_path / "released")
    np.testing.assert_allclose(released.open(3).arrays["fedfa"]["gamma_mean.1"], 1.0, rtol=1e-6)


def test_local_buffers_stay_local_and_the_run_still_scores(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedavg", "fedavg.buffers=local")
    run_in_process(job, three_sites, tmp_path / "run")
    checkpoint = read_model_file(tmp_path / "run" / LAST)
    assert "encoder1.enc1_bn1.running_mean" in checkpoint["personal"]
    assert torch.equal(checkpoint["weights"]["encoder1.enc1_bn1.running_mean"], torch.zeros(4))
    states = [
        torch.load(tmp_path / "run" / "site_state" / s / "round_000002.pt", weights_only=True) for s in three_sites
    ]
    means = [state["personal"]["encoder1.enc1_bn1.running_mean"] for state in states]
    assert not torch.equal(means[0], means[1])
    final = read_results(tmp_path / "run").final
    assert final is not None and set(final.personal) == set(three_sites), "scores of personal models are named so"


def test_a_site_whose_data_break_is_left_out_until_the_quorum_is_lost(
    three_sites: dict[str, Path], tmp_path: Path
) -> None:
    (three_sites["HK"] / "manifest.json").unlink()
    run_in_process(small_job("fedrdn"), three_sites, tmp_path / "a")
    results = read_results(tmp_path / "a")
    assert [r.absent for r in results.rounds] == [["HK"], ["HK"]]
    with raises("too-few-answers", naming=("2", "3", "HK", "manifest.json")):
        run_in_process(small_job("fedrdn", "federation.min_sites=3"), three_sites, tmp_path / "b")


def test_rejected_updates_are_recorded_and_do_not_touch_the_model(
    three_sites: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = small_job("fedavg", "schedule.rounds=1")
    coordinator = Coordinator(job, tmp_path / "run")
    sites = {n: Site(job, n, p, SiteOptions(tmp_path / "state")) for n, p in three_sites.items()}
    broadcast = first_round(coordinator, sites)
    updates = {n: s.train(broadcast) for n, s in sites.items()}
    bad = {**updates["HK"].weights, "conv.bias": np.float32([np.nan, 0])}
    assert not coordinator.accept(dataclasses.replace(updates["HK"], weights=bad))
    assert coordinator.accept(updates["BIDMC"]) and coordinator.accept(updates["UCL"])
    assert not coordinator.accept(updates["UCL"]), "a second answer is refused"
    assert not coordinator.accept(dataclasses.replace(updates["HK"], site="HKU"))
    coordinator.close()
    assert "round 1: site HK" in caplog.text and "conv.bias" in caplog.text
    record = read_results(tmp_path / "run").rounds[0]
    assert record.absent == ["HK"] and {r.site for r in record.rejected} == {"HK", "UCL", "HKU"}
    expected = (updates["BIDMC"].weights["conv.bias"] + updates["UCL"].weights["conv.bias"]) / 2
    np.testing.assert_allclose(coordinator.open(2).weights["conv.bias"], expected, rtol=1e-6)
    assert not (tmp_path / "run" / "updates").exists()


def test_a_site_without_test_cases_and_one_without_validation_cases(tmp_path: Path) -> None:
    data = {s: make_site(tmp_path / "data", s, cases=c) for s, c in (("BIDMC", 4), ("HK", 2), ("UCL", 2))}
    run_in_process(small_job("fedavg"), data, tmp_path / "run")
    final = read_results(tmp_path / "run").final
    assert final is not None and set(final.best.sites) == set(data) and final.best.sites["HK"] == {}
    alone = {"HK": data["HK"]}
    with raises("no-validation-data"):
        run_in_process(small_job("fedavg", sites=("HK",)), alone, tmp_path / "alone")


def test_a_folder_of_another_site_is_refused(three_sites: dict[str, Path], tmp_path: Path) -> None:
    with raises("other-data", naming=("HK", "UCL")):
        Site(small_job("fedavg"), "UCL", three_sites["HK"], SiteOptions(tmp_path))


def test_a_site_that_breaks_in_the_last_step_keeps_its_old_state(
    three_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job("fedavg")
    site = Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / "state"))
    site.statistics()
    broadcast = Coordinator(job, tmp_path / "server").open(1)
    real = local_training.train

    def breaks(*args: Any) -> tuple[int, float]:
        result = real(*args)
        with torch.no_grad():
            args[3].net.conv.bias.fill_(float("nan"))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(local_training, "train", breaks)
        with raises("diverged", naming=("HK", "round 1")):
            site.train(broadcast)
    assert not (tmp_path / "state" / "HK" / "round_000001.pt").exists()
    assert np.isfinite(site.train(broadcast).weights["conv.bias"]).all()


def test_sites_are_drawn_by_seed_and_the_last_model_is_the_best(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    def run(seed: int) -> Coordinator:
        job = small_image_job("fedfa+fedrdn", "federation.sites_per_round=2", "schedule.rounds=5", seed=seed)
        return run_in_process(job, three_image_sites, tmp_path / str(seed))

    def drawn(coordinator: Coordinator) -> list[list[str]]:
        return [[s for s, told in r.sites.items() if told.steps] for r in coordinator.results.rounds]

    first = run(0)
    assert all(len(sites) == 2 for sites in drawn(first))
    assert set().union(*drawn(first)) == set(three_image_sites)
    assert drawn(first) != drawn(run(1))
    assert [record.absent for record in first.results.rounds] == [[]] * 5
    assert first.results.selected is not None and first.results.final is not None
    assert first.results.selected.round == 5 and "samples other sites" in first.results.selected.rule
    assert set(first.results.final.best.sites) == set(three_image_sites)


def test_a_site_that_was_not_drawn_is_not_counted(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_job("fedavg", "federation.sites_per_round=1")
    coordinator = Coordinator(job, tmp_path / "server")
    sites = {name: Site(job, name, path, SiteOptions(tmp_path / "state")) for name, path in three_sites.items()}
    broadcast = first_round(coordinator, sites)
    (drawn,) = coordinator.invited
    other = next(site for name, site in sites.items() if name != drawn)
    assert not coordinator.accept(other.train(broadcast))
    assert coordinator.accept(sites[drawn].train(broadcast))
    coordinator.close()
    (rejection,) = coordinator.results.rounds[0].rejected
    assert (rejection.site, rejection.key) == (other.name, "site")


def stop_when(condition: Callable[[Coordinator], bool]) -> Callable[[Coordinator], None]:
    def look(coordinator: Coordinator) -> None:
        if condition(coordinator):
            raise KeyboardInterrupt

    return look


def test_a_new_start_that_is_interrupted_does_not_leave_the_old_state(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("fedbn", "schedule.rounds=3")
    whole = run_in_process(job, three_image_sites, tmp_path).results.final
    with pytest.raises(KeyboardInterrupt):
        run_in_process(job, three_image_sites, tmp_path, on_progress=stop_when(lambda c: bool(c.answered)))
    again = run_in_process(job, three_image_sites, tmp_path, resume=True)
    assert again.results.final == whole
    assert [record.round for record in again.results.rounds] == [1, 2, 3]


@pytest.mark.parametrize("written", [False, True], ids=["before the state is written", "after"])
def test_the_best_model_is_the_one_that_the_state_names(
    written: bool, three_image_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server dies between writing a new best model and the state, or between the state and the model's name."""
    job = small_image_job("fedfa+fedrdn", "schedule.rounds=4")
    whole = run_in_process(job, three_image_sites, tmp_path / "whole")

    write_tensors = run_files.write_tensors

    def die(content: dict[str, Any], path: Path) -> None:
        dies = (tmp_path / "cut" / run_files.NEXT_BEST).is_file()
        if written or not dies:
            write_tensors(content, path)
        if dies:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_files, "write_tensors", die)
        with pytest.raises(KeyboardInterrupt):
            run_in_process(job, three_image_sites, tmp_path / "cut")
    again = run_in_process(job, three_image_sites, tmp_path / "cut", resume=True)
    assert again.results.final == whole.results.final
    for file in (BEST, LAST):
        one, other = (read_model_file(folder / file) for folder in (tmp_path / "whole", tmp_path / "cut"))
        assert one["round"] == other["round"] and same(one["weights"], other["weights"])
    assert not (tmp_path / "cut" / run_files.NEXT_BEST).exists()


def test_a_run_that_has_ended_can_be_gone_on_with(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job("fedavg", "schedule.rounds=3", "federation.sites_per_round=2")
    whole = run_in_process(job, three_image_sites, tmp_path)
    assert whole.best_round == job.task.schedule.rounds, "the best round is known only after the last was stored"
    models = [read_model_file(tmp_path / file)["weights"] for file in (BEST, LAST)]
    again = run_in_process(job, three_image_sites, tmp_path, resume=True)
    assert again.results.final == whole.results.final and len(again.results.evaluations) == 1
    for file, weights in zip((BEST, LAST), models, strict=True):
        assert same(read_model_file(tmp_path / file)["weights"], weights)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"gen_afl": {"lambda_min": 0.9}}, "lambda_min"),
        ({"scaffold": {}}, r"needs SGD, and optimizer\.name is adam"),
        ({"fedavg": {"weight": "uniform"}}, "did you mean 'weights'"),
        ({"groupdro": {}}, "give the same arguments to 'fedshift pooled'"),
    ],
)
def test_a_job_that_was_changed_by_hand_is_refused_when_it_starts(
    methods: dict[str, dict[str, object]], message: str, three_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_job("fedavg").model_copy(update={"methods": methods})
    with pytest.raises(ConfigError, match=message):
        run_in_process(job, three_sites, tmp_path)


def test_what_a_site_says_of_itself_has_bounds(three_sites: dict[str, Path], tmp_path: Path) -> None:
    coordinator = Coordinator(small_job("fedavg"), tmp_path / "server")
    sites = [Site(small_job("fedavg"), n, path, SiteOptions(tmp_path / "s")) for n, path in three_sites.items()]
    coordinator.open(0)
    coordinator.register(sites[0].info())
    bad: list[dict[str, Any]] = [
        {"kind": "xyz"},
        {"n_val": -5},
        {"n_test": "5"},
        {"n_val": 10**400},
        {"manifest_sha256": "a" * 100},
        {"manifest_sha256": "<script>"},
        {"split_rule": "case\n2026-11-23 INFO: finished"},
        {"split_rule": "=cmd|' /C calc'!A0"},
        {"device": "\x1b[2J"},
        {"device": "[red]"},
        {"precision": "fp32\n"},
        {"threads": "1"},
    ]
    for change in bad:
        with pytest.raises(ValidationError):
            coordinator.register(dataclasses.replace(sites[1].info(), **change))
    coordinator.reject("HK", "train", "x" * 10_000 + "\x1b[31m")
    coordinator.reject("HK", "train", "one\ntwo\x1b[31m")
    reasons = [rejection.reason for rejection in coordinator.record.current.rejected]
    assert len(reasons[0]) == 300 and reasons[1] == "one two [31m"


# --- gradient norms of domains ----------------------------------------------------------------------


DOMAINS = "domains={near: [A, C], far: [B]}"


def test_the_images_of_a_domains_sites_count_together(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job("fedavg", DOMAINS, "evaluation.gradient_norm=true", "optimizer.lr=0.05")
    run_in_process(job, three_image_sites, tmp_path / "run")
    final = read_results(tmp_path / "run").final
    assert final is not None
    found, alone = final.last.domain_gradient_norms, final.last.evaluations
    task = build_task(job)
    net = task.network().eval()
    net.load_state_dict(read_model_file(tmp_path / "run" / "last_global_model.pt")["weights"])
    data = [task.open(three_image_sites[site], site) for site in ("A", "C")]
    images, labels = zip(
        *((one.images(one.members("val")), one.labels(one.members("val"))) for one in data), strict=True
    )
    task.loss(net(torch.cat(images)), torch.cat(labels)).backward()
    length = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).double().norm()
    assert found["near"] == pytest.approx(float(length), rel=1e-5)
    of_sites = [alone[site]["val"].gradient_norm or 0.0 for site in ("A", "C")]
    assert found["near"] < max(of_sites), "no mean of the sites' norms"
    assert found["far"] == pytest.approx(alone["B"]["val"].gradient_norm)


@pytest.mark.parametrize(
    ("methods", "options"),
    [("fedavg", ("evaluation.gradient_norm=true",)), ("fedavg", (DOMAINS,)), ("fedbn", (DOMAINS,))],
    ids=["no domains", "not asked for", "every site has its own model"],
)
def test_there_are_none(
    methods: str, options: tuple[str, ...], three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    wanted = ("evaluation.gradient_norm=true",) if methods == "fedbn" else ()
    job = small_image_job(methods, *options, *wanted, "schedule.rounds=1")
    final = run_in_process(job, three_image_sites, tmp_path / "run").results.final
    assert final is not None and final.last.domain_gradient_norms == {}
