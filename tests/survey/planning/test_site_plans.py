"""Sites' own plans of nnU-Net: what they disagree on, and one for all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from errors import raises
from nnunetfiles import write_plans
from scanfiles import write_described

from fedshift.cli import main
from fedshift.schema.task import TaskSpec
from fedshift_survey.planning.site_plans import propose, proposed_task, read_site_plan


def site(root: Path, name: str, *, classes: tuple[str, ...] = ("left", "right"), **options: object) -> Path:
    folder = write_described(root / name, classes=classes, style="nnunet")
    return write_plans(folder / "nnUNetPlans.json", **options)


def test_one_plan_has_the_patch_and_batch_that_all_sites_have(tmp_path: Path) -> None:
    first, other = site(tmp_path, "A"), site(tmp_path, "B", patch=(16, 16, 32), spacing=(2.0, 1.0, 1.0))
    sites = [read_site_plan(name, path, "3d_fullres") for name, path in (("A", first), ("B", other))]
    proposal = propose(sites, proposed_site="A", memory=8)
    assert proposal.patch == (16, 16, 24)
    assert [row.what for row in proposal.rows if not row.agreed] == ["spacing", "patch"]
    text = proposed_task(proposal, sites, dataset="blobs", name="blobs")
    task = TaskSpec.parse(yaml.safe_load(text), where="the plan")
    assert task.network.name == "nnunet.PlainConvUNet" and task.data["spacing"] == [3.0, 1.0, 1.0]
    assert "B: 2 x 1 x 1" in text
    assert propose(sites, proposed_site="B", memory=8).chosen.configuration.spacing == (2.0, 1.0, 1.0)
    with raises("memory-short", naming="--memory"):
        propose(sites, proposed_site="A", memory=0.01)


def test_sites_with_other_data_are_refused(tmp_path: Path) -> None:
    first = read_site_plan("A", site(tmp_path, "A"), "3d_fullres")
    for name, options in (("B", {"classes": ("left",)}), ("C", {"scheme": "CTNormalization"})):
        other = read_site_plan(name, site(tmp_path, name, **options), "3d_fullres")
        with raises("nnunet-plans-differ", naming=f"{name}/nnUNetPlans.json"):
            propose([first, other], proposed_site="A", memory=8)
    alone = write_plans(tmp_path / "nnUNetPlans.json")
    with raises("labels-missing", naming="dataset.json"):
        read_site_plan("D", alone, "3d_fullres")


def test_the_smallest_batch_is_not_said_to_be_of_the_plan_that_is_proposed(tmp_path: Path) -> None:
    paths = {name: site(tmp_path, name) for name in "AB"}
    content = json.loads(paths["A"].read_text())
    content["configurations"]["3d_fullres"]["batch_size"] = 7
    paths["A"].write_text(json.dumps(content))
    sites = [read_site_plan(name, path, "3d_fullres") for name, path in paths.items()]
    proposal = propose(sites, proposed_site="A", memory=8)
    least = sites[1].configuration.batch
    assert proposal.batch == least < 7
    text = proposed_task(proposal, sites, dataset="blobs", name="blobs")
    assert f"The sites' plans differ: A: 7; B: {least}. The smallest." in text


def test_dice_in_the_loss_is_that_of_the_proposed_plan(tmp_path: Path) -> None:
    paths = {name: site(tmp_path, name) for name in "AB"}
    content = json.loads(paths["A"].read_text())
    content["configurations"]["3d_fullres"]["batch_dice"] = True
    paths["A"].write_text(json.dumps(content))
    sites = [read_site_plan(name, path, "3d_fullres") for name, path in paths.items()]
    for name, batch in (("A", True), ("B", False)):
        proposal = propose(sites, proposed_site=name, memory=8)
        assert len([row for row in proposal.rows if not row.agreed]) == 1
        task = TaskSpec.parse(yaml.safe_load(proposed_task(proposal, sites, dataset="blobs", name="blobs")), where="")
        assert task.loss.options["batch"] is batch and task.data["foreground_guaranteed"]


def test_a_site_with_classes_in_another_order_is_told_how_to_prepare_them(tmp_path: Path) -> None:
    paths = {"A": site(tmp_path, "A"), "B": site(tmp_path, "B", classes=("right", "left"))}
    sites = [read_site_plan(name, path, "3d_fullres") for name, path in paths.items()]
    with raises("nnunet-plans-differ", naming=("prepare B", "--classes left,right", "nnunet_plans.json")):
        propose(sites, proposed_site="A", memory=8)


def test_sequences_in_another_order_are_those_of_the_proposed_plan(tmp_path: Path) -> None:
    """A task takes a site's sequences by name."""
    sites = []
    for name, sequences in (("A", ("T2", "ADC")), ("B", ("ADC", "T2"))):
        folder = write_described(tmp_path / name, sequences=sequences, classes=("left", "right"), style="nnunet")
        path = write_plans(
            folder / "plans.json", normalization_schemes=["ZScoreNormalization"] * 2, use_mask_for_norm=[False] * 2
        )
        content = json.loads(path.read_text())
        ranges = {"T2": (1.0, 2.0, 3.0), "ADC": (4.0, 5.0, 6.0)}
        keys = ("percentile_00_5", "mean", "percentile_99_5")
        content["foreground_intensity_properties_per_channel"] = {
            str(number): dict(zip(keys, ranges[each], strict=True)) for number, each in enumerate(sequences)
        }
        path.write_text(json.dumps(content))
        sites.append(read_site_plan(name, path, "3d_fullres"))
    proposal = propose(sites, proposed_site="B", memory=8)
    (row,) = (row for row in proposal.rows if row.what.startswith("intensities"))
    assert row.by_site == ("ADC: 4 / 5 / 6; T2: 1 / 2 / 3",) * 2
    task = yaml.safe_load(proposed_task(proposal, sites, dataset="blobs", name="blobs"))
    assert task["data"]["sequences"] == ["ADC", "T2"]


