"""Leave-one-site-out in one command that can be interrupted, and the table of local models across sites."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SHAPES, make_image_site, small_image_job, small_job
from errors import raises
from shallow import shallow_networks

from fedshift import cli
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.protocols import claim, cross_site, leave_one_out, note_held_out
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator
from fedshift.reporting.protocol_tables import cross_site_table
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.protocol_results import CrossSite, LeaveOneOut, mean_metrics, own_model
from fedshift.schema.results import BEST, LAST, read_results
from fedshift.tasks.base import SiteData
from fedshift.tasks.kinds import build_task

_shallow = pytest.fixture(autouse=True, scope="module")(shallow_networks)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An $XDG_DATA_HOME with the three sites of the tests' own task; also the working directory."""
    for site, gain in (("A", 1.0), ("B", 0.5), ("C", 1.3)):
        make_image_site(tmp_path / "fedshift" / "phantom", site, gain=gain)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*words: str) -> int:
    return cli.main([*words[:-1], str(SHAPES), *words[-1].split()])


def test_every_site_is_held_out_in_turn_and_none_twice(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("leave-one-out", "fedrdn", "-w out") == 0
    shown = capsys.readouterr().out
    assert "(2 of 3)\n" in shown and "round 2/2" in shown and "simulated scans" in shown
    record = LeaveOneOut.read(home / "out")
    assert list(record.sites) == ["A", "B", "C"] and record.job.held_out == [] and record.job.name == "fedrdn_shapes"
    for site, told in record.sites.items():
        results = read_results(home / "out" / site)
        assert results.final is not None and results.job.held_out == [site]
        assert set(results.final.last.sites) == {"A", "B", "C"} - {site}
        assert told.last.scores == results.final.last.held_out[site]
        assert told.best.round == results.final.best.round
        assert f"{100 * told.best.scores['all']['accuracy']:.1f}" in shown
    scores = [told.best.scores["all"]["accuracy"] for told in record.sites.values()]
    assert record.mean["best"]["all"]["accuracy"] == pytest.approx(np.mean(scores))
    before = {path: path.stat().st_mtime_ns for path in (home / "out").glob("?/results.json")}
    assert command("leave-one-out", "fedrdn", "-w out") == 0
    assert "(3 of 3): has ended" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (home / "out").glob("?/results.json")} == before


def test_it_is_the_run_that_holds_one_site_out(home: Path) -> None:
    assert command("leave-one-out", "fedavg", "-w out --set schedule.rounds=3 --seed 4") == 0
    options = ("schedule.rounds=3",)
    job = resolve(str(SHAPES), "fedavg", sites=["A", "C"], held_out=["B"], options=options, seed=4)
    data = {site: home / "fedshift" / "phantom" / "shapes" / site for site in "ABC"}
    run_in_process(job, data, home / "alone")
    assert read_results(home / "alone").final == read_results(home / "out" / "B").final


@pytest.mark.slow
def test_an_interrupted_command_goes_on_where_it_was(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("leave-one-out", "fedbn", "-w whole --set schedule.rounds=3") == 0
    original = Coordinator.open

    def stop(coordinator: Coordinator, round_: int) -> object:
        if coordinator.job.task.held_out == ("B",) and round_ == 3:
            raise KeyboardInterrupt
        return original(coordinator, round_)

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "open", stop)
        assert command("leave-one-out", "fedbn", "-w cut --set schedule.rounds=3") == 130
    assert not (home / "cut" / LeaveOneOut.FILE_NAME).exists()
    opened = []
    monkeypatch.setattr(
        Coordinator, "open", lambda self, r: (opened.append((*self.job.task.held_out, r)), original(self, r))[1]
    )
    assert command("leave-one-out", "fedbn", "-w cut --set schedule.rounds=3") == 0
    assert opened == [("B", 3), ("B", 4), *(("C", round_) for round_ in range(5))]
    assert LeaveOneOut.read(home / "cut").sites == LeaveOneOut.read(home / "whole").sites


