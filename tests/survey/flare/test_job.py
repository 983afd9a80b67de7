"""The job of a survey: NVFlare and the sites' guards accept it, and it asks in the simulator as in one process."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from errors import raises
from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from surveysites import survey_site

from fedshift.flare.export import SPEC, read_job_folder
from fedshift.flare.guard import AppFiles
from fedshift.schema.fingerprint import SurveySpec
from fedshift_survey.collect import survey_in_process
from fedshift_survey.flare.job import read_survey_spec, write_survey_job
from fedshift_survey.flare.simulate import simulate_survey

ASKED = SurveySpec(survey="survey_organ", dataset="organ", sites=("A", "B"), held_out=("C",))


@pytest.mark.parametrize("production", [False, True])
def test_nvflare_and_the_guards_accept_it(production: bool, tmp_path: Path) -> None:
    folder = write_survey_job(ASKED, tmp_path / "job", production=production)
    valid, error, meta = JobMetaValidator().validate("job", zip_directory_to_bytes("", str(folder)))
    assert valid, error
    assert meta["deploy_map"] == {"app": ["server", "A", "B", "C"]} and meta["min_clients"] == 1
    assert AppFiles().validate(str(folder / "app"))[0] == ""
    assert read_survey_spec(folder / SPEC) == ASKED
    assert write_survey_job(ASKED, folder, production=production) == folder, "again"


def test_it_is_not_run_as_a_job_that_trains(tmp_path: Path) -> None:
    folder = write_survey_job(ASKED, tmp_path / "job")
    with raises("wrong-job", naming=str(folder)):
        read_job_folder(folder)
    (tmp_path / "other").mkdir()
    with raises("folder-in-use", naming="other"):
        write_survey_job(ASKED, tmp_path / "other")


def test_a_changed_configuration_is_refused_by_the_guards(tmp_path: Path) -> None:
    folder = write_survey_job(ASKED, tmp_path / "job", production=True)
    path = folder / "app" / "config" / "config_fed_client.json"
    path.write_text(path.read_text(encoding="utf-8").replace("SurveyExecutor", "Other"), encoding="utf-8")
    assert "config_fed_client.json" in AppFiles().validate(str(folder / "app"))[0]


@pytest.mark.slow
def test_the_simulator_tells_what_one_process_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {site: survey_site(tmp_path / "data", site, (1, 2, 3)) for site in ASKED.everyone}
    (data["B"] / "volumes" / "Patient001.nii.gz").unlink()
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    expected = survey_in_process(ASKED, data)
    assert simulate_survey(ASKED, tmp_path / "log") == expected
    assert (tmp_path / "log").stat().st_size
    assert set(expected.sites) == {"A", "C"} and "Patient001" in expected.refused["B"]


@pytest.mark.slow
def test_a_survey_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site whose process hangs must not hold the command for ever; nothing is left running."""
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    survey_site(tmp_path / "data", "A", (1, 2, 3))
    monkeypatch.setattr("fedshift.flare.simulate_question.START_AND_END", 0.0)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with raises("run-failed", naming="took too long"):
        simulate_survey(SurveySpec(survey="late", dataset="organ", sites=("A",), timeout=0.5), tmp_path / "log")
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
