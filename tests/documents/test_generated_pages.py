"""Tables of pages that are made from the code when the pages are built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.hooks import guard, leaves
from fedshift.methods.method_set import available

PAGES = {path.name: path.read_text(encoding="utf-8") for path in (Path(__file__).parents[2] / "docs").glob("*.md")}


@pytest.mark.parametrize("mark", guard.TABLES)
def test_a_page_gets_its_table(mark: str) -> None:
    (page,) = (text for text in PAGES.values() if mark in text)
    header, rows = guard.TABLES[mark]
    lines = guard.on_page_markdown(page).splitlines()
    assert len(list(rows())) > 10
    for cells in (header, *rows()):
        assert all(cells) and f"| {' | '.join(cells)} |" in lines


def test_a_role_and_a_bound_are_those_of_the_code() -> None:
    page = guard.on_page_markdown(PAGES["guard.md"])
    assert re.search(r"(?m)^\| `abort_job` \| all \| jobs of the organisation \| own jobs \| – \| `JOB` \|$", page)
    assert re.search(r"(?m)^\| site's job \| server's job \| `server_command` \| `get_task`, `submit_update` \|$", page)


@pytest.mark.slow
def test_the_page_on_what_leaves_has_a_table_of_each_method() -> None:
    page = leaves.on_page_markdown(PAGES["what-leaves-a-site.md"])
    assert {"## Every job", "## A survey", *(f"## {name}" for name in available())} <= set(page.splitlines())
    assert leaves.on_page_markdown(PAGES["guard.md"]) == PAGES["guard.md"]
