"""``fedshift survey``: a plan and a map from prepared sites, and sentences for what does not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from scanfiles import write_described
from surveysites import survey_site

from fedshift.cli import main
from fedshift.federation.resolve import resolve
from fedshift.federation.survey_answer import with_noise
from fedshift.flare.workspaces import RunFolders
from fedshift.reporting import figures
from fedshift.schema.fingerprint import Survey, SurveySpec, read_survey
from fedshift.schema.policy import Policy
from fedshift_survey.collect import survey_in_process
from fedshift_survey.flare.job import read_survey_spec


@pytest.fixture(autouse=True, scope="module")
def _drawn_once() -> Iterator[None]:
    """A figure whose text says the same is drawn once: most pages here are of the same sites, and the rest is time."""
    figure = figures.figure
    drawn: dict[str, figures.Figure] = {}

    def once(drawing: Any, key: str, **words: Any) -> figures.Figure:
        name = repr((key, words))
        if name not in drawn:
            drawn[name] = figure(drawing, key, **words)
        return drawn[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "figure", once)
        yield


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites of a data set; tests copy them."""
    root = tmp_path_factory.mktemp("prepared")
    for site, seeds in (("A", (1, 2, 3)), ("B", (4, 5, 6)), ("C", (7, 8, 9))):
        survey_site(root, site, seeds)
    return root


@pytest.fixture
def home(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(prepared, tmp_path / "data")
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def surveyed(prepared: Path) -> Survey:
    """What the sites answered."""
    spec = SurveySpec.parse({"survey": "survey_organ", "dataset": "organ", "sites": ["A", "B", "C"]}, where="test")
    return survey_in_process(spec, {site: prepared / "organ" / site for site in spec.sites})


def test_a_data_set_becomes_a_plan_and_a_map(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    survey_site(home / "new", "N", (10, 11, 12), spacing=(3.0, 0.4, 0.4))
    newcomer = str(home / "new" / "organ" / "N")
    assert main(["survey", "organ", "--held-out", "C", "--place", newcomer, "--memory", "2", "--name", "ours"]) == 0
    out = home / "surveys" / "organ"
    printed = capsys.readouterr().out
    assert "plan: C, N" in printed
    assert str(Path("surveys") / "organ" / "ours.yaml") in printed
    task = yaml.safe_load((out / "ours.yaml").read_text(encoding="utf-8"))
    assert (task["name"], task["sites"], task["held_out"]) == ("ours", ["A", "B"], ["C"])
    assert "N" in (out / "shift.html").read_text(encoding="utf-8")
    survey = read_survey(out)
    assert set(survey.sites) == {"A", "B", "C"}, "a newcomer is no part of the survey"
    assert main(["survey", str(out / "survey.json"), "--sites", "A,C", "--out", "again"]) == 0
    again = yaml.safe_load((home / "again" / "organ.yaml").read_text(encoding="utf-8"))
    assert again["sites"] == ["A", "C"] and "held_out" not in again
    assert read_survey(home / "again") == survey, "the answers of sites that are left out stay"


REGIONS = {"organ": ["core", "rim"], "core": ["core"]}


def write_regions(path: Path, **changed: object) -> Path:
    """A task file with as much as a survey needs: a core in an organ."""
    description: dict[str, object] = {
        "dataset": "organ",
        "sites": ["A", "B", "C"],
        "classes": ["background", "core", "rim"],
    }
    description |= {"regions": REGIONS, "regions_class_order": ["rim", "core"], "ignore": True, **changed}
    kept = {key: value for key, value in description.items() if value}
    path.write_text(yaml.safe_dump(kept, sort_keys=False), encoding="utf-8")
    return path


def test_a_task_with_regions_is_planned_with_them(home: Path) -> None:
    for what, out in ((write_regions(home / "nested.yaml"), "one"), (home / "one" / "survey.json", "two")):
        assert main(["survey", str(what), "--memory", "2", "--out", out]) == 0
        text = (home / out / "organ.yaml").read_text(encoding="utf-8")
        assert "organ in 9 of 9 cases; core in 9 of 9 cases" in " ".join(text.replace("#", " ").split())
        job = resolve(str(home / out / "organ.yaml"), "fedavg")
        assert job.task.regions == {"organ": ("core", "rim"), "core": ("core",)} and job.task.outputs == 2
        assert job.task.regions_class_order == ("rim", "core") and job.task.ignore
    assert main(["survey", "organ", "--memory", "2", "--out", "plain"]) == 0
    assert "regions" not in (home / "plain" / "organ.yaml").read_text(encoding="utf-8")
    assert "regions" not in (home / "plain" / "survey.json").read_text(encoding="utf-8")


def test_prepared_sites_record_the_regions_of_their_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    labels: dict[str, object] = {"background": 0, "whole": [1, 2], "core": [2], "ignore": 3}
    source = write_described(tmp_path / "Dataset001_Balls", classes=("rim", "core"), style="nnunet", cases=6)
    file = source / "dataset.json"
    for site, order in (("A", [1, 2]), ("B", [1, 2]), ("C", [])):
        said = {"labels": labels, "regions_class_order": order}
        file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | said), encoding="utf-8")
        assert main(["data", "prepare", "nnunet", "--source", str(source), "--site", site]) == 0
        if site == "B":
            assert main(["survey", "balls", "--nnunet", "--memory", "2"]) == 0
    task = yaml.safe_load(Path("surveys/balls/balls.yaml").read_text(encoding="utf-8"))
    assert task["regions"] == {"whole": ["whole", "core"], "core": ["core"]} and task["ignore"]
    assert task["regions_class_order"] == ["whole", "core"]
    assert resolve("surveys/balls/balls.yaml", "fedavg").task.outputs == 2
    assert main(["survey", "balls"]) == 2
    assert "sites A and C of balls were prepared with other regions" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"regions": {"organ": ["core", "rims"]}, "regions_class_order": None}, "rims"),
        ({"regions_class_order": ["core", "rim"]}, "regions_class_order"),
        ({"overlapping": ["core", "organ"]}, "overlapping"),
    ],
)
def test_regions_that_cannot_be_are_refused_before_a_site_is_asked(
    home: Path, changed: dict[str, object], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["survey", str(write_regions(home / "nested.yaml", **changed)), "--out", "out"]) == 2
    printed = capsys.readouterr().err
    assert named in printed and "nested.yaml" in printed and not (home / "out" / "survey.json").exists()


