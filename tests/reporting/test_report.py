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
from conftest import small_job
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
from fedshift.schema.errors import ConfigError
from fedshift.schema.evaluation import OneSided
from fedshift.schema.manifest import PhantomOptions, manifest_sha256
from fedshift.schema.protocol_results import CrossSite, HeldOutSite, LeaveOneOut, ModelScores
from fedshift.schema.results import MachineRecord, Rejection, Results, RoundRecord, new_results, read_results
from fedshift.tasks.device import processor
from reporting.reports import HOSTILE, Page, evaluated, html_of, record, scan_sites, words_of, written

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


def said(results: Results, folder: Path) -> str:
    """The words of its report, without those in the figures."""
    return words_of(written(results, folder))


def test_the_report_says_what_was_run_and_what_came_out(run: Path, html: str) -> None:
    results = read_results(run)
    assert results.final is not None
    text = Page(html).text
    assert "fedavg + fedfa + fedrdn trained the task prostate (protocol quick) for 3 rounds at 3 sites" in text
    assert "(BIDMC, HK and UCL), on simulated scans" in text
    dice = {site: 100 * scores["test"]["dice"] for site, scores in results.final.best.sites.items()}
    assert f"Mean test Dice over 3 sites: {np.mean(list(dice.values())):.1f} %" in text
    for site, value in dice.items():
        hd95 = results.final.best.evaluations[site]["test"].distributions["hd95"].mean
        assert f"{site} 1 {value:.1f}" in text and f"{hd95:.1f}" in text
        assert results.data[site].manifest_sha256[:12] in text
    assert f"torch {results.versions['torch']}" in text and "seed 4" in text
    assert f"Sites computed on {processor()}, fp32, 1 thread: BIDMC, HK, UCL" in text
    assert "sessions of one subject stay together, but nothing else tells two scans of one patient" in text


def test_the_report_says_what_auto_was_at_each_site(run: Path, tmp_path: Path) -> None:
    results = read_results(run)
    results.job.precision = results.job.threads = "auto"
    text = said(results, tmp_path / "alike")
    assert "Precision auto, auto threads a site" in text and "listed above, as used at the sites" in text
    assert "The sites used different precisions" not in text
    results.machines["HK"] = MachineRecord(device="NVIDIA H100", precision="bf16", threads=8)
    text = said(results, tmp_path / "different")
    assert f"{processor()}, fp32, 1 thread: BIDMC, UCL; NVIDIA H100, bf16, 8 threads: HK" in text
    assert "The sites used different precisions" in text
    results.machines = {}
    assert "Sites computed on" not in said(results, tmp_path / "former")


def test_a_report_is_one_file_that_asks_for_nothing(html: str) -> None:
    page = Page(html)
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


def test_simulated_data_are_announced_in_every_section(html: str, tmp_path: Path) -> None:
    page = Page(html)
    sections = sum(tag == "section" for tag, _ in page.tags)
    assert sections > 8 and page.text.count("PHANTOM: no patients") == sections
    assert PHANTOM_NOTE in page.text
    assert "PHANTOM: simulated data, no patients." in html  # on every printed page
    assert "PHANTOM" not in html_of(written(record(GOOD), tmp_path))


def test_methods_show_what_they_share(run: Path, html: str) -> None:
    from fedshift.federation.model_files import read_model_file

    arrays = read_model_file(run / "best_global_model.pt")["methods"]
    text = Page(html).text
    gamma = arrays["fedfa"]["gamma_mean.1"].numpy()
    assert f"{gamma.min():.2f} to {gamma.max():.2f}" in text
    for row, site in zip(arrays["fedrdn"]["means"].numpy(), ("BIDMC", "HK", "UCL"), strict=True):
        assert f"{site} {row[0]:.4g}" in text


