"""The tables of the page on open questions, from the runs of ``benchmarks/open_questions.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from results_files import NONE, load, table

SHOWN_ROUNDS = (1, 5, 10, 20, 40, 80)


def vm() -> str:
    """Readings of VM's losses."""
    head = ["reading", "seed", "validation, round by round", "last, held out (75°)", "smallest c_i", "largest c_i"]
    return table(head, map(_vm, _runs("vm")), words=3)


def fedharmo() -> str:
    """Parts of FedHarmo, two seeds."""
    by: dict[str, dict[int, float]] = {}
    for name, run in _runs("fedharmo"):
        by.setdefault(name, {})[run["seed"]] = 100 * run["best"]["test"]
    rows = [
        (
            name,
            *(f"{seeds[seed]:.1f}" if seed in seeds else "" for seed in (0, 1)),
            f"{fmean(seeds.values()):.1f}" if len(seeds) == 2 else "",
        )
        for name, seeds in by.items()
    ]
    return table(["", "seed 0", "seed 1", "mean"], rows)


def ramp() -> str:
    """How fast FRAug's class means move."""
    (found,) = load("open_questions/fraug")["arithmetic"].values()
    rows = [
        (
            number,
            f"{found[number - 1]['lambda_c']:.4f}",
            f"{found[number - 1]['steps_remembered']:.0f}",
            f"{100 * found[number - 1]['of_the_first']:.0f} %",
        )
        for number in (1, 6, 11, 21, 41, 81)
    ]
    head = ["round", "λ_c", "steps that it remembers (1/λ_c)", "share of the first images in a class mean"]
    return table(head, rows, words=0)


def fraug() -> str:
    """What the ramp-up does."""
    shown = ", ".join(map(str, SHOWN_ROUNDS))
    head = ["λ_c", f"off in rounds {shown}", "validation in these rounds", "test, best round"]
    return table(head, [_fraug(name, run) for name, run in _runs("fraug")], words=3)


def _runs(question: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, runs in load(f"open_questions/{question}")["runs"].items():
        for run in runs:
            yield name, run


def _listed(values: Sequence[float | None], digits: int) -> str:
    return ", ".join(NONE if value is None else f"{value:.{digits}f}" for value in values)


def _vm(named: tuple[str, dict[str, Any]]) -> tuple[object, ...]:
    name, run = named
    rounds = run["rounds"] if len(run["rounds"]) <= 4 else run["rounds"][9::10]
    scores = _listed([None if round_["val"] is None else 100 * round_["val"] for round_ in rounds], 1)
    weights = [round_["weights"] for round_ in rounds if "weights" in round_]
    ends = (_listed([end(values) for values in weights], 2) or NONE for end in (min, max))
    return (name, run["seed"], scores, f"{100 * run['last']['held_out']:.1f}" if "last" in run else NONE, *ends)


def _fraug(name: str, run: dict[str, Any]) -> tuple[object, ...]:
    rounds = {round_["round"]: round_ for round_ in run["rounds"]}
    off = [rounds[number].get("class_means_off") for number in SHOWN_ROUNDS]
    val = _listed([100 * rounds[number]["val"] for number in SHOWN_ROUNDS], 1)
    return (name, _listed(off, 2) if "ramp" in name or "0.3" in name else NONE, val, f"{100 * run['best']['test']:.1f}")
