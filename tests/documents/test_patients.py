"""Tables and verdicts on patients in the README and in docs/results.md: the figures are those of the committed runs."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean

import pytest

from fedshift.reporting.differences import signed
from fedshift.reporting.known_scores import GUESS
from fedshift_bench.claims import conclusions
from fedshift_bench.columns import below_guess, blocks
from fedshift_bench.paired_tests import paired_tests
from fedshift_bench.record import read_comparison
from fedshift_bench.tables import LAST_ROUND, make_tables

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
CLAIMS, RECIPE = RESULTS / "claims", RESULTS / "recipes" / "prostate"
UNSEEN = RESULTS / "recipes" / "prostate_unseen_first"
OTHERS = ("FedBN", "FedFA", "FedRDN", "FedFA+FedRDN")


@pytest.mark.parametrize(
    ("page", "folder"),
    [
        ("README.md", RECIPE),
        ("docs/results.md", RECIPE),
        ("docs/results.md", UNSEEN),
        ("docs/results.md", CLAIMS / "prostate_by_case"),
    ],
    ids=lambda value: Path(value).name,
)
def test_the_table_on_patients_is_that_of_the_runs(page: str, folder: Path) -> None:
    rows = [
        line.replace("**", "").replace("FedFA+FedRDN", "FedFA + FedRDN")
        for line in (folder / "table.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(("| Fed", f"| {GUESS}"))
    ]
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(rows) == (5 if folder == UNSEEN else 6) and "\n".join(rows) in text


def recipe() -> dict[tuple[str, str], float]:
    """Of the cross-validated recipe: means, differences to FedAvg, their intervals and p, by method and column."""
    with (RECIPE / "table.csv").open(encoding="utf-8", newline="") as file:
        return {
            (line["method"], line["column"]): float(line["value"]) for line in csv.DictReader(file) if line["value"]
        }


def flat(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_the_recipe_s_methods_are_not_told_apart_from_fedavg() -> None:
    values = recipe()
    told = {
        name: (
            signed(values[name, "difference to FedAvg"]),
            f"{values[name, 'p-value against FedAvg']:.2f}",
            f"{values[name, 'p-value against FedAvg over folds']:.2f}",
            *(signed(values[name, f"difference to FedAvg ({end})"]) for end in ("low", "high")),
        )
        for name in OTHERS
    }
    readme, results, recipes = map(flat, ("README.md", "docs/results.md", "benchmarks/results/recipes/README.md"))
    for name, (difference, p, over_folds, low, high) in told.items():
        shown = name.replace("+", " + ")
        assert min(float(p), float(over_folds)) > 0.05, "the pages say that none is told apart from FedAvg"
        assert f"{shown} {difference} (p = {p})" in readme
        assert f"| {shown} | {difference} | {p} | {over_folds} | {low} to {high} | " in results
        mean = f"{values[name, 'average']:.1f}"
        assert f"{shown} {mean} ({difference}, {low} to {high}, p = {p} and {over_folds})" in recipes
    low = signed(min(values[name, "difference to FedAvg (low)"] for name in OTHERS))
    high = signed(max(values[name, "difference to FedAvg (high)"] for name in OTHERS))
    for page in ("README.md", "apps/prostate.yaml", "CHANGELOG.md"):
        assert f"lie within {low} to {high}" in flat(page), page


def test_what_one_seed_had_shown_is_what_its_runs_show() -> None:
    comparison = read_comparison(RECIPE / "cells.json")
    cells = [cell for cell in comparison.cells if cell.seed == 0]
    first = comparison.model_copy(update={"seeds": [0], "cells": cells})
    (test,) = (test for test in paired_tests(first) if test.row == "FedFA")
    assert test.p is not None and test.over_folds is not None
    p = f"p = {test.p:.3f}; {test.over_folds.p:.2f} over folds"
    assert f"FedFA had been {signed(100 * test.difference)} from FedAvg ({p})" in flat("docs/results.md")


def test_what_is_said_of_a_hospital_that_took_no_part_is_what_was_found() -> None:
    with (UNSEEN / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = [line for line in csv.DictReader(file) if line["value"]]
    values = {(line["method"], line["column"]): float(line["value"]) for line in rows}
    scores = {(method, column): value for (method, column), value in values.items() if method.startswith("Fed")}
    average = {name: scores[name, "average"] for name in ("FedAvg", "FedFA", "FedRDN", "FedFA+FedRDN")}
    said = "FedAvg {:.1f}, FedFA {:.1f}, FedRDN {:.1f}, both {:.1f}".format(*average.values())
    for page in ("docs/where-to-start.md", "CHANGELOG.md"):
        assert said in (ROOT / page).read_text(encoding="utf-8"), page
    text = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    more = {name: f"{average[name] - average['FedAvg']:.1f}" for name in average}
    assert f"(FedRDN by {more['FedRDN']}, FedFA by {more['FedFA']}, both together by {more['FedFA+FedRDN']})" in text
    last = {name: f"{values[name, LAST_ROUND]:.1f}" for name in average}
    for page in ("docs/where-to-start.md", "benchmarks/results/recipes/README.md"):
        both = "{FedAvg}, {FedFA}, {FedRDN} and {both}".format(both=last["FedFA+FedRDN"], **last)
        assert f"in the last round in place of the selected one {both}" in flat(page).replace("they have ", "").replace(
            "In the last", "in the last"
        ), page
    gains = {name: values[name, LAST_ROUND] - values["FedAvg", LAST_ROUND] for name in average}
    turned = f"In the last round FedRDN is {-gains['FedRDN']:.1f} below it, FedFA {gains['FedFA']:.1f} above, both"
    assert f"{turned} together level" in text and abs(gains["FedFA+FedRDN"]) < 0.1
    assert f"image-free guess of {values[GUESS, 'average']:.1f}" in text
    sites = ("BIDMC", "HK", "RUNMC", "UCL")
    below = [site for site in sites if scores["FedAvg", site] < values[GUESS, site]]
    assert len(below) == 3 and "FedAvg is below it at three of four sites" in text
    best = [name for name in average if all(scores[name, site] > scores["FedAvg", site] for site in sites)]
    assert not best, "none is above FedAvg at every site"
    assert f"with FedAvg {average['FedAvg']:.1f} here, and {recipe()['FedAvg', 'average']:.1f} above" in text


def test_where_to_start_and_the_task_say_the_same() -> None:
    values = recipe()
    page = (ROOT / "docs" / "where-to-start.md").read_text(encoding="utf-8")
    fedavg, bidmc, both = (
        f"{values[place]:.1f}" for place in (("FedAvg", "average"), ("FedAvg", "BIDMC"), ("FedFA+FedRDN", "BIDMC"))
    )
    apart = ", ".join(
        f"{name.replace('+', ' + ')} {values[name, 'average']:.1f} (p = {values[name, 'p-value against FedAvg']:.2f})"
        for name in sorted(OTHERS, key=lambda name: values[name, "average"], reverse=True)
    )
    assert f"FedAvg {fedavg}; {apart} are not told apart from it" in page
    assert f"FedAvg is at {bidmc} there, both at {both}" in page
    assert f"Taking part is worth more: {fedavg} with FedAvg" in page
    assert f"Dice of {fedavg} percent" in flat("apps/prostate.yaml")


@pytest.mark.parametrize(
    ("claim", "row", "against"),
    [
        ("prostate_by_slice", "FedFA", "FedAvg"),
        ("prostate_by_slice", "FedRDN", "FedAvg"),
        ("prostate_by_slice", "FedFA + FedRDN", "FedFA"),
        ("prostate_by_slice", "FedFA", "FedBN"),
        ("prostate_by_case", "FedFA", "FedAvg"),
        ("prostate_by_case", "FedRDN", "FedAvg"),
        ("prostate_by_case", "FedBN", "FedAvg"),
        ("prostate_by_case", "FedFA + FedRDN", "FedAvg"),
        ("office_caltech", "FedRDN", "FedAvg"),
        ("office_caltech", "FedBN", "FedAvg"),
        ("office_caltech", "FedFA", "FedAvg"),
        ("office_caltech", "FedFA + FedRDN", "FedAvg"),
        ("office_caltech", "FedFA + FedRDN", "FedFA"),
        ("rotated_mnist", "FedAvg ±15°", "FedAvg"),
        ("rotated_mnist", "FedAvg ±30°", "FedAvg"),
        ("rotated_mnist", "FedAvg ±45°", "FedAvg"),
        ("rotated_mnist", "AFL ±45°", "AFL"),
        ("rotated_mnist", "ERM ±45°", "ERM"),
        ("rotated_mnist", "AFL", "FedAvg"),
        ("rotated_mnist", "ERM", "FedAvg"),
        ("digits", "FRAug", "FedAvg"),
        ("digits", "FedBN", "FedAvg"),
        ("digits", "FRAug", "FedBN"),
        ("digits", "FRAug", "Single"),
    ],
)
def test_the_verdicts_are_those_of_the_runs_after_correction(claim: str, row: str, against: str) -> None:
    comparison = read_comparison(CLAIMS / claim / "cells.json")
    (one,) = (one for one in conclusions(comparison) if (one.higher, one.lower) == (row, against))
    (table, *_) = make_tables(comparison)
    place = [column.key for column in table.columns].index("average")
    means = [f"{100 * (table.rows[name][place].mean or 0):.1f}" for name in (row, against)]
    ours = f"| {means[0]} against {means[1]} |"
    (line,) = (line for line in (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines() if ours in line)
    assert one.p is not None and one.p_holm is not None
    assert line.endswith(f" | 3 | {float(f'{one.p:.2g}'):g} | {float(f'{one.p_holm:.2g}'):g} |")
    assert ("**confirmed**" in line, "**refuted**" in line) == (one.outcome == "confirmed", one.outcome == "refuted")


def test_no_claim_is_refuted_as_the_page_says() -> None:
    found = [
        (folder.name, one)
        for folder in CLAIMS.iterdir()
        if folder.is_dir()
        for one in conclusions(read_comparison(folder / "cells.json"))
    ]
    outcomes = {name: [one.outcome for at, one in found if at == name] for name, _ in found}
    assert outcomes["rotated_mnist"].count("confirmed") == 4 and outcomes["office_caltech"] == ["confirmed"] * 5
    assert {one.outcome for name, one in found if name not in ("rotated_mnist", "office_caltech")} == {"undecided"}


@pytest.mark.parametrize(
    ("folder", "row"),
    [
        ("recipes/prostate", "FedAvg"),
        ("recipes/prostate_unseen_first", "FedAvg"),
        ("claims/prostate_by_case", "FedAvg"),
        ("claims/prostate_by_slice", "FedAvg"),
        ("papers/fedfa_table4_prostate_quick", "FedAvg"),
        ("leaderboard/prostate_quick", "fedavg"),
        ("recipes/hippocampus", "FedAvg"),
    ],
)
def test_the_image_free_guess_stands_beside_what_was_found(folder: str, row: str) -> None:
    comparison = read_comparison(RESULTS / folder / "cells.json")
    (table,) = make_tables(comparison)
    place = [column.key for column in table.columns].index("average")
    means = {name: entries[place].mean for name, entries in table.rows.items()}
    guess = means.pop(GUESS)
    assert guess is not None
    below = sum(mean is not None and mean <= guess for mean in means.values())
    shown = (
        f"| {100 * guess:.1f} | {100 * (means[row] or 0):.1f} | {below} of {len([m for m in means.values() if m])} |"
    )
    (line,) = (
        line
        for line in (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and f"results/{folder}/table.md" in line and line.endswith(shown)
    )
    assert line
    (block,) = blocks(comparison)
    assert bool(below_guess(comparison, block)) == (2 * below >= len(means))


def test_the_smallest_detectable_differences_are_those_of_the_runs() -> None:
    values = recipe()
    found = {name: f"{values[name, 'smallest detectable difference to FedAvg']:.1f}" for name in OTHERS}
    told = f"{found['FedBN']} points with FedBN, {found['FedFA']} with FedFA, {found['FedRDN']} with FedRDN and "
    told += f"{found['FedFA+FedRDN']} with both"
    readme, results = flat("README.md"), flat("docs/results.md")
    assert told in readme and told in results
    assert all(f"| {found[name]} |" in results for name in OTHERS)
    recipes = flat("benchmarks/results/recipes/README.md")
    assert f"{found['FedBN']} points (FedBN), {found['FedFA']} (FedFA), {found['FedRDN']} (FedRDN)" in recipes
    start = flat("docs/where-to-start.md")
    assert f"from {found['FedBN']} points (FedBN) or {found['FedFA+FedRDN']} (FedFA and FedRDN together)" in start


def test_the_rise_of_the_curves_is_that_of_fedavg() -> None:
    comparison = read_comparison(RECIPE / "cells.json")
    curves = [cell.curve for cell in comparison.cells if cell.labels["method"] == "FedAvg"]
    at = {number: 100 * fmean(curve[number - 1] or 0 for curve in curves) for number in (20, 30, 40)}
    told = f"rises by {at[30] - at[20]:.1f} points from round 20 to 30 and by {at[40] - at[30]:.1f} from 30 to 40"
    for page in ("docs/results.md", "benchmarks/results/recipes/README.md"):
        assert told in flat(page), page


def test_what_predictions_gain_is_that_of_the_table() -> None:
    rows = {
        (cells[0], cells[2]): cells
        for line in (RESULTS / "recipes" / "prostate_inference.md").read_text(encoding="utf-8").splitlines()
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])[0] in ("fedavg", "fedfa")
    }
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for (methods, part), cells in rows.items():
        name = {"fedavg": "FedAvg", "fedfa": "FedFA"}[methods]
        shown = {"val": "validation", "test": "test"}[part]
        assert f"| {cells[1]} of {name} | {shown} | {' | '.join(cells[3:])} |" in text
    gained = float(rows["fedavg", "test"][-1]) - float(rows["fedavg", "test"][3])
    assert round(gained) == 2 and "add two points in six models of FedAvg" in (ROOT / "README.md").read_text(
        encoding="utf-8"
    )
    validation = rows["fedavg", "val"]
    assert validation[-1] == max(validation[3:]), "the default was chosen on validation volumes"
    told = f"have {validation[-1]} with both in place of {validation[3]} on validation cases"
    assert told in " ".join((ROOT / "apps" / "prostate.yaml").read_text(encoding="utf-8").replace("\n#", "").split())
