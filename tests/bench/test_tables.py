"""Tables of a comparison: deviations, bold, what is missing, published figures, in all forms."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from rich.console import Console

from fedshift_bench.columns import measure
from fedshift_bench.notes import footnotes
from fedshift_bench.record import FILE_NAME, Comparison, read_comparison
from fedshift_bench.tables import heading, latex, long_csv, make_tables, markdown, rich_tables

from .made import changed, made, record

TABLES = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("[clr]*/*/table.csv"))
FULL: dict[Any, Any] = {
    ("FedAvg",): [{"A": 0.50, "B": 0.70}, {"A": 0.54, "B": 0.72}],
    ("FedFA",): [{"A": 0.60, "B": 0.69}, {"A": 0.62, "B": 0.71}],
}
THREE: dict[Any, Any] = {
    ("FedAvg",): [*FULL[("FedAvg",)], {"A": 0.51, "B": 0.66}],
    ("FedFA",): [*FULL[("FedFA",)], {"A": 0.60, "B": 0.71}],
}
SIZES: dict[str, Any] = {"axes": {"method": ["X", "Y"], "size": ["5%", "all"]}}
BY_SIZE: dict[Any, Any] = {
    (row, size): [{"A": 0.5, "B": 0.7 if row == "X" else 0.6}] for row in "XY" for size in SIZES["axes"]["size"]
}


def terminal(comparison: Comparison, *, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        for table in rich_tables(comparison):
            console.print(table)
    return capture.get()


def rows(comparison: Comparison) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in markdown(comparison).splitlines() if line.startswith("| ")]
    return {line[0]: line[1:] for line in lines}


def csv_lines(comparison: Comparison) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(long_csv(comparison))))


def notes_with(comparison: Comparison, *words: str) -> list[str]:
    return [line for line in footnotes(comparison) if all(word in line for word in words)]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.parent.name}/{path.parent.name}")
def test_committed_cells_give_the_committed_numbers(path: Path) -> None:
    assert long_csv(read_comparison(path.with_name(FILE_NAME))) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "text", "scaled", "better"),
    [
        ("dice", "81.2", 81.234, "higher"),
        ("hd95", "0.81", 0.81234, "lower"),
        ("ece", "81.2", 81.234, "lower"),
        ("gradient_norm", "0.812", 0.81234, None),
        ("a score that nobody knows", "81.2", 81.234, "higher"),
    ],
)
def test_a_score_in_its_unit(name: str, text: str, scaled: float, better: str | None) -> None:
    shown = measure(name)
    assert (shown.text(0.81234), shown.better) == (text, better) and shown.scaled(0.81234) == pytest.approx(scaled)


def test_mean_and_sample_deviation_over_seeds_and_the_best_in_bold() -> None:
    (table,) = make_tables(made(FULL))
    entry = table.rows["FedAvg"][2]  # the average over sites
    averages = [(0.50 + 0.70) / 2, (0.54 + 0.72) / 2]
    assert entry.mean == pytest.approx(sum(averages) / 2) and entry.std == pytest.approx(stdev(averages))
    assert rows(made(FULL)) == {
        "method": ["A", "B", "average"],
        "FedAvg": ["52.0 ± 2.8", "**71.0 ± 1.4**", "61.5 ± 2.1"],
        "FedFA": ["**61.0 ± 1.4**", "70.0 ± 1.4", "**65.5 ± 1.4**"],
    }
    one_seed = made({row: seeds[:1] for row, seeds in FULL.items()})
    assert rows(one_seed)["FedAvg"] == ["50.0", "**70.0**", "60.0"] and "±" not in markdown(one_seed)


def test_the_heading_has_the_scale_and_the_models() -> None:
    comparison = made(FULL)
    assert heading(comparison).endswith(" percent, of the best round")
    crossed = made(FULL, scale="full", spec={"run": "cross_site"})
    assert heading(crossed).endswith(" of the last round")


def test_a_name_is_not_cut_on_a_narrow_terminal() -> None:
    name = "FedFA with FedRDN, augmentation and a long name"
    sites = {f"site number {n}": 0.5 for n in range(8)}
    assert name in terminal(made({(name,): [sites], ("FedAvg",): [sites]}), width=80)


def test_a_row_without_all_seeds_is_shown_as_such_and_never_bold() -> None:
    numbers = {**FULL, ("FedBN",): [{"A": 0.9, "B": 0.9}, None], ("FedX",): [None, None]}
    shown = rows(made(numbers))
    assert shown["FedBN"] == ["90.0 (1 of 2 seeds)"] * 3 and shown["FedX"] == ["-"] * 3
    assert shown["FedFA"][0].startswith("**") and notes_with(made(numbers), "3 of 8")
    one_site = {**FULL, ("FedBN",): [{"A": 0.9, "B": 0.9}, {"A": 0.9}]}
    assert rows(made(one_site))["FedBN"] == ["**90.0 ± 0.0**", "90.0 (1 of 2 seeds)", "90.0 (1 of 2 seeds)"]


def test_rows_that_print_alike_are_equally_good_and_of_distances_the_smallest() -> None:
    shown = rows(made({("X",): [{"A": 0.6001}], ("Y",): [{"A": 0.6004}], ("Z",): [{"A": 0.5}]}))
    assert [shown[row][0] for row in "XYZ"] == ["**60.0**", "**60.0**", "50.0"]
    distances = made({("X",): [{"A": 3.25}], ("Y",): [{"A": 2.5}]}, metric="hd95")
    for cell in distances.cells:
        cell.scores["best"]["test"]["A"]["hd95"] = cell.scores["best"]["test"]["A"]["accuracy"]
    assert [rows(distances)[row][0] for row in "XY"] == ["3.25", "**2.50**"] and "in mm" in heading(distances)


def test_published_figures_stand_beside_ours_as_they_are_printed() -> None:
    figures = [
        {"row": "FedAvg", "column": "A", "value": "62.51", "unit": "%"},
        {"row": "FedFA", "column": "average", "value": "64", "std": "0.63", "unit": "%"},
    ]
    comparison = made(FULL, published=figures)
    shown = rows(comparison)
    assert shown["FedAvg"][:2] == ["52.0 ± 2.8 [62.51]", "**71.0 ± 1.4**"]
    assert shown["FedFA"][2] == "**65.5 ± 1.4** [64 ± 0.63]"
    assert "[62.51]" in terminal(comparison) and r"{\scriptsize [62.51]}" in latex(comparison)
    assert [line["published"] for line in csv_lines(comparison) if line["column"] == "A"] == ["62.51", ""]


@pytest.mark.parametrize(("row", "other"), [("FedFA", "FedAvg"), ("FedAvg", "FedFA")], ids=["same", "turned"])
def test_the_papers_p_value_stands_beside_ours_at_whichever_row_it_is_printed(row: str, other: str) -> None:
    printed = [{"row": row, "column": f"p-value against {other}", "value": "0.0128"}]
    numbers = {**THREE, ("FedProx",): [{"A": 0.51, "B": 0.70}, {"A": 0.55, "B": 0.73}, {"A": 0.5, "B": 0.66}]}
    comparison = made(numbers, tests=[("FedFA", "FedAvg"), ("FedFA", "FedProx")], published=printed)
    with_theirs, without = notes_with(comparison, "FedFA against")
    assert re.search(r"p = 0\.\d{4}, .*\(n = 3; .* 0\.0128\)\.$", with_theirs) and without.endswith("(n = 3).")
    p_values = {line["column"]: line["published"] for line in csv_lines(comparison) if "p-value" in line["column"]}
    assert p_values == {"p-value against FedAvg": "0.0128", "p-value against FedProx": ""}


def test_further_axes_are_columns_and_then_tables_of_their_own() -> None:
    p = {"row": "Y", "column": "all/p-value against X", "value": "0.03"}
    published = [{"row": "X", "column": "5%", "value": "99.9"}, p]
    comparison = made(BY_SIZE, **SIZES, published=published, tests=[("X", "Y")])
    overview, small, large = make_tables(comparison)
    assert list(overview.columns.values()) == ["5%", "all"]
    assert list(small.columns) == ["5%/A", "5%/B", "5%/average"] and small.title == "size 5%"
    assert overview.rows["X"][0].mean == pytest.approx(0.6) and overview.rows["X"][0].published == "99.9"
    assert small.rows["X"][2].published == "99.9" and large.rows["X"][2].published == ""
    lines = csv_lines(comparison)
    places = {(line["method"], line["size"], line["column"]) for line in lines}
    assert places >= {("X", "5%", "A"), ("Y", "all", "average")}
    assert [line["published"] for line in lines if line["column"] == "average"][:1] == ["99.9"]
    at_small, at_large = notes_with(comparison, "X against")
    assert at_small.endswith("(n = 1).") and at_large.endswith("0.03)."), "the paper's p is of its own block"


def test_held_out_sites_have_an_average_of_their_own() -> None:
    comparison = made({("X",): [{"A": 0.5, "B": 0.7}]}, summaries=["average", "held_out", "everywhere", "spread"])
    (cell,) = comparison.cells
    cell.shown["held_out"] = ["C", "D"]
    cell.scores["best"]["held_out"] = {"C": {"accuracy": 0.2}, "D": {"accuracy": 0.3}}
    (table,) = make_tables(comparison)
    means = {key: entry.mean for key, entry in zip(table.columns, table.rows["X"], strict=True)}
    expected = {"average": 0.6, "held_out": 0.25, "everywhere": 0.425, "spread": stdev([5, 7, 2, 3]) / 10}
    assert means == pytest.approx({"A": 0.5, "B": 0.7, "C": 0.2, "D": 0.3, **expected})


def test_averages_can_be_over_samples() -> None:
    """A test set that is dealt to sites: 10 of 40 images right at A and 12 of 15 at B are 22 of 55."""
    comparison = made({("X",): [{"A": 10 / 40, "B": 12 / 15}]}, summaries=["average", "everywhere"], average="samples")
    (cell,) = comparison.cells
    for site, n in (("A", 40), ("B", 15), ("C", 0)):
        cell.data[site] = record(site).model_copy(update={"n": {"train": 9, "val": 5, "test": n}})
    cell.shown["held_out"], cell.scores["best"]["held_out"] = ["C"], {"C": {"accuracy": 1.0}}
    (table,) = make_tables(comparison)
    means = {key: entry.mean for key, entry in zip(table.columns, table.rows["X"], strict=True)}
    assert means["average"] == pytest.approx(22 / 55)
    assert means["everywhere"] == pytest.approx((22 + 14) / (55 + 14)), "a held-out site is scored on all it has"


def test_each_sites_own_best_round_or_what_a_cell_has_in_its_place() -> None:
    comparison = made({("X",): [{"A": 0.5, "B": 0.7}], ("Y",): [{"A": 0.5, "B": 0.7}]}, model="site_best")
    x, y = comparison.cells
    x.scores["site_best"] = {"test": {"A": {"accuracy": 0.6}, "B": {"accuracy": 0.8}}}
    y.scores["personal"] = {"test": {"A": {"accuracy": 0.1}, "B": {"accuracy": 0.2}}}
    assert [rows(comparison)[row][0] for row in "XY"] == ["**60.0**", "10.0"]


def test_of_very_many_sites_there_is_the_average_only() -> None:
    assert rows(made({("X",): [{f"s{n}": n / 100 for n in range(50)}]}))["X"] == ["24.5"]


def test_markup_in_labels_is_escaped() -> None:
    comparison = made({("a_b & 5% {x} \\ #1 ~ ^",): [{"s_1": 0.5}]}, title="50% $x$ ±1 < 2°")
    text = latex(comparison)
    assert r"a\_b \& 5\% \{x\} \textbackslash{} \#1 \textasciitilde{} \textasciicircum{} & 50.0 & 50.0 \\" in text
    assert r"50\% \$x\$ $\pm$1 \textless{} 2$^\circ$" in text
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 1
    body = re.sub(r"\\[a-zA-Z]+|\\[&%$#_{}\\]", "", text.split(r"\toprule")[1].split(r"\bottomrule")[0])
    assert not set(body) & set("%$#_~^")
    assert r"| a\|b \*c\* | 50.0 | 50.0 |" in markdown(made({("a|b *c*",): [{"A": 0.5}]}))


def test_every_form_says_what_the_data_and_the_weights_are() -> None:
    comparison = made(THREE, differences="Fewer rounds.", tuning="All: none.", tests=[("FedFA", "FedAvg")])
    for cell in comparison.cells:
        cell.data.update({site: record(site, "phantom") for site in cell.data})
    for text in (terminal(comparison), markdown(comparison), latex(comparison)):
        for words in ("PHANTOM", "phantom", "from scratch", "Fewer rounds.", "All: none.", "p = 0.", "(n = 3)"):
            assert words in " ".join(text.split())
    lines = csv_lines(comparison)
    assert {(line["data"], line["initial weights"]) for line in lines} == {("phantom", "from scratch")}
    assert lines[-1]["column"] == "p-value against FedAvg"


@pytest.mark.parametrize(
    ("change", "noted"),
    [
        ({"selected_by": "dice"}, "dice"),
        ({"departures": ["it starts elsewhere"]}, "at FedAvg: it starts elsewhere"),
        ({"minutes": 30.0}, "schedule.minutes"),
        ({"source": "xyz"}, "0.1 (source abc) made FedAvg, FedFA; 0.1 (source xyz) made FedAvg."),
        ({"precision": "bf16"}, "FedAvg in bf16; FedFA in fp32"),
        ({"device": "a GPU"}, "a GPU, cpu"),
        ({"data": {"A": record("another", "patients")}}, "images, patients"),
        ({"data": {"A": record("another")}}, "different preparations"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_sets_a_cell_apart_from_others_is_noted(change: dict[str, Any], noted: str) -> None:
    comparison = made(FULL)
    comparison = changed(comparison, lambda cell: {"precision": "fp32" if cell.row == "FedFA" else ""})
    assert not notes_with(comparison, noted), "of the others it is not known"
    first, *others = comparison.cells
    apart = comparison.model_copy(update={"cells": [first.model_copy(update=change), *others]})
    assert len(notes_with(apart, noted)) == 1
    if "selected_by" in change:
        assert not notes_with(apart.model_copy(update={"model": "last"}), noted), "no round is selected"
    if "departures" in change:
        every = changed(apart, lambda cell: change)
        assert notes_with(every, "protocol: it"), "rows are not named where it is all"


def tuned(validation: dict[str, list[float | None]]) -> Comparison:
    """Row -> the validation score of each setting, None for one that failed; test scores are the opposite order."""
    width = max(map(len, validation.values()))
    tuning = {"draws": width, "seed": 4, "remark": "By hand."}
    comparison = made({(row,): [{"A": 0.5}] for row in validation}, tuning=tuning)
    cells = []
    for cell in comparison.cells:
        for draw, value in enumerate(validation[cell.row]):
            update: dict[str, Any] = {"draw": draw, "drawn": {"optimizer.lr": draw / 10} if draw else {}}
            update |= {"state": "failed"} if value is None else {"validation": value}
            update["scores"] = {} if value is None else {"best": {"test": {"A": {"accuracy": 1 - value}}}}
            cells.append(cell.model_copy(update=update))
    return comparison.model_copy(update={"cells": cells})


def test_the_setting_that_is_best_on_validation_is_shown_with_the_spread_and_the_budget() -> None:
    comparison = tuned({"X": [0.5, 0.8, 0.6], "Y": [0.7, None, 0.2]})
    assert rows(comparison)["X"][0] == "20.0" and rows(comparison)["Y"][0] == "**30.0**", "by validation, not by test"
    assert notes_with(comparison, "Tuning: 3 settings", "seed 4", "3 cells") and notes_with(comparison, "By hand.")
    (x,) = notes_with(comparison, "X: setting 2 of 3 (optimizer.lr=0.1)")
    assert "20.0 to 50.0" in x and x.endswith(" 15.3.")
    (y,) = notes_with(comparison, "Y: setting 1 of 3 (its own)")
    assert "30.0 to 80.0" in y and y.endswith("; 1 failed.")
    again = Comparison.model_validate_json(comparison.model_dump_json())
    assert rows(again) == rows(comparison) and again.tuning == comparison.tuning


def test_no_setting_is_chosen_before_all_have_ended() -> None:
    comparison = tuned({"X": [0.5, 0.8], "Y": [0.6, 0.7]})
    begun = changed(comparison, lambda cell: {"state": "missing"} if cell is comparison.cells[0] else {})
    assert rows(begun)["X"][0] == "-" and rows(begun)["Y"][0] == "30.0" and not notes_with(begun, "X: setting")
    equal = tuned({"X": [None, None], "Y": [0.6, 0.6]})
    assert rows(equal)["X"][0] == "-" and notes_with(equal, "Y: setting 1 of 2"), "of equals the first"


def test_a_setting_without_the_validation_score_of_a_site_is_counted_and_not_chosen() -> None:
    comparison = tuned({"X": [0.5, 0.8], "Y": [0.9, None]})
    lacking = changed(comparison, lambda cell: {"validation": None} if cell in comparison.cells[1:3] else {})
    assert rows(lacking)["X"][0] == "50.0" and rows(lacking)["Y"][0] == "-"
    assert notes_with(lacking, "X: setting", "; 1 without") and notes_with(lacking, "Y: no setting")
