"""Each site's page answers its question in its first sentence, carefully."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedshift import cli
from fedshift.federation.resolve import resolve
from fedshift.reporting.report import page
from fedshift.reporting.report.benefit import answer
from fedshift.reporting.report.runs import Run, read
from fedshift.schema.paired import OWN_FILE, LocalComparison
from fedshift.schema.protocol_results import HeldOutSite, LeaveOneOut, ModelScores
from fedshift.schema.results import Results, deciding_settings
from fedshift.tasks.evaluation.paired import compare
from reporting.reports import Page, html_of, record, told, written

ALONE = [0.70, 0.72, 0.65, 0.80, 0.75, 0.60, 0.71, 0.66, 0.78, 0.69, 0.74, 0.62]
GAINS = [0.03, 0.05, 0.02, 0.04, 0.06, 0.01, 0.03, 0.07, 0.02, 0.05, -0.01, 0.04]


def compared(federated: Sequence[float], local: Sequence[float], *, share: bool = True) -> LocalComparison:
    return compare(
        np.array(federated), np.array(local), score="dice", is_binary=False, round_=2, seed=0, share_cases=share
    )


def with_local(found: Mapping[str, LocalComparison], **options: Any) -> Results:
    """A run at two sites whose comparisons are these."""
    sites = {"BIDMC": [0.7, 0.8, 0.9], "HK": [0.5, 0.6, 0.7]}
    results = record(sites, **options)
    assert results.final is not None
    results.job.local = True
    results.final.against_local = dict(found)
    return results


@pytest.fixture(scope="module")
def results() -> Results:
    better = compared([a + b for a, b in zip(ALONE, GAINS, strict=True)], ALONE)
    return with_local({"BIDMC": better, "HK": compared([0.5, 0.62, 0.7, 0.4], [0.48, 0.6, 0.73, 0.38], share=False)})


def test_a_better_model_is_said_to_be_better_with_interval_and_p(results: Results) -> None:
    assert results.final is not None
    told_of = results.final.against_local["BIDMC"]
    plain = answer("BIDMC", told_of).text.replace("\u00a0", " ")
    assert plain.startswith(
        "The federated model is better for BIDMC than the one that it trained alone: on the same 12 "
    )
    assert "Dice is 3.4 points higher (73.6 % against 70.2 %; 95 % interval 2.2 to 4.6 points, p = 0.001)." in plain
    swapped = compared(ALONE, [a + b for a, b in zip(ALONE, GAINS, strict=True)])
    assert answer("HK", swapped).text.startswith("The federated model is worse for HK")


def test_a_difference_below_a_tenth_of_a_point_is_not_printed_as_none() -> None:
    tiny = compared([case - 0.0002 - 0.00001 * (number % 3) for number, case in enumerate(ALONE)], ALONE)
    plain = answer("HK", tiny).text.replace("\u00a0", " ")
    assert tiny.verdict == "worse" and "0.021 points lower" in plain
    assert "interval -0.021 to -0.021 points" in plain or "interval -0.022 to -0.02" in plain


def test_few_cases_are_not_enough_to_tell_and_the_sentence_says_how_many_would(results: Results) -> None:
    assert results.final is not None
    few = answer("HK", results.final.against_local["HK"]).text
    assert few.startswith("From 4 test cases, fewer than the 6 that a test needs, it cannot be told whether")
    assert "about 100 cases would tell a difference of this size." in few and "interval" not in few
    two = answer("HK", compared([0.5, 0.6], [0.4, 0.5])).text
    assert "from fewer than 3 cases it cannot be estimated how many would tell" in two
    same = answer("HK", compared([0.5] * 8, [0.5] * 8)).text
    assert "its Dice is the same" in same and "no number of cases" in same and "p = 1.000" in same


def test_a_subject_with_several_scans_is_said_and_counted_once() -> None:
    pair = np.array([a + b for a, b in zip(ALONE, GAINS, strict=True)]), np.array(ALONE)
    options = {"score": "dice", "is_binary": False, "round_": 2, "seed": 0, "share_cases": False}
    few = compare(*pair, subjects=[f"sub-{number // 3}" for number in range(12)], **options)
    said = answer("HK", few).text
    assert said.startswith("From 12 test cases of 4 subjects, fewer than the 6 that a test needs, it cannot be told")
    assert f"about {few.needed} subjects would tell" in said
    two = answer("HK", compare(*pair, subjects=["sub-1", "sub-2"] * 6, **options)).text
    assert "from fewer than 3 subjects it cannot be estimated how many would tell" in two


def test_the_first_sentence_of_each_sites_page_is_the_answer(results: Results, tmp_path: Path) -> None:
    html = html_of(written(results, tmp_path))
    assert results.final is not None
    text = Page(html).text
    assert text.count("records") == html.count("from the records of"), "one run is one record, whatever pages it has"
    for site, found in results.final.against_local.items():
        after = text.rpartition(f"Is the federation worth it for {site}? ")[2]
        tone = "✓ Good. " if site == "BIDMC" else "■ Result. "
        assert after.startswith(tone + answer(site, found).text.replace("\u00a0", " "))
    assert text.count("Is the federation worth it for") == 4  # in the contents and above the answer
    assert "The federated model against those that the sites trained alone: better at BIDMC; undecided at HK." in text
    assert "The site's policy withholds the scores of single cases." in text
    assert "Federated against trained alone" in text and "evaluation.local=true" in text


def test_one_sites_page_says_nothing_of_the_others(results: Results, tmp_path: Path) -> None:
    folder, out = written(results, tmp_path / "run"), tmp_path / "hk.html"
    assert cli.main(["report", str(folder), "--site", "HK", "--out", str(out)]) == 0
    html = out.read_text(encoding="utf-8")
    assert "BIDMC" not in html and "cannot be told whether" in html
    assert cli.main(["report", str(folder), "--site", "HKK", "--out", str(out)]) == 2
    plain = written(record({"BIDMC": [0.5, 0.6], "HK": [0.5, 0.7]}), tmp_path / "plain")
    assert cli.main(["report", str(plain), "--site", "HK", "--out", str(out)]) == 2
    assert "worth it" not in html_of(plain)


def test_a_site_sees_its_single_cases_that_its_policy_withholds(results: Results, tmp_path: Path) -> None:
    folder, out, own = written(results, tmp_path / "run"), tmp_path / "hk.html", tmp_path / OWN_FILE
    pairs = ([0.5, 0.62, 0.7, 0.4], [0.48, 0.6, 0.73, 0.38])
    own.write_text(compared(*pairs).model_dump_json(), encoding="utf-8")
    report = ["report", str(folder), "--out", str(out), "--own", str(own)]
    assert cli.main([*report, "--site", "HK"]) == 0
    assert "case by case" in out.read_text(encoding="utf-8")
    assert cli.main([*report, "--site", "BIDMC"]) == 2  # of another site
    assert cli.main(report) == 2
    own.write_text("{}", encoding="utf-8")
    assert cli.main([*report, "--site", "HK"]) == 2


def test_a_site_without_a_comparison_is_told_why(results: Results, tmp_path: Path) -> None:
    assert results.final is not None
    some = with_local({"BIDMC": results.final.against_local["BIDMC"]})
    assert "It is not known whether the federation is worth it for HK: it sent no comparison." in html_of(
        written(some, tmp_path / "some")
    )
    none = Page(html_of(written(with_local({}), tmp_path / "none"))).text
    assert "No site compared the federated model with one that it trained alone." in none


def test_pictures_are_counted_and_not_drawn_as_lines(tmp_path: Path) -> None:
    federated, local = [1.0] * 18 + [0.0] * 2, [1.0] * 9 + [0.0] * 9 + [1.0, 0.0]
    found = compare(
        np.array(federated), np.array(local), score="accuracy", is_binary=True, round_=2, seed=0, share_cases=True
    )
    text = Page(html_of(written(with_local({"HK": found}), tmp_path))).text
    assert "McNemar's exact test 0.021" in text and "Federated right, alone wrong 9" in text
    assert "case by case" not in text


def test_what_a_site_gives_is_shown_where_it_was_left_out(results: Results, tmp_path: Path) -> None:
    folder = written(results, tmp_path / "run")
    model = ModelScores(round=2, scores={"all": {"dice": 0.5}})
    turns = {
        site: HeldOutSite(data=data, best=model, last=model, others={other: told([0.6, 0.7, 0.8])})
        for (site, data), other in zip(results.data.items(), ("HK", "BIDMC"), strict=True)
    }
    job = results.job.model_copy(update={"name": "another", "local": False})
    out = LeaveOneOut(job=job, versions={}, sites=turns, mean={"best": {"all": {"dice": 0.5}}, "last": {}})
    (tmp_path / "out").mkdir()
    out.write(tmp_path / "out")
    text = Page(html_of(folder, tmp_path / "out")).text
    assert (
        "At the other 1 site the mean test Dice is 10.0 points lower with BIDMC than without (60.0 % against 70.0 %)"
        in text
    )
    assert "What HK gives the others" in text
    settings = results.job.settings
    for change in (
        {"seed": 5},
        {"settings": {**settings, "optimizer": {**settings["optimizer"], "lr": 0.5}}},
        {"settings": {}},
    ):
        other = out.model_copy(update={"job": job.model_copy(update=change)})
        other.write(tmp_path / "out")
        assert "gives the others" not in html_of(folder, tmp_path / "out"), change


def test_a_job_that_holds_a_site_out_has_the_settings_of_the_whole() -> None:
    whole, less = (deciding_settings(resolve("prostate", "fedavg", held_out=out)) for out in ([], ["UCL"]))
    assert whole == less, "fewer sites, and so another federation.min_sites, are the same job"


def test_the_pages_fit_a_phone(results: Results, tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'fedshift[dev]'")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium: install the Debian package chromium")
    path = tmp_path / "report.html"
    given = read(written(results, tmp_path / "run"))
    assert isinstance(given, Run)
    path.write_text(page.render(page.chapters([given], site="BIDMC")), encoding="utf-8")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": 390, "height": 800})
        opened.goto(path.as_uri())
        assert opened.evaluate("document.documentElement.scrollWidth") <= 390
        first = opened.locator("article p, article li").first.inner_text()
        assert "The federated model is better for BIDMC" in first
        drawn = opened.locator("figure > svg").evaluate_all("e => e.map(x => x.getBoundingClientRect().width)")
        assert len(drawn) == 2 and min(drawn) > 200
        browser.close()
