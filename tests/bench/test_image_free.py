"""The image-free guess of every kind of run: from the masks of the sites that train, at the cases that rows have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from volumesites import BLOBS, make_volume_site

from fedshift.federation.image_free import score_guess
from fedshift_bench.cell_run import run_cell
from fedshift_bench.cells import Cell, make_cells
from fedshift_bench.collect import Collector
from fedshift_bench.image_free import with_guess
from fedshift_bench.record import IMAGE_FREE, CellRecord
from fedshift_bench.spec import read_spec
from fedshift_bench.store import Store

from .made import write_spec


def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[CellRecord, Cell]:
    """The only cell of a comparison on blobs at three sites, with its guess."""
    for number, site in enumerate("ABC"):
        make_volume_site(tmp_path / "data", site, cases=4 + number, shape=(6 + 4 * number, 20, 24))
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDSHIFT_DEVICE", "cpu")
    (tmp_path / "blobs.yaml").write_text(BLOBS.replace("[A, B]", "[A, B, C]"), encoding="utf-8")
    options = {"schedule.rounds": 1, "schedule.local_epochs": 1}
    axes = {"method": {"row": {"methods": "fedavg", **settings}}}
    spec, scale = read_spec(write_spec(tmp_path, task="blobs.yaml", options=options, axes=axes))
    cells, store = make_cells(spec, folder=tmp_path), Store(tmp_path / "cells")
    assert cells[0].work is not None
    run_cell(store.prepare(cells[0].work))
    comparison = with_guess(Collector(spec, scale, cells, store, folder=tmp_path).collect(), cells)
    return comparison.cells[0], cells[0]


def dice(record: CellRecord, part: str) -> dict[str, float]:
    return {column: metrics["dice"] for column, metrics in record.scores[IMAGE_FREE][part].items()}


@pytest.mark.parametrize("settings", [{}, {"methods": "all"}], ids=["federation", "pooled"])
def test_all_sites_masks_are_known_where_all_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    record, cell = ran(tmp_path, monkeypatch, **settings)
    expected = score_guess(cell.plan.job, cell.data, trained="ABC", scored=[(site, "test") for site in "ABC"])
    assert dice(record, "test") == {site: expected[site, "test"].scores["dice"] for site in "ABC"}
    assert record.by_case["best"]["test"]["A"] == pytest.approx([record.scores["best"]["test"]["A"]["dice"]], abs=1e-6)


@pytest.mark.slow
def test_of_a_held_out_site_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, cell = ran(tmp_path, monkeypatch, run="leave_one_out")
    scores = dice(record, "held_out")
    for site, others in (("A", "BC"), ("B", "AC"), ("C", "AB")):
        expected = score_guess(cell.plan.jobs[site], cell.data, trained=others, scored=[(site, "all")])
        assert scores[site] == expected[site, "all"].scores["dice"]
    assert [len(record.by_case["best"]["held_out"][site]) for site in "ABC"] == [4, 5, 6]


def test_of_local_models_the_masks_of_their_site_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, cell = ran(tmp_path, monkeypatch, run="cross_site")
    scores = dice(record, "test")
    assert set(scores) == {f"{a} > {b}" for a in "ABC" for b in "ABC" if a != b}
    expected = score_guess(cell.plan.job, cell.data, trained="B", scored=[("C", "test")])
    assert scores["B > C"] == expected["C", "test"].scores["dice"]
