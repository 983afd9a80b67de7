"""Scores over rounds: the numbers, what a line is made of, and a picture that needs nothing else."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import stdev
from xml.etree import ElementTree

import pytest
from conftest import small_job

from fedshift.schema.results import RoundRecord, new_results
from fedshift_bench.collect import curve, shown_score
from fedshift_bench.curves import (
    CSV_FILE,
    SVG_FILE,
    Line,
    axis_limits,
    curves_csv,
    curves_svg,
    line,
    write_curves,
)
from fedshift_bench.record import Comparison

from .made import made, record

Curves = Mapping[tuple[str, ...], Sequence[list[float | None]]]


def curved(curves: Curves, *, axes: dict[str, list[str]] | None = None, kind: str = "images") -> Comparison:
    """A comparison with these curves, labels -> one a seed; an empty one is a cell that has not ended."""
    comparison = made({labels: [{"A": 0.5} if c else None for c in told] for labels, told in curves.items()}, axes=axes)
    flat = [curve for told in curves.values() for curve in told]
    cells = [
        cell.model_copy(update={"curve": curve, "metric": "accuracy", "data": {"A": record("A", kind)}})
        for cell, curve in zip(comparison.cells, flat, strict=True)
    ]
    return comparison.model_copy(update={"cells": cells})


def words(svg: str) -> list[str]:
    return [text for element in ElementTree.fromstring(svg).iter() if (text := (element.text or "").strip())]


def test_every_score_of_every_cell_is_a_line_of_the_file() -> None:
    told = curved({("X",): [[0.1, None, 0.3], []], ("Y",): [[0.4, 0.5, 0.625], [0.5, 0.6, 0.7]]})
    lines = list(csv.DictReader(io.StringIO(curves_csv(told))))
    assert [(one["method"], one["seed"], one["round"], one["score"]) for one in lines[:3]] == [
        ("X", "0", "1", "10"),
        ("X", "0", "3", "30"),
        ("Y", "0", "1", "40"),
    ]
    assert len(lines) == 8 and {one["unit"] for one in lines} == {"%"} and {o["metric"] for o in lines} == {"accuracy"}


def test_a_cells_curve_is_of_the_score_that_the_table_shows() -> None:
    told = [
        {"round": 1, "sites": {"A": {"val": {"dice": 0.4, "dice_papers": 0.7}}, "B": {"val": {"dice": 0.6}}}},
        {"round": 2, "sites": {"A": {"val": {"dice": 0.5, "dice_papers": 0.8}}}},
    ]
    run = new_results(small_job("fedavg"), metric="dice").model_copy(
        update={"rounds": [RoundRecord.model_validate(one) for one in told]}
    )
    assert curve([run], shown_score([run], "dice_papers"), "val") == [0.7, 0.8]
    assert curve([run], shown_score([run], "hd95"), "val") == [0.5, 0.5], "no round has it: the score that selects"
    assert curve([run], shown_score([run], None), "val") == [0.5, 0.5]


def test_test_scores_are_drawn_where_all_cells_have_them() -> None:
    told = curved({("X",): [[0.1, 0.2]], ("Y",): [[0.3, 0.4]]})
    of_test = [cell.model_copy(update={"test_curve": [0.5, 0.6]}) for cell in told.cells]
    svg = curves_svg(told.model_copy(update={"cells": of_test}))
    assert svg is not None and "test accuracy, %" in words(svg) and "test samples" in " ".join(words(svg))
    curve = line(of_test[:1], test=True)
    assert curve is not None and curve.means == pytest.approx([50, 60])
    lines = list(csv.DictReader(io.StringIO(curves_csv(told.model_copy(update={"cells": of_test})))))
    assert [(one["part"], one["score"]) for one in lines[:4]] == [
        ("val", "10"),
        ("val", "20"),
        ("test", "50"),
        ("test", "60"),
    ]
    mixed = curves_svg(told.model_copy(update={"cells": [of_test[0], told.cells[1]]}))
    assert mixed is not None and "validation accuracy, %" in words(mixed)


def test_a_line_is_the_mean_of_the_seeds_that_ended_where_all_of_them_have_a_score() -> None:
    curve = line(curved({("X",): [[0.1, 0.2, 0.3, 0.4], [0.3, None, 0.5], []]}).cells)
    assert curve is not None and curve.rounds == [1, 3] and curve.stds is not None
    assert curve.means == pytest.approx([20, 40])
    assert curve.stds == pytest.approx([stdev([10, 30]), stdev([30, 50])])
    alone = line(curved({("X",): [[0.1, 0.2]]}).cells)
    assert alone is not None and alone.stds is None
    assert line(curved({("X",): [[0.1]]}).cells) is None


def test_the_picture_has_a_row_a_line_units_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    hostile = "_<b>&'\"$x_{$"
    told = curved({(hostile,): [[0.1, 0.2], [0.2, 0.3]], ("Y",): [[0.3, 0.4], [0.4, 0.6]], ("Z",): [[], []]})
    assert write_curves(told, tmp_path) == [tmp_path / CSV_FILE, tmp_path / SVG_FILE]
    svg = (tmp_path / SVG_FILE).read_text(encoding="utf-8")
    shown = words(svg)
    assert {hostile, "Y", "round", "validation accuracy, %", "method"} <= set(shown)
    assert "Z" not in shown, "it has no line"
    assert "2 seeds; band" in " ".join(shown)
    assert "var(" not in svg and "url(http" not in svg and "#10000" not in svg and "#20000" not in svg
    assert svg == curves_svg(told), "equal cells, equal bytes"


def test_the_axis_leaves_out_the_first_rounds_where_the_others_would_lie_on_each_other() -> None:
    rounds = list(range(1, 11))
    rising = Line(rounds, [10, 40, *[80.0] * 7, 84], None)
    low, high = axis_limits([rising]) or (0, 0)
    assert (low, high) == pytest.approx((79.8, 84.2))
    # A line's band is whole, and so is a line that ends in the first rounds.
    banded = Line(rounds, rising.means, [1.0] * 10)
    assert axis_limits([banded]) == pytest.approx((78.7, 85.3))
    assert axis_limits([rising, Line([1, 2], [30, 20], None)]) is None
    # Of a score that is better the lower it is, the first rounds lie above.
    assert axis_limits([Line(rounds, [90, 60, *[20.0] * 7, 16], None)]) == pytest.approx((15.8, 20.2))
    # Later rounds that take up more than half of the range, or that are all equal: the axis is left alone.
    assert axis_limits([Line(rounds, [10, 40, *[50.0] * 7, 84], None)]) is not None
    assert axis_limits([Line(rounds, [10, 40, *[46.0] * 7, 84], None)]) is None
    assert axis_limits([Line(rounds, [10, *[50.0] * 9], None)]) is None


def test_a_figure_says_that_its_axis_leaves_out_the_first_rounds() -> None:
    note = "round (some of the first lie outside this range)"
    cut = curves_svg(curved({("X",): [[0.1, 0.2, *[0.8] * 7, 0.84]]}))
    assert cut is not None and note in words(cut)
    whole = curves_svg(curved({("X",): [[0.1, 0.2, *[0.4] * 7, 0.84]]}))
    assert whole is not None and note not in words(whole)


def test_further_axes_are_panels_and_simulated_data_are_named() -> None:
    axes = {"method": ["X", "Y"], "size": ["5%", "all"]}
    told = curved({(row, size): [[0.1, 0.2]] for row in "XY" for size in axes["size"]}, axes=axes, kind="phantom")
    svg = curves_svg(told)
    assert svg is not None
    shown = words(svg)
    assert {"size 5%", "size all"} <= set(shown) and shown.count("round") == 2 and shown.count("X") == 1
    assert "the phantom" in " ".join(shown)
    assert "one seed" in " ".join(shown) and "band" not in " ".join(shown)


def test_without_rounds_there_is_nothing_to_draw(tmp_path: Path) -> None:
    assert write_curves(curved({("X",): [[0.5]], ("Y",): [[]]}), tmp_path) == []
    assert list(tmp_path.iterdir()) == []
