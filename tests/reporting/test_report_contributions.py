"""What a method estimates of each site's contribution is shown with its interval over rounds, and as an estimate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fedshift.reporting.report.contributions import of_sites, shares
from fedshift.reporting.report.runs import Run, read
from fedshift.schema.results import Results
from reporting.reports import page_of, record, written

SCORES = {"BIDMC": [0.7, 0.8, 0.9], "HK": [0.5, 0.6, 0.7]}


def estimated(by_site: Mapping[str, Sequence[float | None]], method: str = "fedce") -> Results:
    """A run whose rounds have these shares; None: the site was not in the round."""
    results = record(SCORES)
    pattern = results.rounds[0]
    results.rounds = [
        pattern.model_copy(
            update={
                "round": number,
                "contributions": {
                    method: {site: share for site, share in zip(by_site, of_round, strict=True) if share is not None}
                },
            }
        )
        for number, of_round in enumerate(zip(*by_site.values(), strict=True), start=1)
    ]
    return results


def as_run(results: Results, folder: Path) -> Run:
    run = read(written(results, folder))
    assert isinstance(run, Run)
    return run


def test_shares_have_an_interval_over_rounds_and_are_compared_with_an_equal_share(tmp_path: Path) -> None:
    hk = [0.70, 0.72, 0.69, 0.71, 0.70, 0.73]
    run = as_run(estimated({"HK": hk, "BIDMC": [1 - share for share in hk]}), tmp_path / "apart")
    fedce_shares = shares(run)["fedce"]
    assert list(fedce_shares) == ["BIDMC", "HK"], "the job's order, whatever the shares are"
    assert (fedce_shares["HK"].place, fedce_shares["BIDMC"].place) == ("above", "below")
    assert fedce_shares["HK"].bounds == pytest.approx((0.69125, 0.72875)) and fedce_shares["HK"].equal == 0.5
    page = page_of(tmp_path / "apart")
    assert "by fedce" in page.sections["contributions"] and "confidence interval" in page.passages["contributions_how"]
    assert "70.8 [69.1, 72.9]" in page.sections["contributions"]

    unclear = as_run(estimated({"BIDMC": [0.4, 0.6, 0.45, 0.55, 0.5], "HK": [0.6, 0.4, 0.55, 0.45, 0.5]}), tmp_path)
    assert [share.place for share in shares(unclear)["fedce"].values()] == ["open", "open"]


def test_few_rounds_have_no_interval_and_nothing_is_told(tmp_path: Path) -> None:
    run = as_run(estimated({"BIDMC": [0.1, 0.1, 0.1, 0.1], "HK": [0.9, 0.9, 0.9, 0.9]}), tmp_path)
    share = shares(run)["fedce"]["HK"]
    assert share.bounds is None and share.place == "open"
    assert "[" not in page_of(tmp_path).sections["contributions"]


def test_a_site_that_was_absent_is_compared_with_the_equal_shares_of_its_own_rounds(tmp_path: Path) -> None:
    shared = [0.6, None, 0.6, None, 0.6, 0.6, 0.6]
    run = as_run(estimated({"BIDMC": shared, "HK": [1 if v is None else 0.4 for v in shared]}), tmp_path)
    fedce_shares = shares(run)["fedce"]
    assert (fedce_shares["BIDMC"].n, fedce_shares["BIDMC"].equal) == (5, 0.5)
    assert fedce_shares["HK"].n == 7 and fedce_shares["HK"].equal == pytest.approx((5 * 0.5 + 2) / 7)


def test_a_sites_page_tells_its_own_share_only(tmp_path: Path) -> None:
    results = estimated({"BIDMC": [0.7] * 6, "HK": [0.3] * 6})
    results.job.local = True
    folder = written(results, tmp_path)
    text = page_of(folder).text.rpartition("What HK contributes")[2]
    share, _, _ = text.partition("An estimate")
    assert re.findall(r"[0-9.]+ %", share) == ["30.0 %", "50.0 %", "95 %", "30.0 %"]
    assert "fedce" in share and "6 rounds" in share and "below" in share
    assert "BIDMC" not in text and "70.0" not in text


def test_a_run_of_methods_that_estimate_nothing_has_no_such_section(tmp_path: Path) -> None:
    run = as_run(record(SCORES), tmp_path)
    assert shares(run) == {} and of_sites(run) is None
