"""A validation through FLARE: its job's files, a site's answer, and the same record as in one process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from errors import raises
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from validations import blob_models, blob_sites, blob_spec, with_strata

from fedshift.data.locate import read_settings
from fedshift.flare import codec
from fedshift.flare.dry_run import dry_run_validation
from fedshift.flare.export import SPEC, read_job_folder
from fedshift.flare.guard import JOB_FILES, AppFiles
from fedshift.flare.simulate_question import simulate_question
from fedshift.flare.validation.executor import ValidationExecutor
from fedshift.flare.validation.job import is_validation, models_of, read_validation_spec, write_validation_job
from fedshift.flare.workspaces import RunFolders
from fedshift.inference.validation import answer
from fedshift.inference.validation_run import validate_in_process
from fedshift.reporting.progress import read_progress
from fedshift.schema.messages import Broadcast
from fedshift.schema.policy import Policy
from fedshift.schema.validation import (
    FILE_NAME,
    ModelRef,
    SiteValidation,
    Validation,
    ValidationSpec,
    read_validation,
)
from fedshift_testing.serialised import Kit

from .deployed import SERVER, Deployed

NAMELESS = tuple(ModelRef(name=name, sha256="0" * 64) for name in ("old", "new"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    return blob_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = blob_sites(tmp_path_factory.mktemp("data"), test=6, shape=(6, 20, 24))
    with_strata(made["A"], vendor=["GE", "Siemens"] * 4)
    return made


def write(files: dict[str, Path], folder: Path, **changes: object) -> ValidationSpec:
    production = bool(changes.pop("production", False))
    return write_validation_job(blob_spec(NAMELESS, **changes), files, folder, production=production)


def test_a_job_brings_its_models_and_a_kit_takes_no_other_files(files: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "job"
    spec = write(files, folder, production=True)
    assert is_validation(folder) and read_validation_spec(folder / SPEC) == spec
    assert {ref.name for ref in spec.models} == {"old", "new"} and "0" * 64 not in {ref.sha256 for ref in spec.models}
    assert AppFiles().validate(str(folder / "app"))[0] == ""
    for odd in ("models/code.py", "models/below/x.npz", "old.npz"):
        assert JOB_FILES.fault([f"config/{odd}"], lambda name: b"") is not None, odd
    path = folder / "app" / "config" / "config_fed_client.json"
    path.write_text(path.read_text(encoding="utf-8").replace("ValidationExecutor", "Other"), encoding="utf-8")
    assert "config_fed_client.json" in AppFiles().validate(str(folder / "app"))[0]
    with raises("wrong-job", naming="fedshift run"):
        read_job_folder(folder)


def test_a_job_that_is_too_large_is_refused_when_it_is_written(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedshift.flare.validation.job.LARGEST", 10_000)
    with raises("job-too-large", naming="several jobs"):
        write(files, tmp_path / "job")
    assert not (tmp_path / "job").exists()


@pytest.fixture
def context(files: dict[str, Path], sites: dict[str, Path], tmp_path: Path) -> Kit:
    """A kit of site A with a validation deployed in it."""
    kit = tmp_path / "kit"
    for name in ("local", "startup"):
        (kit / name).mkdir(parents=True)
    (kit / "local" / "fedshift.yaml").write_text(f"data: {{blobs: {sites['A']}}}\n", encoding="utf-8")
    workspace = Workspace(root_dir=str(kit), site_name="A")
    write(files, tmp_path / "job")
    shutil.copytree((tmp_path / "job" / SPEC).parent, workspace.get_app_config_dir("job"))
    return Kit("A", workspace, simulator=False)


def ask(context: Kit, monkeypatch: pytest.MonkeyPatch) -> Shareable:
    monkeypatch.setattr("fedshift.flare.question.require_protection", lambda: None)
    task = codec.encode_task(Broadcast(round=0, best_round=0, weights={}, sites=("A",)))
    told: Shareable = ValidationExecutor().execute(codec.SCORE, task, context, Signal())  # type: ignore[arg-type]
    return told


def test_a_site_answers_under_its_policy_and_keeps_its_cases(
    context: Kit, sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = codec.decode_told(codec.VALIDATION, SiteValidation, ask(context, monkeypatch))
    spec = read_validation_spec(tmp_path / "job" / SPEC)
    assert told == answer(sites["A"], "A", spec, models_of(tmp_path / "job"))
    assert list((tmp_path / "kit").rglob("validation_cases.csv"))
    settings = tmp_path / "kit" / "local" / "fedshift.yaml"
    settings.write_text(f"data: {{blobs: {sites['A']}}}\nprivacy: {{min_cases: 7}}\n", encoding="utf-8")
    with pytest.raises(codec.WireError, match=r"privacy\.min_cases: 7"):
        codec.decode_told(codec.VALIDATION, SiteValidation, ask(context, monkeypatch))


def test_a_dry_run_shows_what_the_site_would_tell_and_leaves_nothing(
    context: Kit, sites: dict[str, Path], tmp_path: Path
) -> None:
    local, job = tmp_path / "kit" / "local", tmp_path / "job"
    settings = read_settings(local)
    sent = dry_run_validation(job, "A", sites["A"], tmp_path / "dry", settings=settings, ledger=local)
    told = answer(sites["A"], "A", read_validation_spec(job / SPEC), models_of(job))
    shown = {item.name: item.value for item in sent.items}
    assert shown["A/models/new/scores/dice/mean"] == told.models["new"].scores["dice"].mean
    assert not list(local.glob("*ledger*"))
    with raises("other-site", naming="site Z"):
        dry_run_validation(job, "Z", sites["A"], tmp_path / "other", settings=settings)


def test_no_path_of_a_site_is_in_what_it_says(context: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "kit" / "local" / "fedshift.yaml"
    settings.write_text(f"data: {{blobs: {tmp_path / 'secret'}}}\n", encoding="utf-8")
    with pytest.raises(codec.WireError) as raised:
        codec.decode_told(codec.VALIDATION, SiteValidation, ask(context, monkeypatch))
    assert "secret" not in str(raised.value) and "the site's log says more" in str(raised.value)


@pytest.mark.slow
def test_the_simulator_tells_what_one_process_tells(
    files: dict[str, Path], sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", str(sites["A"].parents[1]))
    spec = write(files, tmp_path / "job", sites=("A", "B", "C"))
    folders = RunFolders(tmp_path / "run")
    simulate_question(tmp_path / "job", folders, FILE_NAME, sites=3, timeout=120)
    inside = validate_in_process(
        spec, models_of(tmp_path / "job"), {**sites, "C": tmp_path / "none"}, tmp_path / "inside"
    )
    ours, theirs = inside.model_dump(), read_validation(folders.server).model_dump()
    assert set(ours.pop("refused")) == set(theirs.pop("refused")) == {"C"}
    assert ours == theirs
    progress = read_progress(folders.server)
    assert progress is not None and (progress.state, set(progress.sites_in)) == ("finished", {"A", "B"})


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_provisioned_sites_answer_as_in_one_process(
    files: dict[str, Path], sites: dict[str, Path], tmp_path: Path
) -> None:
    """Over mutual TLS, each under its own policy; site C, which the job names too, is no part of the federation."""
    spec = write(files, tmp_path / "jobs" / "v", production=True, sites=("A", "B", "C"), timeout=120)
    with Deployed(tmp_path / "federation", sites) as federation:
        settings = federation.kits / "B" / "local" / "fedshift.yaml"
        text = settings.read_text(encoding="utf-8")
        settings.write_text(text.replace("survey_cases: 3", "survey_cases: 7"), encoding="utf-8")
        federation.start_all()
        job_id = federation.submit(tmp_path / "jobs" / "v")
        assert federation.finished(job_id) == "FINISHED:COMPLETED", federation.log(SERVER)[-3000:]
        downloaded = Path(federation.session.download_job_result(job_id, str(tmp_path / "downloads")))
        (file,) = downloaded.rglob(FILE_NAME)
    validation: Validation = read_validation(file)
    two = spec.model_copy(update={"sites": ("A", "B")})
    inside = validate_in_process(
        two, models_of(tmp_path / "jobs" / "v"), sites, tmp_path / "run", policies={"B": Policy(survey_cases=7)}
    )
    assert validation.sites == inside.sites and set(validation.sites) == {"A"}
    assert validation.refused["B"] == inside.refused["B"] and set(validation.refused) == {"B", "C"}
    assert str(tmp_path) not in json.dumps(validation.model_dump(mode="json"))