def test_a_plan_that_was_changed_by_hand_is_kept_and_another_is_replaced(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["survey", "organ", "--memory", "4"]) == main(["survey", "organ", "--memory", "4"]) == 0
    plan, survey = (home / "surveys" / "organ" / name for name in ("organ.yaml", "survey.json"))
    first = plan.read_text(encoding="utf-8")
    assert main(["survey", str(survey), "--memory", "8"]) == 0, "as docs/survey.md has it"
    text = plan.read_text(encoding="utf-8")
    assert "of 4 GB" in first and "of 8 GB" in text
    changed = text.replace("rounds: 100", "rounds: 7")
    plan.write_text(changed, encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("fedshift_survey.cli.survey._asked", lambda *_: pytest.fail("a site was asked"))
        for what in ("organ", str(survey)):
            assert main(["survey", what]) == 2
            assert "[file-changed]" in capsys.readouterr().err
    assert plan.read_text(encoding="utf-8") == changed
    assert main(["survey", str(survey), "--force"]) == 0
    assert plan.read_text(encoding="utf-8") == text


def test_answers_and_map_stay_where_nothing_can_be_planned(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["survey", "organ", "--patch", "512,512,512", "--memory", "1"]) == 2
    out = home / "surveys" / "organ"
    printed = capsys.readouterr()
    assert "[no-memory]" in printed.err
    assert "survey: " + str(Path("surveys") / "organ" / "survey.json") in printed.out and "plan:   none" in printed.out
    assert sorted(path.name for path in out.iterdir()) == ["shift.html", "survey.json"]
    assert main(["survey", str(out / "survey.json")]) == 0


def test_answers_stay_where_a_newcomer_cannot_be_placed(home: Path) -> None:
    assert main(["survey", "organ", "--place", "data/organ/A"]) == 2
    assert set(read_survey(home / "surveys" / "organ").sites) == {"A", "B", "C"}


def test_a_mistyped_site_of_a_survey_made_before_is_refused(
    home: Path, surveyed: Survey, capsys: pytest.CaptureFixture[str]
) -> None:
    survey = survey_of(home, surveyed)
    for option in ("--held-out", "--sites"):
        assert main(["survey", survey, option, "CC"]) == 2
        error = capsys.readouterr().err
        assert "[unknown-site]" in error and "'CC'" in error and "'C'" in error
    assert main(["survey", survey, "--sites", "A", "--held-out", "B", "--out", "again"]) == 0
    again = yaml.safe_load((home / "again" / "organ.yaml").read_text(encoding="utf-8"))
    assert (again["sites"], again["held_out"]) == (["A"], ["B"])
    assert "plan: B." in capsys.readouterr().out.replace("\n", " ")


def survey_of(home: Path, surveyed: Survey) -> str:
    """Path of a survey of all sites, where the command writes it."""
    folder = home / "surveys" / "organ"
    folder.mkdir(parents=True)
    return str(surveyed.write(folder))


def test_ct_that_is_not_taken_for_ct_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    survey_site(home / "data", "A", (1, 2, 3), dataset="both", sequences=("CT", "PET"))
    assert main(["survey", "both"]) == 0
    assert "clip CT" in capsys.readouterr().out


def test_a_site_without_an_answer_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "data" / "organ" / "B" / "volumes" / "Patient004.nii.gz").unlink()
    assert main(["survey", "organ"]) == 1
    assert "site B" in capsys.readouterr().out


