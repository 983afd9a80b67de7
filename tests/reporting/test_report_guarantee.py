"""What is guaranteed: in a run's report, on a site's page and on the model's card, with what came of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import make_image_site, small_image_job

from fedshift.cli import main
from fedshift.federation.in_process import run_in_process
from fedshift.reporting.report import guarantee
from fedshift.reporting.report.runs import Run, read
from fedshift.reporting.report.section import Cell, Findings, Section, Table
from fedshift.schema.guarantee import LEVELS, Guarantee, Level, Outcome, Promise
from fedshift.schema.results import BEST
from reporting.reports import Page


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("guarantee")
    sites = {site: make_image_site(root, site, images=90) for site in "AB"}
    job = small_image_job("fedavg", "evaluation.guarantee=0.3", "evaluation.local=true", sites=("A", "B"))
    run_in_process(job, sites, root / "run")
    return root / "run"


def table(section: Section) -> dict[tuple[str, str], list[str]]:
    (tables,) = (block for block in section.blocks if isinstance(block, Table))
    texts = [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in tables.rows]
    return {(row[0], row[1]): row[2:] for row in texts}


def test_report_site_and_card_have_the_levels_and_the_shares_on_test_cases(run: Path, tmp_path: Path) -> None:
    record = read(run)
    assert isinstance(record, Run) and record.results.final is not None
    made = record.results.final.guarantee
    section = guarantee.of_run(record)
    assert made is not None and section is not None
    rows = table(section)
    assert {who for who, _ in rows} == {"A", "B", guarantee.NEWCOMER}
    for site, promises in made.sites.items():
        for name, promise in promises.items():
            tested = promise.outer.tested
            shown = "-" if tested is None else f"{100 * tested.mean:.1f}"
            assert rows[site, name][0] == str(promise.n) and rows[site, name][2] == shown
    (alone,) = guarantee.of_site(record, "A")
    assert {who for who, _ in table(alone)} == {"A"} and not guarantee.of_site(record, "C")
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert main(["card", str(run / BEST), "--out", str(tmp_path / "card.html")]) == 0
    for name in ("report.html", "card.html"):
        page = (tmp_path / name).read_text(encoding="utf-8")
        assert "What is guaranteed" in page and "at most 30 %" in page
    told = json.loads((tmp_path / "card.json").read_text(encoding="utf-8"))
    assert told["guarantee"] == made.model_dump(mode="json")
    assert Page((tmp_path / "card.html").read_text(encoding="utf-8")) is not None


def test_what_was_missed_beyond_the_promise_is_a_caution_and_what_is_not_covered_says_so() -> None:
    kept = Level(level=LEVELS[9], tested=Outcome(n=20, mean=0.04, interval=(0.01, 0.07)))
    beyond = Level(level=LEVELS[9], others=8, at_most=0.14, tested=Outcome(n=20, mean=0.3, interval=(0.2, 0.4)))
    few = Level(level=None, needed=6)
    made = Guarantee(
        alpha=0.1,
        sites={
            "A": {"organ": Promise(n=30, outer=kept, inner=kept)},
            "B": {"organ": Promise(n=9, outer=beyond, inner=few)},
        },
    )
    section = guarantee.section(made)
    rows = table(section)
    assert rows["B", "organ"][1:] == ["0.009", "30.0", "not covered", "-"]
    (findings,) = (block for block in section.blocks if isinstance(block, Findings))
    said = {finding.tone: finding.sentence.text for finding in findings.findings}
    assert "2 of 3 promised shares were at most 10 %" in said["result"] and "B (organ)" in said["caution"]
    assert "nothing is promised to a hospital that took no part" in " ".join(f.sentence.text for f in findings.findings)
