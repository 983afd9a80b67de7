"""``fedshift postprocess``: the same weights, and masks of which only some structures lose their small parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from conftest import small_image_job
from inference.conftest import save_model
from validations import blob_models, blob_sites

from cli.conftest import Refused
from fedshift.cli import main
from fedshift.federation.tensors import read_weights
from fedshift.runtime.components import EVERY_NEIGHBOUR, largest_parts
from fedshift.schema.validation import read_validation
from fedshift.tasks.kinds import build_task


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with random weights, whose masks have many parts, beside two sites."""
    torch.set_num_threads(1)
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    blob_sites(tmp_path / "data", test=3, shape=(6, 20, 24))
    return blob_models(tmp_path, "best")["best"]


def postprocessed(model: Path, structures: str) -> Path:
    out = model.with_name(f"{structures}.pt")
    assert main(["postprocess", str(model), "--largest-component", structures, "--out", str(out)]) == 0
    return out


def mask_of(model: Path) -> np.ndarray:
    scan, out = next(Path("data").rglob("case00.nii.gz")), Path("masks") / model.stem
    assert main(["predict", str(model), str(scan), "--out", str(out)]) == 0
    return sitk.GetArrayFromImage(sitk.ReadImage(next(out.glob("*_mask.nii.gz"))))


def test_only_the_structures_that_are_named_lose_their_small_parts(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = mask_of(model)
    largest = {number: largest_parts(before == number, neighbours=EVERY_NEIGHBOUR) for number in (1, 2)}
    assert all(0 < part.sum() < (before == number).sum() for number, part in largest.items())
    for structures, numbers in (("left", (1,)), ("right", (2,)), ("all", (1, 2))):
        wanted = before.copy()
        for number in numbers:
            wanted[(before == number) & ~largest[number]] = 0
        file = postprocessed(model, structures)
        assert np.array_equal(mask_of(file), wanted)
        contents = [torch.load(path, weights_only=True) for path in (model, file)]
        assert all(torch.equal(value, contents[1]["weights"][key]) for key, value in contents[0]["weights"].items())
        assert contents[1]["scores"] == {}
    assert np.array_equal(mask_of(postprocessed(Path("all.pt"), "none")), before)
    assert main(["card", "right.pt", "--out", "card.html"]) == 0
    assert "the largest part of right" in Path("card.html").read_text(encoding="utf-8")


def test_the_choice_is_compared_on_validation_cases_of_the_sites(model: Path) -> None:
    largest = postprocessed(model, "all")
    for manifest in Path("data").rglob("manifest.json"):
        text = manifest.read_text(encoding="utf-8")
        manifest.write_text(text.replace('"split": "test"', '"split": "val"'), encoding="utf-8")
    words = ["job", "--evaluate", str(model), str(largest), "blobs.yaml", "--part", "val", "--name", "choice"]
    assert main(words) == 0
    assert main(["run", "jobs/choice", "--in-process"]) == 0
    told = read_validation(Path("runs/choice")).sites["A"].models["all"]
    assert told.scores["dice"].n == 4
    for structure in ("left", "right"):
        assert told.against_first[f"dice {structure}"].difference.mean != 0


def test_what_makes_no_other_model_is_refused(model: Path, refused: Refused) -> None:
    words = ["postprocess", model, "--out", "new.pt", "--largest-component"]
    refused(*words, "rihgt", code="class-unknown", naming=("rihgt", "right"))
    refused(*words, "all,left", code="invalid-value")
    refused(*words, "none", code="no-effect", naming=str(model))
    refused("postprocess", model, "--out", model, "--force", "--largest-component", "all", code="output-exists")
    job = small_image_job("fedavg")
    classifier = save_model(Path("classes.pt"), job, read_weights(build_task(job).network()))
    refused("postprocess", classifier, "--out", "new.pt", "--largest-component", "all", code="wrong-task")
    assert not Path("new.pt").exists()
