"""Leaderboards: which rows and seeds are ranked, what is tested, and the files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from errors import raises
from scipy import stats

from fedshift import cli
from fedshift_bench.leaderboard import (
    FILES,
    Leaderboard,
    headings,
    make_leaderboard,
    notes,
    rank_svg,
    row_text,
    write_leaderboard,
)
from fedshift_bench.record import Comparison, write_comparison

from .made import made


def scores(base: float, seeds: int = 3, sites: str = "ABC") -> list[dict[str, float] | None]:
    """Of a row whose sites and seeds differ by fixed amounts."""
    return [
        {site: base + 0.02 * place + 0.003 * seed * (1 + place) for place, site in enumerate(sites)}
        for seed in range(seeds)
    ]


def table(**changes: Any) -> Comparison:
    changes = {"ranking": {"against": "fedavg"}} | changes
    numbers: Any = {
        ("fedavg",): scores(0.5),
        ("better",): [
            {site: value + 0.1 + 0.01 * seed for site, value in told.items()}
            for seed, told in enumerate(scores(0.5))
            if told
        ],
        ("worse",): scores(0.4),
        ("begun",): [*scores(0.9, seeds=1), None, None],
    }
    return made(numbers, **changes)


def test_rows_with_all_seeds_are_ranked_at_every_site() -> None:
    board = make_leaderboard([table()])
    assert [row.name for row in board.rows] == ["better", "fedavg", "worse"]
    assert [row.rank for row in board.rows] == [1, 2, 3] and board.blocks == ("made/A", "made/B", "made/C")
    assert board.seeds == {"made": (0, 1, 2)} and board.unranked.keys() == {"begun"}


def test_those_seeds_count_with_which_most_cells_do() -> None:
    """A row that has begun another seed doesn't take the first from all others."""
    numbers: Any = {("fedavg",): [*scores(0.5, 1), None], ("x",): [*scores(0.6, 1), None], ("y",): scores(0.4, 2)}
    board = make_leaderboard([made(numbers)], against="fedavg")
    assert board.seeds == {"made": (0,)} and [row.name for row in board.rows] == ["x", "fedavg", "y"]


def test_within_one_task_the_test_is_over_seeds_and_corrected() -> None:
    numbers: Any = {("fedavg",): scores(0.5)}
    for name, gaps in (("x", (0.05, 0.06, 0.04)), ("y", (0.01, -0.01, 0.02))):
        numbers[name,] = [
            {site: value + gap for site, value in told.items()}
            for gap, told in zip(gaps, scores(0.5), strict=True)
            if told
        ]
    board = make_leaderboard([made(numbers)], against="fedavg")
    by_name = {row.name: row for row in board.rows}
    expected = stats.ttest_1samp([0.05, 0.06, 0.04], 0).pvalue
    assert by_name["x"].p == pytest.approx(expected) and by_name["x"].p_holm == pytest.approx(2 * expected)
    assert by_name["x"].difference == pytest.approx(5) and by_name["x"].pairs == 3
    assert by_name["y"].p_holm == by_name["y"].p and by_name["fedavg"].p is None
    assert any("t-test" in note and "2 tests" in note for note in notes(board))


def test_over_tasks_the_test_is_over_tasks_and_sites() -> None:
    first, second = table(name="one"), table(name="two")
    board = make_leaderboard([first, second])
    assert len(board.blocks) == 6 and board.blocks[3] == "two/A"
    better = board.rows[0]
    differences = board.scores[:, 0] - board.scores[:, 1]
    assert better.pairs == 6 and better.p == pytest.approx(stats.wilcoxon(differences, zero_method="zsplit").pvalue)
    assert any("Wilcoxon" in note for note in notes(board))


def test_a_row_that_a_task_does_not_have_is_named_and_not_ranked() -> None:
    other = made({("fedavg",): scores(0.5), ("better",): scores(0.6)}, name="two", ranking={"against": "fedavg"})
    board = make_leaderboard([table(name="one"), other])
    assert [row.name for row in board.rows] == ["better", "fedavg"]
    assert board.unranked["worse"].endswith(" two") and "one, two" in board.unranked["begun"]


def test_references_are_shown_but_not_ranked() -> None:
    board = make_leaderboard([table(ranking={"against": "fedavg", "references": ["better"]})])
    assert [row.name for row in board.rows] == ["fedavg", "worse"] and board.unranked["better"] == "a reference"