def test_a_site_that_tells_of_its_cases_with_noise_is_one_of_the_sites(home: Path, surveyed: Survey) -> None:
    noise = Policy.parse({"statistics": {"multiplier": 0.5, "clip": 1.0}}, where="test").statistics
    assert noise is not None
    noisy = surveyed.model_copy(update={"sites": {**surveyed.sites, "C": with_noise(surveyed.sites["C"], noise)}})
    noisy.write(home / "noisy")
    assert main(["survey", "noisy", "--out", "again"]) == 0
    plan = " ".join((home / "again" / "organ.yaml").read_text(encoding="utf-8").replace("#", " ").split())
    assert plan.count("of 3 cases") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (["orgam"], "unknown-task", "'organ'"),
        (["organ", "--memory", "0"], "invalid-value", "--memory"),
        (["organ", "--memory", "inf"], "invalid-value", "--memory"),
        (["organ", "--memory", "0.01"], "no-memory", "0.01 GB"),
        (["organ", "--patch", "512,512,512"], "no-memory", "--patch"),
        (["organ", "--place", "data/organ/A"], "site-twice", "site A"),
        (["missing.json"], "file-unreadable", "missing.json"),
    ],
)
def test_what_does_not_fit_is_a_sentence(
    home: Path, arguments: list[str], code: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["survey", *arguments]) == 2
    error = capsys.readouterr().err
    assert f"[{code}]" in error and name in error


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (["--patch", "a,b"], "invalid-value", "'a,b'"),
        (["--patch", "64,64"], "patch-size", "needs 3"),
        (["--patch", "64,64,64", "--dims", "2"], "patch-size", "needs 2"),
        (["--patch", "0,64,64"], "patch-size", "needs 3"),
        (["--name", "../other"], "invalid-value", "'../other'"),
    ],
)
def test_options_are_looked_at_before_a_site_is_asked(
    home: Path,
    arguments: list[str],
    code: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("fedshift_survey.cli.survey._asked", lambda *_: pytest.fail("a site was asked"))
    assert main(["survey", "organ", *arguments]) == 2
    error = capsys.readouterr().err
    assert f"[{code}]" in error and name in error


def test_an_output_folder_that_cannot_be_is_refused_before_a_site_is_asked(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedshift_survey.cli.survey._asked", lambda *_: pytest.fail("a site was asked"))
    (home / "file").write_text("", encoding="utf-8")
    for out in ("file", "file/below"):
        assert main(["survey", "organ", "--out", out]) == 2
        assert "[folder-unwritable]" in capsys.readouterr().err


def test_a_survey_under_flare_leaves_its_log_and_what_else_is_in_the_folder(
    home: Path, surveyed: Survey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator is a stand-in; the real one runs in ``tests/survey/flare/test_job.py``."""

    class StandIn:
        returncode = None

        def __init__(self, job: Path, folders: RunFolders, **_: object) -> None:
            self.folders = folders

        def ready(self) -> None:
            pass

        def start(self, job: Path, **options: object) -> None:
            self.folders.server.mkdir(parents=True)
            surveyed.write(self.folders.server)
            self.folders.log.write_text("what FLARE printed", encoding="utf-8")

        def end(self) -> None:
            pass

    monkeypatch.setattr("fedshift.flare.simulate_question.SimulatorProcess", StandIn)
    (home / "out" / "flare").mkdir(parents=True)
    (home / "out" / "flare" / "thesis").write_text("years of work", encoding="utf-8")
    assert main(["survey", "organ", "--flare", "--out", "out"]) == 0
    assert read_survey(home / "out") == surveyed
    assert (home / "out" / "flare" / "thesis").is_file()
    assert (home / "out" / "survey.log").read_text(encoding="utf-8") == "what FLARE printed"


def test_a_site_that_is_named_twice_is_refused(
    home: Path, surveyed: Survey, capsys: pytest.CaptureFixture[str]
) -> None:
    for what in ("organ", survey_of(home, surveyed)):
        assert main(["survey", what, "--sites", "A,A,B"]) == 2
        assert "A is named" in capsys.readouterr().err


def test_the_job_of_a_survey(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["survey", "organ", "--held-out", "C", "--job", "jobs/ask", "--production"]) == 0
    spec = read_survey_spec(home / "jobs" / "ask" / "app" / "config" / "fedshift.yaml")
    assert (spec.sites, spec.held_out) == (("A", "B"), ("C",))
    assert main(["survey", "jobs/ask", "--out", "asked"]) == 0, "the same sites, in this process"
    assert main(["run", "jobs/ask"]) == 2
    assert "[wrong-job]" in capsys.readouterr().err


@pytest.mark.parametrize(("annotated", "lacking"), [(("core",), {}), (None, {seed: ["rim"] for seed in range(1, 5)})])
def test_a_class_that_no_site_has_is_in_no_plan(
    annotated: tuple[str, ...] | None,
    lacking: dict[int, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of one site are enough, and a job for the sites on this machine says it too."""
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    lacking = {**lacking, 5: ["rim"], 6: ["rim"]} if lacking else {}
    for site, seeds in (("A", (1, 2, 3)), ("B", (4, 5, 6))):
        survey_site(tmp_path / "data", site, seeds, annotated=annotated, lacking=lacking)
    assert main(["survey", "organ"]) == 2
    error = capsys.readouterr().err
    assert (
        "[class-missing]" in error
        and "class rim" in error
        and (tmp_path / "surveys" / "organ" / "shift.html").is_file()
    )
    survey_site(tmp_path / "data", "C", (7, 8, 9))
    assert main(["survey", "organ"]) == 0
    plan = str(tmp_path / "surveys" / "organ" / "organ.yaml")
    capsys.readouterr()
    for sites, fits in (("A,B", annotated is None), ("B,C", True)):
        assert main(["job", "fedavg", plan, "--sites", sites, "--force"]) == 0
        assert (" rim" not in capsys.readouterr().out) == fits
