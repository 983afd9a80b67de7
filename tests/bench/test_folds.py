"""Cross-validation: every case is tested once, a site's score is over all of its cases, a pair is a site and a fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from errors import raises
from scipy import stats
from volumesites import BLOBS, make_volume_site

from fedshift import cli
from fedshift_bench.cells import choose, make_cells
from fedshift_bench.curves import line
from fedshift_bench.notes import conclusions, footnotes
from fedshift_bench.record import CellRecord, Comparison, over_folds, read_comparison
from fedshift_bench.significance import paired_tests
from fedshift_bench.spec import read_spec
from fedshift_bench.tables import long_csv, make_tables

from .made import made, record, write_spec

Scores = Mapping[tuple[int, int], Mapping[str, float] | None]
"""(seed, fold) -> each site's score, None for a cell that is missing."""
FOLDS = (1, 2, 3)


def crossed(rows: Mapping[str, Scores], *, cases: Mapping[str, Sequence[int]] | None = None, **changes: Any) -> Any:
    """A comparison over `FOLDS`; ``cases`` are each site's test cases by fold, 1 unless said."""
    whole = made({(row,): [{"A": 0.0, "B": 0.0}] for row in rows})
    template = whole.cells[0]
    cells = []
    for row, scores in rows.items():
        for (seed, fold), told in scores.items():
            tested = {site: counts[fold - 1] for site, counts in (cases or {}).items()}
            data = {
                site: record(site).model_copy(update={"cases": {"train": 9, "test": tested.get(site, 1)}})
                for site in "AB"
            }
            done = {"best": {"test": {site: {"accuracy": value} for site, value in (told or {}).items()}}}
            changed = {
                "labels": {"method": row},
                "seed": seed,
                "fold": fold,
                "state": "missing" if told is None else "done",
                "scores": {} if told is None else done,
                "curve": [0.1 * fold, 0.2 * fold],
                "data": data,
            }
            cells.append(template.model_copy(update=changed))
    seeds = sorted({cell.seed for cell in cells})
    return whole.model_copy(update={"cells": cells, "seeds": seeds, "folds": list(FOLDS), **changes})


def test_a_sites_score_weighs_each_fold_by_its_test_cases() -> None:
    scores = {(0, 1): {"A": 0.5, "B": 0.9}, (0, 2): {"A": 0.8, "B": 0.6}, (0, 3): {"A": 0.2, "B": 0.6}}
    comparison = crossed({"FedAvg": scores}, cases={"A": (2, 1, 1), "B": (1, 1, 1)})
    (cell,) = comparison.cells_with({})
    assert cell.fold is None and cell.name == "FedAvg, seed 0"
    told = cell.site_scores("best", "test", "accuracy")
    assert told == pytest.approx({"A": (2 * 0.5 + 0.8 + 0.2) / 4, "B": 0.7})
    assert cell.data["A"].cases["test"] == 4 and cell.data["A"].n["test"] == 3
    (row,) = make_tables(comparison)[0].rows.values()
    assert [entry.mean for entry in row] == pytest.approx([0.5, 0.7, 0.6])
    drawn = line(comparison.cells_with({}))
    assert drawn is not None and drawn.means == pytest.approx([20.0, 40.0])
    assert any(" 1, 2, 3:" in note for note in footnotes(comparison))


def test_a_row_whose_folds_have_not_all_ended_has_no_score() -> None:
    scores = {(0, 1): {"A": 0.5, "B": 0.9}, (0, 2): None, (0, 3): {"A": 0.2, "B": 0.6}}
    (cell,) = crossed({"FedAvg": scores}).cells_with({})
    assert cell.state == "missing" and not cell.scores and not cell.curve
    failed = [one.model_copy(update={"state": "failed"}) for one in crossed({"FedAvg": scores}).cells[:1]]
    assert over_folds([*failed, *crossed({"FedAvg": scores}).cells[1:]])[0].state == "failed"


