"""The sentences and tables of the package, as Jinja templates in ``templates/``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedshift.reporting.p_values import exact_p, p_equals
from fedshift.schema.files import write_text

_LATEX = {character: rf"\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "°": r"$^\circ$",
}


def render(template: str, **facts: Any) -> str:
    """A template's text with these facts."""
    return _environment().get_template(template).render(facts)


def lines(template: str, **facts: Any) -> list[str]:
    """The sentences of a template that has one a line; empty lines are none."""
    return [line for line in render(template, **facts).splitlines() if line]


def write_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write texts under their names in a folder, which is made if need be; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "plain": lambda text: " ".join(text.split()),
        "markdown": lambda text: re.sub(r"([\\|*_`<>\[\]#])", r"\\\1", text),
        "latex": lambda text: "".join(_LATEX.get(character, character) for character in text),
        "p": exact_p,
        "p_equals": p_equals,
        "s": lambda n, single, plural=None: single if n == 1 else plural or f"{single}s",
    }
    return environment
