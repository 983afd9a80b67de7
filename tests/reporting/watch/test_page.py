"""The page in a browser: phone and desktop, light and dark, keyboard, hostile names, and days of changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fedshift.reporting.progress import Refused
from fedshift.reporting.recent_log import LogLine
from fedshift.reporting.watch.server import WatchServer
from reporting.browsing import CONTRAST, WIDTHS, WORST
from reporting.reports import HOSTILE
from reporting.watch.standin import SITES, StandIn, progress_at
from reporting.watch.test_server import serving

BLOCKS = "h1, h2, p, dl, figure, .scroll, progress"
NODES = "document.getElementsByTagName('*').length"


@pytest.fixture
def source() -> StandIn:
    return StandIn(progress_at(14))


@pytest.fixture
def server(source: StandIn) -> Iterator[WatchServer]:
    with serving(source) as server:
        yield server


def look(page: Any) -> None:
    """Have the page ask now, and wait until it shows what it got."""
    page.evaluate("look()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_reads_well_and_asks_only_its_server(
    browser: Any, server: WatchServer, source: StandIn, width: int, scheme: str
) -> None:
    assert source.progress is not None
    odd = Refused(round=3, site="x" * 120, reason=HOSTILE + "y" * 200)
    source.progress = source.progress.model_copy(
        update={
            "sites": [*SITES, HOSTILE, "x" * 120],
            "site_scores": {**source.progress.site_scores, HOSTILE: 0.5},
            "rejected": {HOSTILE: HOSTILE * 3},
            "refused": [*source.progress.refused, odd],
            "log": [*source.progress.log, LogLine(time=1.0, level="WARNING", text=HOSTILE + "z" * 250)],
            "job": HOSTILE,
        }
    )
    heard: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    try:
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("dialog", lambda dialog: heard.append(dialog.message))
        page.on("request", lambda request: heard.append(request.url) if server.url not in request.url else None)
        page.goto(server.url)
        page.wait_for_selector("#site-rows tr")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        sticking_out = "e => [...e].filter(x => x.getBoundingClientRect().right > innerWidth + 1).map(x => x.outerHTML)"
        assert page.locator(BLOCKS).evaluate_all(sticking_out) == []
        ratio, words = page.evaluate(WORST)
        assert ratio >= CONTRAST, words
        assert page.locator("tbody script").count() == 0 and page.evaluate("document.scripts.length") == 1
        shown = page.locator("#site-rows tr", has_text="<script>").inner_text()
        assert "left out" in shown and "alert(1)" in shown
        assert [url for url in heard if url != "data:,"] == []
    finally:
        page.close()


def test_it_tells_how_the_run_stands_and_follows_it(browser: Any, server: WatchServer, source: StandIn) -> None:
    source.progress = None
    page = browser.new_page()
    try:
        page.goto(server.url)
        page.get_by_text("Waiting: the run has not begun").wait_for()
        assert not page.get_by_role("heading", name="Sites").is_visible(), "there is nothing to show yet"
        source.progress = progress_at(14)
        look(page)
        page.get_by_text("Round 14 of 40").wait_for()
        assert page.locator("#n-in").inner_text() == "2 of 6"
        assert page.locator("#left").inner_text() == "about 33 min 07 s"
        assert page.locator("#sites-how").inner_text().endswith(": HK, RUNMC, UCL.")
        words = page.locator("#site-rows tr td:nth-child(2)").all_inner_texts()
        assert [word.split("\n")[0] for word in words] == ["left out", "awaited", "in", "in", "awaited", "awaited"]
        assert "round before" in words[-1]
        assert page.locator("#phantom").is_visible()
        assert page.locator("#refused-rows tr").count() == 13
        kinds = {*page.locator("#log-rows tr td:nth-child(2)").all_inner_texts()}
        assert kinds == {"note", "warning", "error"}
        assert "from 0.320 in round 1" in page.locator("#plot").get_attribute("aria-label")
        assert page.title().startswith("PHANTOM: ")
        source.age = 9000.0
        look(page)
        page.get_by_text("No news for 2 h 30 min.").wait_for()
        source.problem = "the server cannot be asked: no connection"
        look(page)
        page.get_by_text("the server cannot be asked").wait_for()
        reason = "too few sites"
        source.problem, source.progress = "", progress_at(14, state="failed", reason=reason)
        look(page)
        page.get_by_text("Failed in: Round 14 of 40").wait_for()
        assert page.get_by_role("alert").inner_text() == f"FAILED {reason}"
        source.progress = progress_at(40, state="finished", step="evaluation", rejected={}, sites_in=SITES)
        look(page)
        page.get_by_text("Finished after 40 rounds").wait_for()
        assert page.locator("#share").evaluate("e => e.value") == 1
        assert page.get_by_role("alert").count() == 0
    finally:
        page.close()


def test_a_keyboard_reaches_all_that_scrolls_and_a_server_that_goes_is_told(browser: Any, source: StandIn) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 700})
    try:
        with serving(source) as server:
            page.goto(server.url)
            page.wait_for_selector("#log-rows tr")
            reached = []
            for _ in range(4):
                page.keyboard.press("Tab")
                reached.append(
                    page.evaluate(
                        "document.activeElement.getAttribute('aria-labelledby') || document.activeElement.hash"
                    )
                )
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none"
            assert reached == ["#sites", "sites", "refused", "log"]
            before = page.evaluate("document.activeElement.id")
            look(page)
            assert page.evaluate("document.activeElement.id") == before, "looking again takes nothing from the hands"
        look(page)
        page.get_by_text("fedshift watch does not answer").wait_for()
    finally:
        page.close()


@pytest.mark.slow
def test_after_a_thousand_snapshots_the_page_is_no_larger(browser: Any, server: WatchServer, source: StandIn) -> None:
    """The page's own code is fed snapshots as fast as it can show them."""
    page = browser.new_page()
    try:
        page.goto(server.url)
        page.wait_for_selector("#site-rows tr")
        snapshots = []
        for number in (1500, 1999, 2500, 3001):
            source.progress = progress_at(number, rounds=5000)
            snapshots.append(source.read().model_dump(mode="json", by_alias=True))
        feed = """(snapshots, times) => { for (let n = 0; n < times; n++) {
            const one = structuredClone(snapshots[n % snapshots.length]);
            one.progress.round = one.progress.refused[0].round = n;
            one.progress.log[0].text = `line ${n}`;
            show(one); } }"""
        page.evaluate(f"([snapshots, times]) => ({feed})(snapshots, times)", [snapshots, 8])
        page.evaluate("clearTimeout(timer)")
        session = page.context.new_cdp_session(page)

        def counted() -> tuple[int, float]:
            session.send("HeapProfiler.collectGarbage")
            metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
            return page.evaluate(NODES), metrics["JSHeapUsedSize"] + 100 * metrics["Nodes"]

        session.send("Performance.enable")
        nodes, size = counted()
        page.evaluate(f"([snapshots, times]) => ({feed})(snapshots, times)", [snapshots, 1200])
        after, later = counted()
        assert after == nodes < 700
        assert later - size < 300_000
    finally:
        page.close()
