"""The report in a browser: phone and desktop, light and dark, on paper; and that it asks the network for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import small_job

from fedshift.federation.in_process import run_in_process
from fedshift.reporting.report import page as report
from fedshift.reporting.report.images import sections
from fedshift.reporting.report.runs import ReportInput, Run, read
from fedshift.reporting.report.section import Section
from fedshift.schema.protocol_results import CrossSite, HeldOutSite, LeaveOneOut, ModelScores
from fedshift.schema.results import Results
from reporting.browsing import CONTRAST, WIDTHS, WORST
from reporting.reports import HOSTILE, evaluated, html_of, record, scan_sites, written

BLOCKS = "h1, h2, h3, p, figure, .scroll, .findings, nav, pre"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every kind of section: a run with its images, one to compare it with, hostile names and all."""
    root = tmp_path_factory.mktemp("page")
    data = scan_sites(root / "data")
    run_in_process(small_job("fedfa+fedrdn", "schedule.rounds=3"), data, root / "run")
    results = record({HOSTILE: [0.1, 0.9, 0.3, 0.5, 0.6], "x" * 200: [0.2, 0.4, 0.5]}, kind="phantom")
    results.job.protocol = results.versions["torch"] = HOSTILE + "y" * 200
    assert results.final is not None
    told = results.final.best.evaluations[HOSTILE]
    told["test"] = told["test"].model_copy(update={"confusion": [[40 * i + j for j in range(12)] for i in range(12)]})
    folders = [root / "run", written(results, root / "hostile"), *many_models(results, root), root / "scores"]
    (root / "scores").mkdir()
    evaluated({HOSTILE: [0.2, 0.0], **{"z" * 200 + str(n): [0.8, 0.1 * n] for n in range(9)}}).write(root / "scores")

    def pictures(one: ReportInput) -> list[Section]:
        if isinstance(one, Run) and one.model is None:
            return []
        return list(sections(one, folders=data, most_sites=3))

    path = root / "report.html"
    html = report.render(report.chapters([read(folder) for folder in folders], pictures=pictures))
    path.write_text(html, encoding="utf-8")
    kinds = (
        "cross-site",
        "leave-one-out",
        "data:image/png",
        "As the images are",
        "t-SNE",
        "Worst, median and best",
        "Every case",
    )
    assert [kind for kind in kinds if kind not in html] == []
    return path


def many_models(results: Results, root: Path) -> list[Path]:
    """The folders of a cross-site and of a leave-one-out record at the sites of a run."""
    shared = {"job": results.job, "versions": results.versions}
    sites = list(results.data)
    scores = {a: {b: {"dice": 0.9 if a == b else 0.3} for b in sites} for a in sites}
    means = {"mean_at_home": {"dice": 0.9}, "mean_elsewhere": {"dice": 0.3}}
    assert results.final is not None
    evaluations = results.final.best.evaluations
    turns = {}
    for site, data in results.data.items():
        told = evaluations[site]["test"]
        model = ModelScores(
            round=2, scores={"all": told.scores, "test": told.scores}, evaluations={"all": told, "test": told}
        )
        turns[site] = HeldOutSite(data=data, best=model, last=model)
    cross = CrossSite(**shared, data=results.data, scores=scores, **means)
    out = LeaveOneOut(**shared, sites=turns, mean={"best": {"all": {"dice": 0.5}}, "last": {}})
    written(results, root / "cross")
    cross.write(root / "cross")
    (root / "out").mkdir()
    out.write(root / "out")
    return [root / "cross", root / "out"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_reads_well_and_asks_for_nothing(browser: Any, file: Path, width: int, scheme: str) -> None:
    heard: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    try:
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: heard.append(request.url))
        page.goto(file.as_uri())
        assert heard == [file.as_uri()] or heard == [file.as_uri(), "data:,"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        sticking_out = "e => [...e].filter(x => x.getBoundingClientRect().right > innerWidth + 1).map(x => x.outerHTML)"
        assert page.locator(BLOCKS).evaluate_all(sticking_out) == []
        ratio, words = page.evaluate(WORST)
        assert ratio >= CONTRAST, words
        drawn = page.locator("figure > svg").evaluate_all("e => e.map(x => x.getBoundingClientRect().width)")
        assert len(drawn) > 10 and min(drawn) > 140
        labels = page.locator("figure > svg").evaluate_all("e => e.map(x => x.getAttribute('aria-label'))")
        assert all(labels)
    finally:
        page.close()


def test_dark_is_another_page_than_light(browser: Any, file: Path) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        try:
            page.goto(file.as_uri())
            line = "getComputedStyle(document.querySelector('figure svg [style*=\"stroke: var(--series-1)\"]')).stroke"
            body = "getComputedStyle(document.body)"
            asked = (f"{body}.backgroundColor", f"{body}.color", line)
            seen[scheme] = [page.evaluate(what) for what in asked]
        finally:
            page.close()
    assert all(light != dark for light, dark in zip(seen["light"], seen["dark"], strict=True))
    assert "none" not in seen["light"]


def test_no_column_is_out_of_sight_on_a_phone(browser: Any, file: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900})
    try:
        page.goto(file.as_uri())
        ends = "e => e.filter(x => x.innerText.trim()).map(x => x.getBoundingClientRect().right)"
        cells = page.locator("table td").evaluate_all(ends)
        assert len(cells) > 100 and max(cells) <= 390
        name = "e => [e.dataset.column, getComputedStyle(e, '::before').content]"
        column, shown = page.locator(".wide td").first.evaluate(name)
        assert column and shown == f'"{column}"'
    finally:
        page.close()


def test_headings_of_a_long_table_stay_in_sight(browser: Any, tmp_path: Path) -> None:
    many = record({f"site_{number:03d}": [0.5, 0.7, 0.6] for number in range(60)})
    path = tmp_path / "many.html"
    path.write_text(html_of(written(many, tmp_path)), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 700})
    try:
        page.goto(path.as_uri())
        table = page.locator(".scroll.long").first
        assert table.evaluate("e => (e.scrollTop = 900, e.scrollTop)") > 100
        tops = table.evaluate("e => [e.getBoundingClientRect().top, e.querySelector('th').getBoundingClientRect().top]")
        assert abs(tops[0] - tops[1]) < 2
    finally:
        page.close()


def test_every_printed_page_says_that_the_data_are_simulated(browser: Any, file: Path) -> None:
    pdfium = pytest.importorskip("pypdfium2", reason="no pypdfium2: pip install 'fedshift[dev]'")
    page = browser.new_page(color_scheme="dark")
    try:
        page.goto(file.as_uri())
        printed = page.pdf(prefer_css_page_size=True, print_background=True)
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    finally:
        page.close()
    document = pdfium.PdfDocument(printed)
    try:
        pages = [sheet.get_textpage().get_text_bounded() for sheet in document]
    finally:
        document.close()
    assert len(pages) > 4
    assert all("PHANTOM: simulated data" in text and "medical device" in text for text in pages)
