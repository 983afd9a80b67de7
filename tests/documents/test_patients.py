"""Tables and verdicts on patients in the README and in docs/results.md: the figures are those of the committed runs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedshift.reporting.comparison.ranks import holm

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
CLAIMS, RECIPE = RESULTS / "claims", RESULTS / "recipes" / "prostate_first"
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
        if line.startswith("| Fed")
    ]
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(rows) == (4 if folder == UNSEEN else 5) and "\n".join(rows) in text


def recipe() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Of the cross-validated recipe: means, differences to FedAvg over pairs, and p-values, as pages print them.

    A p below 0.05 comes with the one over folds.
    """
    with (RECIPE / "table.csv").open(encoding="utf-8", newline="") as file:
        values = {(line["method"], line["column"]): float(line["value"]) for line in csv.DictReader(file)}
    table = (RECIPE / "table.md").read_text(encoding="utf-8").replace("\N{MINUS SIGN}", "-")
    differences = {name: table.partition(f"- {name} against FedAvg: ")[2].partition(",")[0] for name in OTHERS}
    p_values = {
        name: [values[name, f"p-value against FedAvg{over}"] for over in ("", " over folds")] for name in OTHERS
    }
    return (
        {name: f"{values[name, 'average']:.1f}" for name in ("FedAvg", *OTHERS)},
        differences,
        {name: f"{p:.2f}" if p > 0.05 else f"{p:.3f}; {folds:.2f} over folds" for name, (p, folds) in p_values.items()},
    )


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_what_is_said_of_the_recipe_s_methods_is_what_was_found(page: str) -> None:
    _, differences, p = recipe()
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    for name in OTHERS:
        shown = name.replace("+", " + ")
        assert f"{shown} {differences[name]} (p = {p[name]})" in text, name


def test_a_p_value_of_pairs_that_share_a_model_is_not_quoted_alone() -> None:
    _, _, p = recipe()
    told = f"p = {p['FedFA']}"
    assert told == "p = 0.006; 0.05 over folds"
    for page in ("README.md", "docs/results.md", "docs/where-to-start.md", "apps/prostate.yaml"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert text.count("p = 0.006") == text.count(told) == 1, page
    with (RECIPE / "table.csv").open(encoding="utf-8", newline="") as file:
        values = {(line["method"], line["column"]): float(line["value"]) for line in csv.DictReader(file)}
    corrected = (
        holm([values[name, f"p-value against FedAvg{over}"] for name in OTHERS])[OTHERS.index("FedFA")]
        for over in ("", " over folds")
    )
    holms = " and ".join(f"{p:.2f}" for p in corrected if p is not None)
    for page in ("docs/results.md", "benchmarks/results/recipes/README.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert holms in text and "Holm's correction for four tests" in text, page


def test_what_is_said_of_a_hospital_that_took_no_part_is_what_was_found() -> None:
    with (UNSEEN / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = [line for line in csv.DictReader(file) if line["column"] in ("BIDMC", "HK", "RUNMC", "UCL", "average")]
    scores = {(line["method"], line["column"]): float(line["value"]) for line in rows}
    average = {name: scores[name, "average"] for name in ("FedAvg", "FedFA", "FedRDN", "FedFA+FedRDN")}
    said = "FedAvg {:.1f}, FedFA {:.1f}, FedRDN {:.1f}, both {:.1f}".format(*average.values())
    for page in ("docs/where-to-start.md", "CHANGELOG.md"):
        assert said in (ROOT / page).read_text(encoding="utf-8"), page
    text = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    more = {name: f"{average[name] - average['FedAvg']:.1f}" for name in average}
    assert f"(FedRDN by {more['FedRDN']}, FedFA by {more['FedFA']}, both together by {more['FedFA+FedRDN']})" in text
    sites = ("BIDMC", "HK", "RUNMC", "UCL")
    best = [name for name in average if all(scores[name, site] > scores["FedAvg", site] for site in sites)]
    assert not best, "none is above FedAvg at every site"
    assert f"with FedAvg {average['FedAvg']:.1f} here, and {recipe()[0]['FedAvg']} above" in text


def test_where_to_start_and_the_task_say_the_same() -> None:
    means, differences, p = recipe()
    page = (ROOT / "docs" / "where-to-start.md").read_text(encoding="utf-8")
    apart = ", ".join(
        f"{name.replace('+', ' + ')} {means[name]} (p = {p[name]})"
        for name in sorted(OTHERS, key=means.__getitem__, reverse=True)
        if name != "FedFA"
    )
    assert f"FedAvg {means['FedAvg']}; {apart} are not told apart" in page
    assert f"FedFA {means['FedFA']} was lower (p = {p['FedFA']})" in page
    with (RECIPE / "table.csv").open(encoding="utf-8", newline="") as file:
        bidmc = {
            line["method"]: f"{float(line['value']):.1f}" for line in csv.DictReader(file) if line["column"] == "BIDMC"
        }
    assert f"FedAvg is at {bidmc['FedAvg']} there, both at {bidmc['FedFA+FedRDN']}" in page
    task = " ".join((ROOT / "apps" / "prostate.yaml").read_text(encoding="utf-8").split())
    assert f"fedfa was {differences['FedFA'].lstrip('-')} points of Dice below it (p = {p['FedFA']}, which" in task
    assert f"Dice of {means['FedAvg']} percent" in task


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
    ],
)
def test_the_verdicts_are_those_of_the_runs(claim: str, row: str, against: str) -> None:
    with (CLAIMS / claim / "table.csv").open(encoding="utf-8", newline="") as file:
        values = {(line["method"], line["column"]): float(line["value"]) for line in csv.DictReader(file)}
    p = values[row, f"p-value against {against}"]
    ours = f"{values[row, 'average']:.1f} against {values[against, 'average']:.1f}"
    (line,) = (line for line in (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines() if ours in line)
    assert line.endswith(f" | 3 | {float(f'{p:.2g}'):g} |")
    decided, is_higher = p < 0.05, values[row, "average"] > values[against, "average"]
    assert ("**refuted**" in line, "**confirmed**" in line) == (decided and not is_higher, decided and is_higher)


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
