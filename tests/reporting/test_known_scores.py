"""What is known of scores: one class's score is like that of all, and which need the voxel size."""

from __future__ import annotations

import pytest
from bench.made import made

from fedshift.reporting.known_scores import SCORES, known_score, needs_voxel_size
from fedshift.reporting.report.wording import metric
from fedshift_bench.columns import measure
from fedshift_bench.notes import notes


def test_scores_of_lengths_and_volumes_need_the_voxel_size() -> None:
    assert [name for name in SCORES if needs_voxel_size(name)] == [
        *("hd95", "asd", "surface_dice", "volume_difference", "false_positives")
    ]
    assert needs_voxel_size("surface_dice left") and not needs_voxel_size("unknown score")


def test_tables_and_reports_have_the_same_unit_and_direction() -> None:
    for name, known in SCORES.items():
        assert measure(f"{name} left").unit == metric(f"{name} left").unit == known.unit
        assert metric(name).higher_is_better == (measure(name).better != "lower")
        assert measure(name).scaled(0.5) == metric(name).factor * 0.5 == known.factor * 0.5
    assert metric("hd95 left").title == "HD95, left" and SCORES["hd95"].heading == "HD95, mm"
    assert known_score("unknown score") is None


def test_what_a_score_means_is_said_once_and_not_for_each_class() -> None:
    for name in SCORES:
        assert metric(name).meaning == SCORES[name].meaning
        assert metric(f"{name} left").meaning == ""


@pytest.mark.parametrize("name", ["accuracy", "hd95", "surface_dice", "volume_difference"])
def test_a_table_says_where_the_voxel_size_is_unknown(name: str) -> None:
    comparison = made({("X",): [{"A": 0.5, "B": 0.3}]}, metric=name)
    comparison.cells[0].data["B"].unknown_spacing = True
    told = [note for note in notes(comparison) if "Voxel sizes are unknown at B: " in note]
    assert bool(told) == needs_voxel_size(name)
