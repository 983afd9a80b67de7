"""Each site's page answers its question in its first sentence, carefully."""

from __future__ import annotations

import re
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
from fedshift.schema.paired import COMPARISON_FILE, LocalComparison
from fedshift.schema.protocol_results import HeldOutSite, LeaveOneOut, ModelScores
from fedshift.schema.results import Results, deciding_settings
from fedshift.tasks.evaluation.paired import compare
from reporting.reports import Page, html_of, page_of, record, told, written

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


def answered(site: str, comparison: LocalComparison) -> str:
    """The answer, with plain spaces."""
    return answer(site, comparison).sentence.text.replace("\u00a0", " ")


def test_a_better_model_is_said_to_be_better_with_interval_and_p(results: Results) -> None:
    assert results.final is not None
    better = answered("BIDMC", results.final.against_local["BIDMC"])
    for fact in ("better for BIDMC", "12 test cases", "3.4 points higher", "(73.6 % against 70.2 %"):
        assert fact in better
    assert "95 % interval 2.2 to 4.6 points" in better and "p = 0.001" in better
    swapped = compared(ALONE, [a + b for a, b in zip(ALONE, GAINS, strict=True)])
    assert "worse for HK" in answered("HK", swapped)


def test_a_difference_below_a_tenth_of_a_point_is_not_printed_as_none() -> None:
    tiny = compared([case - 0.0002 - 0.00001 * (number % 3) for number, case in enumerate(ALONE)], ALONE)
    plain = answered("HK", tiny)
    assert tiny.verdict == "worse" and "0.021 points lower" in plain
    assert "interval -0.021 to -0.021 points" in plain or "interval -0.022 to -0.02" in plain


def test_few_cases_are_not_enough_to_tell_and_the_sentence_says_how_many_would(results: Results) -> None:
    assert results.final is not None
    few = answered("HK", results.final.against_local["HK"])
    for fact in ("4 test cases", "than the 6", "cannot be told", "about 100 cases"):
        assert fact in few
    assert "interval" not in few
    two = answered("HK", compared([0.5, 0.6], [0.4, 0.5]))
    assert "fewer than 3 cases" in two and "about" not in two
    same = answered("HK", compared([0.5] * 8, [0.5] * 8))
    assert "the same" in same and "no number of" in same and "p = 1.000" in same


def test_a_subject_with_several_scans_is_said_and_counted_once() -> None:
    pair = np.array([a + b for a, b in zip(ALONE, GAINS, strict=True)]), np.array(ALONE)
    options = {"score": "dice", "is_binary": False, "round_": 2, "seed": 0, "share_cases": False}
    few = compare(*pair, subjects=[f"sub-{number // 3}" for number in range(12)], **options)
    sentence = answered("HK", few)
    for fact in ("12 test cases", "of 4 subjects", "than the 6", "cannot be told", f"about {few.needed} subjects"):
        assert fact in sentence
    two = answered("HK", compare(*pair, subjects=["sub-1", "sub-2"] * 6, **options))
    assert "fewer than 3 subjects" in two and "about" not in two


def test_the_first_sentence_of_each_sites_page_is_the_answer(results: Results, tmp_path: Path) -> None:
    page = page_of(written(results, tmp_path))
    assert results.final is not None
    assert not re.search(r"\d records", page.text), "one run is one record, whatever pages it has"
    for site, comparison in results.final.against_local.items():
        after = page.text.rpartition(f"worth it for {site}? ")[2]
        tone = "✓ Good. " if site == "BIDMC" else "■ Result. "
        assert after.startswith(tone + answered(site, comparison))
    assert page.text.count("worth it for") == 4, "in the contents and above the answer"
    assert "better at BIDMC; undecided at HK" in page.passages["benefit_of_all"]
    assert "withholds" in page.passages["models_compared"]
    assert "against-local" in page.sections and "evaluation.local=true" in page.commands[0]


def test_one_sites_page_says_nothing_of_the_others(results: Results, tmp_path: Path) -> None:
    folder, out = written(results, tmp_path / "run"), tmp_path / "hk.html"
    assert cli.main(["report", str(folder), "--site", "HK", "--out", str(out)]) == 0
    html = out.read_text(encoding="utf-8")
    assert "BIDMC" not in html and "benefit" in Page(html).passages
    assert cli.main(["report", str(folder), "--site", "HKK", "--out", str(out)]) == 2
    plain = written(record({"BIDMC": [0.5, 0.6], "HK": [0.5, 0.7]}), tmp_path / "plain")
    assert cli.main(["report", str(plain), "--site", "HK", "--out", str(out)]) == 2
    assert "worth it" not in html_of(plain)


def test_a_site_sees_its_single_cases_that_its_policy_withholds(results: Results, tmp_path: Path) -> None:
    folder, out, own = written(results, tmp_path / "run"), tmp_path / "hk.html", tmp_path / COMPARISON_FILE
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
    unknown = page_of(written(some, tmp_path / "some")).passages["benefit_unknown"]
    assert "for HK: " in unknown and "no comparison" in unknown
    assert "no_comparison" in page_of(written(with_local({}), tmp_path / "none")).passages


def test_pictures_are_counted_and_not_drawn_as_lines(tmp_path: Path) -> None:
    federated, local = [1.0] * 18 + [0.0] * 2, [1.0] * 9 + [0.0] * 9 + [1.0, 0.0]
    found = compare(
        np.array(federated), np.array(local), score="accuracy", is_binary=True, round_=2, seed=0, share_cases=True
    )
    page = Page(html_of(written(with_local({"HK": found}), tmp_path)))
    assert page.facts["p, McNemar's exact test"] == "0.021"
    assert page.facts["Federated right, alone wrong"] == "9"
    assert "case by case" not in page.text


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
    page = page_of(folder, tmp_path / "out")
    for fact in ("1 site", "10.0 points lower", "with BIDMC", "(60.0 % against 70.0 %)"):
        assert fact in page.passages["gift"]
    assert "HK gives the" in page.text
    settings = results.job.settings
    for change in (
        {"seed": 5},
        {"settings": {**settings, "optimizer": {**settings["optimizer"], "lr": 0.5}}},
        {"settings": {}},
    ):
        other = out.model_copy(update={"job": job.model_copy(update=change)})
        other.write(tmp_path / "out")
        assert "gift" not in page_of(folder, tmp_path / "out").passages, change


def test_a_job_that_holds_a_site_out_has_the_settings_of_the_whole() -> None:
    whole, less = (deciding_settings(resolve("prostate", "fedavg", held_out=out)) for out in ([], ["UCL"]))
    assert whole == less, "fewer sites, and so another federation.min_sites, are the same job"


def test_the_pages_fit_a_phone(results: Results, tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'fedshift[dev]'")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium: install the Debian package chromium")
    path = tmp_path / "report.html"
    record = read(written(results, tmp_path / "run"))
    assert isinstance(record, Run)
    path.write_text(page.render(page.chapters([record], site="BIDMC")), encoding="utf-8")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": 390, "height": 800})
        opened.goto(path.as_uri())
        assert opened.evaluate("document.documentElement.scrollWidth") <= 390
        first = opened.locator("article p, article li").first.inner_text()
        assert "better for BIDMC" in first
        drawn = opened.locator("figure > svg").evaluate_all("e => e.map(x => x.getBoundingClientRect().width)")
        assert len(drawn) == 2 and min(drawn) > 200
        browser.close()
