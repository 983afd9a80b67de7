"""The table of a run, and its curves, from results.json alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import shifted_sites, small_job
from rich.console import Console

from fedshift.federation.in_process import run_in_process
from fedshift.reporting.events import scalars
from fedshift.reporting.table import PHANTOM_NOTE, scores_table
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import Rejection, Results, SiteRound, new_results, read_results


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    run_in_process(small_job("fedfa"), shifted_sites(folder), folder / "run")
    return folder / "run"


@pytest.fixture
def results(run: Path) -> Results:
    """Each test's own, to change."""
    return read_results(run)


def text(results: Results) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(scores_table(results))
    return capture.get()


def test_the_table_shows_every_site_and_says_what_the_data_are(results: Results) -> None:
    assert results.final is not None
    shown = text(results)
    assert "fedavg + fedfa on prostate, dice" in shown
    assert PHANTOM_NOTE in shown
    rows = {line.split()[1]: line for line in shown.splitlines() if line.startswith("│")}
    values = []
    for site, scores in results.final.best.sites.items():
        for split in ("val", "test"):
            assert f"{100 * scores[split]['dice']:.1f}" in rows[site]
        values.append(scores["test"]["dice"])
    assert f"{100 * sum(values) / 3:.1f}" in rows["mean"]
    for record in results.data.values():
        record.kind = "patients"
    assert PHANTOM_NOTE not in text(results)


def test_a_mean_over_some_sites_says_so(results: Results) -> None:
    assert results.final is not None
    results.final.best.sites["HK"]["test"]["dice"] = float("nan")
    others = [results.final.best.sites[site]["test"]["dice"] for site in ("BIDMC", "UCL")]
    (mean,) = (line for line in text(results).splitlines() if "mean" in line)
    assert f"{50 * sum(others):.1f} (2 of 3)" in mean and "nan" not in mean


def test_a_site_that_never_took_part_is_named_with_the_reason(results: Results) -> None:
    missing, reason = "took no part", "no data"
    assert missing not in text(results)
    for record in results.rounds:
        record.absent = ["HK", "UCL"]
        record.sites = {"BIDMC": record.sites["BIDMC"], "UCL": SiteRound(val={"dice": 0.5})}
    results.rounds[0].rejected = [Rejection(site="HK", key="train", reason=reason)]
    shown = text(results)
    assert f"HK {missing}: train: {reason}." in shown
    assert f"UCL {missing}: " in shown, "it only scored"
    results.rounds[-1].absent = []
    results.rounds[-1].sites["HK"] = results.rounds[-1].sites["BIDMC"]
    assert f"HK {missing}" not in text(results), "it was left out of one round"


def test_a_run_that_did_not_end_has_no_table() -> None:
    with pytest.raises(ConfigError, match="did not finish"):
        scores_table(new_results(small_job("fedfa"), metric="dice"))


def test_curves_hold_every_round_once(results: Results) -> None:
    points = list(scalars(results))
    assert len({(tag, round_) for tag, round_, _ in points}) == len(points)
    losses = {round_: value for tag, round_, value in points if tag == "train_loss/HK"}
    assert losses == {record.round: record.sites["HK"].train_loss for record in results.rounds}
    means = [value for tag, _, value in points if tag == "val/dice/mean"]
    assert means == [pytest.approx(sum(s.val["dice"] for s in record.sites.values()) / 3) for record in results.rounds]
    assert results.final is not None
    last = [(round_, value) for tag, round_, value in points if tag == "test_last/dice/UCL"]
    assert last == [(2, results.final.last.sites["UCL"]["test"]["dice"])]


def test_of_many_sites_there_are_the_worst_the_median_and_the_best(results: Results) -> None:
    assert results.final is not None
    (record, *_), scores = results.data.values(), results.final.best.sites["HK"]
    names = [f"site_{number:03d}" for number in range(25)]
    results.data = dict.fromkeys(names, record)
    for final in (results.final.best, results.final.last):
        final.sites = {n: {**scores, "test": {"dice": 0.5 + k / 100}} for k, n in enumerate(names)}
    results.final.newcomers = names
    shown = text(results)
    rows = {line.split()[1]: line for line in shown.splitlines() if line.startswith("│")}
    train = 25 * record.cases["train"]
    assert f"{train}/" in rows["25"] and "25 sites, site_000 to site_024" in " ".join(shown.split())
    assert [rows[name].split()[-2] for name in ("worst", "median", "best", "mean")] == ["50.0", "62.0", "74.0", "62.0"]