def test_the_command_writes_a_task_and_keeps_a_changed_one(tmp_path: Path) -> None:
    out = tmp_path / "task.yaml"
    words = ["plans", f"A={site(tmp_path, 'A')}", f"B={site(tmp_path, 'B')}", "--dataset", "blobs", "--out", str(out)]
    assert main(words) == 0 and main(words) == 0
    out.write_text(out.read_text().replace("rounds: 100", "rounds: 10"))
    assert main(words) == 2
    assert main([*words, "--force"]) == 0
    assert main([*words[:2], "B", *words[3:]]) == main([*words, "--propose", "C"]) == 2


def with_labels(root: Path, name: str, labels: dict[str, Any], order: list[int]) -> Path:
    path = site(root, name)
    described = path.parent / "dataset.json"
    content = json.loads(described.read_text()) | {"labels": labels, "regions_class_order": order}
    described.write_text(json.dumps(content))
    return path


def test_regions_and_voxels_to_ignore_come_into_the_task(tmp_path: Path) -> None:
    labels: dict[str, Any] = {"background": 0, "whole": [1, 2], "core": [2], "ignore": 3}
    one = read_site_plan("A", with_labels(tmp_path, "A", labels, [1, 2]), "3d_fullres")
    task = TaskSpec.parse(
        yaml.safe_load(
            proposed_task(propose([one], proposed_site="A", memory=8), [one], dataset="blobs", name="blobs")
        ),
        where="the plan",
    )
    regions = task.made_regions
    assert regions is not None and regions.names == ("whole", "core") and [len(of) for of in regions.members] == [2, 1]
    assert task.ignore
    other = read_site_plan("B", site(tmp_path, "B", classes=tuple(one.classes[1:])), "3d_fullres")
    with raises("nnunet-plans-differ", naming="regions"):
        propose([one, other], proposed_site="A", memory=8)


def arguments(content: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = content["configurations"]["3d_fullres"]["architecture"]["arch_kwargs"]
    return options


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "strides": lambda content: arguments(content).pop("strides"),
    "BatchNorm3d": lambda content: arguments(content).update(norm_op="torch.nn.modules.batchnorm.BatchNorm3d"),
    "conv_bias": lambda content: arguments(content).update(conv_bias=False),
    "norm_op_kwargs": lambda content: arguments(content).update(norm_op_kwargs={"eps": 1e-3, "affine": True}),
    "stem_channels": lambda content: arguments(content).update(stem_channels=16),
    "channel": lambda content: content["configurations"]["3d_fullres"].update(normalization_schemes=[]),
    "axes": lambda content: content.update(transpose_forward=None),
    "2 or 3": lambda content: content["configurations"]["3d_fullres"].update(patch_size=[16]),
    "no plans file": lambda content: content["configurations"].update({"3d_fullres": [1]}),
    "no table": lambda content: content.update(configurations=["3d_fullres"]),
}


@pytest.mark.parametrize("named", sorted(CHANGES))
def test_what_is_no_plan_of_nnunets_planners_is_refused(named: str, tmp_path: Path) -> None:
    path = site(tmp_path, "A")
    content = json.loads(path.read_text())
    CHANGES[named](content)
    path.write_text(json.dumps(content))
    with raises("nnunet-plans", naming=named):
        propose([read_site_plan("A", path, "3d_fullres")], proposed_site="A", memory=8)


def test_one_number_of_convolutions_is_that_of_all_stages(tmp_path: Path) -> None:
    path = site(tmp_path, "A")
    content = json.loads(path.read_text())
    arguments(content)["n_conv_per_stage"] = 2
    path.write_text(json.dumps(content))
    one = read_site_plan("A", path, "3d_fullres")
    proposal = propose([one], proposed_site="A", memory=8)
    task = yaml.safe_load(proposed_task(proposal, [one], dataset="blobs", name="blobs"))
    assert task["network"]["options"]["n_conv_per_stage"] == [2] * proposal.topology.depth
