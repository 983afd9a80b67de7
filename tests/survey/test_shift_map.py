"""The map of the shift on a page and in the terminal: every pair, no text as markup, nothing from the network."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from surveysites import survey_site

from fedshift.data.fingerprint import counts_only, fingerprint
from fedshift.data.shift import ASPECTS, SPACING, shift_map
from fedshift.reporting.report import page
from fedshift.reporting.report.section import Table, Tables
from fedshift.schema.fingerprint import Fingerprint
from fedshift_survey.shift_map import MAX_SITES, MOST_PAIRS, chapter
from fedshift_survey.shift_table import intensity_rows, map_tables, pair_table, sites_table, suggestion_lines
from fedshift_survey.suggestions import suggestions


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[Fingerprint]:
    root = tmp_path_factory.mktemp("sites")
    return [
        fingerprint(survey_site(root, "A", (1, 2, 3))),
        fingerprint(survey_site(root, "B", (4, 5, 6), gain=3.0, spacing=(3.0, 1.2, 1.2))),
        fingerprint(survey_site(root, "C", (7, 8, 9), spacing=(1.0, 1.0, 1.0))),
        counts_only(survey_site(root, "D", (1,)), why="it has <b>few</b> cases"),
    ]


class Ids(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.ids += [attributes["id"]] if attributes.get("id") else []
        if tag in ("script", "img", "iframe") or (
            tag == "link" and not str(attributes.get("href")).startswith("data:")
        ):
            self.loaded.append(tag)


def rendered(told: list[Fingerprint]) -> str:
    shift = shift_map(told, placed=["C"])
    made = chapter(shift, told, suggestions(shift, told), dataset="organ", command="fedshift survey organ", plan="a: 1")
    return page.render(page.with_ids([made]))


def test_the_page_is_whole_and_loads_nothing(told: list[Fingerprint]) -> None:
    html = rendered(told)
    parser = Ids()
    parser.feed(html)
    assert parser.loaded == []
    assert len(parser.ids) == len(set(parser.ids)) and {"c0-summary", "c0-map", "c0-pair"} <= set(parser.ids)
    assert "\ue000" not in html, "the ids of figures are unique in the page"
    assert "simulated scans" in html
    assert "it has &lt;b&gt;few" in html and "<b>few" not in html
    assert rendered(told) == html, "equal input gives equal bytes"


def test_every_pair_is_in_the_map(told: list[Fingerprint]) -> None:
    shift = shift_map(told)
    made = chapter(shift, told, [], dataset="organ", command="x")
    blocks = next(section for section in made.sections if section.id == "map").blocks
    overall, legend = [block for block in blocks if isinstance(block, Table)]
    assert [row[0] for row in overall.rows] == ["A", "B", "C"]
    assert len(legend.rows) == len(ASPECTS)
    assert [SPACING.title + " (octaves)", SPACING.means, "0.15", "0.5"] in [list(row) for row in legend.rows]
    (squares,) = [block for block in blocks if isinstance(block, Tables)]
    known = [aspect for aspect in ASPECTS if shift.largest(aspect) is not None]
    assert [table.caption.partition(" (")[0] for table in squares.tables] == [aspect.title for aspect in known]


def test_many_sites_are_shown_by_their_farthest_pairs(told: list[Fingerprint]) -> None:
    many = [told[number % 3].model_copy(update={"site": f"S{number:02d}"}) for number in range(MAX_SITES + 1)]
    shift = shift_map(many)
    made = chapter(shift, many, [], dataset="organ", command="x")
    table, _ = [b for s in made.sections if s.id == "map" for b in s.blocks if isinstance(b, Table)]
    assert len(table.rows) == MOST_PAIRS and table.caption.endswith("465")
    assert len(list(map_tables(shift))) == 1, "too wide for a terminal"


def test_the_terminal_has_the_same_numbers(told: list[Fingerprint]) -> None:
    shift = shift_map(told, placed=["C"])
    console = Console(width=160, record=True)
    assert shift.farthest is not None
    for part in (sites_table(told, placed=shift.placed), *map_tables(shift), pair_table(shift, shift.farthest, told)):
        console.print(part)
    for line in suggestion_lines(suggestions(shift, told)):
        console.print(line)
    text = console.export_text()
    assert "<b>few</b> cases" in text and "C (on the" in text
    distance = shift.overall("A", "B")
    assert f" {distance:.2f} " in text
    assert "x 1.2 x" in text and "not known" in text


def test_an_unknown_distance_is_not_like_that_of_a_site_from_itself(told: list[Fingerprint]) -> None:
    found = shift_map(told[:2])
    found = replace(found, distances={key: dict.fromkeys(of) for key, of in found.distances.items()})
    console = Console(width=160, record=True)
    console.print(next(map_tables(found)))
    text = console.export_text()
    assert text.count("–") == text.count("·") == 2


def test_bright_intensities_are_written_without_an_exponent(tmp_path: Path) -> None:
    bright = fingerprint(survey_site(tmp_path, "bright", (1, 2, 3), gain=200.0))
    shown = intensity_rows(bright, bright)["image", "core"][0]
    assert re.fullmatch(r"\d\d,\d{3} ± \d,\d{3}", shown), shown
