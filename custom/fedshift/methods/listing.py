"""Which methods there are, and the idea of each, from their files: no method is imported, so torch is not either."""

from __future__ import annotations

import ast
import pkgutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fedshift import methods as package

NOT_METHODS = ("base", "chain", "listing", "method_set", "shared", "traits")
"""Modules of the package that are not methods."""


def available() -> list[str]:
    """Names of all methods, sorted."""
    return list(_names(tuple(package.__path__)))


@cache
def _names(folders: tuple[str, ...]) -> tuple[str, ...]:
    """The methods in these folders, which are listed once: a job asks for each of its options and methods."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(folders) if m.name not in NOT_METHODS))


def summary(name: str) -> str:
    """A method's idea: the first line of its docstring, without the name before it. It is read, not imported."""
    spec = find_spec(f"{package.__name__}.{name}")
    assert spec is not None and spec.origin is not None
    first = (ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or "").partition("\n")[0]
    return first.partition(": ")[2] or first
