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
from errors import raises
from monai.networks.nets import DynUNet
from surveysites import survey_site, voxels

from fedshift.data.fingerprint import counts_only, fingerprint
from fedshift.data.tallies import merge
from fedshift.federation.resolve import resolve
from fedshift.schema.fingerprint import INSIDE, Fingerprint, Geometry, SurveySpec, Tally
from fedshift.schema.task import TaskSpec
from fedshift_survey.planning.network import GIGA, NetworkShape
from fedshift_survey.planning.plan import Plan, make_plan
from fedshift_survey.planning.task_file import is_unchanged, task_file, unlike_nnunet


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
    assert "median 4" in plan.reasons["spacing"]
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


def test_volumes_of_slices_keep_the_distance_between_them() -> None:
    thick = ((3.0, 10.0), (3.6, 30.0))
    prostate = pooled((thick, same(0.6), same(0.6)), (20, 320, 320))
    assert make_plan(prostate, sites=4).spacing == (3.0, 0.6, 0.6)
    slices = make_plan(prostate, sites=4, dims=2)
    assert slices.spacing == (None, 0.6, 0.6) and slices.shape == (20, 320, 320)
    assert "10th percentile" not in slices.reasons["spacing"]
    assert "own distance" in slices.reasons["spacing"]


PLANNED: dict[tuple[tuple[float, ...], tuple[int, ...], float], tuple[int, ...]] = {
    ((1.0, 1.0, 1.0), (400, 400, 400), 2): (96, 80, 80),
    ((1.0, 1.0, 1.0), (400, 400, 400), 8): (128, 128, 128),
    ((1.0, 1.0, 1.0), (138, 170, 138), 6): (128, 128, 112),
    ((1.6, 0.79, 0.79), (187, 512, 512), 12): (80, 224, 192),
    ((3.6, 0.61, 0.61), (20, 320, 319), 4): (16, 256, 256),
    ((1.5, 0.8, 0.8), (150, 512, 512), 12): (64, 256, 224),
    ((0.6, 0.6), (2000, 1800), 6): (1280, 1280),
    ((0.6, 0.6), (2000, 1800), 12): (2048, 1792),
}
"""Spacing, median volume and gigabytes → the patch to which nnunetv2 2.5.1 comes, if a voxel takes 1500 bytes."""


