"""The tables of the page on results, from the tables that comparisons have written."""

from __future__ import annotations

import re
from collections.abc import Iterator

from results_files import RESULTS, compared, link, table

CLAIM = re.compile(
    r"([^(),;:]+) \((?P<difference>[^,)]+), p = (?P<p>[\d.]+)(?: over \d+ cases)?, Holm (?P<holm>[\d.]+)\)"
)
GUESS = "image-free guess"
GUESSED = {
    "recipes/prostate": "prostate, the task's recipe, five folds",
    "recipes/prostate_strong": "the same with the augmentation `strong`, three seeds",
    "recipes/prostate_unseen_first": "prostate, at a hospital that took no part",
    "claims/prostate_by_case": "prostate, the papers' U-Net at new patients",
    "claims/prostate_by_slice": "prostate, the papers' U-Net, slices dealt out (the papers' Dice)",
    "papers/fedfa_table4_prostate_quick": "FedFA's Table 4, at sites held out (the papers' Dice)",
    "leaderboard/prostate_quick": "leaderboard of the prostate",
    "recipes/hippocampus": "hippocampus",
}


def claims() -> str:
    """Every claim that was tested with three seeds or more, and its verdict."""
    rows = [
        (link(f"claims/{folder.name}/table.md", folder.name.replace("_", " ")), *claim)
        for folder in sorted((RESULTS / "claims").iterdir())
        if folder.is_dir()
        for claim in _judged(folder.name)
    ]
    return table(["table", "claim", "verdict", "difference, points", "p", "p (Holm)"], rows, words=3)


def _judged(folder: str) -> Iterator[tuple[str, ...]]:
    text = (RESULTS / "claims" / folder / "table.md").read_text(encoding="utf-8")
    sentence = re.search(r"^\*\*What the paper claims, [^:]*: (.*)\.\*\*$", text, flags=re.MULTILINE)
    for part in sentence[1].split("; ") if sentence else ():
        verdict, _, claims_ = part.partition(": ")
        verdict = f"**{verdict}**" if verdict in ("confirmed", "refuted") else verdict
        claims = list(CLAIM.finditer(claims_))
        for claim in claims:
            yield claim[1].removeprefix(", ").strip(" ,"), verdict, claim["difference"], claim["p"], claim["holm"]
        if not claims:
            yield from ((claim, verdict, "", "", "") for claim in claims_.split(", "))


def guesses() -> str:
    """How many rows of each comparison are no better than a guess that looks at no image."""
    rows = []
    for folder, name in GUESSED.items():
        means = {row: value for (row, column), value in compared(folder).items() if column == "average"}
        guess = means.pop(GUESS)
        fedavg = next(value for row, value in means.items() if row.lower() == "fedavg")
        below = sum(value <= guess for value in means.values())
        rows.append((link(f"{folder}/table.md", name), f"{guess:.1f}", f"{fedavg:.1f}", f"{below} of {len(means)}"))
    return table(["table", GUESS, "FedAvg", "rows no better than the guess"], rows)


def differences(kind: str, folder: str) -> str:
    """Every row's difference to FedAvg, its interval, its p, and what the runs would have shown."""
    values = compared(f"{kind}/{folder}")
    p, over_folds = "p-value against FedAvg", "p-value against FedAvg over folds"
    folds = any(column == over_folds for _, column in values)
    rows = []
    for name in dict.fromkeys(row for row, column in values if column == p):
        apart, low, high = (values[name, f"difference to FedAvg{end}"] for end in ("", " (low)", " (high)"))
        tests = [f"{values[name, column]:.2f}" for column in (p, over_folds) if column == p or folds]
        least = values[name, "smallest detectable difference to FedAvg"]
        rows.append((name, f"{apart:+.2f}", *tests, f"{low:+.2f} to {high:+.2f}", f"{least:.2f}"))
    head = ["against FedAvg", "difference", "p", *(["p over folds"] if folds else []), "95 % interval"]
    return table([*head, "smallest detectable difference"], rows)