def test_the_commands_make_the_job_again(html: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Page(html[html.index("<pre") : html.index("</pre>")]).text
    assert "These commands make exactly the job in the model file." in html
    start = lines.index("fedshift job")
    command = shlex.split(lines[start : lines.index("fedshift run")])
    assert command[:4] == ["fedshift", "job", "fedfa+fedrdn", "prostate"]
    monkeypatch.chdir(tmp_path)
    assert cli.main(command[1:]) == 0
    (folder,) = (tmp_path / "jobs").iterdir()
    assert read_job_folder(folder).dump() == small_job("fedfa+fedrdn", "schedule.rounds=3", seed=4).dump()


def test_the_commands_make_the_phantom_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    first = make_phantom(tmp_path / "phantom", seed=3, sites=["BIDMC", "HK"], cases=3, matrices=(32,))
    sites = {site: first / "prostate" / site for site in ("BIDMC", "HK")}
    options = ("schedule.rounds=1", "data.matrix=32", "network.options.features=4")
    run_in_process(small_job("fedavg", *options, sites=tuple(sites)), sites, tmp_path / "run")
    html = html_of(tmp_path / "run")
    line = Page(html[html.index("<pre") : html.index("</pre>")]).text.partition(" fedshift job")[0]
    assert line == "fedshift data phantom --sites BIDMC,HK --cases 3 --seed 3 --matrix 32"
    assert cli.main(shlex.split(line)[1:]) == 0
    recorded = read_results(tmp_path / "run").data
    for site in sites:
        again = manifest_sha256(phantom_home() / "prostate" / site)
        assert again == manifest_sha256(sites[site]) == recorded[site].manifest_sha256


def test_other_options_of_the_phantom_are_printed_and_unknown_ones_admitted(tmp_path: Path) -> None:
    results = record(GOOD, kind="phantom")
    text = said(results, tmp_path / "former")
    assert "With which options 'fedshift data phantom' made BIDMC and HK is not known" in text
    results.data["BIDMC"].phantom = PhantomOptions(cases=4, seed=1, matrices=(), zones=True, sequences=2)
    results.data["HK"].phantom = PhantomOptions(cases=4, seed=1, matrices=(64, 96))
    text = said(results, tmp_path / "now")
    assert "is not known" not in text
    assert "fedshift data phantom --sites BIDMC --cases 4 --seed 1 --zones --sequences 2 fedshift" in text
    assert "fedshift data phantom --sites HK --cases 4 --seed 1 --matrix 64,96 fedshift" in text


def test_settings_in_the_record_are_shown_and_repeated_without_the_model_file(tmp_path: Path) -> None:
    text = said(record(GOOD, options=("optimizer.lr=0.0005",)), tmp_path)
    assert "lr 0.0005" in text and "optimizer.lr=0.0005" in text[text.index("fedshift job") :]


def test_how_fedshift_run_has_shared_the_sites_out_is_no_option(tmp_path: Path) -> None:
    job = small_job("fedavg", "schedule.rounds=1")
    shares = {"hosts": 2, "shares": (("BIDMC",), ("HK", "UCL"))}
    shared = job.model_copy(update={"federation": job.federation.model_copy(update=shares)})
    run_in_process(shared, scan_sites(tmp_path / "data"), tmp_path / "run")
    html = html_of(tmp_path / "run")
    lines = html[html.index("<pre") : html.index("</pre>")]
    assert "schedule.rounds=1" in lines and "federation" not in lines
    assert "These commands make exactly the job in the model file." in html


def test_a_centralised_reference_is_repeated_by_a_command_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = scan_sites(tmp_path / "data")
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    job = small_job("irm", "schedule.rounds=1", seed=4)
    run_pooled(job, data, tmp_path / "run")
    record_guess(job, data, tmp_path / "run")  # as the command does
    html = html_of(tmp_path / "run")
    block = html[html.index("<pre") : html.index("</pre>")]
    lines = Page(block).text
    assert "exactly the job" not in html and "fedshift run" not in lines and "fedshift job" not in lines
    command = shlex.split(lines[lines.index("fedshift pooled") :])
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
    text = Page(html_of(DEMO / file)).text
    assert "has no scores of single cases, so there are no intervals" in text
    assert "compare the job that they make with the settings above" in text


def test_a_run_that_did_not_end_is_told_as_such(tmp_path: Path) -> None:
    text = said(new_results(small_job("fedavg"), metric="dice"), tmp_path)
    assert "The run did not finish: it has 0 of 2 rounds and no final scores." in text


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
    ("change", "sentence"),
    [
        (_slice_legacy, "slices of one patient are in training and in test"),
        (_last_is_best, "The best round is the last (3)"),
        (_fell, "From round 2 to the last the mean test Dice fell from 70.0 % to 10.0 %"),
        (_absent, "Sites were absent 1 time in total: HK."),
        (_rejected, "Rejected answers of HK: 1."),
        (_empty, "in 2 test volumes (HK); surface distances count as the diagonal of the volume there"),
        (
            _one_sided,
            "apex: 4 test volumes with the class in one mask only, at BIDMC (1 missed, 0 invented) and HK (2 missed, 1 "
            "invented); HD95 and ASD count as the volume's diagonal where it is missed.",
        ),
        (_overconfident, "(ECE) at HK (40.0 %)"),
        (_guessed(0.95), "The model is no better than a guess that looks at no image (95.0 %): train it longer"),
        (_guessed(0.2), "The image-free guess looks at no image"),
        (_guessed(0.2), "image-free guess 20.0"),
    ],
)
def test_what_calls_for_care_is_said(change: Callable[[Results], None], sentence: str, tmp_path: Path) -> None:
    results = record(GOOD)
    assert sentence not in said(results, tmp_path / "before")
    change(results)
    assert sentence in said(results, tmp_path / "after")


