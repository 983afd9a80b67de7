"""A job that asks for a guarantee: what sites send for it, under their policy, and what the model files promise."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SHAPES, make_image_site, make_site, small_image_job, small_job
from volumesites import blob_job, make_volume_site

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import header_of, read_model_file
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.score_check import check_scores
from fedshift.federation.server.update_check import Rejected
from fedshift.flare import codec
from fedshift.reporting.report.guarantee import of_run
from fedshift.reporting.report.runs import Run, read
from fedshift.reporting.report.section import Table
from fedshift.runtime.grids import resized, restore
from fedshift.runtime.segmentation import as_volume
from fedshift.schema.guarantee import LEVELS, Curve, Guarantee, RiskCurves
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Scores
from fedshift.schema.policy import Policy
from fedshift.schema.results import BEST, LAST, read_results
from fedshift.tasks.evaluation.guarantee import outline_risks
from fedshift.tasks.kinds import build_task
from fedshift_testing.serialised import Federation

ASKED = "evaluation.guarantee=0.3"
"""Which four cases are enough for."""
RAMP = tuple(number / (len(LEVELS) - 1) for number in range(len(LEVELS)))


def run(job: JobSpec, sites: dict[str, Path], folder: Path, **privacy: Policy) -> Coordinator:
    return run_in_process(job, sites, folder, device="cpu", privacy=privacy)


def promised(folder: Path, name: str = BEST) -> Guarantee:
    guarantee = header_of(read_model_file(folder / name), where=name).guarantee
    assert guarantee is not None
    return guarantee


@pytest.fixture
def blobs(tmp_path: Path) -> dict[str, Path]:
    return {site: make_volume_site(tmp_path, site, cases=11, val=5, test=4, shape=(6, 16, 16)) for site in ("A", "B")}


@pytest.mark.slow
def test_patches_get_levels_at_each_site_and_the_same_over_flare(blobs: dict[str, Path], tmp_path: Path) -> None:
    job = blob_job(tmp_path, ASKED, "schedule.rounds=2", "schedule.local_steps=2")
    run(job, blobs, tmp_path / "one")
    federation = Federation(job, blobs, tmp_path / "run")
    federation.run()
    for name in (BEST, LAST):
        assert promised(tmp_path / "one", name) == promised(tmp_path / "run" / "server", name), "to the last bit"
    guarantee = promised(tmp_path / "one")
    results = read_results(tmp_path / "one").final
    assert results is not None and results.guarantee == guarantee and guarantee.alpha == 0.3
    assert guarantee.sites.keys() == blobs.keys()
    for of_site in guarantee.sites.values():
        for promise in of_site.values():
            assert promise.n == 5 and promise.outer.level in LEVELS and promise.inner is not None
            assert promise.outer.tested is not None and promise.outer.tested.n == 4
            assert promise.outer.tested.interval is None, "four cases give none"
    assert guarantee.newcomer["left"].n == 2, "two sites"
    answers = [message for message in federation.messages if message.task == codec.VALIDATE and message.up]
    for message in answers:
        told = {path[2:] for path in message.content if path[:2] == (message.site, "meta:risks")}
        assert {path[0] for path in told} == set(RiskCurves.model_fields)
        assert {path[2] for path in told} == set(Curve.model_fields)
    assert not [
        m for m in federation.messages if m.task != codec.VALIDATE and any("meta:risks" in p for p in m.content)
    ]


@pytest.mark.parametrize(
    ("policy", "why", "reason"),
    [
        (Policy(allow=("loss",)), "does not allow statistics", "policy"),
        (Policy(survey_cases=6), "fewer than 6 subjects", "few-cases"),
        (Policy(min_cases=6), "fewer than 6 subjects", "few-cases"),
    ],
)
def test_a_policy_keeps_the_curves_at_the_site(
    policy: Policy, why: str, reason: str, blobs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fedshift")
    run(blob_job(tmp_path, ASKED, "schedule.rounds=1", "schedule.local_steps=2"), blobs, tmp_path / "run", A=policy)
    guarantee = promised(tmp_path / "run")
    assert guarantee.sites.keys() == {"B"} and guarantee.without_curve == {"A": reason}
    assert any("site A" in line and why in line for line in caplog.messages)


def test_a_run_whose_sites_all_keep_their_curves_warns_and_its_report_says_so(
    blobs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    few = Policy(min_cases=6)
    run(blob_job(tmp_path, ASKED, "schedule.rounds=1", "schedule.local_steps=2"), blobs, tmp_path / "run", A=few, B=few)
    (warning,) = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert "evaluation.guarantee=" in warning
    record = read(tmp_path / "run")
    assert isinstance(record, Run)
    section = of_run(record)
    assert section is not None and not any(isinstance(block, Table) for block in section.blocks)


@pytest.mark.parametrize("policy", [{"weights": {"epsilon": 8.0, "clip": 1.0}}, {"statistics": {"multiplier": 1.0}}])
def test_noise_and_encryption_keep_them_too(policy: dict[str, object]) -> None:
    assert Policy.parse(policy, where="test").withholds_means
    assert Policy(encryption="required").withholds_means
    assert Policy.parse({"budget": {"epsilon": 8.0}}, where="test").withholds_means
    assert not Policy().withholds_means


def test_slices_are_scored_on_the_scans_grid(tmp_path: Path) -> None:
    data = {"BIDMC": make_site(tmp_path, "BIDMC", cases=8)}
    task = build_task(small_job("fedavg", sites=("BIDMC",)))
    opened = task.open(data["BIDMC"], "BIDMC")
    generator = torch.Generator().manual_seed(0)
    batches = [torch.rand(len(index), 2, *task.spatial, generator=generator) for index in opened.eval_index("train")]
    made = task.risks(iter(batches), opened, "train")
    assert len(made.missed["prostate"]) == opened.manifest.cases[-1].offset // 8 - 1, "each training case has one"
    foreground = torch.cat([batch[:, 1] for batch in batches]).numpy()[:8]
    reference = opened.reference(0)  # type: ignore[attr-defined]
    risks = outline_risks(restore(foreground, *reference.shape[1:]), reference)
    assert risks is not None
    np.testing.assert_array_equal(made.missed["prostate"][0], risks[0])
    np.testing.assert_array_equal(made.false["prostate"][0], risks[1])


def test_voxels_to_ignore_and_other_structures_count_for_nothing(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", cases=4)
    task = build_task(blob_job(tmp_path))
    opened = task.open(folder, "A")
    (index,) = opened.eval_index("val")
    truth = opened.reference(int(index[0]))  # type: ignore[attr-defined]
    grid = opened.labels(index).shape
    probability = torch.rand(grid[0], 3, *grid[1:], generator=torch.Generator().manual_seed(0))
    made = task.risks(iter([probability]), opened, "val")
    plane = resized(as_volume(probability, 2)[2], truth.shape)
    risks = outline_risks(plane, truth == 2)
    assert risks is not None and made.missed.keys() == {"left", "right"}
    np.testing.assert_array_equal(made.missed["right"][0], risks[0])


def test_a_held_out_site_sets_no_level_and_tests_that_of_new_hospitals(tmp_path: Path) -> None:
    sites = {site: make_image_site(tmp_path / "more", site, images=90) for site in ("A", "B", "C")}
    job = resolve(str(SHAPES), "fedavg", held_out=("C",), options=("evaluation.guarantee=0.6",))
    run(job, sites, tmp_path / "run")
    guarantee = promised(tmp_path / "run")
    assert guarantee.sites.keys() == {"A", "B"} and guarantee.left_out.keys() == guarantee.without_curve.keys() == {"C"}
    for name, promise in guarantee.left_out["C"].items():
        assert promise.n == 2 and promise.outer.level == guarantee.newcomer[name].outer.level
        if promise.outer.level is not None:
            assert promise.outer.tested is not None and promise.outer.tested.n == 30


def test_classes_have_outer_levels_alone(tmp_path: Path) -> None:
    sites = {site: make_image_site(tmp_path / "more", site, images=90) for site in ("A", "B", "C")}
    run(small_image_job("fedavg", ASKED), sites, tmp_path / "run")
    guarantee = promised(tmp_path / "run")
    assert guarantee.sites.keys() == sites.keys()
    for of_site in guarantee.sites.values():
        assert of_site and all(promise.inner is None for promise in of_site.values())
    assert set(guarantee.newcomer) <= {"disc", "square", "bar"}


def test_a_new_hospital_is_promised_nothing_where_sites_keep_personal_parts(tmp_path: Path) -> None:
    sites = {site: make_image_site(tmp_path / "more", site, images=90) for site in ("A", "B", "C")}
    run(small_image_job("fedbn", ASKED), sites, tmp_path / "run")
    guarantee = promised(tmp_path / "run")
    assert guarantee.sites and not guarantee.newcomer


def test_the_server_refuses_curves_that_it_did_not_ask_for_or_that_cannot_be() -> None:
    curve = Curve(n=4, missed=RAMP)
    answer = Scores("A", 1, {}, risks=RiskCurves(calibration={"disc": curve}))
    job = small_image_job("fedavg", ASKED)
    held_out = job.model_copy(update={"task": job.task.model_copy(update={"sites": ("B",), "held_out": ("A",)})})

    def check(scores: Scores, job: JobSpec, **counts: int) -> None:
        check_scores(scores, job, build_task(job), round_=1, counts=counts)

    check(answer, job, val=4)
    outline = Curve(n=4, missed=RAMP, false=RAMP[::-1])
    for refused in (
        lambda: check(answer, small_image_job("fedavg")),
        lambda: check(answer, held_out),
        lambda: check(answer, job, val=3),
        lambda: check(replace(answer, risks=RiskCurves(calibration={"lung": curve})), job),
        lambda: check(replace(answer, risks=RiskCurves(tested={"disc": outline})), job),
    ):
        with pytest.raises(Rejected, match="risks"):
            refused()
    with pytest.raises(ValueError, match="not monotone"):
        Curve(n=4, missed=RAMP[::-1])