@pytest.mark.parametrize("method", ["fedrdn", "all"])
def test_the_site_held_out_scores_every_round_and_changes_none(
    method: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("leave-one-out", method, "-w plain --set schedule.rounds=3") == 0
    plain = LeaveOneOut.read(home / "plain")
    assert plain.chosen_round is None and "evaluation.select" not in capsys.readouterr().out
    assert command("leave-one-out", method, "-w rounds --choose-round --set schedule.rounds=3") == 0
    shown, record = capsys.readouterr().out, LeaveOneOut.read(home / "rounds")
    assert record.mean == plain.mean, "the scores of rounds select and train nothing"
    assert [[*site.rounds] for site in record.sites.values()] == [[1, 2, 3]] * 3
    means = {r: np.mean([site.rounds[r] for site in record.sites.values()]) for r in (1, 2, 3)}
    assert record.chosen_round is not None and record.by_round == pytest.approx(means)
    assert means[record.chosen_round] == max(means.values())
    train = "pooled all" if method == "all" else f"job {method}"
    assert f"fedshift {train} {SHAPES}" in shown and f"evaluation.select={record.chosen_round}" in shown
    with raises("run-exists", naming="plain"):
        leave_one_out_again(home / "plain", method)


def leave_one_out_again(folder: Path, method: str) -> LeaveOneOut:
    """The same with the scores of rounds, from runs that have ended without."""
    turns = {site: [other for other in "ABC" if other != site] for site in "ABC"}
    jobs = {
        site: resolve(
            str(SHAPES),
            method,
            sites=others,
            held_out=[site],
            options=("schedule.rounds=3",),
            name=f"{method}_shapes_without_{site}",
        )
        for site, others in turns.items()
    }
    return leave_one_out(jobs, folder, name="again", run=lambda job, place: None, by_round=True)


def test_a_round_that_the_job_names_has_the_bits_of_a_longer_run(home: Path) -> None:
    """The learning rate falls as planned for all rounds; the run ends where its model is taken."""
    data = {site: home / "fedshift" / "phantom" / "shapes" / site for site in "ABC"}
    planned = ("schedule.rounds=4", "optimizer.lr_schedule.name=cosine")
    second: list[bytes] = []

    def keep(coordinator: Coordinator) -> None:
        if coordinator.next_round == 3 and not second:
            second.append((coordinator.folder / LAST).read_bytes())

    run_in_process(resolve(str(SHAPES), "fedavg", options=planned), data, home / "long", on_progress=keep)
    (home / "second.pt").write_bytes(second[0])
    short = resolve(str(SHAPES), "fedavg", options=(*planned, "evaluation.select=2"))
    results = run_in_process(short, data, home / "short").results
    assert len(results.rounds) == 2 and results.selected is not None and results.selected.round == 2
    expected = read_model_file(home / "second.pt")["weights"]
    for name in (BEST, LAST):
        weights = read_model_file(home / "short" / name)["weights"]
        assert all(torch.equal(weights[key], value) for key, value in expected.items())


@pytest.mark.parametrize("method", ["fedbn", "fedrdn"])
def test_a_held_out_sites_score_of_the_last_round_is_that_of_its_evaluation(method: str, home: Path) -> None:
    """It prepares as a newcomer either way. All its pictures are for validation, so both are of the same ones."""
    data = {site: home / "fedshift" / "phantom" / "shapes" / site for site in "ABC"}
    manifest = json.loads((data["B"] / "manifest.json").read_text(encoding="utf-8"))
    for picture in manifest["pictures"]:
        picture["split"] = "val"
    (data["B"] / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    job = resolve(str(SHAPES), method, sites=["A", "C"], held_out=["B"], options=("schedule.rounds=2",))
    run = run_in_process(job, data, home / "out", on_aggregate=note_held_out).results
    assert run.final is not None
    scores = run.final.last.held_out["B"]["all"]
    told = run.rounds[-1].held_out["B"]
    assert told and told == {name: scores[name] for name in told}


def test_what_does_not_fit_is_refused_before_anything_runs(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refused(*words: str) -> str:
        assert command(*words) == 2
        return capsys.readouterr().err

    assert "method single" in refused("leave-one-out", "single", "-w out")
    assert "at least two" in refused("leave-one-out", "fedavg", "--sites A")
    assert "add --flare" in refused("leave-one-out", "fedavg", "-p 2")
    assert "leave out --flare" in refused("leave-one-out", "fedavg", "--choose-round --flare")
    claim(home / "out" / "A", small_image_job("fedavg"))
    assert "another job" in refused("leave-one-out", "fedavg", "-w out")
    (home / "mine" / "A").mkdir(parents=True)
    (home / "mine" / "A" / "notes.txt").touch()
    assert "something other than" in refused("leave-one-out", "fedavg", "-w mine")
    path = home / "fedshift" / "phantom" / "shapes" / "C" / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for picture in manifest["pictures"]:
        picture["split"] = "test"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    for words in (("leave-one-out", "fedavg", "-w out"), ("cross-site", "-w out")):
        assert "C has nothing" in refused(*words)
    assert not (home / "runs").exists()


def test_a_site_that_cannot_be_scored_is_named_and_asked_again(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = resolve(str(SHAPES), "fedavg", held_out=["C"])
    hidden = three_image_sites["C"].with_name("away")

    def run(job: JobSpec, place: Path) -> None:
        run_in_process(job, three_image_sites, place, resume=True)

    three_image_sites["C"].rename(hidden)
    with raises("not-scored", naming=("C", "manifest.json")):
        leave_one_out({"C": job}, tmp_path / "out", name="x", run=run)
    hidden.rename(three_image_sites["C"])
    record = leave_one_out({"C": job}, tmp_path / "out", name="x", run=run)
    assert set(record.sites) == {"C"}
    final = read_results(tmp_path / "out" / "C").final
    assert final is not None and {site: told.scores for site, told in record.sites["C"].others.items()} == {
        site: final.best.sites[site]["test"] for site in ("A", "B")
    }
    assert len(read_results(tmp_path / "out" / "C").rounds) == 2


def test_a_centralised_reference_leaves_one_out_too(home: Path) -> None:
    assert command("leave-one-out", "all", "--sites A,C -w out") == 0
    record = LeaveOneOut.read(home / "out")
    assert set(record.sites) == {"A", "C"}
    assert list(read_results(home / "out" / "A").final.best.sites) == ["C"]  # type: ignore[union-attr]


def test_local_models_are_scored_at_every_site(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("cross-site", "-w out --set schedule.rounds=4") == 0
    shown = capsys.readouterr().out
    record = CrossSite.read(home / "out")
    final = read_results(home / "out").final
    assert final is not None and [method.name for method in record.job.methods] == ["single"]
    assert {site: row[site] for site, row in record.scores.items()} == {
        site: splits["test"] for site, splits in final.last.sites.items()
    }, "with 'single' the diagonal is what the sites said of their last model"
    elsewhere = [m["accuracy"] for site, row in record.scores.items() for at, m in row.items() if at != site]
    assert len(elsewhere) == 6 and record.mean_elsewhere["accuracy"] == pytest.approx(np.mean(elsewhere))
    assert record.mean_at_home["accuracy"] == pytest.approx(
        np.mean([row[s]["accuracy"] for s, row in record.scores.items()])
    )
    assert f"{100 * record.mean_elsewhere['accuracy']:.1f}" in shown and "every site's own model" in shown
    assert not (home / "out" / "visited").exists()
    assert command("cross-site", "-w out --set schedule.rounds=4") == 0
    assert "round" not in capsys.readouterr().out, "it has ended before"


def test_the_sites_own_models_are_kept_if_that_is_asked_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--methods fedrdn --set schedule.rounds=2"
    assert command("cross-site", f"-w without {options}") == 0
    assert not (home / "without" / "own_models").exists()
    assert command("cross-site", f"-w without {options} --keep-models") == 2
    assert "made without --keep-models" in capsys.readouterr().err
    assert command("cross-site", f"-w kept {options} --keep-models") == 0
    assert CrossSite.read(home / "kept").scores == CrossSite.read(home / "without").scores
    job = resolve(str(SHAPES), "fedrdn", options=["schedule.rounds=2"])
    data = {site: home / "fedshift" / "phantom" / "shapes" / site for site in "ABC"}
    for site in "ABC":
        kept = read_model_file(own_model(home / "kept", site))
        trained = local_model(job, data, home / "again", site)
        assert kept["sites"] == [site] and all(torch.equal(kept["weights"][key], trained[key]) for key in trained)
        shutil.rmtree(home / "again")


def test_own_models_are_those_of_the_last_round_that_was_run(home: Path) -> None:
    """A run with patience ends before the last round that was planned."""
    options = "--set schedule.rounds=9 --set schedule.patience=1 --set optimizer.lr=1e-9"
    assert command("cross-site", f"-w out {options}") == 0
    assert len(read_results(home / "out").rounds) < 9
    scores = CrossSite.read(home / "out").scores
    assert all(set(row) == {"A", "B", "C"} for row in scores.values()) and set(scores) == {"A", "B", "C"}


@pytest.fixture
def two_larger_sites(tmp_path: Path) -> dict[str, Path]:
    """With enough images for models to differ in their scores."""
    shifts = {"A": (1.0, 0.0), "C": (1.4, -30.0)}
    return {
        site: make_image_site(tmp_path / "data", site, images=240, gain=gain, offset=offset)
        for site, (gain, offset) in shifts.items()
    }


def test_each_tested_site_normalises_with_its_own_statistics(two_larger_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job("fedrdn", sites=("A", "C"))
    record = cross_site(job, two_larger_sites, tmp_path / "out")
    trained = local_model(job, two_larger_sites, tmp_path / "again", "A")
    combined = read_model_file(tmp_path / "out" / LAST)["weights"]
    assert not all(torch.equal(trained[key], combined[key]) for key in combined), "as it is before it is combined"
    for at in ("A", "C"):
        site = build_task(job).open(two_larger_sites[at], at)
        images = site.images(site.members("train")).double()
        mean, std = images.mean((2, 3)).mean(0).float(), images.std((2, 3), correction=0).mean(0).float()
        assert record.scores["A"][at]["accuracy"] == pytest.approx(accuracy(job, trained, site, mean, std))


@pytest.mark.parametrize("methods", ["single", "fedbn", "partialfed", "fedproto", "pfedavg"])
def test_what_stays_at_a_site_belongs_to_its_model_and_to_no_other(
    methods: str, two_larger_sites: dict[str, Path], tmp_path: Path
) -> None:
    options = ("fedproto.average_weights=false",) if methods == "fedproto" else ()
    job = small_image_job(methods, "schedule.rounds=3", *options, sites=("A", "C"))
    record = cross_site(job, two_larger_sites, tmp_path / "out")
    trained = local_model(job, two_larger_sites, tmp_path / "again", "A")
    for at in ("A", "C"):
        site = build_task(job).open(two_larger_sites[at], at)
        assert record.scores["A"][at]["accuracy"] == pytest.approx(accuracy(job, trained, site))


def local_model(job: JobSpec, data: dict[str, Path], folder: Path, site: str) -> dict[str, torch.Tensor]:
    """What a site's last training made of the model: what it sent, and what it kept."""
    found: dict[str, torch.Tensor] = {}

    def keep(broadcast: Broadcast, update: Update) -> None:
        if update.site == site and update.round == job.task.schedule.rounds:
            found.update({key: torch.from_numpy(value) for key, value in update.weights.items()})

    run_in_process(job, data, folder, on_update=keep)
    (state,) = (folder / "site_state" / site).glob(f"round_{job.task.schedule.rounds:06d}.pt")
    return {**found, **torch.load(state, weights_only=True)["personal"]}


def accuracy(
    job: JobSpec,
    weights: dict[str, torch.Tensor],
    site: SiteData,
    mean: torch.Tensor | None = None,
    std: torch.Tensor | None = None,
) -> float:
    """Of a model on a site's test part."""
    net = build_task(job).network().eval()
    net.load_state_dict(weights)
    x = site.images(site.members("test"))
    if mean is not None and std is not None:
        x = (x - mean[:, None, None]) / std[:, None, None]
    with torch.inference_mode():
        return float((net(x).argmax(1) == site.labels(site.members("test"))).double().mean())


def test_segmentation_models_too(three_sites: dict[str, Path], tmp_path: Path) -> None:
    record = cross_site(small_job("single", "schedule.rounds=1"), three_sites, tmp_path)
    assert set(record.scores["HK"]["UCL"]) == {"dice", "dice_papers", "hd95", "asd"}
    assert cross_site_table(record).row_count == 4


def test_a_record_of_another_kind_or_none_is_refused(home: Path) -> None:
    assert command("cross-site", "-w out --set schedule.rounds=1") == 0
    (home / "out" / CrossSite.FILE_NAME).rename(home / "out" / LeaveOneOut.FILE_NAME)
    for folder, reason in (
        (home, "does not exist: .*not finished"),
        (home / "out", r"not a file of this version \(\w+: Field required\)"),
    ):
        with pytest.raises(ConfigError, match=reason):
            LeaveOneOut.read(folder)


def test_a_mean_is_over_those_that_have_the_metric() -> None:
    assert mean_metrics([{"a": 1.0, "b": 0.5}, {"a": 0.0}, {}]) == {"a": 0.5, "b": 0.5}
    assert mean_metrics([]) == {}
