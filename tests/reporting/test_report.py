"""The HTML report: what it says of a run, and that nothing in a record can become markup."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import small_job
from errors import raises
from rich.console import Console
from scipy import stats

from data_prep.phantom import make_phantom
from fedshift import cli
from fedshift.data.locate import phantom_home
from fedshift.federation.image_free import record_guess
from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.flare.export import read_job_folder
from fedshift.reporting.report import distributions
from fedshift.reporting.report.runs import Run, label_runs, read
from fedshift.reporting.report.summary import mean_with_interval
from fedshift.reporting.table import PHANTOM_NOTE, scores_table
from fedshift.schema.evaluation import OneSided
from fedshift.schema.job import BY_CLOCK
from fedshift.schema.manifest import PhantomOptions, manifest_sha256
from fedshift.schema.protocol_results import CrossSite, HeldOutSite, LeaveOneOut, ModelScores
from fedshift.schema.results import BEST, MachineRecord, Rejection, Results, RoundRecord, new_results, read_results
from fedshift.tasks.device import processor
from reporting.reports import HOSTILE, Page, evaluated, html_of, page_of, record, scan_sites, written

DEMO = Path(__file__).parents[2] / "benchmarks" / "results"
GOOD = {"BIDMC": [0.8, 0.9, 0.85, 0.7, 0.95, 0.9], "HK": [0.5, 0.6, 0.55, 0.4, 0.65, 0.6]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedFA with FedRDN on small simulated sites."""
    root = tmp_path_factory.mktemp("run")
    job = small_job("fedfa+fedrdn", "schedule.rounds=3", seed=4)
    run_in_process(job, scan_sites(root / "data"), root / "fedfa_fedrdn")
    return root / "fedfa_fedrdn"


