"""A plan fits into memory, its network takes its patch, and what does not fit is refused with something smaller."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from monai.networks.nets import DynUNet
from surveysites import survey_site, voxels

from fedshift.data.fingerprint import counts_only, fingerprint
from fedshift.federation.planning.memory import GIGA
from fedshift.federation.planning.plan import Plan, make_plan
from fedshift.federation.planning.task_file import task_file
from fedshift.federation.resolve import resolve
from fedshift.federation.survey.merge import merge
from fedshift.schema.errors import ConfigError
from fedshift.schema.fingerprint import Fingerprint, Geometry, SurveySpec, Tally
from fedshift.schema.job import TaskSpec


def pooled(spacing: tuple[Tally, Tally, Tally], voxels: tuple[float, float, float], cases: int = 40) -> Fingerprint:
    """A fingerprint of cases of one size and given spacings."""
    extent = [voxels[axis] * spacing[axis][0][0] for axis in range(3)]
    return Fingerprint(
        site="all_sites",
        dataset="organ",
        kind="patients",
        cases={"train": cases},
        classes=("background", "core", "rim"),
        surveyed=cases,
        geometry=Geometry(
            cases=cases,
            spacing=spacing,
            extent=tuple(((mm, float(cases)),) for mm in extent),  # type: ignore[arg-type]
            voxels=tuple(((edge, float(cases)),) for edge in voxels),  # type: ignore[arg-type]
        ),
    )


def same(mm: float, cases: int = 40) -> Tally:
    return ((mm, float(cases)),)


CUBE = pooled((same(1.0), same(1.0), same(1.0)), (36, 50, 35))
LARGE = pooled((same(1.0), same(1.0), same(1.0)), (400, 512, 512))


def test_a_small_organ_is_taken_whole() -> None:
    plan = make_plan(CUBE, sites=4)
    assert plan.spacing == (1.0, 1.0, 1.0) and plan.shape == (36, 50, 35)
    assert plan.patch == (40, 56, 40), "as nnU-Net plans for the hippocampus"
    assert plan.network.filters == (32, 64, 128, 256)
    assert plan.need <= 8
    assert 2 <= plan.batch <= 0.05 * 10 * prod(plan.shape) / prod(plan.patch) + 2


def test_the_coarse_axis_takes_its_tenth_percentile() -> None:
    thick = ((2.0, 8.0), (4.0, 32.0))
    plan = make_plan(pooled((thick, same(0.5), same(0.5)), (20, 320, 320)), sites=4)
    assert plan.spacing == (2.0, 0.5, 0.5)
    assert "10th percentile instead of the median 4" in plan.reasons["spacing"]
    near = make_plan(pooled((((1.2, 8.0), (1.4, 32.0)), same(0.5), same(0.5)), (20, 320, 320)), sites=4)
    assert near.spacing == (1.4, 0.5, 0.5), "less than three times as long: the median"
    many = make_plan(pooled((thick, same(0.5), same(0.5)), (200, 320, 320)), sites=4)
    assert many.spacing == (4.0, 0.5, 0.5), "as many voxels along it: the median"


@pytest.mark.parametrize("memory", [1.0, 4.0, 24.0])
@pytest.mark.parametrize("dims", [2, 3])
def test_a_plan_fits_and_its_network_takes_its_patch(memory: float, dims: int) -> None:
    plan = make_plan(LARGE, sites=4, memory=memory, dims=dims)
    assert len(plan.patch) == dims
    assert plan.need <= memory and plan.network.bytes_of_step(plan.patch, plan.batch) / GIGA == plan.need
    assert all(edge % step == 0 for edge, step in zip(plan.patch, plan.network.topology.divisor, strict=True))
    assert max(plan.network.filters) <= (320 if dims == 3 else 512)
    with torch.device("meta"):
        options = plan.network.options()
        net = DynUNet(spatial_dims=dims, in_channels=1, out_channels=3, **options).eval()
        assert net(torch.empty(1, 1, *plan.patch)).shape == (1, 3, *plan.patch)


def test_more_memory_is_a_larger_patch() -> None:
    small, large = (make_plan(LARGE, sites=4, memory=memory) for memory in (2, 16))
    assert prod(small.patch) < prod(large.patch)
    assert "shrunk along the axis that is largest beside the median volume" in small.reasons["patch"]


def test_a_patch_that_does_not_fit_is_refused_with_one_that_does() -> None:
    with pytest.raises(ConfigError) as told:
        make_plan(LARGE, sites=4, memory=4, patch=(128, 256, 256))
    facts = r"patches of 128 x 256 x 256 need [\d.]+ GB, and there are 4: --patch ([\d,]+) fits"
    offered = re.search(facts, str(told.value))
    assert offered is not None
    patch = tuple(map(int, offered[1].split(",")))
    assert make_plan(LARGE, sites=4, memory=4, patch=patch).patch == patch
    assert make_plan(LARGE, sites=4, memory=4, patch=(30, 60, 60)).patch == (32, 64, 64), "padded"


@pytest.mark.parametrize(
    ("asked", "facts"),
    [({"patch": (64, 64)}, "needs 3 numbers"), ({"memory": 0.05}, r"0\.05 GB: .* needs 0\.\d+: give at least that")],
)
def test_a_patch_of_another_dimension_and_memory_for_nothing_are_refused(asked: dict[str, Any], facts: str) -> None:
    with pytest.raises(ConfigError, match=facts):
        make_plan(LARGE, sites=4, **asked)


def test_without_voxel_sizes_volumes_keep_their_own(tmp_path: Path) -> None:
    told = fingerprint(survey_site(tmp_path, "A", (1, 2, 3), spacing=(1.0, 1.0, 1.0)))
    plan = make_plan(told, sites=1)
    assert plan.spacing is None and plan.shape == (6, 12, 10)
    with pytest.raises(ConfigError, match="no site told the size of its voxels"):
        make_plan(counts_only(survey_site(tmp_path, "B", (1,)), why="few"), sites=1)


def comments(text: str) -> dict[str, str]:
    """Key → the comment above it."""
    found, comment = {}, ""
    for line in text.splitlines():
        part = line.strip()
        comment = f"{comment} {part[1:].strip()}".strip() if part.startswith("#") else comment
        if part and not part.startswith("#"):
            found[part.partition(":")[0]] = comment
            comment = ""
    return found


@pytest.mark.parametrize("dims", [2, 3])
def test_the_task_file_says_why(dims: int, tmp_path: Path) -> None:
    folders = [survey_site(tmp_path, site, (1, 2, 3), sequences=("T2", "ADC")) for site in ("A", "B")]
    both = merge([fingerprint(folder) for folder in folders])
    plan: Plan = make_plan(both, sites=2, dims=dims)
    spec = SurveySpec(survey="s", dataset="organ", sites=("A", "B"), held_out=("C",))
    text = task_file(plan, both, spec, name="ours")
    task = TaskSpec.parse(yaml.safe_load(text), where="test")
    assert (task.name, task.sites, task.held_out) == ("ours", ("A", "B"), ("C",))
    assert task.classes == ("background", "core", "rim")
    assert task.data["dims"] == dims and task.data["patch"] == list(plan.patch)
    assert task.data["spacing"] == [3.0, 0.8, 0.8] and task.data["sequences"] == ["T2", "ADC"]
    assert task.network.name == "monai.DynUNet" and task.network.options == plan.network.options()
    assert task.schedule.batch_size == plan.batch
    why = comments(text)
    for key in ("spacing", "patch", "normalise", "samples_per_case", "foreground", "kernel_size", "filters"):
        assert why[key], key
    assert "nnU-Net's rule" in why["batch_size"] and "GB" in why["batch_size"]
    assert "core in 6 of 6 cases" in why["classes"]
    assert "simulated data, no patients" in text
    job = resolve(_written(tmp_path, text), "fedavg")
    assert job.task.data == task.data, "the job's own checks take it"


def _written(folder: Path, text: str) -> str:
    (folder / "plan.yaml").write_text(text, encoding="utf-8")
    return str(folder / "plan.yaml")


def test_ct_is_clipped_by_what_is_inside_the_labels(tmp_path: Path) -> None:
    told = fingerprint(survey_site(tmp_path, "A", (1, 2, 3), sequences=("CT",)))
    text = task_file(make_plan(told, sites=1), told, SurveySpec(survey="s", dataset="organ", sites=("A",)), name="ours")
    data = yaml.safe_load(text)["data"]
    assert data["normalise"] == "fixed" and "nnU-Net's rule for CT" in comments(text)["normalise"]
    inside = np.concatenate([image[labels > 0].ravel() for image, labels in (voxels(seed) for seed in (1, 2, 3))])
    assert data["fixed"]["low"] == pytest.approx(np.quantile(inside, 0.005), rel=0.1)
    assert data["fixed"]["high"] == pytest.approx(np.quantile(inside, 0.995), rel=0.1)
    assert resolve(_written(tmp_path, text), "fedavg").task.data["normalise"] == "fixed"
