"""What scripts of this folder share: command lines, repeated measurements, results with how they were made, pages."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

RESULTS = Path(__file__).resolve().parent / "results"
PERFORMANCE = RESULTS / "performance"
LOAD = os.getloadavg()[0]
"""How busy the machine was before the script began, in processes over a minute."""


def parser(about: str | None, **numbers: int) -> argparse.ArgumentParser:
    """A command line that prints the script's own words as its help, with a ``--NAME`` for each of the numbers."""
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        options.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    return options


def beside_flower(about: str | None, *, rounds: int) -> argparse.Namespace:
    """The arguments of a benchmark that may have Flower beside it."""
    options = parser(about, rounds=rounds, repeats=5)
    options.add_argument("--flower", type=Path, help="a Python that has Flower's simulation")
    return options.parse_args()


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, smallest and largest of repeats, and the repeats."""
    rounded = [round(value, 4) for value in values]
    return {"median": round(median(values), 4), "low": min(rounded), "high": max(rounded), "repeats": rounded}


def ratios(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """``a`` divided by ``b``, both by `spread`, within each repeat."""
    return spread([x / y for x, y in zip(a["repeats"], b["repeats"], strict=True)])


def in_turn(measures: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, dict[str, Any]]:
    """Each measure ``repeats`` times, one after another, so that what else the machine does meets all of them."""
    values: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(repeats):
        for name, measure in measures.items():
            values[name].append(measure())
            print(f"{number + 1}/{repeats} {name}: {values[name][-1]:.4g}", flush=True)
    return {name: spread(repeated) for name, repeated in values.items()}


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


def write_measured(name: str, content: Mapping[str, Any], *, module: str | None = None) -> Path:
    """Write and print ``results/performance/NAME.json``, with the command and the machine."""
    path = PERFORMANCE / f"{name}.json"
    machine = {"processor": _processor(), "cores": os.cpu_count(), "load_before": round(LOAD, 2)}
    versions = {"python": platform.python_version(), **{package: version(package) for package in ("torch", "nvflare")}}
    write(
        path, {"command": command(f"benchmarks.performance.{module or name}"), "machine": machine | versions, **content}
    )
    print(path, flush=True)
    return path


def command(module: str) -> str:
    """The line that ran this script, which is a module."""
    return " ".join(("python -m", module, *map(_word, sys.argv[1:])))


def code_of(checkout: Path) -> dict[str, str]:
    """The environment variable with which a Python runs the code of a checkout."""
    return {"PYTHONPATH": f"{checkout / 'custom'}{os.pathsep}{checkout}"}


def page(name: str, **facts: Any) -> str:
    """The text of ``pages/NAME.md.j2``; ``{{ value | f(".2f") }}`` formats a number, or each of several as cells."""
    loader = FileSystemLoader(Path(__file__).resolve().parent / "pages")
    options = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = Environment(loader=loader, undefined=StrictUndefined, **options)
    environment.filters |= {"f": _formatted, "plain": lambda text: " ".join(text.split())}
    return environment.get_template(f"{name}.md.j2").render(facts)


def _formatted(values: Any, spec: str) -> str:
    numbers = [values] if values is None or isinstance(values, int | float) else values
    return " | ".join("-" if number is None else format(number, spec) for number in numbers)


def _word(argument: str) -> str:
    """A word of the command, without where things are on this machine."""
    return f"…/{'/'.join(Path(argument).parts[-2:])}" if Path(argument).is_absolute() else argument


def _processor() -> str:
    """The name that Linux gives, or what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
