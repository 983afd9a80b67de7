"""A survey in FLARE's simulator, as a child process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fedshift.flare.run_folders import RunFolders
from fedshift.flare.simulate import RunFailed
from fedshift.flare.start import Start
from fedshift.flare.survey.job import write_survey_job
from fedshift.schema.fingerprint import FILE_NAME, Survey, SurveySpec, read_survey
from fedshift.tasks.machine import cores


def simulate_survey(spec: SurveySpec, workspace: Path) -> Survey:
    """Ask every site in FLARE's simulator. ``workspace`` is replaced.

    Raises:
        RunFailed: the simulator ended without a survey.
    """
    shutil.rmtree(workspace, ignore_errors=True)
    folders = RunFolders(workspace.absolute())
    with tempfile.TemporaryDirectory() as scratch:
        job = write_survey_job(spec, Path(scratch) / spec.survey)
        threads = min(cores(), len(spec.everyone))
        start: Start = {"argv": [str(job), "-w", str(folders.workspace), "-t", str(threads)], "env": {}}
        done = subprocess.run(
            [sys.executable, "-m", "fedshift.flare.simulator", str(job)],
            input=json.dumps(start) + "\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    folders.workspace.mkdir(parents=True, exist_ok=True)
    folders.log.write_text(done.stdout, encoding="utf-8")
    if not (folders.server / FILE_NAME).is_file():
        errors = [line.partition(" - ERROR - ")[2] for line in done.stdout.splitlines() if " - ERROR - " in line]
        reason = errors[-1] if errors else "no reason given"
        raise RunFailed(f"FLARE's simulator ended without a survey: {reason} (log: {folders.log})")
    return read_survey(folders.server)
