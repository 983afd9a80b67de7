"""A survey in FLARE's simulator, as a child process."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from fedshift.flare.simulator import RunFailed, SimulatorProcess
from fedshift.flare.workspaces import RunFolders
from fedshift.schema.fingerprint import FILE_NAME, Survey, SurveySpec, read_survey
from fedshift_survey.flare.job import write_survey_job

INTERVAL = 0.1
"""Seconds between two looks at whether the survey is there."""
MOST_AT_A_TIME = 16
"""Clients at a time. With fewer than there are sites, FLARE starts another process for each task."""
START_AND_END = 120.0
"""Seconds for the simulator to start, and to end after the sites' time is over."""


def simulate_survey(spec: SurveySpec, log: Path) -> Survey:
    """Ask every site in FLARE's simulator, whose log is the only file that stays, as ``log``.

    The simulator is ended as soon as the survey is written: FLARE would go on to start and stop clients.
    """
    deadline = time.monotonic() + spec.timeout + START_AND_END
    with tempfile.TemporaryDirectory() as scratch:
        folders = RunFolders(Path(scratch) / "workspace")
        record = folders.server / FILE_NAME
        job = write_survey_job(spec, Path(scratch) / "job" / spec.survey)
        process = SimulatorProcess(job, folders)
        try:
            process.ready()
            process.start(job, threads=min(len(spec.everyone), MOST_AT_A_TIME), environ={})
            while process.returncode is None and not record.is_file() and time.monotonic() < deadline:
                time.sleep(INTERVAL)
        finally:
            process.end()
            if folders.log.is_file():
                shutil.copyfile(folders.log, log)
        if record.is_file():
            return read_survey(folders.server)
    reason = "it took too long" if time.monotonic() >= deadline else process.last_error or "no reason given"
    raise RunFailed("run-failed", f"FLARE's simulator ended without a survey: {reason} (log: {log})")
