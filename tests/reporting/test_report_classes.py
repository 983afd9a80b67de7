"""Scores by class in the report: their support, what is pooled, ROC, DeLong, and pictures with saliency."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import findings, make_image_site, small_image_job
from sklearn import metrics

from fedshift import cli
from fedshift.federation.in_process import run_in_process
from fedshift.reporting.pooled import pool
from fedshift.schema.evaluation import ClassScores
from fedshift.schema.policy import Policy
from fedshift.schema.results import read_results
from reporting.reports import Page


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run at sites of which C knows nothing but discs, and B's scores of cases stay there."""
    root = tmp_path_factory.mktemp("classes")

    def own(number: int, label: int) -> dict[str, object]:
        return {**findings(number, label), "subject": f"p{number}"}

    data = {site: make_image_site(root, site, images=150, labelled=own) for site in "AB"}
    data["C"] = make_image_site(root, "C", images=60, labelled=lambda n, k: {"findings": {"disc": True}})
    job = small_image_job("fedavg", "data.multi_label=true", "schedule.rounds=3", "evaluation.local=true")
    run_in_process(job, data, root / "run", privacy={"B": Policy()})
    return root


def page(root: Path, out: Path, *words: str) -> Page:
    assert cli.main(["report", str(root / "run"), "--out", str(out), *words]) == 0
    return Page(out.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_score_of_a_class_comes_with_its_support(root: Path, tmp_path: Path) -> None:
    shown = page(root, tmp_path / "r.html")
    final = read_results(root / "run").final
    assert final is not None and "classes" in shown.sections
    for site, parts in final.best.evaluations.items():
        for one in (parts["test"].classes or {}).values():
            support = f"{one.positives} / {one.negatives}"
            row = next(row for row in shown.rows if row[:2] == [site, support])
            assert all(cell.startswith("–") for cell in row[2:7]) == (one.scores == {})
    assert "C 0 of 3" in shown.passages["classes_average"] and "A 3 of 3" in shown.passages["classes_average"]
    assert "90 %" in shown.passages["classes_thresholds"]
    disc = final.against_local["A"].classes["disc"]
    assert disc.p is not None and any(row[:2] == ["A", "disc"] and len(row) == 8 for row in shown.rows)


def test_pooled_scores_are_those_of_all_cases() -> None:
    rng = np.random.default_rng(0)
    told, everything = [], []
    for n in (30, 50):
        has, value = rng.random(n) < 0.4, rng.random(n)
        decided = value > 0.5
        scores = {"auroc": float(metrics.roc_auc_score(has, value))}
        told.append(
            ClassScores(
                positives=int(has.sum()),
                negatives=int((~has).sum()),
                scores=scores,
                detected=int((has & decided).sum()),
                invented=int((~has & decided).sum()),
            )
        )
        everything.append((has, value, decided))
    told.append(ClassScores(positives=0, negatives=12, invented=2))
    everything.append((np.zeros(12, bool), np.zeros(12), np.arange(12) < 2))
    pooled = pool(told)
    has, decided = (np.concatenate(parts) for parts in ([e[0] for e in everything], [e[2] for e in everything]))
    assert pooled.f1 == pytest.approx(metrics.f1_score(has, decided))
    assert pooled.balanced_accuracy == pytest.approx(metrics.balanced_accuracy_score(has, decided))
    assert (pooled.sites, pooled.all_sites, pooled.negatives) == (2, 3, int((~has).sum()))
    pairs = [np.subtract.outer(value[has], value[~has]).ravel() > 0 for has, value, _ in everything[:2]]
    assert pooled.auroc == pytest.approx(np.concatenate(pairs).mean())
    assert pool(told[2:]).f1 is None and pool(told[2:]).auroc is None


def test_pictures_are_shown_with_what_speaks_for_their_class(root: Path, tmp_path: Path) -> None:
    words = [f"--site-data={site}={root / 'shapes' / site}" for site in "AC"]
    shown = page(root, tmp_path / "images.html", "--images", *words)
    assert {"cases", "features"} <= shown.sections.keys()
    assert shown.text.count("right, what speaks for") == 6
