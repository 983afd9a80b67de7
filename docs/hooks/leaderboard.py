"""The leaderboard, and its picture."""

from __future__ import annotations

from functools import cache

from benchmarks import leaderboard_page


def page() -> str:
    """The page's text below its title."""
    return _made()[0]


def picture() -> str:
    """The picture of mean ranks (SVG)."""
    return _made()[1]


@cache
def _made() -> tuple[str, str]:
    return leaderboard_page.make_page(leaderboard_page.committed())
