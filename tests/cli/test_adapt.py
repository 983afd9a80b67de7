"""``fedshift adapt``: the file that it writes is a model as any other, says what was done, and names no case."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import small_image_job
from inference.adaptation.conftest import Hospital, hospital, keep_slices, write_scans
from inference.conftest import Run, save_model
from inference.test_patches import IN_3D
from volumesites import write_task

from cli.conftest import Refused
from fedshift.cli import main
from fedshift.federation.resolve import resolve
from fedshift.inference.adaptation import fine_tuning
from fedshift.inference.model import open_model

__all__ = ["hospital"]


def adapt(*words: object) -> int:
    return main(["adapt", *map(str, words)])


def given(folder: Path) -> list[object]:
    return ["--images", folder / "images", "--masks", folder / "masks"]


@pytest.fixture
def one_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fine_tuning, "STOPS", (20,))
    monkeypatch.setattr(fine_tuning, "RATE", 1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("one_training")
def test_an_adapted_model_is_used_as_any_other_and_says_what_it_is(
    hospital: Hospital, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [hospital.model, *given(hospital.labelled), "--part", "norm"]
    first, again = tmp_path / "first.pt", tmp_path / "again.pt"
    for out in (first, again):
        assert adapt(*words, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "adapted by fine-tuning: Dice of patients that training had not seen changes by +" in printed
    content = torch.load(first, weights_only=True)
    assert all(torch.equal(content["weights"][k], v) for k, v in torch.load(again)["weights"].items())
    assert content["scores"] == {} and content["adaptation"]["labelled"] == 4
    told = repr({key: value for key, value in content.items() if key not in ("weights", "methods")})
    assert not any(name in told for name in ("case0", str(hospital.labelled), "masks'", ".nii"))

    scans = [hospital.labelled / "images" / f"case{number:02d}.nii.gz" for number in range(2)]
    assert main(["predict", str(first), *map(str, scans), "--out", str(tmp_path / "masks")]) == 0
    record = json.loads((tmp_path / "masks" / "predictions.json").read_text(encoding="utf-8"))
    assert record["model"]["adaptation"]["decision"] == "adapted"
    assert main(["evaluate", str(first), *map(str, given(hospital.labelled)), "--out", str(tmp_path / "scores")]) == 0
    told = capsys.readouterr().out
    assert "at one hospital: adapted by fine-tuning" in told and "was adapted to 4 cases of one hospital" in told
    record = json.loads((tmp_path / "scores" / "evaluation.json").read_text(encoding="utf-8"))
    assert record["adapted"] == {"first.pt": 4}
    assert main(["export", str(first), "--bundle", str(tmp_path / "bundle")]) == 0
    metadata = json.loads((tmp_path / "bundle" / "configs" / "metadata.json").read_text(encoding="utf-8"))
    assert "Afterwards, at one hospital, it was adapted by fine-tuning" in metadata["description"]
    assert main(["card", str(first), "--out", str(tmp_path / "card.html")]) == 0
    card = json.loads((tmp_path / "card.json").read_text(encoding="utf-8"))
    assert card["adaptation"]["part"] == "norm" and "4 labelled cases" in " ".join(card["limits"])
    assert "It is for that hospital" in (tmp_path / "card.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_model_that_is_kept_has_the_same_weights_and_scores_and_says_why(
    hospital: Hospital, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few, out = write_scans(tmp_path / "few", 3, hospital.curve), tmp_path / "kept.pt"
    assert adapt(hospital.model, "--images", few / "images", "--out", out) == 0
    printed = capsys.readouterr().out
    assert "kept: " in printed and "(the same weights)" in printed
    before, after = open_model(hospital.model), open_model(out)
    assert all(torch.equal(after.weights[key], value) for key, value in before.weights.items())
    assert after.header.scores == before.header.scores
    assert adapt(out, "--images", few / "images", "--out", tmp_path / "again.pt", "--by", "statistics") == 0
    asked = tmp_path / "asked.pt"
    assert adapt(hospital.model, "--images", few / "images", "--out", asked, "--anyway") == 0
    assert "because it was asked for" in capsys.readouterr().out
    assert open_model(asked).header.adaptation.decision == "asked"  # type: ignore[union-attr]


def test_cases_without_the_structure_are_trained_on_and_are_no_evidence(
    hospital: Hospital, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fine_tuning, "STOPS", (1,))
    few = write_scans(tmp_path / "few", 3, hospital.curve)
    words = [hospital.model, *given(few), "--force", "--out", tmp_path / "out.pt"]
    keep_slices(few / "masks" / "case00.nii.gz", slice(0, 0))
    assert adapt(*words) == 2 and "case00.nii.gz is an empty mask" in capsys.readouterr().err
    assert adapt(*words, "--empty") == 0
    record = open_model(tmp_path / "out.pt").header.adaptation
    assert record is not None and record.labelled == 3 and record.evidence is not None and record.evidence.n == 2
    keep_slices(few / "masks" / "case01.nii.gz", slice(0, 0))
    assert adapt(*words, "--empty") == 0
    assert "fewer than two of the labelled patients have the structure" in capsys.readouterr().out


def test_what_does_not_go_together_is_refused(hospital: Hospital, tmp_path: Path, refused: Refused) -> None:
    model, images, out = hospital.model, hospital.labelled / "images", ["--out", tmp_path / "out.pt"]
    refused("adapt", model, *out, code="option-missing", naming="--images")
    refused("adapt", model, "--images", images, "--part", "norm", *out, code="no-effect", naming="--part")
    refused("adapt", model, *given(hospital.labelled), "--by", "entropy", *out, code="no-effect", naming="--by")
    refused("adapt", model, "--images", images, "--site-state", tmp_path, *out, code="no-effect", naming="--site-state")
    refused("adapt", model, "--images", images, "--out", model, "--force", code="output-exists", naming="is MODEL")
    refused("adapt", model, "--images", images, "--out", tmp_path / "no" / "x.pt", code="folder-missing")
    refused(
        "adapt", model, "--images", images, "--out", tmp_path, "--force", code="output-exists", naming="is a folder"
    )
    twice = tmp_path / "twice"
    shutil.copytree(images, twice)
    shutil.copy(twice / "case01.nii.gz", twice / "copied.nii.gz")
    refused("adapt", model, "--images", twice, *out, code="same-content", naming=("case01", "copied"))
    lacking = tmp_path / "lacking"
    shutil.copytree(hospital.labelled, lacking)
    (lacking / "masks" / "case01.nii.gz").unlink()
    refused("adapt", model, *given(lacking), *out, code="pairing", naming="case01")
    assert not (tmp_path / "out.pt").exists()


def test_models_that_cannot_be_adapted_are_refused(
    hospital: Hospital, trained: Run, tmp_path: Path, refused: Refused
) -> None:
    images, out = hospital.labelled / "images", ["--out", tmp_path / "out.pt"]
    personal, _ = trained("fedbn")
    refused("adapt", personal, "--images", images, *out, code="model-personal", naming="--statistics own")
    pictures = save_model(tmp_path / "pictures.pt", small_image_job("fedavg"), kind="images")
    refused("adapt", pictures, "--images", images, *out, code="wrong-task", naming="classifies")
    task = write_task(tmp_path / "task.yaml", data=IN_3D, schedule="{rounds: 1, local_epochs: 1, batch_size: 2}")
    channels = save_model(tmp_path / "channels.pt", resolve(str(task), "fedavg"))
    labels = ["--label", "left=1", "--label", "right=2"]
    refused("adapt", channels, *given(hospital.labelled), *labels, *out, code="sequence-count", naming="T2, ADC")
    asked = tmp_path / "asked.pt"
    assert adapt(hospital.model, "--images", images, "--out", asked, "--by", "statistics", "--anyway") == 0
    refused("adapt", asked, "--images", images, *out, code="adapted-already", naming="made from")


def test_a_model_of_fedrdn_is_adapted_with_the_statistics_that_are_named(
    hospital: Hospital, trained: Run, tmp_path: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = trained("fedrdn")
    words = ["adapt", model, "--images", hospital.unlabelled / "images", "--out", tmp_path / "out.pt", "--anyway"]
    refused(*words, code="statistics-choice", naming="--statistics own")
    assert main([*map(str, words), "--statistics", "own", "--by", "statistics"]) == 0
    capsys.readouterr()
    scan = str(next((hospital.unlabelled / "images").iterdir()))
    for chosen, noted in (("own", False), ("HK", True)):
        out = str(tmp_path / chosen)
        assert main(["predict", str(tmp_path / "out.pt"), scan, "--out", out, "--statistics", chosen]) == 0
        assert ("it was adapted with other statistics" in capsys.readouterr().out) is noted


def test_a_models_file_without_masks_says_so_of_a_network_that_keeps_no_statistics(
    hospital: Hospital, tmp_path: Path, refused: Refused
) -> None:
    job = open_model(hospital.model).header.job
    network = {"name": "unet", "options": {"features": 4, "norm": "batch_statistics"}}
    changed = job.model_validate({**job.dump(), "task": {**job.dump()["task"], "network": network}})
    model = save_model(tmp_path / "model.pt", changed)
    words = ["adapt", model, "--images", hospital.unlabelled / "images", "--out", tmp_path / "out.pt"]
    refused(*words, "--by", "statistics", code="no-effect", naming="no running statistics")