def test_a_model_above_the_image_free_guess_gets_no_caution(tmp_path: Path) -> None:
    results = record(GOOD)
    _guessed(0.2)(results)
    assert "no better than a guess" not in said(results, tmp_path)


def test_faults_are_listed_with_their_reasons(tmp_path: Path) -> None:
    results = record(GOOD)
    _rejected(results)
    results.evaluations = [RoundRecord(round=4, absent=["BIDMC"])]
    text = said(results, tmp_path)
    assert "round 2 HK rejected weights is not finite" in text
    assert "evaluation BIDMC absent" in text


def test_intervals_are_those_of_the_record_and_not_of_a_handful_of_cases(tmp_path: Path) -> None:
    results = record({"BIDMC": GOOD["BIDMC"], "HK": [0.5, 0.6]})
    assert results.final is not None
    low, high = results.final.best.evaluations["BIDMC"]["test"].distributions["dice"].interval or (0, 0)
    few = results.final.best.evaluations["HK"]["test"].distributions["dice"].interval or (0, 0)
    text = said(results, tmp_path)
    assert f"[{100 * low:.1f}, {100 * high:.1f}]" in text
    assert f"[{100 * few[0]:.1f}, {100 * few[1]:.1f}]" not in text
    assert "Fewer than 10 test cases at BIDMC (6) and HK (2)" in text


def test_brackets_are_explained_only_where_there_are_any(tmp_path: Path) -> None:
    assert "Brackets" in said(record(GOOD), tmp_path / "many")
    assert "Brackets" not in said(record({site: cases[:2] for site, cases in GOOD.items()}), tmp_path / "few")


def test_one_or_two_cases_are_dots_without_a_box(tmp_path: Path) -> None:
    few = said(record({site: cases[:2] for site, cases in GOOD.items()}), tmp_path / "few")
    assert "Every dot is a test case." in few and "box" not in few.lower()
    both = said(record({"BIDMC": GOOD["BIDMC"], "HK": [0.5, 0.6]}), tmp_path / "both")
    assert "The box spans" in both and "Sites with fewer than 5 cases have no box." in both


def test_a_site_where_every_case_failed_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, list[str]] = {}
    real = distributions.strip
    monkeypatch.setattr(distributions, "strip", lambda name, by: drawn.update({name: list(by)}) or real(name, by))
    said(record({"BIDMC": GOOD["BIDMC"], "HK": [0.0] * 6}), tmp_path / "failed")
    assert drawn == {"dice": ["BIDMC", "HK"]}
    drawn.clear()
    said(record({"BIDMC": [1.0, 0.0, 1.0], "HK": [0.0] * 6}), tmp_path / "right_or_wrong")
    assert drawn == {}


