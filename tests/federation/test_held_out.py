"""Sites that are held out: asked at the end only, scored on all they have, and never in the way of the others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SHAPES, SMALL, latest, make_site, small_image_job, small_job
from errors import raises

from fedshift import cli
from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.score_check import check_scores
from fedshift.federation.server.update_check import Rejected
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.reporting.events import scalars
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, MethodArrays, Scores, Update
from fedshift.schema.results import LAST, Results, read_results
from fedshift.tasks.kinds import build_task


def job_without(*held_out: str, methods: str = "fedavg", options: tuple[str, ...] = ()) -> JobSpec:
    return resolve(str(SHAPES), methods, held_out=held_out, options=options)


def run(job: JobSpec, data: dict[str, Path], folder: Path) -> Results:
    run_in_process(job, data, folder)
    return read_results(folder)


def give_all_to_test(folder: Path) -> None:
    """A prepared site of which nothing is meant for training."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for entry in manifest.get("pictures") or manifest["cases"]:
        entry["split"] = "test"
    path.write_text(json.dumps(manifest), encoding="utf-8")


def test_a_held_out_site_changes_nothing_but_is_scored_at_the_end(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    without = run(small_image_job("fedavg", sites=("A", "B")), three_image_sites, tmp_path / "without")
    results = run(job_without("C"), three_image_sites, tmp_path / "with")
    one, other = (read_model_file(tmp_path / name / LAST)["weights"] for name in ("without", "with"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert results.final is not None and without.final is not None
    assert results.selected == without.selected
    assert results.final.best.sites == without.final.best.sites and set(results.final.best.sites) == {"A", "B"}
    for scores in (results.final.best, results.final.last):
        assert set(scores.held_out) == {"C"} and set(scores.held_out["C"]) == {"all", "test"}
    assert results.data["C"].n == {"train": 36, "val": 6, "test": 6} and results.job.held_out == ["C"]
    assert results.statistics is not None and results.statistics.absent == []
    assert not any("C" in record.sites or record.absent for record in results.rounds)
    assert not (tmp_path / "with" / "site_state" / "C").exists(), "nothing to remember"
    tags = {tag for tag, _, _ in scalars(results)}
    assert "held_out_best/accuracy/C" in tags and "test_best/accuracy/C" not in tags


def test_the_score_is_over_every_sample_whatever_part_the_job_would_train_on(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = job_without("A", options=("data.images=24", "schedule.rounds=14"))
    results = run(job, three_image_sites, tmp_path / "run")
    checkpoint = read_model_file(tmp_path / "run" / LAST)
    task = build_task(job)
    data = task.open(three_image_sites["A"], "A")
    net = task.network().eval()
    net.load_state_dict(checkpoint["weights"])
    with torch.inference_mode():
        predicted = net(data.images(np.arange(48))).argmax(1)
    right = (predicted == data.labels(np.arange(48))).double()
    assert results.final is not None
    scores = results.final.last.held_out["A"]
    assert scores["all"]["accuracy"] == pytest.approx(float(right.mean()))
    assert scores["test"]["accuracy"] == pytest.approx(float(right[torch.from_numpy(data.members("test"))].mean()))
    assert scores["all"] != scores["test"]


def test_segmentation_scores_every_case(three_sites: dict[str, Path], tmp_path: Path) -> None:
    job = resolve(
        "prostate", "fedavg", protocol="quick", sites=["BIDMC", "HK"], held_out=["UCL"], options=small_options()
    )
    data = build_task(job).open(three_sites["UCL"], "UCL")
    assert data.count("all") == 4 * 8
    results = run(job, three_sites, tmp_path / "run")
    assert results.final is not None
    assert set(results.final.last.held_out["UCL"]["all"]) == {"dice", "dice_papers", "hd95", "asd"}
    legacy = resolve(
        "prostate",
        "fedavg",
        protocol="quick",
        sites=["BIDMC", "HK"],
        held_out=["UCL"],
        options=(*small_options(), "data.split=slice-legacy"),
    )
    slices = build_task(legacy).open(three_sites["UCL"], "UCL")
    parts = [slices.members(part) for part in ("train", "val", "test")]
    assert 0 < slices.count("all") < 32 and set(np.concatenate(parts)) <= set(slices.members("all"))


def small_options() -> tuple[str, ...]:
    return tuple(
        f"{path}={value}"
        for path, value in {
            "data.matrix": 32,
            "network.options.features": 4,
            "schedule.batch_size": 8,
            "schedule.local_epochs": 1,
            "schedule.rounds": 1,
            "schedule.precision": "fp32",
        }.items()
    )


@pytest.mark.parametrize("all_test", [False, True])
def test_it_is_normalised_with_what_it_measures_of_itself(
    all_test: bool, three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    """Its own FedRDN pair: of its training images, or of all where none are meant for training."""
    job = job_without("C", methods="fedrdn")
    if all_test:
        give_all_to_test(three_image_sites["C"])
    data = build_task(job).open(three_image_sites["C"], "C")
    images = data.images(data.members("all" if all_test else "train")).double()
    results = run(job, three_image_sites, tmp_path / "run")
    net = build_task(job).network().eval()
    net.load_state_dict(read_model_file(tmp_path / "run" / LAST)["weights"])
    mean, std = images.mean((2, 3)).mean(0).float(), images.std((2, 3), correction=0).mean(0).float()
    with torch.inference_mode():
        x = (data.images(np.arange(48)) - mean[:, None, None]) / std[:, None, None]
        right = net(x).argmax(1) == data.labels(np.arange(48))
    assert results.final is not None
    scores = results.final.last.held_out["C"]
    assert scores["all"]["accuracy"] == pytest.approx(float(right.double().mean()))
    assert (scores["all"] == scores["test"]) or not all_test
    arrays = read_model_file(tmp_path / "run" / LAST)["methods"]["fedrdn"]
    assert arrays["means"].shape == (2, 3), "its pair stays with it"


@pytest.mark.slow
def test_fedbn_estimates_its_statistics_as_a_newcomers(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    own = run(job_without("C", methods="fedbn"), three_image_sites, tmp_path / "own")
    job = job_without("C", methods="fedbn", options=("fedbn.unseen=averaged",))
    averaged = run(job, three_image_sites, tmp_path / "averaged")
    assert own.final is not None and averaged.final is not None
    assert own.final.last.sites == averaged.final.last.sites
    assert own.final.last.held_out != averaged.final.last.held_out
    assert own.final.newcomers == []


def test_nothing_to_train_on_is_refused_only_where_it_trains(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    give_all_to_test(three_image_sites["C"])
    alone = make_site(tmp_path / "data", "Z")
    give_all_to_test(alone)
    manifest = (alone / "manifest.json").read_text(encoding="utf-8").replace('"site": "Z"', '"site": "HK"')
    (alone / "manifest.json").write_text(manifest, encoding="utf-8")
    for name, job, folder in (
        ("C", small_image_job("fedavg"), three_image_sites["C"]),
        ("HK", small_job("fedavg"), alone),
    ):
        with raises("no-images", naming=f"site {name}"):
            Site(job, name, folder, SiteOptions(tmp_path))
    site = Site(job_without("C"), "C", three_image_sites["C"], SiteOptions(tmp_path))
    assert (site.info().n_train, site.info().n_test) == (0, 48)


def test_its_failure_is_recorded_and_ends_nothing(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    (three_image_sites["C"] / "manifest.json").unlink()
    options = ("federation.min_sites=2",)
    results = run(job_without("C", options=options), three_image_sites, tmp_path / "gone")
    assert results.final is not None and results.final.last.held_out == {}
    assert results.evaluations[0].absent == ["C"]
    assert "manifest.json" in results.evaluations[0].rejected[0].reason


def test_data_of_another_kind_are_not_scored(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    path = three_image_sites["C"] / "manifest.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"phantom"', '"images"'), encoding="utf-8")
    results = run(job_without("C"), three_image_sites, tmp_path / "mixed")
    assert results.final is not None and results.final.last.held_out == {}
    assert results.evaluations[0].rejected[0].key == "info"
    assert set(results.data) == {"A", "B"}


def test_it_does_not_stand_in_for_a_site_that_trains(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    coordinator = Coordinator(job_without("C", options=("federation.min_sites=2",)), tmp_path)
    coordinator.open(0)
    assert coordinator.invited == ("A", "B") and coordinator.needed == 2
    coordinator.open(coordinator.rounds + 1)
    assert coordinator.invited == ("A", "B", "C") and coordinator.needed == 2
    values = {"all": {"accuracy": 0.5}}
    assert coordinator.add_scores(Scores("C", coordinator.rounds, values))
    assert coordinator.add_scores(Scores("A", coordinator.rounds, {"val": {"accuracy": 0.5}}))
    assert coordinator.usable == 1 and not coordinator.hopeless
    coordinator.reject("C", "validate", "broken")
    assert not coordinator.hopeless
    coordinator.reject("B", "validate", "broken")
    assert coordinator.hopeless
    with raises("too-few-answers", naming="without B"):
        coordinator.close_last()


def test_an_update_of_a_held_out_site_is_refused(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = job_without("C")
    coordinator = Coordinator(job, tmp_path / "server")
    sites = {name: Site(job, name, path, SiteOptions(tmp_path / "s")) for name, path in three_image_sites.items()}
    coordinator.open(0)
    for site in sites.values():
        coordinator.register(site.info())
    assert coordinator.accept(sites["A"].statistics()) and coordinator.accept(sites["B"].statistics())
    assert not coordinator.accept(Update("C", 0, n_samples=36, n_steps=0))
    coordinator.close()
    broadcast = coordinator.open(1)
    update = sites["A"].train(broadcast)
    assert not coordinator.accept(dataclasses.replace(update, site="C"))
    assert coordinator.accept(update) and coordinator.accept(sites["B"].train(broadcast))
    coordinator.close()
    told = [rejection for record in coordinator.results.rounds for rejection in record.rejected]
    assert [(fault.site, fault.key) for fault in told] == [("C", "site")] and "is held out" in told[0].reason


def test_a_site_scores_only_what_it_is_asked_for(tmp_path: Path) -> None:
    scores, job = Scores("C", 2, {"all": {"accuracy": 0.5}}), job_without("C")
    check_scores(scores, job=job, task=build_task(job), round_=2, counts={})
    with pytest.raises(Rejected) as caught:  # a site that trains does not score all its samples
        check_scores(dataclasses.replace(scores, site="A"), job=job, task=build_task(job), round_=2, counts={})
    assert caught.value.key == "scores.all"
    coordinator = Coordinator(job_without("C"), tmp_path)
    coordinator.open(coordinator.rounds + 1)
    for site, part in (("A", "all"), ("C", "val")):
        assert not coordinator.add_scores(Scores(site, coordinator.rounds, {part: {"accuracy": 0.5}}))
    values = {"all": {"accuracy": 0.5}}
    assert not coordinator.add_scores(Scores("C", coordinator.rounds, values, personal=values))


def test_a_site_that_fine_tunes_does_not_when_it_is_held_out(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    results = run(job_without("C", methods="pfedavg"), three_image_sites, tmp_path / "run")
    assert results.final is not None and set(results.final.personal) == {"A", "B"}
    assert set(results.final.best.held_out) == {"C"} and results.evaluations[0].rejected == []


@pytest.mark.parametrize("method", ["elcfs", "fedmix", "fediir"])
def test_what_only_training_needs_goes_to_no_site_with_a_final_model(
    method: str, three_image_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spectra and averages of other sites' images among it; also if the run ends before its last planned round."""
    sent: dict[str, list[MethodArrays]] = {"train": [], "validate": []}
    for task, received in sent.items():
        asked = getattr(Site, task)

        def watched(
            site: Site,
            broadcast: Broadcast,
            asked: Callable[..., Any] = asked,
            received: list[MethodArrays] = received,
            **more: Any,
        ) -> Any:
            received.append(broadcast.arrays)
            return asked(site, broadcast, **more)

        monkeypatch.setattr(Site, task, watched)
    options = ("schedule.rounds=9", "schedule.patience=1", "optimizer.lr=1e-9")
    results = run(job_without("C", methods=method, options=options), three_image_sites, tmp_path / "run")
    assert len(results.rounds) < 9 and results.final is not None and "C" in results.final.last.held_out
    assert any(sent["train"]) and sent["validate"] and not any(sent["validate"])


def test_a_centralised_reference_is_scored_there_too(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    run_pooled(job_without("C", methods="all"), three_image_sites, tmp_path)
    results = read_results(tmp_path)
    assert results.final is not None
    assert set(results.final.best.sites) == {"A", "B"} and set(results.final.best.held_out) == {"C"}
    assert results.rounds[0].sites["A"].n == 36 and results.rounds[0].sites["A"].steps == 2 * 36 // 8


def test_sites_are_chosen_on_the_command_line(tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    text = SHAPES.read_text(encoding="utf-8")
    task.write_text(text.replace("sites: [A, B, C]", "sites: [A, B, C]\nheld_out: [D]"), encoding="utf-8")

    def chosen(**options: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        spec = resolve(str(task), "fedavg", **options).task  # type: ignore[arg-type]
        return spec.sites, spec.held_out

    assert chosen() == (("A", "B", "C"), ("D",))
    assert chosen(sites=["C", "A"]) == (("A", "C"), ("D",))
    assert chosen(held_out=["B"]) == (("A", "C", "D"), ("B",)), "all others train"
    assert chosen(held_out=["D", "A"], sites=["B"]) == (("B",), ("A", "D"))
    assert chosen(held_out=[]) == (("A", "B", "C", "D"), ())
    for options, code, named in (
        ({"sites": ["D"]}, "held-out", "D"),
        ({"sites": ["A", "B"], "held_out": ["B"]}, "held-out", "B"),
        ({"held_out": ["E"]}, "unknown-site", "'E'"),
    ):
        with raises(code, naming=named):
            chosen(**options)
    for options, named in (({"held_out": ["A", "B", "C", "D"]}, "sites"), ({"options": ["held_out=[A]"]}, "A cannot")):
        with pytest.raises(ConfigError, match=named):
            chosen(**options)


@pytest.mark.parametrize("methods", ["single", "fedproto"])
def test_a_method_without_a_shared_model_is_refused(methods: str) -> None:
    options = ("fedproto.average_weights=false",) if methods == "fedproto" else ()
    with pytest.raises(ConfigError, match=f"{methods}.*C"):
        job_without("C", methods=methods, options=options)


def test_the_table_has_a_part_for_them(
    three_image_sites: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phantom = tmp_path / "fedshift" / "phantom"
    phantom.parent.mkdir()
    (tmp_path / "data").rename(phantom)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["pooled", "all", str(SHAPES), "--held-out", "C", "-w", "run"]) == 0
    shown = capsys.readouterr().out.split("held out:")
    final = read_results(tmp_path / "run").final
    assert final is not None and len(shown) == 2
    assert f"{100 * final.best.held_out['C']['all']['accuracy']:.1f}" in shown[1]
    assert "Held-out sites" in shown[1]
    mean = np.mean([final.best.sites[site]["test"]["accuracy"] for site in "AB"])
    row = next(line for line in shown[0].splitlines() if line.startswith("│ mean"))
    assert f"{100 * mean:.1f}" in row
    assert "│ C" not in shown[0] and shown[1].count("│ C") == 1


@pytest.mark.slow
def test_with_the_fold_all_test_cases_train_and_only_the_held_out_site_is_tested(
    three_sites: dict[str, Path], tmp_path: Path
) -> None:
    """The weights are those of sites that were prepared without a test part."""
    options = latest(*SMALL, "data.fold=all")
    job = resolve(
        "prostate", "fedavg", protocol="quick", sites=["BIDMC", "HK"], held_out=["UCL"], options=options, seed=0
    )
    results = run(job, three_sites, tmp_path / "all")
    assert results.final is not None
    assert not any(splits.get("test") for splits in results.final.best.sites.values())
    assert results.final.best.held_out["UCL"]["all"]["dice"] >= 0
    for folder in three_sites.values():
        path = folder / "manifest.json"
        path.write_text(
            path.read_text(encoding="utf-8").replace('"split": "test"', '"split": "train"'), encoding="utf-8"
        )
    run(small_job("fedavg", sites=("BIDMC", "HK")), three_sites, tmp_path / "without")
    one, other = (read_model_file(tmp_path / name / LAST)["weights"] for name in ("all", "without"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert cli.main(["report", str(tmp_path / "all"), "--out", str(tmp_path / "report.html")]) == 0
    assert "nothing was tested here" in (tmp_path / "report.html").read_text(encoding="utf-8")
