"""``fedshift job --evaluate`` and ``fedshift run`` of what it writes, and the page of the record."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from validations import blob_models, blob_sites, with_strata

from fedshift.cli import main
from fedshift.federation.model_files import read_model_file
from fedshift.federation.tensors import write_tensors
from fedshift.flare.export import SPEC
from fedshift.flare.validation.job import read_validation_spec
from fedshift.schema.adaptation import Adaptation
from fedshift.schema.validation import read_validation


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models, the task and two prepared sites, to work in."""
    torch.set_num_threads(1)
    models = blob_models(tmp_path)
    sites = blob_sites(tmp_path / "data", test=10, shape=(6, 20, 24))
    for folder in sites.values():
        with_strata(folder, sex=["F", "M"] * 6)
    for number, name in enumerate(models):
        run = tmp_path / "runs" / f"run{number}"
        run.mkdir(parents=True)
        models[name].rename(run / "best_global_model.pt")
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


MODELS = ("runs/run0/best_global_model.pt", "runs/run1/best_global_model.pt")


def test_from_model_files_to_a_page(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "--evaluate", *MODELS, "blobs.yaml", "--name", "check"]) == 0
    spec = read_validation_spec(home / "jobs" / "check" / SPEC)
    assert [model.name for model in spec.models] == ["run0_best", "run1_best"]
    assert (spec.sites, spec.part, spec.dataset) == (("A", "B"), "test", "blobs")
    assert main(["run", "jobs/check", "--in-process"]) == 0
    record = read_validation(home / "runs" / "check")
    assert set(record.sites) == {"A", "B"} and record.is_phantom
    printed = capsys.readouterr().out
    assert "run1_best" in printed and "against run0_best" in printed
    assert main(["run", "jobs/check", "--in-process"]) == 2
    assert "[run-exists]" in capsys.readouterr().err
    assert main(["status", "runs/check"]) == 0
    assert "models scored" in capsys.readouterr().out
    assert main(["report", "runs/check"]) == 0
    page = (home / "report.html").read_text(encoding="utf-8")
    for part in ("run1_best less run0_best", "random effects", "By group", record.models["run0_best"].file_sha256):
        assert part in page, part
    assert "PHANTOM" in page and str(home) not in page


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--evaluate", "blobs.yaml"], "model-missing"),
        (["--evaluate", "nothing.pt", "blobs.yaml"], "model-missing"),
        (["--evaluate", MODELS[0], "no_such_task"], "unknown-task"),
        (["--evaluate", MODELS[0], "blobs.yaml", "--protocol", "quick"], "no-effect"),
        (["--evaluate", MODELS[0], "blobs.yaml", "--sites", "A,A"], "invalid-value"),
        (["fedavg", "blobs.yaml", "--part", "all"], "no-effect"),
        (["fedavg", "blobs.yaml", "--evaluate", MODELS[0]], "options-clash"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: list[str], code: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", *words]) == 2
    assert f"[{code}]" in capsys.readouterr().err
    assert not (home / "jobs").exists() or not any((home / "jobs").iterdir())


def test_the_task_may_come_first(home: Path) -> None:
    assert main(["job", "blobs.yaml", "--evaluate", MODELS[0], "--sites", "A,New"]) == 0
    assert read_validation_spec(home / "jobs" / "validate_blobs" / SPEC).sites == ("A", "New")


def test_a_model_that_was_trained_on_what_is_scored_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "--evaluate", MODELS[0], "blobs.yaml", "--name", "test"]) == 0
    assert "was trained at" not in capsys.readouterr().out
    assert main(["job", "--evaluate", MODELS[0], "blobs.yaml", "--name", "all", "--part", "all"]) == 0
    assert "run0_best was trained at A, B, on some of the cases" in capsys.readouterr().out
    for manifest in (home / "data").rglob("manifest.json"):  # enough of either part for what may be told
        text = manifest.read_text(encoding="utf-8")
        manifest.write_text(text.replace('"split": "test"', '"split": "train"', 4), encoding="utf-8")
    assert main(["run", "jobs/all", "--in-process"]) == 0
    assert read_validation(home / "runs" / "all").models["run0_best"].seen_at == ["A", "B"]
    assert main(["report", "runs/all"]) == 0
    assert "its scores at these say too much for it" in (home / "report.html").read_text(encoding="utf-8")


def test_a_model_that_one_hospital_has_adapted_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its file does not say which hospital, so any of those asked may have trained it."""
    statistics = Adaptation(
        decision="adapted", reason="adapted", labelled=4, unlabelled=0, seed=0, statistics="none", fedshift="0.1.0"
    )
    content = read_model_file(home / MODELS[0])
    write_tensors({**content, "adaptation": statistics.model_dump(mode="json")}, home / "adapted.pt")
    assert main(["job", "--evaluate", "adapted.pt", "blobs.yaml", "--name", "ours"]) == 0
    assert "adapted was adapted to 4 cases of one hospital" in capsys.readouterr().out
    assert main(["run", "jobs/ours", "--in-process"]) == 0
    assert read_validation(home / "runs" / "ours").models["adapted"].adapted_on == 4
    assert main(["report", "runs/ours"]) == 0
    assert "adapted to 4 cases of one hospital" in (home / "report.html").read_text(encoding="utf-8")
