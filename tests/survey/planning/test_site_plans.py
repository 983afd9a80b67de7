"""Sites' own plans of nnU-Net: what they disagree on, and one for all."""

from __future__ import annotations

from pathlib import Path

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
    proposal = propose(sites, of="A", memory=8)
    assert proposal.patch == (16, 16, 24)
    assert [row.what for row in proposal.rows if not row.agreed] == ["spacing", "patch"]
    text = proposed_task(proposal, sites, dataset="blobs", name="blobs")
    task = TaskSpec.parse(yaml.safe_load(text), where="the plan")
    assert task.network.name == "nnunet.PlainConvUNet" and task.data["spacing"] == [3.0, 1.0, 1.0]
    assert "B: 2 x 1 x 1" in text
    assert propose(sites, of="B", memory=8).of.configuration.spacing == (2.0, 1.0, 1.0)
    with raises("memory-short", naming="--memory"):
        propose(sites, of="A", memory=0.01)


def test_sites_with_other_data_are_refused(tmp_path: Path) -> None:
    first = read_site_plan("A", site(tmp_path, "A"), "3d_fullres")
    for name, options in (("B", {"classes": ("left",)}), ("C", {"scheme": "CTNormalization"})):
        other = read_site_plan(name, site(tmp_path, name, **options), "3d_fullres")
        with raises("nnunet-plans-differ", naming=f"{name}/nnUNetPlans.json"):
            propose([first, other], of="A", memory=8)
    alone = write_plans(tmp_path / "nnUNetPlans.json")
    with raises("labels-missing", naming="dataset.json"):
        read_site_plan("D", alone, "3d_fullres")


def test_the_command_writes_a_task_and_keeps_a_changed_one(tmp_path: Path) -> None:
    out = tmp_path / "task.yaml"
    words = ["plans", f"A={site(tmp_path, 'A')}", f"B={site(tmp_path, 'B')}", "--dataset", "blobs", "--out", str(out)]
    assert main(words) == 0 and main(words) == 0
    out.write_text(out.read_text().replace("rounds: 100", "rounds: 10"))
    assert main(words) == 2
    assert main([*words, "--force"]) == 0
    assert main([*words[:2], "B", *words[3:]]) == main([*words, "--propose", "C"]) == 2
