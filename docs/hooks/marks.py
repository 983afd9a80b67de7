"""Marks in a page that are replaced, when the site is built, by what a generator makes.

``<!-- make: method_pages.entries fedavg fedbn -->`` becomes what ``entries("fedavg", "fedbn")`` of its module in this
folder returns. What pages say of the code, and every figure, comes from the code and from results files in this way.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = re.compile(r"<!-- make: (\w+)\.(\w+)((?: [^\s>]+)*) -->")


def filled(markdown: str) -> str:
    """A page with every mark replaced."""
    return MARK.sub(lambda mark: _generated(mark[1], mark[2], *mark[3].split()), markdown)


@cache
def _generated(module: str, generator: str, *words: str) -> str:
    for folder in (str(ROOT), str(Path(__file__).parent)):
        if folder not in sys.path[:2]:  # an installed package `benchmarks` must not come first
            sys.path.insert(0, folder)
    text: str = getattr(import_module(module), generator)(*words)
    return text
