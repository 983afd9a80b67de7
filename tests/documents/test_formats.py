"""The pages say what is read, converted, warned of and refused as the code's own table does."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedshift import cli
from fedshift.data.reading_rules import RULES, table

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"DICOM image": "how-to-dicom.md", "DICOM mask": "how-to-dicom.md", "picture": "pictures-to-classify.md"}
"""Where the rules of a format are; those of others are on the page of all formats."""


@pytest.mark.parametrize("group", RULES)
def test_a_page_has_the_rules(group: str) -> None:
    page = (DOCS / PAGES.get(group, "data.md")).read_text(encoding="utf-8")
    assert f"\n{table(group)}\n\n" in page, "fedshift data formats prints the table"


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "formats"]) == 0
    assert capsys.readouterr().out == "\n\n".join(map(table, RULES)) + "\n"
