"""Which methods there are, and the idea of each, from their files: no method is imported, so torch is not either.

Methods of installed packages are beside fedshift's own: `of_packages`.
"""

from __future__ import annotations

import ast
import pkgutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fedshift import methods as package
from fedshift.schema import components
from fedshift.schema.packages import offered

NOT_METHODS = ("base", "chain", "listing", "method_set", "shared", "traits")
"""Modules of the package that are not methods."""


def available() -> list[str]:
    """Names of all methods, sorted."""
    return list(_names(tuple(package.__path__)))


@cache
def _names(folders: tuple[str, ...]) -> tuple[str, ...]:
    """The methods in these folders, which are listed once: a job asks for each of its options and methods."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(folders) if m.name not in NOT_METHODS))


def of_packages() -> list[str]:
    """Names of the methods that installed packages offer, whether or not a job may use them here."""
    return [f"{each}{components.SIGN}{name}" for each, name in offered("method")]


def summary(name: str) -> str:
    """A method's idea: the first line of its docstring, without the name before it. It is read, not imported."""
    if components.package_of(name) is not None:
        return idea(components.source_file("method", name))
    spec = find_spec(f"{package.__name__}.{name}")
    assert spec is not None and spec.origin is not None
    return idea(Path(spec.origin))


def idea(file: Path | None) -> str:
    """What the first line of a module's docstring says, without the name before it; empty without a file."""
    text = "" if file is None else file.read_text(encoding="utf-8")
    first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return first.partition(": ")[2] or first