@pytest.mark.parametrize("empty", FOLDS)
def test_a_fold_without_test_cases_at_a_site_does_not_count_there(empty: int) -> None:
    both = {"A": 0.5, "B": 0.8}
    scores = {(0, fold): {"A": 0.5} if fold == empty else both for fold in FOLDS}
    counts = [0 if fold == empty else fold for fold in FOLDS]
    comparison = crossed({"FedAvg": scores}, cases={"A": (1, 1, 1), "B": counts})
    (cell,) = comparison.cells_with({})
    assert cell.site_scores("best", "test", "accuracy") == pytest.approx(both)
    (row,) = make_tables(comparison)[0].rows.values()
    assert [entry.mean for entry in row] == pytest.approx([0.5, 0.8, 0.65])
    lacking = crossed({"FedAvg": scores}, cases={"A": (1, 1, 1), "B": (1, 1, 1)})
    assert "B" not in lacking.cells_with({})[0].site_scores("best", "test", "accuracy"), (
        "there were cases, but no score"
    )


def test_a_score_that_one_fold_lacks_is_left_out() -> None:
    cells: list[CellRecord] = crossed({"FedAvg": {(0, fold): {"A": 0.5, "B": 0.5} for fold in FOLDS}}).cells
    cells[0].scores["best"]["test"]["A"]["hd95"] = 3.0
    assert over_folds(cells)[0].scores["best"]["test"]["A"] == {"accuracy": 0.5}


def test_a_pair_is_a_site_and_a_fold_averaged_over_seeds() -> None:
    def scores(gain: float) -> Scores:
        return {
            (seed, fold): {"A": 0.5 + gain * fold / 100, "B": 0.6 + gain * (fold - 4) / 90 + seed / 50}
            for seed in (0, 1)
            for fold in FOLDS
        }

    comparison: Comparison = crossed(
        {"FedFA": scores(3.0), "FedAvg": scores(1.0)}, tests=[("FedFA", "FedAvg")], pairs="sites_and_folds"
    )
    (test,) = paired_tests(comparison)
    gaps = [2 * fold / 100 for fold in FOLDS] + [2 * (fold - 4) / 90 for fold in FOLDS]
    assert test.n == 6 and test.over_pairs is None
    assert test.difference == pytest.approx(sum(gaps) / 6)
    assert test.p == pytest.approx(stats.wilcoxon(gaps, zero_method="zsplit").pvalue)
    notes = footnotes(comparison)
    by_fold = [(a + b) / 2 for a, b in zip(gaps[:3], gaps[3:], strict=True)]
    expected = stats.ttest_1samp(by_fold, 0)
    interval = expected.confidence_interval(0.95)
    assert test.over_folds is not None and test.over_folds.p == pytest.approx(expected.pvalue)
    assert test.interval == pytest.approx((interval.low, interval.high))
    low, high = (f"{100 * bound:+.1f}".replace("-", "−") for bound in interval)
    (note,) = (note for note in notes if note.startswith("FedFA against FedAvg: −0.2"))
    smallest = f"{100 * (test.smallest or 0):.1f}"
    for part in (f" {test.p:.4f}", f"3 folds p = {test.over_folds.p:.4f}", f"{low} to {high}", smallest, "(n = 6)"):
        assert part in note
    csv = long_csv(comparison)
    assert f" over folds,{test.over_folds.p:.6g},,,3,3," in csv
    assert f"FedFA,difference to FedAvg,{100 * test.difference:.6g},,,6,6," in csv
    assert f"FedFA,difference to FedAvg (low),{100 * interval.low:.6g},,,3,3," in csv
    begun = [cell for cell in comparison.cells if not (cell.fold == 2 and cell.labels["method"] == "FedFA")]
    (line,) = (note for note in footnotes(comparison.model_copy(update={"cells": begun})) if "against" in note)
    assert line.endswith(" 1, 3 only).") and "over" not in line, "two folds are too few for a test"


def test_folds_of_different_sites_have_no_interval_of_another_mean() -> None:
    """A small site is tested in one fold only: the mean over folds is not the mean over pairs."""
    theirs: dict[tuple[int, int], dict[str, float]] = {(0, fold): {"A": 0.5} for fold in FOLDS}
    theirs[0, 1]["B"] = 0.6
    gains = {1: -0.01, 2: 0.02, 3: 0.04}
    ours = {(0, fold): {site: score + gains[fold] for site, score in theirs[0, fold].items()} for fold in FOLDS}
    comparison = crossed({"X": ours, "Y": theirs}, tests=[("X", "Y")], pairs="sites_and_folds")
    (test,) = paired_tests(comparison)
    assert test.n == 4 and test.difference == pytest.approx(0.01)
    assert test.over_folds is not None and sum(test.over_folds.interval) / 2 == pytest.approx(0.05 / 3)
    assert test.interval is None and not any("% interval" in note for note in footnotes(comparison))


