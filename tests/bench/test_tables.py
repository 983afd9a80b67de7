"""Tables of a comparison: deviations, bold, what is missing, published figures, in all forms."""

from __future__ import annotations

import csv
import io
import re
from statistics import stdev
from typing import Any

import pytest
from rich.console import Console

from fedshift_bench.footnotes import footnotes
from fedshift_bench.published import PublishedValue
from fedshift_bench.record import Comparison
from fedshift_bench.tables import heading, latex, long_csv, make_tables, markdown, rich_tables

from .made import made, record

FULL: dict[Any, Any] = {
    ("FedAvg",): [{"A": 0.50, "B": 0.70}, {"A": 0.54, "B": 0.72}],
    ("FedFA",): [{"A": 0.60, "B": 0.69}, {"A": 0.62, "B": 0.71}],
}
THREE: dict[Any, Any] = {
    ("FedAvg",): [*FULL[("FedAvg",)], {"A": 0.51, "B": 0.66}],
    ("FedFA",): [*FULL[("FedFA",)], {"A": 0.60, "B": 0.71}],
}


def terminal(comparison: Comparison, *, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        for table in rich_tables(comparison):
            console.print(table)
    return capture.get()


def rows(comparison: Comparison) -> dict[str, list[str]]:
    found = [line.strip("| ").split(" | ") for line in markdown(comparison).splitlines() if line.startswith("| ")]
    return {line[0]: line[1:] for line in found}


def test_mean_and_sample_deviation_over_seeds_and_the_best_in_bold() -> None:
    (table,) = make_tables(made(FULL))
    entry = table.rows["FedAvg"][2]  # the average over sites
    averages = [(0.50 + 0.70) / 2, (0.54 + 0.72) / 2]
    assert entry.mean == pytest.approx(sum(averages) / 2) and entry.std == pytest.approx(stdev(averages))
    shown = rows(made(FULL))
    assert shown["method"] == ["A", "B", "average"]
    assert shown["FedAvg"] == ["52.0 ± 2.8", "**71.0 ± 1.4**", "61.5 ± 2.1"]
    assert shown["FedFA"] == ["**61.0 ± 1.4**", "70.0 ± 1.4", "**65.5 ± 1.4**"]
    assert "sample standard deviation (n - 1) over 2 seeds (0, 1)" in markdown(made(FULL))


def test_the_heading_says_which_models_were_scored() -> None:
    comparison = made(FULL)
    assert heading(comparison).endswith("of the best round")
    crossed = comparison.model_copy(update={"spec": {"run": "cross_site"}})
    assert heading(crossed).endswith("of sites' own models of the last round")


def test_the_scale_is_named_where_a_spec_has_scales() -> None:
    assert heading(made(FULL)).startswith("Made by hand (quick): ")
    assert heading(made(FULL, scale="full")).startswith("Made by hand: ")


def test_a_name_is_not_cut_on_a_narrow_terminal() -> None:
    name = "FedFA with FedRDN, augmentation and a long name"
    sites = {f"site number {n}": 0.5 for n in range(8)}
    comparison = made({(name,): [sites], ("FedAvg",): [sites]})
    assert name in terminal(comparison, width=80)


def test_one_seed_has_no_deviation() -> None:
    shown = rows(made({row: seeds[:1] for row, seeds in FULL.items()}))
    assert shown["FedAvg"] == ["50.0", "**70.0**", "60.0"]
    assert "±" not in markdown(made({row: seeds[:1] for row, seeds in FULL.items()}))


def test_a_row_without_all_seeds_is_shown_as_such_and_never_bold() -> None:
    numbers = {**FULL, ("FedBN",): [{"A": 0.9, "B": 0.9}, None], ("FedX",): [None, None]}
    shown = rows(made(numbers))
    assert shown["FedBN"] == ["90.0 (1 of 2 seeds)"] * 3
    assert shown["FedX"] == ["-"] * 3
    assert shown["FedFA"][0].startswith("**")
    assert "3 of 8 cells are missing" in markdown(made(numbers))


def test_a_site_that_gave_no_score_leaves_no_average() -> None:
    numbers = {**FULL, ("FedBN",): [{"A": 0.9, "B": 0.9}, {"A": 0.9}]}
    assert rows(made(numbers))["FedBN"] == ["**90.0 ± 0.0**", "90.0 (1 of 2 seeds)", "90.0 (1 of 2 seeds)"]


def test_rows_that_print_alike_are_equally_good() -> None:
    shown = rows(made({("X",): [{"A": 0.6001}], ("Y",): [{"A": 0.6004}], ("Z",): [{"A": 0.5}]}))
    assert [shown[row][0] for row in "XYZ"] == ["**60.0**", "**60.0**", "50.0"]


def test_of_distances_the_smallest_is_best_and_in_millimetres() -> None:
    comparison = made({("X",): [{"A": 3.25}], ("Y",): [{"A": 2.5}]}, metric="hd95")
    for cell in comparison.cells:
        scores = cell.scores["best"]["test"]
        scores["A"]["hd95"] = scores["A"]["accuracy"]
    assert [rows(comparison)[row][0] for row in "XY"] == ["3.25", "**2.50**"]
    assert "hd95 in mm, lower is better" in markdown(comparison)


def test_published_figures_stand_beside_ours_as_they_are_printed() -> None:
    figures = [
        PublishedValue(row="FedAvg", column="A", value="62.51", unit="%"),
        PublishedValue(row="FedFA", column="average", value="64", std="0.63", unit="%"),
    ]
    comparison = made(FULL, published=[figure.model_dump() for figure in figures])
    shown = rows(comparison)
    assert shown["FedAvg"][0] == "52.0 ± 2.8 [62.51]" and shown["FedFA"][2] == "**65.5 ± 1.4** [64 ± 0.63]"
    assert shown["FedAvg"][1] == "**71.0 ± 1.4**"
    assert "[62.51]" in terminal(comparison) and "In brackets: the values published in the paper." in terminal(
        comparison
    )
    assert r"{\scriptsize [62.51]}" in latex(comparison)
    lines = list(csv.DictReader(io.StringIO(long_csv(comparison))))
    assert [line["published"] for line in lines if line["column"] == "A"] == ["62.51", ""]


@pytest.mark.parametrize(
    ("row", "column"),
    [("FedFA", "p-value against FedAvg"), ("FedAvg", "p-value against FedFA")],
    ids=["same", "turned"],
)
def test_the_papers_p_value_stands_beside_ours_at_whichever_row_it_is_printed(row: str, column: str) -> None:
    printed = [{"row": row, "column": column, "value": "0.0128"}]
    numbers = {**THREE, ("FedProx",): [{"A": 0.51, "B": 0.70}, {"A": 0.55, "B": 0.73}, {"A": 0.5, "B": 0.66}]}
    comparison = made(numbers, tests=[("FedFA", "FedAvg"), ("FedFA", "FedProx")], published=printed)
    (with_theirs, without) = [line for line in footnotes(comparison) if line.startswith("FedFA against")]
    assert re.search(
        r"p = 0\.\d{4}, 95 % interval \S+ to \S+, smallest detectable difference \S+ "
        r"\(n = 3; in the paper p = 0\.0128\)\.$",
        with_theirs,
    )
    assert without.endswith("(n = 3).") and "paper" not in without
    lines = csv.DictReader(io.StringIO(long_csv(comparison)))
    values = {line["column"]: line["published"] for line in lines if line["column"].startswith("p-value")}
    assert values == {"p-value against FedAvg": "0.0128", "p-value against FedProx": ""}


def test_the_papers_p_value_is_that_of_the_tests_own_block() -> None:
    numbers = {(row, size): [{"A": 0.5, "B": 0.7 if row == "X" else 0.6}] for row in "XY" for size in ("5%", "all")}
    printed = [{"row": "Y", "column": "all/p-value against X", "value": "0.03"}]
    axes = {"method": ["X", "Y"], "size": ["5%", "all"]}
    comparison = made(numbers, axes=axes, tests=[("X", "Y")], published=printed)
    small, every = (line for line in footnotes(comparison) if line.startswith("X against"))
    assert "(n = 1)." in small and "(n = 1; in the paper p = 0.03)." in every


def test_further_axes_are_columns_and_then_tables_of_their_own() -> None:
    axes = {"method": ["X", "Y"], "size": ["5%", "all"]}
    numbers = {(row, size): [{"A": 0.5, "B": 0.7 if row == "X" else 0.6}] for row in "XY" for size in ("5%", "all")}
    comparison = made(numbers, axes=axes, published=[{"row": "X", "column": "5%", "value": "99.9"}])
    overview, small, every = make_tables(comparison)
    assert [column.heading for column in overview.columns] == ["5%", "all"]
    assert [column.key for column in small.columns] == ["5%/A", "5%/B", "5%/average"]
    assert overview.rows["X"][0].mean == pytest.approx(0.6) and overview.rows["X"][0].published == "99.9"
    assert small.rows["X"][2].published == "99.9" and every.rows["X"][2].published == ""
    assert small.title == "size 5%"
    lines = list(csv.DictReader(io.StringIO(long_csv(comparison))))
    assert {(line["method"], line["size"], line["column"]) for line in lines} >= {
        ("X", "5%", "A"),
        ("Y", "all", "average"),
    }
    assert [line["published"] for line in lines if line["column"] == "average"][:1] == ["99.9"]


def test_held_out_sites_have_an_average_of_their_own() -> None:
    comparison = made({("X",): [{"A": 0.5, "B": 0.7}]}, summaries=["average", "held_out", "everywhere", "spread"])
    (cell,) = comparison.cells
    cell.shown["held_out"] = ["C", "D"]
    cell.scores["best"]["held_out"] = {"C": {"accuracy": 0.2}, "D": {"accuracy": 0.3}}
    (table,) = make_tables(comparison)
    means = {column.heading: entry.mean for column, entry in zip(table.columns, table.rows["X"], strict=True)}
    assert means["average"] == pytest.approx(0.6) and means["held out, average"] == pytest.approx(0.25)
    assert means["all sites"] == pytest.approx(0.425) and means["std over sites"] == pytest.approx(
        stdev([5, 7, 2, 3]) / 10
    )
    assert means["D"] == 0.3


def test_averages_can_be_over_samples() -> None:
    """A test set that is dealt to sites: 10 of 40 images right at A and 12 of 15 at B are 22 of 55."""
    comparison = made({("X",): [{"A": 10 / 40, "B": 12 / 15}]}, summaries=["average", "everywhere"], average="samples")
    (cell,) = comparison.cells
    for site, n in (("A", 40), ("B", 15), ("C", 0)):
        counts = {"train": 9, "val": 5, "test": n}
        cell.data[site] = record(site).model_copy(update={"n": counts})
    cell.shown["held_out"], cell.scores["best"]["held_out"] = ["C"], {"C": {"accuracy": 1.0}}
    (table,) = make_tables(comparison)
    means = {column.heading: entry.mean for column, entry in zip(table.columns, table.rows["X"], strict=True)}
    assert means["average"] == pytest.approx(22 / 55)
    assert means["all sites"] == pytest.approx((22 + 14) / (55 + 14)), "a held-out site is scored on all it has"
    assert "Averages over sites weigh each site by the samples that it is scored on." in footnotes(comparison)


def test_each_sites_own_best_round_or_what_a_cell_has_in_its_place() -> None:
    comparison = made({("X",): [{"A": 0.5, "B": 0.7}], ("Y",): [{"A": 0.5, "B": 0.7}]}, model="own_best")
    x, y = comparison.cells
    x.scores["own_best"] = {"test": {"A": {"accuracy": 0.6}, "B": {"accuracy": 0.8}}}
    y.scores["personal"] = {"test": {"A": {"accuracy": 0.1}, "B": {"accuracy": 0.2}}}
    assert [rows(comparison)[row][0] for row in "XY"] == ["**60.0**", "10.0"]
    assert heading(comparison).endswith("of each site's own best round")


def test_of_very_many_sites_there_is_the_average_only() -> None:
    comparison = made({("X",): [{f"s{n}": n / 100 for n in range(50)}]})
    assert rows(comparison)["X"] == ["24.5"]


def test_latex_escapes_what_latex_would_read() -> None:
    comparison = made({("a_b & 5% {x} \\ #1 ~ ^",): [{"s_1": 0.5}]}, title="50% $x$ ±1 < 2°")
    text = latex(comparison)
    assert r"a\_b \& 5\% \{x\} \textbackslash{} \#1 \textasciitilde{} \textasciicircum{} & 50.0 & 50.0 \\" in text
    assert r"50\% \$x\$ $\pm$1 \textless{} 2$^\circ$" in text
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 1
    body = re.sub(r"\\[a-zA-Z]+|\\[&%$#_{}\\]", "", text.split(r"\toprule")[1].split(r"\bottomrule")[0])
    assert not set(body) & set("%$#_~^")


def test_markdown_keeps_labels_that_look_like_markup() -> None:
    assert r"| a\|b \*c\* | **50.0**" not in markdown(made({("a|b *c*",): [{"A": 0.5}]}))
    assert r"| a\|b \*c\* | 50.0 | 50.0 |" in markdown(made({("a|b *c*",): [{"A": 0.5}]}))


def test_every_form_says_what_the_data_and_the_weights_are() -> None:
    comparison = made(THREE, differences="Fewer rounds.", tuning="All: none.", tests=[("FedFA", "FedAvg")])
    for cell in comparison.cells:
        cell.data.update({site: record(site, "phantom") for site in cell.data})
    for text in (terminal(comparison), markdown(comparison), latex(comparison)):
        assert "The data are the phantom: simulated scans, no patients." in " ".join(text.split())
        assert "from scratch" in text and "Fewer rounds." in text and "Tuning: All: none." in text
        assert "p = 0." in text and "(n = 3)" in text
    lines = list(csv.DictReader(io.StringIO(long_csv(comparison))))
    assert {(line["data"], line["initial weights"]) for line in lines} == {("phantom", "from scratch")}
    assert [line["column"] for line in lines if line["method"] == "FedFA"][-1] == "p-value against FedAvg"


def test_a_round_selected_by_another_score_than_the_tables_is_told_of() -> None:
    comparison = made(FULL)
    for cell in comparison.cells:
        object.__setattr__(cell, "selected_by", "accuracy")
    assert not any("selected" in line for line in footnotes(comparison))
    object.__setattr__(comparison.cells[0], "selected_by", "dice")
    assert "The best round is selected by dice, not by the score shown here." in footnotes(comparison)
    last = comparison.model_copy(update={"model": "last"})
    assert not any("selected" in line for line in footnotes(last))


def test_rows_that_are_not_the_protocol_are_named() -> None:
    comparison = made(FULL)
    assert not any("Not the protocol" in line for line in footnotes(comparison))
    for cell in comparison.cells:
        object.__setattr__(cell, "departures", ["it starts elsewhere"])
    comparison.cells[0].departures.append("it has a method more")
    assert [line for line in footnotes(comparison) if "Not the protocol" in line] == [
        "Not the protocol: it starts elsewhere.",
        "Not the protocol at FedAvg: it has a method more.",
    ]


def test_cells_whose_rounds_ended_by_the_clock_are_said_not_to_repeat() -> None:
    comparison = made(FULL)
    assert not any("schedule.minutes" in line for line in footnotes(comparison))
    object.__setattr__(comparison.cells[0], "minutes", 30.0)
    assert [line for line in footnotes(comparison) if "schedule.minutes" in line] == [
        "Rounds end by the clock (schedule.minutes): these cells cannot be repeated bit for bit, and what else the "
        "machine did has its part in their scores."
    ]


def tuned(validation: dict[str, list[float | None]]) -> Comparison:
    """Row -> the validation score of each setting, None for one that failed; test scores are the opposite order."""
    width = max(map(len, validation.values()))
    comparison = made(
        {(row,): [{"A": 0.5}] for row in validation}, tuning={"draws": width, "seed": 4, "remark": "By hand."}
    )
    cells = []
    for cell in comparison.cells:
        for draw, value in enumerate(validation[cell.labels["method"]]):
            update: dict[str, Any] = {"draw": draw, "drawn": {"optimizer.lr": draw / 10} if draw else {}}
            update |= {"state": "failed"} if value is None else {"validation": value}
            update["scores"] = {} if value is None else {"best": {"test": {"A": {"accuracy": 1 - value}}}}
            cells.append(cell.model_copy(update=update))
    return comparison.model_copy(update={"cells": cells})


def test_the_setting_that_is_best_on_validation_is_shown_with_the_spread_and_the_budget() -> None:
    comparison = tuned({"X": [0.5, 0.8, 0.6], "Y": [0.7, None, 0.2]})
    assert rows(comparison)["X"][0] == "20.0" and rows(comparison)["Y"][0] == "**30.0**", "by validation, not by test"
    notes = footnotes(comparison)
    assert any(
        note.startswith(
            "Tuning: 3 settings for every row, its own and others drawn by seed 4, 3 cells in all; shown is"
        )
        for note in notes
    )
    assert "By hand." in notes
    x, y = (next(note for note in notes if note.startswith(f"{row}: ")) for row in "XY")
    assert x == "X: setting 2 of 3 (optimizer.lr=0.1); averages over settings 20.0 to 50.0, standard deviation 15.3."
    assert y.startswith("Y: setting 1 of 3 (its own); averages over settings 30.0 to 80.0") and y.endswith(
        "; 1 failed."
    )
    again = Comparison.model_validate_json(comparison.model_dump_json())
    assert rows(again) == rows(comparison) and again.tuning == comparison.tuning


def test_no_setting_is_chosen_before_all_have_ended() -> None:
    comparison = tuned({"X": [0.5, 0.8], "Y": [0.6, 0.7]})
    object.__setattr__(comparison.cells[0], "state", "missing")
    assert rows(comparison)["X"][0] == "-" and rows(comparison)["Y"][0] == "30.0"
    assert not any(line.startswith("X: setting") for line in footnotes(comparison))
    every = tuned({"X": [None, None], "Y": [0.6, 0.6]})
    assert rows(every)["X"][0] == "-" and "Y: setting 1 of 2 (its own)" in " ".join(footnotes(every)), (
        "of equals the first"
    )


def test_a_setting_without_the_validation_score_of_a_site_is_counted_and_not_chosen() -> None:
    comparison = tuned({"X": [0.5, 0.8], "Y": [0.9, None]})
    for cell in comparison.cells[1:3]:
        object.__setattr__(cell, "validation", None)
    assert rows(comparison)["X"][0] == "50.0" and rows(comparison)["Y"][0] == "-"
    notes = footnotes(comparison)
    assert next(note for note in notes if note.startswith("X: ")).endswith(
        "; 1 without the validation score of a site."
    )
    assert "Y: no setting is chosen: each failed or lacks a site's validation score." in notes


def test_cells_of_different_versions_data_or_kinds_are_told_of() -> None:
    comparison = made(FULL)
    assert not any("different" in line for line in footnotes(comparison))
    one, *_, other = comparison.cells
    object.__setattr__(other, "source", "xyz")
    object.__setattr__(one, "precision", "bf16")
    assert not any("precision" in line for line in footnotes(comparison)), "of the others it is not known"
    object.__setattr__(other, "precision", "fp32")
    one.data["A"] = record("another", "patients")
    told = " ".join(footnotes(comparison))
    versions = "0.1 (source abc) made FedAvg, FedFA; 0.1 (source xyz) made FedFA."
    assert f"different versions of fedshift: {versions}" in told
    assert "Cells were trained in different precision: FedAvg in bf16; FedFA in fp32." in told
    assert "different kinds of data (images, patients)" in told and "different preparations" in told
