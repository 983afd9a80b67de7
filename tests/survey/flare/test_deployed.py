"""A survey of provisioned sites, over mutual TLS: the answers of one process, under each site's own policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from flare.deployed import SERVER, Deployed
from surveysites import survey_site

from fedshift.schema.fingerprint import SurveySpec, read_survey
from fedshift.schema.policy import Policy
from fedshift_survey.collect import survey_in_process
from fedshift_survey.flare.job import write_survey_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ASKED = SurveySpec(survey="survey_organ", dataset="organ", sites=("A", "B", "C"), timeout=60)


def test_provisioned_sites_answer_as_in_one_process(tmp_path: Path) -> None:
    """Site C, which the job names too, is no part of the federation."""
    data = {site: survey_site(tmp_path / "data", site, seeds) for site, seeds in (("A", (1, 2, 3)), ("B", (4, 5, 6)))}
    with Deployed(tmp_path / "federation", data) as federation:
        settings = federation.kits / "B" / "local" / "fedshift.yaml"
        text = settings.read_text(encoding="utf-8")
        settings.write_text(text.replace("survey_cases: 3", "survey_cases: 4"), encoding="utf-8")
        federation.start_all()
        job_id = federation.submit(write_survey_job(ASKED, tmp_path / "jobs" / "survey", production=True))
        assert federation.finished(job_id) == "FINISHED:COMPLETED", federation.log(SERVER)[-3000:]
        downloaded = Path(federation.session.download_job_result(job_id, str(tmp_path / "downloads")))
        (file,) = downloaded.rglob("survey.json")
    found = read_survey(file)
    two = ASKED.model_copy(update={"sites": ("A", "B")})
    assert found.sites == survey_in_process(two, data, policies={"B": Policy(survey_cases=4)}).sites
    assert found.sites["B"].withheld and found.refused.keys() == {"C"}
    assert str(tmp_path) not in file.read_text(encoding="utf-8")