def test_a_claim_is_not_confirmed_by_many_pairs_of_few_models() -> None:
    gains = {1: 0.001, 2: 0.03, 3: 0.09}
    low = {(0, fold): {"A": 0.5, "B": 0.6} for fold in FOLDS}
    high = {(0, fold): {"A": 0.5 + gain, "B": 0.6 + 1.1 * gain} for fold, gain in gains.items()}
    rows = {"X": high, "Y": low}
    comparison = crossed(rows, tests=[("X", "Y")], claims=[("X", "Y")], pairs="sites_and_folds")
    (test,) = paired_tests(comparison)
    (one,) = conclusions(comparison)
    assert test.p is not None and test.over_folds is not None and test.p < 0.05 < test.over_folds.p
    assert one.outcome == "undecided" and one.p == pytest.approx(test.over_folds.p) and " 3 folds, Holm" in one.figures


def test_a_test_of_pairs_that_hardly_differ_is_not_made() -> None:
    theirs = {(0, fold): {"A": 0.5, "B": 0.9} for fold in FOLDS}
    ours = {**theirs, (0, 1): {"A": 0.6, "B": 0.8}}
    comparison = crossed({"X": ours, "Y": theirs}, tests=[("X", "Y")], pairs="sites_and_folds")
    (test,) = paired_tests(comparison)
    assert (test.n, test.p, test.difference) == (6, None, pytest.approx(0))


def write(folder: Path, **changes: Any) -> Path:
    """A spec of two methods on volumes, over two of the five folds."""
    (folder / "blobs.yaml").write_text(BLOBS, encoding="utf-8")
    options = {"schedule.rounds": 1, "schedule.local_epochs": 1}
    return write_spec(folder, **{"task": "blobs.yaml", "options": options, "seeds": [0, 4], "folds": [1, 5], **changes})


def test_every_row_and_seed_trains_on_each_fold(tmp_path: Path) -> None:
    spec, _ = read_spec(write(tmp_path))
    cells = make_cells(spec, folder=tmp_path)
    names = [cell.name for cell in cells]
    assert names[:4] == [f"FedAvg, seed {seed}, fold {fold}" for seed in (0, 4) for fold in (1, 5)]
    assert [cell.plan.job.task.data["fold"] for cell in cells[:4]] == [1, 5, 1, 5]
    assert "data.fold=5" in cells[1].commands[0]
    assert [cell.name for cell in choose(cells, ["FedProx"], [4], [5])] == ["FedProx, seed 4, fold 5"]
    with raises("unknown-number", naming=("--folds 2", "1, 5")):
        choose(cells, [], [], [2])


@pytest.mark.slow
@pytest.mark.usefixtures("cells_run_here")
def test_each_case_is_tested_in_one_fold_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for site in "AB":
        make_volume_site(tmp_path / "data", site, cases=5)
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDSHIFT_DEVICE", "cpu")
    path = write(tmp_path, axes={"method": {"FedAvg": {"methods": "fedavg"}}}, seeds=[0], folds=[1, 2, 3, 4, 5])
    words = ["compare", str(path), "-w", str(tmp_path / "cells"), "--out", str(tmp_path / "out"), "--jobs", "1"]
    assert cli.main([*words, "--folds", "1", "2"]) == 0
    assert read_comparison(tmp_path / "out").cells_with({})[0].state == "missing"
    assert cli.main(words) == 0
    comparison = read_comparison(tmp_path / "out")
    assert len({cell.key for cell in comparison.cells}) == 5 and len(comparison.cells_with({})) == 1
    assert all(len(cell.by_case["best"]["test"]["A"]) == 1 for cell in comparison.cells)
    guesses = [cell.scores["image_free"]["test"]["A"]["dice"] for cell in comparison.cells]
    assert comparison.cells_with({})[0].scores["image_free"]["test"]["A"]["dice"] == pytest.approx(sum(guesses) / 5)
    assert {site: about.cases["test"] for site, about in comparison.cells_with({})[0].data.items()} == {"A": 5, "B": 5}
    assert "over 5 folds" in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
