"""Several models as one: the mean of their probabilities, and models that do not go together."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from conftest import small_image_job
from inference.conftest import save_model
from volumesites import BLOBS, make_volume_site

from cli.conftest import Refused
from fedshift.cli import main
from fedshift.cli.opened_model import open_for
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.federation.tensors import read_weights, write_tensors
from fedshift.inference.dicom_source import origin
from fedshift.inference.ensemble import averaged
from fedshift.inference.model import open_model
from fedshift.inference.ready import SAME_EVERYWHERE, Choice, ReadyModel, make_ready
from fedshift.schema.codes import ClassCodes
from fedshift.tasks.kinds import build_task

REGIONS = "regions: {both: [left, right], right: [right]}\n"
Fold = Callable[..., Path]


@pytest.fixture
def fold(tmp_path: Path) -> Fold:
    """Writes a model with random weights."""

    def write(seed: int, *options: str, task: str = BLOBS, kind: str = "phantom") -> Path:
        (tmp_path / "task.yaml").write_text(task, encoding="utf-8")
        job = resolve(str(tmp_path / "task.yaml"), "fedavg", options=list(options))
        draw = np.random.default_rng(seed)
        start = read_weights(build_task(job).network())
        weights = {key: value + draw.normal(0, 0.3, value.shape).astype(value.dtype) for key, value in start.items()}
        (tmp_path / f"fold_{seed}").mkdir()
        about = {"sites": ["A"], "statistics": ["A"], "kind": kind}
        return save_model(tmp_path / f"fold_{seed}" / "model.pt", job, weights, **about)

    return write


def ready(path: Path) -> ReadyModel:
    return make_ready(open_model(path), Choice(), device="cpu")


@pytest.mark.parametrize("task", [BLOBS, BLOBS + REGIONS], ids=["classes", "regions"])
def test_probabilities_are_averaged(fold: Fold, task: str) -> None:
    models = [ready(fold(seed, task=task)) for seed in range(3)]
    images = torch.randn(2, 1, *models[0].model.task.spatial)
    with torch.no_grad():
        probable = torch.sigmoid if models[0].written else lambda logits: torch.softmax(logits, 1)
        wanted = torch.stack([probable(model.logits(images)) for model in models]).mean(0)
        logits = averaged(models[0], models[1:]).logits(images)
    torch.testing.assert_close(probable(logits), wanted)
    assert averaged(models[0], []) is models[0]


@pytest.mark.parametrize("place", [0, 1])
def test_statistics_are_those_of_the_model_that_has_some(place: int, fold: Fold) -> None:
    """In whatever order the models are named."""
    plain = make_ready(open_model(fold(0)), Choice(site="A"), device="cpu")
    normalises = replace(ready(fold(1)), used=Choice(site="A"), statistics="site A")
    assert SAME_EVERYWHERE in plain.notes
    members = [plain, normalises] if place else [normalises, plain]
    both = averaged(members[0], members[1:])
    assert both.statistics == "site A" and both.used == Choice(site="A") and SAME_EVERYWHERE not in both.notes
    assert SAME_EVERYWHERE in averaged(plain, [plain]).notes


def test_predict_and_evaluate_take_several_models(fold: Fold, tmp_path: Path) -> None:
    folds = [fold(seed) for seed in range(3)]
    volumes = make_volume_site(tmp_path, "A") / "volumes"
    image = volumes / "case03.nii.gz"
    masks = {}
    for name, models in {"one": folds[:1], "all": folds, "reversed": folds[::-1]}.items():
        words = ["predict", str(models[0]), str(image), "--out", str(tmp_path / name)]
        words += ["--models", *map(str, models[1:])] if models[1:] else []
        assert main(words) == 0
        masks[name] = sitk.GetArrayFromImage(sitk.ReadImage(tmp_path / name / "case03_mask.nii.gz"))
    np.testing.assert_array_equal(masks["all"], masks["reversed"])
    assert (masks["one"] != masks["all"]).any()
    record = json.loads((tmp_path / "all" / "predictions.json").read_text())
    assert [each["file"] for each in record["averaged_with"]] == ["fold_1/model.pt", "fold_2/model.pt"]

    (tmp_path / "scans").mkdir()
    (tmp_path / "readers").mkdir()
    shutil.copy(image, tmp_path / "scans")
    shutil.copy(tmp_path / "all" / "case03_mask.nii.gz", tmp_path / "readers" / image.name)
    words = ["evaluate", str(folds[0]), "--images", str(tmp_path / "scans"), "--masks", str(tmp_path / "readers")]
    words += ["--label", "left=1", "--label", "right=2", "--out", str(tmp_path / "scores")]
    assert main([*words, "--models", *map(str, folds[1:])]) == 0
    scored = json.loads((tmp_path / "scores" / "evaluation.json").read_text())
    assert scored["scores"]["dice"]["mean"] == 1
    assert len(set(scored["averaged_with"])) == 2
    assert main(["report", str(tmp_path / "scores"), "--out", str(tmp_path / "page.html")]) == 0
    assert scored["averaged_with"][0] in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_models_that_take_scans_otherwise_are_refused(fold: Fold, tmp_path: Path, refused: Refused) -> None:
    first, regions = fold(0), fold(1, task=BLOBS + REGIONS)
    words = [str(first), str(tmp_path), "--out", str(tmp_path / "out"), "--models"]
    refused("predict", *words, str(fold(2, "data.normalise=percentile")), code="models-differ")
    refused("predict", *words, str(regions), code="models-differ")
    refused("predict", *words, str(fold(4, kind="patients")), code="models-differ", naming=("phantom", "patients"))
    refused("predict", *words, str(first), code="models-differ")
    copied = tmp_path / "copied.pt"
    write_tensors({**read_model_file(first), "round": 9}, copied)
    refused("predict", *words, str(copied), code="models-differ", naming="is the same model as")
    refused("predict", *words, str(tmp_path), code="models-differ")
    refused("predict", *words, str(fold(3)), "--guarantee", "0.1", code="options-clash")


def test_a_model_that_is_averaged_is_known_by_its_files_and_named_in_dicom(fold: Fold) -> None:
    first, second = fold(0), fold(1)
    args = argparse.Namespace(model=first, models=[second], site=None, statistics=None, site_state=None, guarantee=None)
    opened = open_for(args)
    assert not opened.has_changed
    code = {"category": [91723000, "SCT", "Anatomical Structure"]}
    codes = {
        name: ClassCodes.parse(code | {"type": [number, "SCT", name]}, where=name)
        for number, name in enumerate(("left", "right"), start=1)
    }
    alone, both = origin(opened.model, codes), origin(opened.model, codes, others=opened.others)
    assert "mean of 2 models" in both.algorithm and alone.model != both.model
    shutil.copy(first, second)
    assert opened.has_changed


def test_classifiers_are_not_averaged(tmp_path: Path, refused: Refused) -> None:
    model = save_model(tmp_path / "classifier.pt", small_image_job("fedavg"))
    words = [str(model), "--out", str(tmp_path / "out"), "--models", str(model)]
    refused("predict", *words[:1], str(tmp_path), *words[1:], code="no-effect")
    refused("evaluate", *words, "--table", str(tmp_path), code="no-effect")
