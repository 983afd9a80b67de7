"""The words of a report: Python has the facts, ``sentences.j2`` what is said of them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from fedshift.reporting.report.section import Finding, Tone
from fedshift.reporting.report.wording import counted, listed


def say(key: str, **facts: Any) -> str:
    """The sentence of this name in ``sentences.j2``, with these facts."""
    text = getattr(_sentences(), key)(**facts)
    return re.sub("[ \n]+", " ", str(text)).strip(" \n")


def finding(tone: Tone, key: str, **facts: Any) -> Finding:
    """A sentence of a summary."""
    return Finding(tone, say(key, **facts), key)


@cache
def _sentences() -> Any:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined)
    environment.filters.update(listed=listed, counted=counted)
    return environment.get_template("sentences.j2").module