def test_a_mean_over_some_sites_says_so(tmp_path: Path) -> None:
    results = record({**GOOD, "UCL": [0.7] * 6})
    assert results.final is not None
    before = said(results, tmp_path / "all")
    assert "No test score at" not in before and "of 2 sites" not in before
    del results.final.best.sites["UCL"]["test"], results.final.best.evaluations["UCL"]
    text = said(results, tmp_path / "some")
    assert "No test score at UCL: the mean is over the other sites." in text and "70.0 of 2 sites" in text


def test_the_papers_dice_stands_apart_from_dice(tmp_path: Path) -> None:
    results = record(GOOD)
    assert results.final is not None
    for parts in results.final.best.sites.values():
        parts["test"]["dice_papers"] = 0.987
    text = Page(html_of(written(results, tmp_path))).text
    before, after = text.split("Only to compare with papers")
    assert "98.7" not in before and "Papers' Dice" not in before
    assert "do not quote it as Dice" in after and "98.7" in after
    caution = "The Dice given here is the papers'"
    assert caution not in text
    results.job.metric = "dice_papers"
    assert caution in said(results, tmp_path / "as_papers")


def test_cases_are_counted_and_samples_stand_below(run: Path, html: str, tmp_path: Path) -> None:
    data = read_results(run).data["HK"]
    assert data.n["train"] > data.cases["train"] > 0
    text = Page(html).text
    assert f" {data.cases['train']} {data.n['train']} slices " in text and "a case is a patient's scan" in text
    assert "not of patients, which this record does not have" in said(record(GOOD), tmp_path)


def test_the_interval_of_the_mean_is_welchs(tmp_path: Path) -> None:
    errors = np.array([np.var(cases, ddof=1) / len(cases) for cases in GOOD.values()])
    half = stats.t.ppf(0.975, errors.sum() ** 2 / (errors**2 / 5).sum()) * np.sqrt(errors.sum()) / 2
    mean = np.mean([np.mean(cases) for cases in GOOD.values()])
    text = said(record(GOOD), tmp_path)
    assert f"(95 % interval {100 * (mean - half):.1f} to {100 * (mean + half):.1f} %)" in text


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
    text = said(record(many, share_cases=False), tmp_path)
    assert "a box only, drawn from their quantiles" in text and "Every dot is a case" not in text


def test_a_site_that_sends_only_a_mean_has_no_box(tmp_path: Path) -> None:
    text = said(record(GOOD, share_cases=False), tmp_path)
    assert "Scores over cases" not in text and "Scores of every site" in text