@pytest.fixture(scope="module")
def html(run: Path) -> str:
    """Its report."""
    return html_of(run)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The report of a run that calls for no care."""
    return reported(record(GOOD), tmp_path_factory.mktemp("good"))


def reported(results: Results, folder: Path) -> Page:
    return page_of(written(results, folder))


def test_the_report_says_what_was_run_and_what_came_out(run: Path, page: Page) -> None:
    results = read_results(run)
    assert results.final is not None
    for fact in (
        "fedavg + fedfa + fedrdn",
        "prostate",
        "quick",
        "3 rounds",
        "3 sites (BIDMC, HK and UCL)",
        "simulated",
    ):
        assert fact in page.passages["what_was_run"]
    dice = {site: 100 * scores["test"]["dice"] for site, scores in results.final.best.sites.items()}
    assert f"over 3 sites: {np.mean(list(dice.values())):.1f} %" in page.passages["mean_test"]
    for site, value in dice.items():
        hd95 = results.final.best.evaluations[site]["test"].distributions["hd95"].mean
        assert f"{site} 1 {value:.1f}" in page.sections["scores"] and f"{hd95:.1f}" in page.sections["scores"]
        assert results.data[site].manifest_sha256[:12] in page.sections["data"]
    assert f"torch {results.versions['torch']}" in page.facts["Versions"] and "seed 4" in page.text
    assert page.facts["Sites computed on"] == f"{processor()}, fp32, 1 thread: BIDMC, HK, UCL"
    assert "--subject" in page.passages["split_rules"]


def test_the_report_says_what_auto_was_at_each_site(run: Path, tmp_path: Path) -> None:
    results = read_results(run)
    results.job.precision = results.job.threads = "auto"
    page = reported(results, tmp_path / "alike")
    assert page.facts["Precision"].startswith("auto, auto threads") and "auto_settings" in page.passages
    assert "precisions_differ" not in page.passages
    results.machines["HK"] = MachineRecord(device="NVIDIA H100", precision="bf16", threads=8)
    page = reported(results, tmp_path / "different")
    machines = [f"{processor()}, fp32, 1 thread: BIDMC, UCL", "NVIDIA H100, bf16, 8 threads: HK"]
    assert page.facts["Sites computed on"].split("; ") == machines
    assert "precisions_differ" in page.passages
    results.machines = {}
    assert "Sites computed on" not in reported(results, tmp_path / "former").facts


def test_the_report_says_where_batches_were_in_parts(run: Path, tmp_path: Path) -> None:
    results = read_results(run)
    title = "Batches in parts, as memory ran out"
    assert title not in reported(results, tmp_path / "whole").facts
    for number, parts in enumerate((2, 4)):
        results.rounds[number].sites["HK"].parts = parts
    page = reported(results, tmp_path / "parts")
    assert page.facts[title] == "HK: 2 from round 1 on, 4 from round 2 on"
    assert "HK" in page.passages["in_parts"]


def test_a_report_is_one_file_that_asks_for_nothing(html: str, page: Page) -> None:
    assert len(html) < 1_000_000
    assert not {"script", "link", "img", "iframe", "object", "image"} & {
        tag for tag, attrs in page.tags if not str(attrs.get("href", "")).startswith("data:,")
    }
    addresses = [attrs.get(name) or "" for _, attrs in page.tags for name in ("href", "src", "xlink:href")]
    assert all(address.startswith(("#", "data:")) for address in addresses if address)
    assert "url(http" not in html and "@import" not in html
    assert len(set(page.ids())) == len(page.ids())
    targets = [a.removeprefix("#") for a in addresses if a.startswith("#")]
    assert targets and set(targets) <= set(page.ids())


def test_the_same_record_gives_the_same_bytes(run: Path, html: str) -> None:
    assert html_of(run) == html


def test_simulated_data_are_announced_in_every_section(html: str, page: Page, tmp_path: Path) -> None:
    assert len(page.sections) > 8 and page.text.count("PHANTOM: no patients") == len(page.sections)
    assert PHANTOM_NOTE in page.text
    assert '@top-left { content: "PHANTOM: ' in html, "on every printed page"
    assert "PHANTOM" not in html_of(written(record(GOOD), tmp_path))


def test_methods_show_what_they_share(run: Path, page: Page) -> None:
    from fedshift.federation.model_files import read_model_file

    arrays = read_model_file(run / "best_global_model.pt")["methods"]
    gamma = arrays["fedfa"]["gamma_mean.1"].numpy()
    assert f"{gamma.min():.2f} to {gamma.max():.2f}" in page.sections["fedfa"]
    for row, site in zip(arrays["fedrdn"]["means"].numpy(), ("BIDMC", "HK", "UCL"), strict=True):
        assert f"{site} {row[0]:.4g}" in page.sections["fedrdn"]


def test_the_commands_make_the_job_again(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "exact_commands" in page.passages
    *_, job, run = map(shlex.split, page.commands)
    assert run[:2] == ["fedshift", "run"]
    command = job
    assert command[:4] == ["fedshift", "job", "fedfa+fedrdn", "prostate"]
    monkeypatch.chdir(tmp_path)
    assert cli.main(command[1:]) == 0
    (folder,) = (tmp_path / "jobs").iterdir()
    assert read_job_folder(folder).dump() == small_job("fedfa+fedrdn", "schedule.rounds=3", seed=4).dump()


@pytest.mark.slow
def test_the_commands_make_the_phantom_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    first = make_phantom(tmp_path / "phantom", seed=3, sites=["BIDMC", "HK"], cases=3, matrices=(32,))
    sites = {site: first / "prostate" / site for site in ("BIDMC", "HK")}
    options = ("schedule.rounds=1", "data.matrix=32", "network.options.features=4")
    run_in_process(small_job("fedavg", *options, sites=tuple(sites)), sites, tmp_path / "run")
    line, *_ = page_of(tmp_path / "run").commands
    assert line.partition(" --")[2] == "sites BIDMC,HK --cases 3 --seed 3 --matrix 32"
    assert cli.main(shlex.split(line)[1:]) == 0
    recorded = read_results(tmp_path / "run").data
    for site in sites:
        again = manifest_sha256(phantom_home() / "prostate" / site)
        assert again == manifest_sha256(sites[site]) == recorded[site].manifest_sha256


def test_other_options_of_the_phantom_are_printed_and_unknown_ones_admitted(tmp_path: Path) -> None:
    results = record(GOOD, kind="phantom")
    assert "BIDMC and HK" in reported(results, tmp_path / "former").passages["phantom_unknown"]
    results.data["BIDMC"].phantom = PhantomOptions(cases=4, seed=1, matrices=(), zones=True, sequences=2)
    results.data["HK"].phantom = PhantomOptions(cases=4, seed=1, matrices=(64, 96))
    page = reported(results, tmp_path / "now")
    assert "phantom_unknown" not in page.passages
    assert [line.partition("phantom ")[2] for line in page.commands[:2]] == [
        "--sites BIDMC --cases 4 --seed 1 --zones --sequences 2",
        "--sites HK --cases 4 --seed 1 --matrix 64,96",
    ]


def test_settings_in_the_record_are_shown_and_repeated_without_the_model_file(tmp_path: Path) -> None:
    page = reported(record(GOOD, options=("optimizer.lr=0.0005",)), tmp_path)
    assert "lr 0.0005" in page.facts["Optimiser"] and "optimizer.lr=0.0005" in page.commands[0]


def test_how_fedshift_run_has_shared_the_sites_out_is_no_option(tmp_path: Path) -> None:
    job = small_job("fedavg", "schedule.rounds=1")
    shares = {"hosts": 2, "shares": (("BIDMC",), ("HK", "UCL"))}
    shared = job.model_copy(update={"federation": job.federation.model_copy(update=shares)})
    run_in_process(shared, scan_sites(tmp_path / "data"), tmp_path / "run")
    page = page_of(tmp_path / "run")
    lines = " ".join(page.commands)
    assert "schedule.rounds=1" in lines and "federation" not in lines
    assert "exact_commands" in page.passages


def test_a_centralised_reference_is_repeated_by_a_command_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = scan_sites(tmp_path / "data")
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    job = small_job("irm", "schedule.rounds=1", seed=4)
    run_pooled(job, data, tmp_path / "run")
    record_guess(job, data, tmp_path / "run")  # as the command does
    page = page_of(tmp_path / "run")
    commands = [shlex.split(line) for line in page.commands]
    assert "exact_commands" not in page.passages and not {"run", "job"} & {words[1] for words in commands}
    command = commands[-1]
    assert command[:4] == ["fedshift", "pooled", "irm", "prostate"]
    assert cli.main([*command[1:], "-w", str(tmp_path / "again")]) == 0
    assert read_results(tmp_path / "again").final == read_results(tmp_path / "run").final


def test_nothing_in_a_record_becomes_markup(tmp_path: Path) -> None:
    sites = {HOSTILE: [0.1, 0.9, 0.3], "x" * 300: [0.2, 0.4, 0.5]}
    results = record(sites)
    results.job.name = results.job.task = results.job.protocol = results.job.initial_weights = HOSTILE
    results.job.methods[0].name = HOSTILE
    results.job.methods[0].options = {HOSTILE: [HOSTILE]}
    results.versions[HOSTILE] = HOSTILE
    results.rounds[0].rejected = [Rejection(site=HOSTILE, key=HOSTILE, reason=HOSTILE)]
    html = html_of(written(results, tmp_path))
    page = Page(html)
    assert "script" not in {tag for tag, _ in page.tags} and "<script" not in html
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert "{{ 7*7 }}" in page.text and HOSTILE.split()[0] in page.text


@pytest.mark.parametrize("file", ["prostate_patients/fedfa_fedrdn_seed1.json", "prostate_patients/fedavg_seed0.json"])
def test_records_of_earlier_versions_are_read(file: str) -> None:
    assert {"no_single_cases", "reconstructed"} <= page_of(DEMO / file).passages.keys()


def test_a_run_that_did_not_end_is_told_as_such(tmp_path: Path) -> None:
    page = reported(new_results(small_job("fedavg"), metric="dice"), tmp_path)
    assert "0 of 2 rounds" in page.passages["unfinished"]


def _slice_legacy(results: Results) -> None:
    for site in results.data.values():
        site.split_rule = "slice-legacy"


def _last_is_best(results: Results) -> None:
    assert results.final is not None
    results.final.best.round = 3


def _fell(results: Results) -> None:
    assert results.final is not None
    last = {site: {"test": {"dice": 0.1}} for site in results.data}
    results.final.last = results.final.last.model_copy(update={"sites": last})


def _absent(results: Results) -> None:
    results.rounds[1].absent = ["HK"]


def _rejected(results: Results) -> None:
    results.rounds[1].rejected = [Rejection(site="HK", key="weights", reason="is not finite")]


def _empty(results: Results) -> None:
    assert results.final is not None
    told = results.final.best.evaluations["HK"]
    told["test"] = told["test"].model_copy(update={"empty": 2})


def _one_sided(results: Results) -> None:
    assert results.final is not None
    for site, missed, invented in (("BIDMC", 1, 0), ("HK", 2, 1)):
        told = results.final.best.evaluations[site]
        apart = {"apex": OneSided(missed=missed, invented=invented)}
        told["test"] = told["test"].model_copy(update={"empty": missed, "one_sided": apart})


def _guessed(score: float) -> Callable[[Results], None]:
    def change(results: Results) -> None:
        assert results.final is not None
        results.final.image_free = {site: {"test": {"dice": score}} for site in results.data}

    return change


def _overconfident(results: Results) -> None:
    assert results.final is not None
    told = results.final.best.evaluations["HK"]
    record = told["test"].calibration
    assert record is not None
    counts = [0] * 14 + [500]
    wrong = record.model_copy(update={"ece": 0.4, "counts": counts, "right": [0] * 14 + [280]})
    told["test"] = told["test"].model_copy(update={"calibration": wrong})


@pytest.mark.parametrize(
    ("change", "key", "facts"),
    [
        (_slice_legacy, "slice_legacy", ()),
        (_last_is_best, "best_is_last", ("(3)",)),
        (_fell, "unstable", ("round 2", "Dice", "70.0 % to 10.0 %")),
        (_absent, "sites_absent", ("1 time", "HK")),
        (_rejected, "answers_rejected", ("HK: 1",)),
        (_empty, "no_foreground", ("2 test volumes (HK)", "diagonal")),
        (
            _one_sided,
            "class_in_one_mask",
            ("apex: 4 ", "BIDMC (1 missed, 0 invented)", "HK (2 missed, 1 invented)", "diagonal"),
        ),
        (_overconfident, "uncalibrated", ("(ECE)", "HK (40.0 %)")),
        (_guessed(0.95), "no_better_than_guess", ("(95.0 %)",)),
        (_guessed(0.2), "image_free_guess", ()),
    ],
)
def test_what_calls_for_care_is_said(
    change: Callable[[Results], None], key: str, facts: tuple[str, ...], good: Page, tmp_path: Path
) -> None:
    assert key not in good.passages
    results = record(GOOD)
    change(results)
    passage = reported(results, tmp_path).passages[key]
    assert [fact for fact in facts if fact not in passage] == []


def test_a_model_above_the_image_free_guess_gets_no_caution(good: Page, tmp_path: Path) -> None:
    results = record(GOOD)
    _guessed(0.2)(results)
    page = reported(results, tmp_path)
    assert "no_better_than_guess" not in page.passages
    guess = "image-free guess 20.0"
    assert guess in page.sections["scores"] and guess not in good.sections["scores"]


def test_faults_are_listed_with_their_reasons(tmp_path: Path) -> None:
    results = record(GOOD)
    _rejected(results)
    results.evaluations = [RoundRecord(round=4, absent=["BIDMC"])]
    faults = [row[:4] for row in reported(results, tmp_path).rows if {"rejected", "absent"} & set(row)]
    assert faults == [["round 2", "HK", "rejected", "weights"], ["evaluation", "BIDMC", "absent", ""]]


def test_intervals_are_those_of_the_record_and_not_of_a_handful_of_cases(tmp_path: Path) -> None:
    results = record({"BIDMC": GOOD["BIDMC"], "HK": [0.5, 0.6]})
    assert results.final is not None
    low, high = results.final.best.evaluations["BIDMC"]["test"].distributions["dice"].interval or (0, 0)
    few = results.final.best.evaluations["HK"]["test"].distributions["dice"].interval or (0, 0)
    page = reported(results, tmp_path)
    assert f"[{100 * low:.1f}, {100 * high:.1f}]" in page.text
    assert f"[{100 * few[0]:.1f}, {100 * few[1]:.1f}]" not in page.text
    assert "BIDMC (6) and HK (2)" in page.passages["few_cases"]


def test_with_one_or_two_cases_there_are_dots_without_a_box_and_no_brackets(good: Page, tmp_path: Path) -> None:
    few = reported(record({site: cases[:2] for site, cases in GOOD.items()}), tmp_path / "few")
    assert "Brackets" in good.text and "Brackets" not in few.text
    assert "dot" in few.passages["distribution_how"] and "box" not in few.text.lower()
    both = reported(record({"BIDMC": GOOD["BIDMC"], "HK": [0.5, 0.6]}), tmp_path / "both")
    assert "box spans" in both.passages["distribution_how"]
    assert "fewer than 5" in both.passages["distribution_notes"]


def test_a_site_where_every_case_failed_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, list[str]] = {}
    real = distributions.strip
    monkeypatch.setattr(distributions, "strip", lambda name, by: drawn.update({name: list(by)}) or real(name, by))
    reported(record({"BIDMC": GOOD["BIDMC"], "HK": [0.0] * 6}), tmp_path / "failed")
    assert drawn == {"dice": ["BIDMC", "HK"]}
    drawn.clear()
    reported(record({"BIDMC": [1.0, 0.0, 1.0], "HK": [0.0] * 6}), tmp_path / "right_or_wrong")
    assert drawn == {}


def test_a_mean_over_some_sites_says_so(tmp_path: Path) -> None:
    results = record({**GOOD, "UCL": [0.7] * 6})
    assert results.final is not None
    before = reported(results, tmp_path / "all")
    assert "sites_without_test" not in before.passages and "of 2 sites" not in before.text
    del results.final.best.sites["UCL"]["test"], results.final.best.evaluations["UCL"]
    page = reported(results, tmp_path / "some")
    assert "UCL:" in page.passages["sites_without_test"] and "70.0 of 2 sites" in page.text


def test_the_papers_dice_stands_apart_from_dice(tmp_path: Path) -> None:
    results = record(GOOD)
    assert results.final is not None
    for parts in results.final.best.sites.values():
        parts["test"]["dice_papers"] = 0.987
    page = Page(html_of(written(results, tmp_path)))
    before, after = page.text.split(page.passages["papers_only"])
    assert "98.7" not in before and "Papers' Dice" not in before
    assert "98.7" in after
    assert "papers_dice" not in page.passages
    results.job.metric = "dice_papers"
    assert "papers_dice" in reported(results, tmp_path / "as_papers").passages


def test_cases_are_counted_and_samples_stand_below(run: Path, page: Page, good: Page) -> None:
    data = read_results(run).data["HK"]
    assert data.n["train"] > data.cases["train"] > 0
    assert f" {data.cases['train']} {data.n['train']} slices " in page.sections["data"]
    assert "patient's scan" in page.passages["data_how"]
    assert "not of patients" in good.passages["data_how"]


def test_the_interval_of_the_mean_is_welchs(good: Page) -> None:
    errors = np.array([np.var(cases, ddof=1) / len(cases) for cases in GOOD.values()])
    half = stats.t.ppf(0.975, errors.sum() ** 2 / (errors**2 / 5).sum()) * np.sqrt(errors.sum()) / 2
    mean = np.mean([np.mean(cases) for cases in GOOD.values()])
    bounds = f"(95 % interval {100 * (mean - half):.1f} to {100 * (mean + half):.1f} %)"
    assert bounds in good.passages["mean_test"]


def test_the_interval_of_the_mean_is_not_taken_from_a_site_with_few_cases() -> None:
    def bounds(cases: dict[str, list[float]]) -> tuple[float, float] | None:
        final = record(cases).final
        assert final is not None
        return mean_with_interval(final.best, list(cases), "dice")[1]

    many = np.linspace(0.7, 0.9, 20).tolist()
    found = bounds({"A": many, "B": many})
    welch = stats.ttest_ind(many, [-case for case in many], equal_var=False).confidence_interval()  # A + B
    assert found == pytest.approx((welch.low / 2, welch.high / 2))
    assert bounds({"A": [0.6, 0.9], "B": many}) is None, "all but 1 of 20 degrees of freedom are of the other site"
    assert bounds({"A": [0.8] * 9, "B": [0.7] * 9}) is None, "no spread at all is no certainty"


def test_the_mean_has_no_interval_where_subjects_have_several_cases() -> None:
    """Their scans are alike, so the deviation over cases would say too little."""
    final = record({site: np.linspace(0.7, 0.9, 20).tolist() for site in ("A", "B")}).final
    assert final is not None
    one = final.best.evaluations["A"]["test"].distributions
    assert mean_with_interval(final.best, ["A", "B"], "dice")[1] is not None
    one["dice"] = one["dice"].model_copy(update={"subjects": 5})
    mean, bounds = mean_with_interval(final.best, ["A", "B"], "dice")
    assert mean == pytest.approx(0.8) and bounds is None


def test_where_single_scores_are_kept_back_there_is_a_box_from_quantiles(tmp_path: Path) -> None:
    many = {site: np.random.default_rng(0).uniform(0.5, 0.9, 12).tolist() for site in ("BIDMC", "HK")}
    page = reported(record(many, share_cases=False), tmp_path)
    assert "quantiles" in page.passages["distribution_notes"] and "dot" not in page.passages["distribution_how"]


def test_a_site_that_sends_only_a_mean_has_no_box(tmp_path: Path) -> None:
    page = reported(record(GOOD, share_cases=False), tmp_path)
    assert "distributions" not in page.sections and "scores" in page.sections


def test_runs_are_compared_over_seeds_and_case_by_case(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    other = {site: [case + rng.normal(0.05, 0.02) for case in cases] for site, cases in GOOD.items()}
    folders = [
        written(record(cases, seed=seed, methods=name), tmp_path / f"{name}{seed}")
        for name, cases in (("fedavg", GOOD), ("fedfa", other))
        for seed in (0, 1)
    ]
    text = page_of(*folders).text
    differences = np.concatenate([np.array(other[site]) - np.array(GOOD[site]) for site in GOOD])
    tested = stats.ttest_1samp(differences, 0)
    bounds = tested.confidence_interval()
    assert "4 runs of prostate" in text and text.count("2 seeds") == 2
    assert f"fedavg + fedfa 12 2 +{100 * differences.mean():.1f}" in text
    assert f"[{100 * bounds.low:.1f}, {100 * bounds.high:.1f}]" in text
    assert "fedavg, seed 0" in text and "fedavg + fedfa, seed 1" in text


def test_a_run_that_is_given_twice_is_one_seed(tmp_path: Path) -> None:
    folders = [written(record(GOOD), tmp_path / name) for name in ("one", "two")]
    page = page_of(*folders, written(record(GOOD, seed=1), tmp_path / "three"))
    assert "2 seeds" in page.text and "3 seeds" not in page.text
    assert page.passages["repeated_runs"].endswith(f": {tmp_path / 'two'}.")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("options", "label", "differ"),
    [
        (("optimizer.lr=0.0005",), "fedavg, optimizer.lr 0.0005", "optimizer.lr"),
        (("loss=dice",), "fedavg, loss dice", "loss, loss.options.batch and loss.options.include_background"),
        (("loss.options.batch=false",), "fedavg, loss.options.batch False", "loss.options.batch"),
        (("schedule.local_epochs=5",), "fedavg, schedule.local_epochs 5", "schedule.local_epochs"),
        (
            ("federation.robust.rule=median", "federation.min_sites=3"),
            "fedavg, federation.robust.rule median",
            "federation.robust.rule, federation.robust.trim and federation.robust.clip",
        ),
    ],
)
def test_runs_that_differ_in_any_setting_are_columns_of_their_own(
    options: tuple[str, ...], label: str, differ: str, seed: int, tmp_path: Path
) -> None:
    other = {site: [case - 0.3 for case in cases] for site, cases in GOOD.items()}
    page = page_of(
        written(record(GOOD), tmp_path / "one"), written(record(other, seed=seed, options=options), tmp_path / "two")
    )
    assert "2 seeds" not in page.text and "repeated_runs" not in page.passages
    assert label in page.rows[0][2]
    assert page.passages["settings_differ"].endswith(f" {differ}.")


def test_settings_that_change_no_result_are_the_same_experiment(tmp_path: Path) -> None:
    folders = [
        written(record(GOOD, seed=seed, options=options), tmp_path / str(seed))
        for seed, options in enumerate(
            [(), ("schedule.threads=2", "federation.grace=5", "evaluation.reference=true", "evaluation.local=true")]
        )
    ]
    page = page_of(*folders)
    assert "2 seeds" in page.text and "settings_differ" not in page.passages


def test_records_of_earlier_versions_without_settings_are_never_averaged(run: Path, tmp_path: Path) -> None:
    folders = []
    for seed in (0, 1):
        former = record(GOOD, seed=seed)
        former.job.settings = {}
        folders.append(written(former, tmp_path / str(seed)))
    page = page_of(*folders)
    assert "2 seeds" not in page.text and "settings_unknown" in page.passages
    page = page_of(folders[0], written(record(GOOD, seed=1), tmp_path / "now"))
    assert "2 seeds" not in page.text and "settings not recorded" in page.rows[0][1]
    former = read_results(run)
    recorded, former.job.settings = former.job.settings, {}
    folder = written(former, tmp_path / "with_model")
    shutil.copy(run / "best_global_model.pt", folder)
    found = read(folder)
    assert isinstance(found, Run) and found.settings == recorded and recorded["optimizer"]["lr"]


def test_a_small_difference_is_not_printed_as_none(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, mean in (("higher", 0.0003), ("lower", -0.0003), ("same", 0.0)):
        other = {site: [case + mean + (mean and rng.normal(0, 2e-5)) for case in cases] for site, cases in GOOD.items()}
        folders = [written(record(c, methods=m), tmp_path / name / m) for m, c in (("fedavg", GOOD), ("fedfa", other))]
        (row,) = (row for row in page_of(*folders).rows if row[:3] == ["fedavg + fedfa", "12", "2"])
        if name == "same":
            assert row[3:] == ["0.0", "–"]
        else:
            sign = "+" if mean > 0 else "-"
            assert re.fullmatch(rf"\{sign}0\.03\d? \[(-?0\.0[23]\d?), (-?0\.0[23]\d?)\]", row[3])
            assert row[4] == "< 0.001"


def test_differences_that_are_one_but_for_rounding_have_no_p(tmp_path: Path) -> None:
    other = {site: [case + 0.1 for case in cases] for site, cases in GOOD.items()}
    folders = [written(record(c, methods=m), tmp_path / m) for m, c in (("fedavg", GOOD), ("fedfa", other))]
    page = page_of(*folders)
    assert ["fedavg + fedfa", "12", "2", "+10.0", "–"] in page.rows and "pairs" in page.passages


def test_other_data_are_not_compared_case_by_case(tmp_path: Path) -> None:
    first, second = record(GOOD), record(GOOD, methods="fedfa")
    second.data["HK"].manifest_sha256 = "cd" * 32
    page = page_of(written(first, tmp_path / "a"), written(second, tmp_path / "b"))
    assert ": HK (" in page.passages["data_differ"]
    assert ["fedavg + fedfa", "6", "1"] in [row[:3] for row in page.rows], "only the six cases of the other site"


def test_folds_of_a_cross_validation_are_not_the_same_cases(tmp_path: Path) -> None:
    folders = [
        written(record(GOOD, methods=name, split=f"case, fold {fold} of 5"), tmp_path / name)
        for name, fold in (("fedavg", 1), ("fedfa", 2))
    ]
    page = page_of(*folders)
    assert ": BIDMC and HK (" in page.passages["data_differ"]
    assert "no_pairs" in page.passages and "Mean difference" not in page.text


def test_tables_of_many_models_are_reported_too(tmp_path: Path) -> None:
    results = record(GOOD)
    shared = {"job": results.job, "versions": results.versions}
    scores = {a: {b: {"dice": 0.9 if a == b else 0.3} for b in GOOD} for a in GOOD}
    cross = CrossSite(
        **shared, data=results.data, scores=scores, mean_at_home={"dice": 0.9}, mean_elsewhere={"dice": 0.3}
    )
    model = ModelScores(round=2, scores={"all": {"dice": 0.41}, "test": {"dice": 0.42}})
    out = LeaveOneOut(
        **shared,
        sites={site: HeldOutSite(data=told, best=model, last=model) for site, told in results.data.items()},
        mean={"best": {"all": {"dice": 0.41}}, "last": {}},
    )
    for number, one in enumerate((cross, out)):
        (tmp_path / str(number)).mkdir()
        one.write(tmp_path / str(number))
    html = html_of(tmp_path / "0", tmp_path / "1" / LeaveOneOut.FILE_NAME)
    assert '--shade: 1.000">90.0' in html and '--shade: 0.000">30.0' in html
    page = Page(html)
    assert re.findall(r"[0-9.]+ %", page.passages["own_and_elsewhere"]) == ["90.0 %", "30.0 %"]
    assert ["mean", "", "41.0", "–", "–", "–"] in page.rows


def test_a_site_held_out_has_intervals_data_settings_and_its_command(tmp_path: Path) -> None:
    results = record(GOOD, split="slice-legacy")
    assert results.final is not None
    spread = results.final.best.evaluations["HK"]["test"]
    model = ModelScores(
        round=2, scores={"all": {"dice": 0.5}, "test": {"dice": 0.55}}, evaluations={"all": spread, "test": spread}
    )
    sites = {site: HeldOutSite(data=told, best=model, last=model) for site, told in results.data.items()}
    mean = {"best": {"all": {"dice": 0.5}}, "last": {}}
    out = LeaveOneOut(job=results.job, versions={"torch": "9.8.7"}, sites=sites, mean=mean)
    out.write(tmp_path)
    page = page_of(tmp_path)
    low, high = spread.distributions["dice"].interval or (0.0, 0.0)
    assert page.text.count(f"[{100 * low:.1f}, {100 * high:.1f}]") == 8
    assert "2 sites" in page.passages["held_out_in_turn"] and "Dice 50.0 %" in page.passages["held_out_in_turn"]
    assert "slice_legacy" in page.passages
    assert ["held out in turn", "patients", "9", "3", "3"] in [row[1:6] for row in page.rows]
    assert page.facts["Versions"] == "torch 9.8.7" and page.facts["Rounds"] == "3"
    (command,) = map(shlex.split, page.commands)
    assert command[1:4] == ["leave-one-out", "fedavg", "prostate"]
    assert command[4:8] == ["--sites", "BIDMC,HK", "--set", "schedule.rounds=3"]


def test_the_run_beside_a_cross_site_record_is_reported_with_it(tmp_path: Path) -> None:
    results = record(GOOD)
    scores = {a: {b: {"dice": 0.9 if a == b else 0.3} for b in GOOD} for a in GOOD}
    means = {"mean_at_home": {"dice": 0.9}, "mean_elsewhere": {"dice": 0.3}}
    cross = CrossSite(job=results.job, versions=results.versions, data=results.data, scores=scores, **means)
    cross.write(tmp_path)
    alone = page_of(tmp_path)
    assert re.findall(r"[0-9.]+ %", alone.passages["cross_site_means"]) == ["90.0 %", "30.0 %"]
    command = "cross-site prostate --methods fedavg --sites BIDMC,HK"
    assert command in alone.commands[-1]
    assert ["trains", "patients", "9", "3", "3"] in [row[1:6] for row in alone.rows]
    assert not {"curves", "scores"} & alone.sections.keys()
    results.write(tmp_path)
    both = page_of(tmp_path)
    assert {"curves", "scores"} <= both.sections.keys() and both.facts["Rounds"] == "3 of 3"
    assert "all_answered" in both.passages
    other = results.model_copy(update={"job": results.job.model_copy(update={"seed": 5})})
    other.write(tmp_path)
    assert page_of(tmp_path).text == alone.text, "the run of another job"


def test_of_many_sites_the_curves_show_a_median(tmp_path: Path) -> None:
    page = reported(record({f"site_{number:03d}": [0.5, 0.7, 0.6] for number in range(60)}), tmp_path)
    assert "median" in page.passages["curve_lines"] and "dotted" in page.passages["curve_lines"]
    assert "20 more" in page.passages["distribution_notes"]


def test_confusion_and_accuracy_of_every_class(tmp_path: Path) -> None:
    results = record(GOOD)
    assert results.final is not None
    told = results.final.best.evaluations["HK"]
    told["test"] = told["test"].model_copy(update={"confusion": [[7, 3], [1, 9]]})
    rows = reported(results, tmp_path).rows
    assert ["class 0", "70.0 of 10"] in rows and ["class 1", "90.0 of 10"] in rows
    assert ["class 0", "7", "3"] in rows and ["class 1", "1", "9"] in rows


def test_a_gradient_norm_is_shown_with_its_square(tmp_path: Path) -> None:
    results = record(GOOD)
    assert results.final is not None
    told = results.final.best.evaluations["HK"]
    told["val"] = told["test"].model_copy(update={"gradient_norm": 1.5})
    assert ["HK", "1.5", "2.25", "–", "–"] in reported(results, tmp_path).rows


def test_numbers_that_are_not_finite_break_nothing(tmp_path: Path) -> None:
    results = record(GOOD)
    assert results.final is not None
    results.final.best.sites["HK"]["test"]["dice"] = float("nan")
    results.rounds[1].sites["HK"].train_loss = float("inf")
    results.rounds[1].sites["HK"].val["dice"] = 1e300
    page = Page(html_of(_raw(results, tmp_path)))
    assert "not finite" in page.text and "1 site: 85.0 %" in page.passages["mean_test"]


def _raw(results: Results, folder: Path) -> Path:
    import json

    (folder / "results.json").write_text(
        json.dumps(results.model_dump(by_alias=True)), encoding="utf-8"
    )  # with NaN, as Python writes it
    return folder


def test_a_model_file_that_cannot_be_read_leaves_a_report_without_it(run: Path, tmp_path: Path) -> None:
    folder = written(read_results(run), tmp_path)
    content = torch.load(run / BEST, weights_only=True)
    next(iter(content["weights"].values())).fill_(torch.nan)
    torch.save(content, folder / BEST)
    assert f"{BEST}: encoder1" in page_of(folder).passages["without_model_file"]
    (folder / BEST).write_bytes(b"not a model")
    page = page_of(folder)
    assert f"{BEST} cannot be read" in page.passages["without_model_file"]
    assert str(tmp_path) not in page.text, "a report travels"
    assert "fedrdn" not in page.sections and "scores" in page.sections


@pytest.mark.parametrize("change", [{"seed": 7}, {"task": "digits"}, {"methods": []}, {"settings": {"loss": "dice"}}])
def test_the_model_of_another_run_is_not_taken_for_this_ones(
    change: dict[str, object], run: Path, tmp_path: Path
) -> None:
    results = read_results(run)
    folder = written(results.model_copy(update={"job": results.job.model_copy(update=change)}), tmp_path)
    shutil.copy(run / "best_global_model.pt", folder)
    page = page_of(folder)
    assert "another run" in page.passages["without_model_file"] and "fedrdn" not in page.sections


def test_a_workspace_or_a_downloaded_job_folder_will_do(tmp_path: Path) -> None:
    deep = written(record(GOOD), tmp_path / "ws" / "server" / "simulate_job")
    found = read(tmp_path / "ws")
    assert getattr(found, "source", None) == deep / "results.json"
    written(record(GOOD), tmp_path / "ws" / "other")
    (tmp_path / "empty").mkdir()
    for folder, code in (("ws", "several-runs"), ("empty", "no-run")):
        with raises(code, naming=str(tmp_path / folder)):
            read(tmp_path / folder)


def test_the_command_writes_the_file_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = written(record(GOOD), tmp_path / "run"), tmp_path / "new" / "report.html"
    assert cli.main(["report", str(folder), "--out", str(out)]) == 0
    assert f"report: {out} (" in capsys.readouterr().out
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["nowhere"], "file-missing", "nowhere"),
        (["run", "--out", "run"], "not-a-file", "--out"),
        (["run", "--site-data", "HK=/x"], "options-clash", "--images"),
        (["run", "--images"], "no-model", "--images"),
        (["run", "--images", "--site-data", "HK"], "invalid-value", "--site-data"),
        (["run", "--images", "--most-sites", "0"], "invalid-value", "--most-sites"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    words: list[str],
    code: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written(record(GOOD), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", *words]) == 2
    error = capsys.readouterr().err
    assert f"[{code}]" in error and name in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "report.html").exists()


def test_runs_are_named_by_what_differs(tmp_path: Path) -> None:
    def run(folder: str, *, options: dict[str, object] | None = None, **changes: object) -> Path:
        results = record({"A": [0.9, 0.8]}, methods="fedfa", **changes)  # type: ignore[arg-type]
        for method in results.job.methods:
            method.options |= options or {} if method.name == "fedfa" else {}
        return written(results, tmp_path / folder / "simulate_job")

    def labels(*folders: Path) -> list[str]:
        return [one.label for one in label_runs([one for one in map(read, folders) if isinstance(one, Run)])]

    plain, seeded, strong = run("a"), run("b", seed=3), run("c", options={"p": 0.9})
    name = labels(plain)[0]
    assert labels(plain, seeded) == [f"{name}, seed 0", f"{name}, seed 3"]
    assert labels(plain, strong) == [f"{name}, fedfa.p 0.5", f"{name}, fedfa.p 0.9"]
    many = [run(f"steps_{last}", options={"steps": [0] * 40 + [last] + [0] * 40}) for last in (1, 2)]
    assert len(set(labels(*many))) == 2 and "steps_1" in labels(*many)[0], "which differ where the label is cut"
    assert labels(plain, run("d")) == [f"{name}, a", f"{name}, d"], "the same settings: the folders differ"


def test_simulated_scanners_are_said_in_the_report_and_below_the_table(tmp_path: Path) -> None:
    results = record({"A": [0.9, 0.8], "B": [0.9, 0.8]})
    assert "simulated_shift" not in reported(results, tmp_path / "real").passages
    for site in ("A", "B"):
        results.data[site].simulated = "sites and scanners"
    assert "A and B: sites and scanners" in reported(results, tmp_path / "simulated").passages["simulated_shift"]
    console = Console(width=200, record=True, file=StringIO())
    console.print(scores_table(results))
    assert "scanners: A, B." in console.export_text()


def test_scores_that_need_the_voxel_size_are_not_trusted_where_it_is_unknown(tmp_path: Path) -> None:
    results = record({"A": [0.9, 0.8], "B": [0.9, 0.8]})
    assert results.final is not None
    for scores in results.final.best.sites.values():
        scores["test"] |= {"hd95": 12.0, "surface_dice": 0.7, "volume_difference": 3.0}
    said_of_b = {"placeholder_voxel_size", "no_voxel_size"}
    assert not said_of_b & reported(results, tmp_path / "known").passages.keys()
    results.data["B"].unknown_spacing = True
    page = reported(results, tmp_path / "unknown")
    for key in said_of_b:
        assert "HD95, Surface Dice and Volume difference" in page.passages[key] and "at B" in page.passages[key]


def test_a_score_is_explained_once_and_not_for_each_class(tmp_path: Path) -> None:
    results = record({"A": [0.9, 0.8], "B": [0.9, 0.8]})
    assert results.final is not None
    assert "class alone" not in reported(results, tmp_path / "one").passages["score_meanings"]
    for scores in results.final.best.sites.values():
        scores["test"] |= {"dice left": 0.9, "dice right": 0.8}
    page = reported(results, tmp_path / "two")
    meanings = page.passages["score_meanings"]
    assert "class alone" in meanings and "left" in page.text and meanings.count("Dice:") == 1


def test_a_run_whose_rounds_ended_by_the_clock_is_said_not_to_repeat(tmp_path: Path) -> None:
    results = record({"BIDMC": [0.8, 0.9, 0.7], "HK": [0.6, 0.7, 0.8]})
    plain = reported(results, tmp_path / "plain")
    results.job.minutes = 30
    clock = reported(results, tmp_path / "clock")
    assert "same_bits" in plain.passages and "schedule.minutes" not in plain.text
    assert "same_bits" not in clock.passages and BY_CLOCK in clock.passages["other_bits"]
    assert "schedule.minutes=30" in clock.commands[0]
    assert BY_CLOCK[1:] in clock.passages["departure"]


CASES = {"b_1": [0.6, 0.0], "b_2": [0.9, 0.8], "b_3": [0.2, 0.3], "b_4": [0.7, 0.7], "b_5": [0.8, 0.9]}


def test_an_evaluation_says_that_a_model_was_adapted_at_a_hospital(tmp_path: Path) -> None:
    evaluated(CASES).model_copy(update={"adapted": {"ours.pt": 4}}).write(tmp_path)
    assert "ours.pt was adapted to 4 cases of one hospital" in page_of(tmp_path).passages["labelled_adapted"]


def test_an_evaluation_on_labelled_scans_is_reported(tmp_path: Path) -> None:
    scored = evaluated(CASES)
    scored.write(tmp_path)
    page = page_of(tmp_path)
    text = page.text
    assert "best_global_model.pt (fedavg + fedfa on prostate)" in text
    assert "RESEARCH USE ONLY" in text and "PHANTOM" not in text
    dice = scored.scores["dice"]
    assert dice.interval is not None
    low, high = (f"{100 * end:.1f}" for end in dice.interval)
    for fact in ("5 cases", "2 classes", "59.0 %", f"95 % interval [{low}, {high}]"):
        assert fact in page.passages["mean_dice"]
    assert "right: 1 of 5 cases" in page.passages["labelled_class_in_one_mask"]
    assert "1 missed" in page.passages["labelled_class_in_one_mask"]
    assert "10 cases" in page.passages["few_labelled_cases"] and "patients_unknown" in page.passages
    facts = {"SHA-256": "cd" * 32, "Round": "7", "Trained at": "2 sites: BIDMC, HK", "Trained on": "scans of patients"}
    facts |= {"Statistics": "site HK", "Tolerance of surface Dice": "1.5 mm"}
    assert page.facts.items() >= facts.items()
    assert "left 64.0 [" in text and "right 54.0 [" in text and "mean 59.0 [" in text
    assert [case for case in re.findall(r"b_\d", text) if case] == ["b_3", "b_1", "b_4", "b_2", "b_5"], "worst first"
    assert ["b_1", "30.0", "60.0", "0.0", "7.0", "right (missed)"] in page.rows
    assert "setup" in page.sections
    assert "dot" in page.passages["distribution_how"] and "box spans" in page.passages["distribution_how"]


def test_a_phantom_model_and_what_was_not_scored_are_said(tmp_path: Path) -> None:
    changes = {"kind": "phantom", "not_scored": ["b_6"], "without_spacing": ["b_2"], "subjects": 3}
    changes["scores"] = {name: of.model_copy(update={"interval": None}) for name, of in evaluated(CASES).scores.items()}
    evaluated(CASES).model_copy(update=changes).write(tmp_path)
    html = html_of(tmp_path)
    page = Page(html)
    text = page.text
    assert html.count("PHANTOM: no patients") == text.count("PHANTOM: no patients") == 6 and PHANTOM_NOTE in text
    assert "simulated_training" in page.passages
    assert "b_6." in page.passages["not_scored"] and "b_2: " in page.passages["labelled_without_spacing"]
    assert "5 cases of 3 subjects" in text and "fewer than 5 subjects" in page.passages["labelled_scores_how"]
    assert "[" not in text.rpartition(page.sections["setup"])[0]


def test_an_evaluation_of_one_class_or_of_no_case_is_reported(tmp_path: Path) -> None:
    evaluated({case: of[:1] for case, of in CASES.items()}, classes=["tumour"]).write(tmp_path)
    text = page_of(tmp_path).text
    assert "tumour 64.0 [" in text and "mean over 1" not in text and "Dice, tumour" not in text
    none = {"cases": [], "scores": {}, "one_sided": {}, "one_sided_cases": {}, "subjects": 0, "not_scored": ["a", "b"]}
    evaluated(CASES).model_copy(update=none).write(tmp_path)
    page = page_of(tmp_path)
    assert "2 cases" in page.passages["nothing_scored"] and "cases" not in page.sections


def test_an_evaluation_beside_a_run_hides_no_run(tmp_path: Path) -> None:
    evaluated(CASES).write(written(record(GOOD), tmp_path))
    assert isinstance(read(tmp_path), Run) and not isinstance(read(tmp_path / "evaluation.json"), Run)
    (tmp_path / "evaluation.json").write_text('{"schema": 1, "cases": []}', encoding="utf-8")
    with raises("other-version", naming="evaluation.json"):
        read(tmp_path / "evaluation.json")


def test_several_evaluations_are_chapters_of_one_page(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        evaluated(CASES).write(tmp_path / name)
    assert Page(html_of(tmp_path / "a", tmp_path / "b")).text.count("What was evaluated") == 4
