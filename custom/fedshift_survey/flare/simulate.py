"""A survey in FLARE's simulator, as a child process."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from fedshift.flare.simulate_question import simulate_question
from fedshift.flare.workspaces import RunFolders
from fedshift.schema.fingerprint import FILE_NAME, Survey, SurveySpec, read_survey
from fedshift_survey.flare.job import write_survey_job


def simulate_survey(spec: SurveySpec, log: Path) -> Survey:
    """Ask every site in FLARE's simulator, whose log is the only file that stays, as ``log``."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = RunFolders(Path(scratch) / "workspace")
        job = write_survey_job(spec, Path(scratch) / "job" / spec.survey)
        try:
            simulate_question(job, folders, FILE_NAME, sites=len(spec.everyone), timeout=spec.timeout, log=log)
        finally:
            if folders.log.is_file():
                shutil.copyfile(folders.log, log)
        return read_survey(folders.server)
