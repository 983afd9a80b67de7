"""Figures of a measurement: repeated, in turn with what they are compared with, kept with how they were made."""

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

RESULTS = Path(__file__).resolve().parents[1] / "results" / "performance"


def beside_flower(what: str | None, *, rounds: int) -> argparse.Namespace:
    """The command line of a benchmark that may have Flower beside it: ``rounds``, ``repeats``, ``flower``."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--flower", type=Path, help="a Python that has Flower's simulation")
    return parser.parse_args()


def arguments(what: str | None, *, steps: int) -> argparse.ArgumentParser:
    """The command line of a benchmark of training steps: ``steps`` of a measurement, ``repeats``."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--repeats", type=int, default=5)
    return parser


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, smallest and largest of repeats, and the repeats."""
    rounded = [round(value, 4) for value in values]
    return {"median": round(median(values), 4), "low": min(rounded), "high": max(rounded), "repeats": rounded}


def ratios(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """``one`` divided by ``other``, both by `spread`, within each repeat."""
    return spread([a / b for a, b in zip(one["repeats"], other["repeats"], strict=True)])


def in_turn(measures: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, dict[str, Any]]:
    """Each measure ``repeats`` times, one after another, so that what else the machine does meets all of them."""
    values: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(repeats):
        for name, measure in measures.items():
            values[name].append(measure())
            print(f"{number + 1}/{repeats} {name}: {values[name][-1]:.4g}", flush=True)
    return {name: spread(told) for name, told in values.items()}


def write(name: str, content: Mapping[str, Any], *, load: float, module: str | None = None) -> Path:
    """``benchmarks/results/performance/NAME.json``, with the command and the machine. ``load``: before it began."""
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {
        "command": " ".join(("python -m", f"benchmarks.performance.{module or name}", *map(_word, sys.argv[1:]))),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "load_before": round(load, 2),
            "python": platform.python_version(),
            **{package: version(package) for package in ("torch", "nvflare")},
        },
    }
    path.write_text(json.dumps({**made, **content}, indent=1) + "\n", encoding="utf-8")
    return path


def load() -> float:
    """How busy the machine is, in processes, over the last minute."""
    return os.getloadavg()[0]


def _word(argument: str) -> str:
    """A word of the command, without where things are on this machine."""
    return f"…/{'/'.join(Path(argument).parts[-2:])}" if Path(argument).is_absolute() else argument


def _processor() -> str:
    """The name that Linux gives, or what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
