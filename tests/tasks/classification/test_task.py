"""Findings, grades and classes in a run: what is scored, what it says of each class, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SHAPE_CLASSES, findings, make_image_site, small_image_job
from errors import raises

from fedshift.federation.in_process import run_in_process
from fedshift.inference.model import open_model
from fedshift.reporting.table import scores_table
from fedshift.schema.policy import Policy
from fedshift.schema.results import BEST, Results, read_results
from fedshift.tasks.classification.pictures import Images
from fedshift.tasks.classification.task import Task
from fedshift.tasks.kinds import build_task
from fedshift_testing.serialised import Federation

FINDINGS = ("data.multi_label=true",)


def task(*options: str) -> Task:
    job = build_task(small_image_job("fedavg", *options))
    assert isinstance(job, Task)
    return job


def of_one(number: int, label: int) -> dict[str, object]:
    """A site that has only said of discs, and that each picture has one."""
    return {"findings": {"disc": True}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("findings")
    for site, images in (("A", 120), ("B", 48)):
        make_image_site(folder, site, images=images, labelled=findings)
    make_image_site(folder, "C", images=24, labelled=of_one)
    return folder


def run(root: Path, folder: Path, *options: str, methods: str = "fedavg", **more: Any) -> Results:
    sites = {site: root / "shapes" / site for site in "ABC"}
    run_in_process(small_image_job(methods, *options), sites, folder, **more)
    return read_results(folder)


def test_targets_say_what_is_unknown(root: Path) -> None:
    data = task(*FINDINGS).open(root / "shapes" / "A", "A")
    assert isinstance(data, Images)
    y = data.train_samples(np.arange(12))[1]
    known = [{} if p is None else p for p in (data.manifest.pictures[k].findings for k in data.members("train")[:12])]
    for row, said in zip(y, known, strict=True):
        for value, name in zip(row.tolist(), SHAPE_CLASSES, strict=True):
            assert value == said[name] if name in said else np.isnan(value)
    subjects = data.subjects_of(np.arange(6))
    assert (subjects[::2] == subjects[1::2]).all() and len(set(subjects)) == 3


@pytest.mark.slow
def test_a_run_scores_each_finding_with_its_support(root: Path, tmp_path: Path) -> None:
    results = run(root, tmp_path, *FINDINGS, "schedule.rounds=3", "evaluation.local=true", privacy={"A": Policy()})
    assert results.job.metric == "auroc" and results.final is not None
    told = results.final.best.evaluations["A"]["test"]
    assert told.classes is not None and set(told.classes) == set(SHAPE_CLASSES)
    data = task(*FINDINGS).open(root / "shapes" / "A", "A")
    y = data.labels(data.members("test"))
    for k, name in enumerate(SHAPE_CLASSES):
        one = told.classes[name]
        assert (one.positives, one.negatives) == (int((y[:, k] == 1).sum()), int((y[:, k] == 0).sum()))
        assert one.chosen and set(one.scores) == {"auroc", "auprc", "f1", "balanced_accuracy", "sensitivity"}
        assert one.roc is None and one.calibration is None and one.intervals == {}, "fewer than ten have it"
    assert told.scores["auroc"] == pytest.approx(np.mean([one.scores["auroc"] for one in told.classes.values()]))
    assert told.calibration is not None and sum(told.calibration.counts) == int((~y.isnan()).sum())
    assert told.confusion is None and told.distributions["accuracy"].subjects == 12
    against = results.final.against_local["A"]
    assert set(against.classes) == set(SHAPE_CLASSES) and against.test == "wilcoxon"
    assert all(one.p is None for one in against.classes.values()), "subjects have several pictures"


@pytest.mark.slow
def test_messages_carry_what_sites_tell_of_classes(root: Path, tmp_path: Path) -> None:
    job = small_image_job("fedprox", *FINDINGS, "evaluation.local=true", "data.sampling=balanced", "loss=weighted_ce")
    sites = {site: root / "shapes" / site for site in "ABC"}
    run_in_process(job, sites, tmp_path / "plain")
    coordinator = Federation(job, sites, tmp_path / "serialised").run()
    plain, serialised = read_results(tmp_path / "plain").final, read_results(coordinator.folder).final
    assert plain is not None and serialised is not None
    told = serialised.best.evaluations["A"]["test"]
    assert told.classes and told.model_copy(update={"classes": None}) != told
    for site in "ABC":
        one, two = (final.best.evaluations[site]["test"] for final in (plain, serialised))
        assert (one.scores, (one.classes or {}).keys()) == (two.scores, (two.classes or {}).keys())
    assert open_model(coordinator.folder / BEST).header.thresholds.keys() == {"A", "B"}


def test_what_counts_a_sites_labels_is_told_to_dp_sgd() -> None:
    assert (
        task().measures_labels == task("loss={name: weighted_ce, options: {weights: [1, 2, 3]}}").measures_labels == ""
    )
    assert "weighted_ce" in task("loss=weighted_ce").measures_labels
    assert "data.sampling" in task("data.sampling=balanced", *FINDINGS).measures_labels


def test_a_site_of_one_kind_trains_and_gets_no_number(root: Path, tmp_path: Path) -> None:
    results = run(root, tmp_path, *FINDINGS)
    assert results.final is not None
    assert all(record.sites["C"].steps > 0 for record in results.rounds)
    told = results.final.best.evaluations["C"]["test"]
    assert set(told.scores) == {"accuracy"} and told.classes is not None
    assert told.classes["disc"].positives == 3 and told.classes["disc"].scores == {}
    assert (told.classes["bar"].positives, told.classes["bar"].negatives) == (0, 0)
    assert all("auroc" not in record.sites["C"].val for record in results.rounds)
    assert results.selected is not None and results.selected.round > 0
    assert "C 0 of 3" in str(scores_table(results).caption)


def test_classes_are_scored_where_the_job_asks(tmp_path: Path) -> None:
    """One of three shapes each; all that is told without is the same."""
    root = tmp_path / "data"
    for site in "ABC":
        make_image_site(root, site, images=180)
    plain, asked = (
        run(root, tmp_path / name, *options)
        for name, options in (("plain", ()), ("asked", ("evaluation.by_class=true",)))
    )
    assert plain.final is not None and asked.final is not None
    one, two = (made.final.best.evaluations["A"]["test"] for made in (plain, asked))
    assert one.classes is None and two.classes is not None and set(one.scores) == {"accuracy", "macro_accuracy"}
    assert two.scores.items() > one.scores.items() and two.confusion == one.confusion
    assert two.distributions == one.distributions
    assert all(told.threshold is None and told.roc and told.specific is not None for told in two.classes.values())
    assert all(told.calibration is not None for told in two.classes.values())


def test_grades_have_kappa(tmp_path: Path) -> None:
    root = tmp_path / "data"
    for site in "ABC":
        make_image_site(root, site, images=96)
    options = ("data.ordinal=true", "evaluation.metric=kappa")
    results = run(root, tmp_path / "run", *options)
    assert results.final is not None and results.job.metric == "kappa"
    told = results.final.best.evaluations["A"]["test"]
    low, high = told.intervals["kappa"]
    assert low <= told.scores["kappa"] <= high and told.classes is not None
    assert all("kappa" in site.val for record in results.rounds for site in record.sites.values())


@pytest.mark.parametrize("metric", ["auroc", "auprc"])
def test_rounds_can_be_selected_by_ranks(metric: str, root: Path) -> None:
    made = task(f"evaluation.metric={metric}", *FINDINGS)
    data = made.open(root / "shapes" / "A", "A")
    y = data.labels(data.members("val"))
    perfect = made.scores(iter([y.nan_to_num(0.5)]), data, "val")
    assert made.metric == metric and perfect[metric] == 1.0
    broken = made.scores(iter([made.probabilities(torch.full_like(y, torch.nan))]), data, "val")
    assert broken["auroc"] == 0.5


@pytest.mark.parametrize(
    ("options", "code", "names"),
    [
        (("data.ordinal=true", *FINDINGS), "options-clash", "data.multi_label"),
        (("evaluation.metric=kappa",), "unknown-metric", "kappa"),
        (("evaluation.metric=macro_accuracy", *FINDINGS), "unknown-metric", "auroc"),
        (("evaluation.by_class=false", *FINDINGS), "no-effect", "evaluation.by_class"),
        (("evaluation.specificity=1", *FINDINGS), "invalid-value", "specificity"),
    ],
)
def test_what_does_not_go_together_is_refused(options: tuple[str, ...], code: str, names: str) -> None:
    with raises(code, naming=names):
        task(*options)


def test_labels_of_another_kind_are_refused(root: Path, tmp_path: Path) -> None:
    with raises("other-labels", naming="data.multi_label=true"):
        task().open(root / "shapes" / "A", "A")
    with raises("other-labels", naming="data.multi_label=false"):
        task(*FINDINGS).open(make_image_site(tmp_path, "A"), "A")


def test_balanced_sampling_draws_by_the_seed(tmp_path: Path) -> None:
    def uneven(number: int, label: int) -> dict[str, object]:
        return {"label": SHAPE_CLASSES[0 if number % 9 else label]}

    folder = make_image_site(tmp_path, "A", images=180, labelled=uneven)
    shuffled, balanced = (task(f"data.sampling={how}").open(folder, "A") for how in ("shuffled", "balanced"))
    assert isinstance(balanced, Images)

    def epochs(data: Images, seed: int) -> np.ndarray:
        order = torch.Generator().manual_seed(seed)
        return np.concatenate([index for _ in range(20) for index in data.epoch(batch_size=8, order=order)])

    counts = np.bincount(balanced.train_labels[epochs(balanced, 0)], minlength=3)
    assert isinstance(shuffled, Images) and counts.max() < 1.3 * counts[counts > 0].min()
    assert (epochs(balanced, 0) == epochs(balanced, 0)).all() and (epochs(balanced, 0) != epochs(balanced, 1)).any()
    assert len(set(epochs(shuffled, 0)[: shuffled.n_train // 8 * 8])) == shuffled.n_train // 8 * 8