def test_one_seed_has_no_p_and_says_so() -> None:
    board = make_leaderboard([made({("fedavg",): scores(0.5, 1), ("x",): scores(0.6, 1)})], against="fedavg")
    assert all(row.p is None for row in board.rows) and board.friedman is None
    assert any("needs 3 pairs" in note for note in notes(board))


def test_rows_that_are_all_alike_are_not_told_apart_and_no_number_of_pairs_is_asked_for() -> None:
    names = ("fedprox", "fedavg", "x")
    told = notes(make_leaderboard([made({(name,): scores(0.5) for name in names})], against="fedprox"))
    text = " ".join(told)
    assert "No two rows" in text and "all scores" in text and "No row is" in text


@pytest.mark.parametrize(
    ("comparisons", "code", "names"),
    [
        ([made({("x",): scores(0.5)})], "no-baseline", "'ranking'"),
        ([table(), table()], "same-task", ()),
        ([table(metric="ece"), table(name="two")], "different-directions", ()),
        ([table(metric="hd95"), table(name="two", metric="ece")], "different-units", ("hd95 (mm)", "ece (%)")),
        ([made({("x",): scores(0.5), ("y",): [None]}, ranking={"against": "y"})], "baseline-unfinished", "'y'"),
    ],
)
def test_what_cannot_be_ranked_is_refused(
    comparisons: list[Comparison], code: str, names: str | tuple[str, ...]
) -> None:
    with raises(code, naming=names):
        make_leaderboard(comparisons)


def test_scores_and_differences_are_printed_in_their_own_unit() -> None:
    numbers: Any = {
        (name,): [{site: value + add for site, value in told.items()} for told in scores(2.0) if told]
        for name, add in (("fedavg", 0.0), ("a", -0.004), ("b", 0.0004), ("c", 1e-14), ("d", 0.25))
    }
    distances = made(numbers, metric="hd95")
    for cell in distances.cells:
        for told in cell.scores["best"]["test"].values():
            told["hd95"] = told.pop("accuracy")
    board = make_leaderboard([distances], against="fedavg")
    rows = {row.name: row_text(row, board)[1:3] for row in board.rows}
    assert headings(board)[1] == "mean score, mm"
    assert rows == {
        "a": ["2.02", "−0.004"],
        "fedavg": ["2.03", ""],
        "c": ["2.03", "0.00"],
        "b": ["2.03", "+0.0004"],
        "d": ["2.28", "+0.25"],
    }
    percent = make_leaderboard([table()])
    assert headings(percent)[1] == "mean score, %" and row_text(percent.rows[0], percent)[2] == "+11.0"


def test_the_files_have_every_row_and_the_diagram_its_names(tmp_path: Path) -> None:
    board = make_leaderboard([table()])
    paths = write_leaderboard(board, tmp_path, title="Made by hand", left_out={"fedproto": "needs one label"})
    assert [path.name for path in paths] == list(FILES)
    text = paths[0].read_text(encoding="utf-8")
    assert "| better | 1.00 |" in text and "- fedproto: needs one label" in text and "- begun: not finished" in text
    with paths[1].open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["row"] for line in lines] == ["better", "fedavg", "worse"]
    assert float(lines[0]["made/A"]) == pytest.approx(board.scores[0, 0], rel=1e-5) and lines[1]["p"] == ""
    svg = paths[2].read_text(encoding="utf-8")
    words = " ".join(element.text or "" for element in ElementTree.fromstring(svg).iter())
    assert all(f"{row.name}" in words for row in board.rows) and "critical difference" in words
    assert svg == rank_svg(board, "Made by hand"), "equal bytes"


def test_what_is_not_told_apart_is_in_the_notes() -> None:
    rng = np.random.default_rng(0)
    numbers: Any = {
        (name,): [{f"S{site}": base + 0.01 * float(rng.random()) for site in range(12)}]
        for name, base in (("fedavg", 0.5), ("a", 0.9), ("b", 0.895), ("c", 0.3))
    }
    board: Leaderboard = make_leaderboard([made(numbers)], against="fedavg")
    told = " ".join(notes(board))
    first = board.rows[0].name
    assert f"{first} is told" in told and "fedavg among them" in told


def test_the_command_ranks_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        write_comparison(table(name=name), tmp_path / name)
    assert cli.main(["leaderboard", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "out")]) == 0
    assert "one, two" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(FILES)
    assert cli.main(["leaderboard", str(tmp_path / "one"), "--against", "begun", "--out", str(tmp_path / "out")]) == 2
