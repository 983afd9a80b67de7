"""A comparison as a chapter of ``fedshift report``."""

from __future__ import annotations

from pathlib import Path

import pytest
from reporting.reports import HOSTILE, Page, html_of

from bench.made import made
from fedshift.reporting.report import page
from fedshift_bench.chapter import read_chapter, recognises
from fedshift_bench.record import write_comparison


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """The record of a comparison of two rows, one of whose cells is missing."""
    sites = [{"A": 0.5, "B": 0.7}, {"A": 0.54, "B": 0.72}]
    cells = {("FedAvg",): sites, ("FedFA with all",): [*sites[:1], None]}
    order = {"tests": [("FedFA with all", "FedAvg")], "claims": [("FedFA with all", "FedAvg")]}
    return write_comparison(made(cells, scale="full", what=f"About {HOSTILE}", **order), tmp_path)


def test_the_chapter_has_the_claims_the_tables_and_the_commands(record: Path) -> None:
    assert recognises(record) and recognises(record.parent) and not recognises(record.parent.parent)
    html = page.render(page.chapters([read_chapter(record)]))
    text = Page(html).text
    assert "Made by hand" in text and "FedFA with all" in text and "61.5 ± 2.1" in text
    assert all(part in text for part in ("undecided (", "above FedAvg", "3 of 4", "1 of 4 cells"))
    assert "fedshift job" in text and "<script>" not in html


def test_the_report_finds_the_chapter_of_a_folder_and_of_a_file(record: Path) -> None:
    assert Page(html_of(record)).text == Page(html_of(record.parent)).text
    assert "FedFA with all" in Page(html_of(record)).text
