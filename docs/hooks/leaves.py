"""The tables of docs/what-leaves-a-site.md, as ``fedshift methods --leaves`` prints them."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any

MARK = "<!-- what leaves with each method -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the tables into the page that asks for them."""
    return markdown.replace(MARK, _tables()) if MARK in markdown else markdown


def _tables() -> str:
    from fedshift.cli import main

    printed = io.StringIO()
    with redirect_stdout(printed):
        main(["methods", "--leaves"])
    return printed.getvalue()
