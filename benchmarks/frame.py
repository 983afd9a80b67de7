"""What scripts of this folder share: their command line, how a result was made, its JSON, and its page for people."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

RESULTS = Path(__file__).resolve().parent / "results"


def parser(about: str | None) -> argparse.ArgumentParser:
    """A command line that prints the script's own words as its help."""
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def made_with(*packages: str) -> dict[str, Any]:
    """The machine, and the versions of Python and these packages."""
    versions = {"python": platform.python_version(), **{package: version(package) for package in packages}}
    return {"machine": {"processor": platform.machine(), "cores": os.cpu_count()}, "versions": versions}


def read(path: Path, default: Any) -> Any:
    """A JSON file, or ``default`` if it is not there."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else default


def write(path: Path, content: Any, page: str | None = None) -> None:
    """Write a result as JSON, and beside it its page (`.md`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if page is not None:
        path.with_suffix(".md").write_text(page, encoding="utf-8")


def page(name: str, **facts: Any) -> str:
    """The text of ``pages/NAME.md.j2``; ``{{ value | f(".2f") }}`` formats a number, or each of several as cells."""
    loader = FileSystemLoader(Path(__file__).resolve().parent / "pages")
    options = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = Environment(loader=loader, undefined=StrictUndefined, **options)
    environment.filters["f"] = _formatted
    return environment.get_template(f"{name}.md.j2").render(facts)


def _formatted(values: Any, spec: str) -> str:
    numbers = [values] if isinstance(values, int | float) else values
    return " | ".join(format(number, spec) for number in numbers)