@pytest.mark.parametrize("given", PLANNED)
def test_a_patch_shrinks_as_in_nnunets_planner(
    given: tuple[tuple[float, ...], tuple[int, ...], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NetworkShape, "bytes_of_step", lambda _, patch, batch: 0.15e9 + 1500 * batch * prod(patch))
    spacing, volume, memory = given
    dims = len(spacing)
    z, y, x = (1.0, *spacing)[-3:]
    organ = pooled((same(z), same(y), same(x)), (20, *volume)[-3:])  # type: ignore[arg-type]
    assert make_plan(organ, sites=4, dims=dims, memory=memory).patch == PLANNED[given]


def test_more_memory_is_a_larger_patch() -> None:
    small, large = (make_plan(LARGE, sites=4, memory=memory) for memory in (2, 16))
    assert prod(small.patch) < prod(large.patch)
    assert "shrunk along" in small.reasons["patch"]


def test_a_patch_that_does_not_fit_is_refused_with_one_that_does() -> None:
    with raises("no-memory", naming="128 x 256 x 256") as told:
        make_plan(LARGE, sites=4, memory=4, patch=(128, 256, 256))
    offered = re.search(r"--patch ([\d,]+)", str(told.value))
    assert offered is not None
    patch = tuple(map(int, offered[1].split(",")))
    assert make_plan(LARGE, sites=4, memory=4, patch=patch).patch == patch
    assert make_plan(LARGE, sites=4, memory=4, patch=(30, 60, 60)).patch == (32, 64, 64), "padded"


@pytest.mark.parametrize(
    ("asked", "code", "name"),
    [({"patch": (64, 64)}, "patch-size", "needs 3"), ({"memory": 0.05}, "no-memory", "0.05 GB")],
)
def test_a_patch_of_another_dimension_and_memory_for_nothing_are_refused(
    asked: dict[str, Any], code: str, name: str
) -> None:
    with raises(code, naming=name):
        make_plan(LARGE, sites=4, **asked)


def test_without_voxel_sizes_volumes_keep_their_own(tmp_path: Path) -> None:
    told = fingerprint(survey_site(tmp_path, "A", (1, 2, 3), spacing=(1.0, 1.0, 1.0)))
    plan = make_plan(told, sites=1)
    assert plan.spacing is None and plan.shape == (6, 12, 10)
    with raises("nothing-to-plan", naming="few"):
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
    told = [fingerprint(folder) for folder in folders]
    plan: Plan = make_plan(merge(told), sites=2, dims=dims)
    spec = SurveySpec(survey="s", dataset="organ", sites=("A", "B"), held_out=("C",))
    text = task_file(plan, told, spec, name="ours")
    task = TaskSpec.parse(yaml.safe_load(text), where="test")
    assert (task.name, task.sites, task.held_out) == ("ours", ("A", "B"), ("C",))
    assert task.classes == ("background", "core", "rim")
    assert task.data["dims"] == dims and task.data["patch"] == list(plan.patch)
    assert task.data["spacing"] == [3.0 if dims == 3 else None, 0.8, 0.8] and task.data["sequences"] == ["T2", "ADC"]
    assert task.network.name == "monai.DynUNet" and task.network.options == plan.network.options()
    assert task.schedule.batch_size == plan.batch
    why = comments(text)
    for key in ("spacing", "patch", "normalise", "samples_per_case", "foreground", "kernel_size", "filters"):
        assert why[key], key
    assert "nnU-Net's rule" in why["batch_size"] and "GB" in why["batch_size"]
    assert "core in 6 of 6" in why["classes"]
    assert "simulated data" in text
    job = resolve(_written(tmp_path, text), "fedavg")
    assert job.task.data == task.data, "the job's own checks take it"


@pytest.mark.parametrize("dims", [2, 3])
def test_a_plan_for_nnunet_has_its_network_and_convention(dims: int, tmp_path: Path) -> None:
    told = [fingerprint(survey_site(tmp_path, site, (1, 2, 3))) for site in ("A", "B")]
    plan = make_plan(merge(told), sites=2, dims=dims)
    text = task_file(plan, told, SurveySpec(survey="s", dataset="organ", sites=("A", "B")), name="ours", nnunet=True)
    task = resolve(_written(tmp_path, text), "fedavg").task
    assert task.network.name == "nnunet.PlainConvUNet" and task.data["convention"] == "nnunet"
    assert len(task.network.options["strides"]) == plan.network.topology.depth


@pytest.mark.parametrize(("dims", "patch", "batch"), [(2, None, True), (3, None, False), (3, (8, 16, 16), True)])
def test_dice_is_over_the_batch_where_patches_often_lack_a_class(
    dims: int, patch: tuple[int, ...] | None, batch: bool, tmp_path: Path
) -> None:
    told = [fingerprint(survey_site(tmp_path, site, (1, 2, 3), shape=(16, 48, 48))) for site in ("A", "B")]
    spec = SurveySpec(survey="s", dataset="organ", sites=("A", "B"))
    plan = make_plan(merge(told), sites=2, dims=dims, patch=patch)
    loss = TaskSpec.parse(yaml.safe_load(task_file(plan, told, spec, name="ours")), where="test").loss
    assert (loss.name, loss.options) == ("monai.DiceCELoss", {"batch": batch, "include_background": False})


def _written(folder: Path, text: str) -> str:
    (folder / "plan.yaml").write_text(text, encoding="utf-8")
    return str(folder / "plan.yaml")


def text_of(told: list[Fingerprint]) -> str:
    spec = SurveySpec(survey="s", dataset="organ", sites=tuple(one.site for one in told))
    return task_file(make_plan(merge(told), sites=len(told)), told, spec, name="ours")


def test_what_was_changed_by_hand_is_seen(tmp_path: Path) -> None:
    text = text_of([fingerprint(survey_site(tmp_path, "A", (1, 2, 3)))])
    file = tmp_path / "plan.yaml"
    for written, unchanged in (
        (text, True),
        (text.replace("\n", "\r\n"), True),
        (text.replace("rounds: 100", "rounds: 7"), False),
        (f"{text}threads: 2\n", False),
        (text.rpartition("#")[0], False),
        ("", False),
    ):
        file.write_bytes(written.encode())
        assert is_unchanged(file) == unchanged
    file.write_bytes(b"\xff")
    assert not is_unchanged(file)


def test_ct_is_clipped_by_what_is_inside_the_labels(tmp_path: Path) -> None:
    told = fingerprint(survey_site(tmp_path, "A", (1, 2, 3), sequences=("CT",)))
    text = text_of([told])
    data = yaml.safe_load(text)["data"]
    assert data["normalise"] == "fixed" and "rule for CT" in comments(text)["normalise"]
    inside = np.concatenate([image[labels > 0].ravel() for image, labels in (voxels(seed) for seed in (1, 2, 3))])
    assert data["fixed"]["low"] == pytest.approx(np.quantile(inside, 0.005), rel=0.1)
    assert data["fixed"]["high"] == pytest.approx(np.quantile(inside, 0.995), rel=0.1)
    assert resolve(_written(tmp_path, text), "fedavg").task.data["normalise"] == "fixed"


@pytest.mark.parametrize(
    ("annotated", "lacking", "least"),
    [
        (("core",), {}, 1),  # one class is outlined, so that there is no sum over several
        (None, {4: ["rim"]}, 2),  # a single case lacks one, so that the sum over all labels stays at the site
    ],
)
def test_ct_of_every_site_counts_whatever_it_outlines(
    annotated: tuple[str, ...] | None, lacking: dict[int, list[str]], least: int, tmp_path: Path
) -> None:
    bright = fingerprint(survey_site(tmp_path, "A", (1, 2, 3), sequences=("CT",)))
    far = survey_site(tmp_path, "B", (4, 5, 6), gain=-3.0, sequences=("CT",), annotated=annotated, lacking=lacking)
    dark = fingerprint(far, least=least)
    assert INSIDE in bright.intensities["CT"] and INSIDE not in dark.intensities["CT"]
    fixed = yaml.safe_load(text_of([bright, dark]))["data"]["fixed"]
    assert fixed["low"] < -300 < 0 < 100 < fixed["high"] and fixed["mean"] < 0


def test_a_site_that_tells_nothing_of_its_labels_is_named(tmp_path: Path) -> None:
    told = [fingerprint(survey_site(tmp_path, site, (1, 2, 3), sequences=("CT",))) for site in "AB"]
    told[1] = told[1].model_copy(update={"intensities": {}})
    assert "since B" in comments(text_of(told))["normalise"]


@pytest.mark.parametrize(
    ("sequences", "fixed", "note"),
    [
        (("CT",), True, ""),
        (("abdominal CT",), True, ""),
        (("ct_ven",), True, ""),
        (("CT1",), True, ""),
        (("CTA",), True, ""),
        (("NCCT",), True, ""),
        (("T2",), False, ""),
        (("subtraction",), False, ""),
        (("SPECT",), False, ""),
        (("PET-CT",), False, "PET-CT has CT in its name"),
        (("CBCT",), False, "CBCT has CT in its name"),
        (("CT", "PET"), False, "one normalisation for all sequences"),
    ],
)
def test_ct_is_known_by_its_usual_names(sequences: tuple[str, ...], fixed: bool, note: str, tmp_path: Path) -> None:
    told = [fingerprint(survey_site(tmp_path, "A", (1, 2, 3), sequences=sequences))]
    text = text_of(told)
    data, why = yaml.safe_load(text)["data"], comments(text)["normalise"]
    assert data["normalise"] == ("fixed" if fixed else "volume")
    assert note in why and note in unlike_nnunet(told) and bool(unlike_nnunet(told)) == bool(note)
    assert ("everything but CT" in why) == (not fixed and not note)


def test_names_by_which_nnunet_normalises_are_heeded_or_said(tmp_path: Path) -> None:
    for place, (sequences, normalise, notes) in enumerate(
        [
            (("noNorm",), "none", ()),
            (("rescale_to_0_1",), "volume", ("bring each volume of rescale_to_0_1 to 0 to 1",)),
            (("T2", "noNorm"), "volume", ("leave noNorm as it is", "by hand")),
            (("zscore",), "volume", ()),
        ]
    ):
        told = [fingerprint(survey_site(tmp_path / str(place), "A", (1, 2, 3), sequences=sequences))]
        text = text_of(told)
        why = comments(text)["normalise"]
        assert yaml.safe_load(text)["data"]["normalise"] == normalise
        assert all(note in why and note in unlike_nnunet(told) for note in notes)
        assert bool(unlike_nnunet(told)) == bool(notes)


def test_ct_without_intensities_inside_the_labels_is_not_called_something_else(tmp_path: Path) -> None:
    told = fingerprint(survey_site(tmp_path, "A", (1, 2, 3), sequences=("CT",)))
    bare = told.model_copy(update={"intensities": {}})
    assert "no site told" in comments(text_of([bare]))["normalise"]