def test_runs_are_compared_over_seeds_and_case_by_case(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    other = {site: [case + rng.normal(0.05, 0.02) for case in cases] for site, cases in GOOD.items()}
    folders = [
        written(record(cases, seed=seed, methods=name), tmp_path / f"{name}{seed}")
        for name, cases in (("fedavg", GOOD), ("fedfa", other))
        for seed in (0, 1)
    ]
    text = words_of(*folders)
    differences = np.concatenate([np.array(other[site]) - np.array(GOOD[site]) for site in GOOD])
    tested = stats.ttest_1samp(differences, 0)
    bounds = tested.confidence_interval()
    assert "4 runs of prostate side by side" in text and text.count("2 seeds") == 2
    assert f"fedavg + fedfa 12 2 +{100 * differences.mean():.1f}" in text
    assert f"[{100 * bounds.low:.1f}, {100 * bounds.high:.1f}]" in text
    assert "fedavg, seed 0" in text and "fedavg + fedfa, seed 1" in text


def test_a_run_that_is_given_twice_is_one_seed(tmp_path: Path) -> None:
    folders = [written(record(GOOD), tmp_path / name) for name in ("one", "two")]
    text = words_of(*folders, written(record(GOOD, seed=1), tmp_path / "three"))
    assert "2 seeds" in text and "3 seeds" not in text
    assert f"Not counted, as another run has the same settings and seed: {tmp_path / 'two'}." in text


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("options", "label", "differ"),
    [
        (("optimizer.lr=0.0005",), "fedavg, optimizer.lr 0.0005", "optimizer.lr"),
        (("loss=dice",), "fedavg, loss dice", "loss"),
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
    text = words_of(
        written(record(GOOD), tmp_path / "one"), written(record(other, seed=seed, options=options), tmp_path / "two")
    )
    assert "2 seeds" not in text and "Not counted" not in text
    table = text[text.index("Test Dice (%), best model Site") :]
    assert label in table[: table.index("BIDMC")]
    assert f"Beside methods and their options the columns differ in {differ}." in text


def test_settings_that_change_no_result_are_the_same_experiment(tmp_path: Path) -> None:
    folders = [
        written(record(GOOD, seed=seed, options=options), tmp_path / str(seed))
        for seed, options in enumerate(
            [(), ("schedule.threads=2", "federation.grace=5", "evaluation.reference=true", "evaluation.local=true")]
        )
    ]
    text = words_of(*folders)
    assert "2 seeds" in text and "the columns differ" not in text


def test_records_of_earlier_versions_without_settings_are_never_averaged(run: Path, tmp_path: Path) -> None:
    folders = []
    for seed in (0, 1):
        former = record(GOOD, seed=seed)
        former.job.settings = {}
        folders.append(written(former, tmp_path / str(seed)))
    text = words_of(*folders)
    assert "2 seeds" not in text and "Some records are of an earlier version" in text
    text = words_of(folders[0], written(record(GOOD, seed=1), tmp_path / "now"))
    assert "2 seeds" not in text and "fedavg, settings not recorded" in text
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
        told = words_of(*folders).rpartition("fedavg + fedfa 12 2 ")[2].partition(" Both settings")[0]
        if name == "same":
            assert told == "0.0 –"
        else:
            sign = "+" if mean > 0 else "-"
            assert re.fullmatch(rf"\{sign}0\.03\d? \[(-?0\.0[23]\d?), (-?0\.0[23]\d?)\] < 0.001", told), told


def test_differences_that_are_one_but_for_rounding_have_no_p(tmp_path: Path) -> None:
    other = {site: [case + 0.1 for case in cases] for site, cases in GOOD.items()}
    folders = [written(record(c, methods=m), tmp_path / m) for m, c in (("fedavg", GOOD), ("fedfa", other))]
    assert "fedavg + fedfa 12 2 +10.0 – Both settings" in words_of(*folders)


def test_other_data_are_not_compared_case_by_case(tmp_path: Path) -> None:
    first, second = record(GOOD), record(GOOD, methods="fedfa")
    second.data["HK"].manifest_sha256 = "cd" * 32
    text = words_of(written(first, tmp_path / "a"), written(second, tmp_path / "b"))
    assert "Not the same data in all runs: HK" in text
    assert "fedavg + fedfa 6 1 " in text  # only the six cases of the other site


def test_folds_of_a_cross_validation_are_not_the_same_cases(tmp_path: Path) -> None:
    folders = [
        written(record(GOOD, methods=name, split=f"case, fold {fold} of 5"), tmp_path / name)
        for name, fold in (("fedavg", 1), ("fedfa", 2))
    ]
    text = words_of(*folders)
    assert "Not the same data in all runs: BIDMC and HK (different manifests or splits)" in text
    assert "No paired differences" in text and "Mean difference" not in text


def test_tables_of_many_models_are_reported_too(tmp_path: Path) -> None:
    results = record(GOOD)
    shared = {"job": results.job, "versions": results.versions}
    scores = {a: {b: {"dice": 0.9 if a == b else 0.3} for b in GOOD} for a in GOOD}
    cross = CrossSite(**shared, data=results.data, scores=scores, mean_own={"dice": 0.9}, mean_elsewhere={"dice": 0.3})
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
    assert "Mean at the own site 90.0 %, elsewhere 30.0 %." in Page(html).text
    assert "mean 41.0 – – –" in Page(html).text


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
    text = words_of(tmp_path)
    low, high = spread.distributions["dice"].interval or (0.0, 0.0)
    assert text.count(f"[{100 * low:.1f}, {100 * high:.1f}]") == 8
    assert "2 sites held out in turn: mean Dice 50.0 % on all cases" in text
    assert "slices of one patient are in training and in test" in text and "held out in turn patients 9 3 3" in text
    assert "torch 9.8.7" in text and "Rounds 3 " in text
    assert "fedshift leave-one-out fedavg prostate --sites BIDMC,HK --set schedule.rounds=3" in text
    assert "fedshift run" not in text and "fedshift job" not in text


def test_the_run_beside_a_cross_site_record_is_reported_with_it(tmp_path: Path) -> None:
    results = record(GOOD)
    scores = {a: {b: {"dice": 0.9 if a == b else 0.3} for b in GOOD} for a in GOOD}
    means = {"mean_own": {"dice": 0.9}, "mean_elsewhere": {"dice": 0.3}}
    cross = CrossSite(job=results.job, versions=results.versions, data=results.data, scores=scores, **means)
    cross.write(tmp_path)
    alone = words_of(tmp_path)
    assert "Own models of 2 sites, mean test Dice: 90.0 % at their own site, 30.0 % elsewhere." in alone
    assert "fedshift cross-site prostate --methods fedavg --sites BIDMC,HK" in alone
    assert (
        "trains patients 9 3 3" in alone and "Scores over rounds" not in alone and "Scores of every site" not in alone
    )
    results.write(tmp_path)
    both = words_of(tmp_path)
    assert "Scores over rounds" in both and "Scores of every site" in both and "Rounds 3 of 3" in both
    assert "Every site answered in every round" in both
    other = results.model_copy(update={"job": results.job.model_copy(update={"seed": 5})})
    other.write(tmp_path)
    assert words_of(tmp_path) == alone, "the run of another job"


def test_of_many_sites_the_curves_show_a_median(tmp_path: Path) -> None:
    text = said(record({f"site_{number:03d}": [0.5, 0.7, 0.6] for number in range(60)}), tmp_path)
    assert "the thick line is their median. The dotted vertical line marks the round of the best model." in text
    assert "20 more are in the table of scores" in text


def test_confusion_and_accuracy_of_every_class(tmp_path: Path) -> None:
    results = record(GOOD)
    assert results.final is not None
    told = results.final.best.evaluations["HK"]
    told["test"] = told["test"].model_copy(update={"confusion": [[7, 3], [1, 9]]})
    text = said(results, tmp_path)
    assert "class 0 70.0 of 10 class 1 90.0 of 10" in text
    assert "class 0 7 3 class 1 1 9" in text


def test_a_gradient_norm_is_shown_with_its_square(tmp_path: Path) -> None:
    results = record(GOOD)
    assert results.final is not None
    told = results.final.best.evaluations["HK"]
    told["val"] = told["test"].model_copy(update={"gradient_norm": 1.5})
    assert "HK 1.5 2.25 – –" in said(results, tmp_path)


def test_numbers_that_are_not_finite_break_nothing(tmp_path: Path) -> None:
    results = record(GOOD)
    assert results.final is not None
    results.final.best.sites["HK"]["test"]["dice"] = float("nan")
    results.rounds[1].sites["HK"].train_loss = float("inf")
    results.rounds[1].sites["HK"].val["dice"] = 1e300
    text = Page(html_of(_raw(results, tmp_path))).text
    assert "not finite" in text and "Mean test Dice over 1 site: 85.0 %" in text


def _raw(results: Results, folder: Path) -> Path:
    import json

    (folder / "results.json").write_text(
        json.dumps(results.model_dump(by_alias=True)), encoding="utf-8"
    )  # with NaN, as Python writes it
    return folder


def test_a_model_file_that_cannot_be_read_leaves_a_report_without_it(run: Path, tmp_path: Path) -> None:
    folder = written(read_results(run), tmp_path)
    (folder / "best_global_model.pt").write_bytes(b"not a model")
    text = words_of(folder)
    assert "Without the model file: best_global_model.pt cannot be read" in text
    assert str(tmp_path) not in text, "a report travels"
    assert "FedRDN: intensities" not in text and "Scores of every site" in text


@pytest.mark.parametrize("change", [{"seed": 7}, {"task": "digits"}, {"methods": []}, {"settings": {"loss": "dice"}}])
def test_the_model_of_another_run_is_not_taken_for_this_ones(
    change: dict[str, object], run: Path, tmp_path: Path
) -> None:
    results = read_results(run)
    folder = written(results.model_copy(update={"job": results.job.model_copy(update=change)}), tmp_path)
    shutil.copy(run / "best_global_model.pt", folder)
    text = words_of(folder)
    assert "best_global_model.pt is the model of another run" in text and "FedRDN: intensities" not in text


def test_a_workspace_or_a_downloaded_job_folder_will_do(tmp_path: Path) -> None:
    deep = written(record(GOOD), tmp_path / "ws" / "server" / "simulate_job")
    found = read(tmp_path / "ws")
    assert getattr(found, "source", None) == deep / "results.json"
    written(record(GOOD), tmp_path / "ws" / "other")
    (tmp_path / "empty").mkdir()
    for folder, reason in (("ws", "several runs"), ("empty", r"no results\.json")):
        with pytest.raises(ConfigError, match=reason):
            read(tmp_path / folder)


def test_the_command_writes_the_file_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = written(record(GOOD), tmp_path / "run"), tmp_path / "new" / "report.html"
    assert cli.main(["report", str(folder), "--out", str(out)]) == 0
    assert f"report: {out} (" in capsys.readouterr().out
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["run", "--out", "run"], "run is a folder: name a file with --out"),
        (["run", "--site-data", "HK=/x"], "add --images"),
        (["run", "--images"], "--images needs the run's best model, and there is no model file beside"),
        (["run", "--images", "--site-data", "HK"], "--site-data takes SITE=DIR"),
        (["run", "--images", "--most-sites", "0"], "--most-sites must be at least 1"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(record(GOOD), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
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
    assert labels(plain, run("d")) == [f"{name}, a", f"{name}, d"], "the same settings: the folders differ"


def test_simulated_scanners_are_said_in_the_report_and_below_the_table(tmp_path: Path) -> None:
    results = record({"A": [0.9, 0.8], "B": [0.9, 0.8]})
    assert "made up" not in said(results, tmp_path / "real")
    for site in ("A", "B"):
        results.data[site].simulated = "sites and scanners"
    assert "A and B: sites and scanners are simulated, on real scans" in said(results, tmp_path / "simulated")
    console = Console(width=200, record=True, file=StringIO())
    console.print(scores_table(results))
    assert "Simulated sites and scanners: A, B." in console.export_text()


def test_scores_that_need_the_voxel_size_are_not_trusted_where_it_is_unknown(tmp_path: Path) -> None:
    results = record({"A": [0.9, 0.8], "B": [0.9, 0.8]})
    assert results.final is not None
    for scores in results.final.best.sites.values():
        scores["test"] |= {"hd95": 12.0, "surface_dice": 0.7, "volume_difference": 3.0}
    sentence = "HD95, Surface Dice and Volume difference at B: computed as if voxels were of 1 x 1 x 1 mm"
    assert sentence not in said(results, tmp_path / "known")
    results.data["B"].unknown_spacing = True
    text = said(results, tmp_path / "unknown")
    assert sentence in text and "Scans at B have no voxel size" in text
    assert "do not trust HD95, Surface Dice and Volume difference there" in text


def test_a_score_is_explained_once_and_not_for_each_class(tmp_path: Path) -> None:
    results = record({"A": [0.9, 0.8], "B": [0.9, 0.8]})
    assert results.final is not None
    told_of_classes = "Columns with a class's name are of that class alone."
    assert told_of_classes not in said(results, tmp_path / "one")
    for scores in results.final.best.sites.values():
        scores["test"] |= {"dice left": 0.9, "dice right": 0.8}
    text = said(results, tmp_path / "two")
    assert told_of_classes in text and "left" in text and text.count("foreground Dice of") == 1


def test_a_run_whose_rounds_ended_by_the_clock_is_said_not_to_repeat(tmp_path: Path) -> None:
    results = record({"BIDMC": [0.8, 0.9, 0.7], "HK": [0.6, 0.7, 0.8]})
    plain = html_of(written(results, tmp_path / "plain"))
    results.job.minutes = 30
    clock = html_of(written(results, tmp_path / "clock"))
    assert "the weights are identical bit for bit" in plain and "schedule.minutes" not in plain
    assert "the weights are identical bit for bit" not in clock and "The weights will be others" in clock
    assert "schedule.minutes=30" in clock, "in the command"
    assert clock.count("cannot be repeated bit for bit") == 2, "among the findings too"


CASES = {"b_1": [0.6, 0.0], "b_2": [0.9, 0.8], "b_3": [0.2, 0.3], "b_4": [0.7, 0.7], "b_5": [0.8, 0.9]}


def test_an_evaluation_on_labelled_scans_is_reported(tmp_path: Path) -> None:
    scored = evaluated(CASES)
    scored.write(tmp_path)
    text = words_of(tmp_path)
    assert "best_global_model.pt (fedavg + fedfa on prostate) on 5 cases" in text
    assert "RESEARCH USE ONLY" in text and "PHANTOM" not in text
    dice = scored.scores["dice"]
    assert dice.interval is not None
    low, high = (f"{100 * end:.1f}" for end in dice.interval)
    assert f"Mean Dice over 5 cases, mean over 2 classes: 59.0 %, 95 % interval [{low}, {high}]." in text
    assert "right: 1 of 5 cases is in one mask only (1 missed by the model); HD95 and ASD count as" in text
    assert "Fewer than 10 cases" in text and "that these cases are new to it is not checked here" in text
    for fact in ("SHA-256 " + "cd" * 32, "Round 7", "2 sites: BIDMC, HK", "scans of patients", "site HK", "1.5 mm"):
        assert fact in text
    assert "left 64.0 [" in text and "right 54.0 [" in text and "mean 59.0 [" in text
    assert [case for case in re.findall(r"b_\d", text) if case] == ["b_3", "b_1", "b_4", "b_2", "b_5"], "worst first"
    assert "b_1 30.0 60.0 0.0 7.0 right (missed)" in text
    assert "How the model was trained" in text and "Every dot is a case. The box spans" in text


def test_a_phantom_model_and_what_was_not_scored_are_said(tmp_path: Path) -> None:
    changes = {"kind": "phantom", "not_scored": ["b_6"], "without_spacing": ["b_2"], "subjects": 3}
    changes["scores"] = {name: of.model_copy(update={"interval": None}) for name, of in evaluated(CASES).scores.items()}
    evaluated(CASES).model_copy(update=changes).write(tmp_path)
    html = html_of(tmp_path)
    text = Page(html).text
    assert html.count("PHANTOM: no patients") == text.count("PHANTOM: no patients") == 6 and PHANTOM_NOTE in text
    assert "The model was trained on simulated scans: the scores say nothing about models for patients." in text
    assert "Not scored, as they could not be read: b_6." in text and "b_2: no voxel size in the header" in text
    assert "5 cases of 3 subjects" in text and "There is no interval with fewer than 5 subjects." in text
    assert "[" not in words_of(tmp_path).partition("How the model was trained")[0]


def test_an_evaluation_of_one_class_or_of_no_case_is_reported(tmp_path: Path) -> None:
    evaluated({case: of[:1] for case, of in CASES.items()}, classes=["tumour"]).write(tmp_path)
    text = words_of(tmp_path)
    assert "tumour 64.0 [" in text and "mean over 1" not in text and "Dice, tumour" not in text
    none = {"cases": [], "scores": {}, "one_sided": {}, "one_sided_cases": {}, "subjects": 0, "not_scored": ["a", "b"]}
    evaluated(CASES).model_copy(update=none).write(tmp_path)
    text = words_of(tmp_path)
    assert "None of 2 cases could be scored." in text and "Every case" not in text


def test_an_evaluation_beside_a_run_hides_no_run(tmp_path: Path) -> None:
    evaluated(CASES).write(written(record(GOOD), tmp_path))
    assert isinstance(read(tmp_path), Run) and not isinstance(read(tmp_path / "evaluation.json"), Run)
    (tmp_path / "evaluation.json").write_text('{"schema": 1, "cases": []}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"evaluation.json is not a file of this version"):
        read(tmp_path / "evaluation.json")


def test_several_evaluations_are_chapters_of_one_page(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        evaluated(CASES).write(tmp_path / name)
    assert Page(html_of(tmp_path / "a", tmp_path / "b")).text.count("What was evaluated") == 4
