"""The script of docs/launchers.md in a real Slurm queue: a site whose steps are jobs, and nothing that stays."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from conftest import small_job
from kits import ROOT, SERVER
from modelfiles import assert_same_model
from slurm import needs_slurm, running_slurm

from fedshift.federation.in_process import run_in_process
from fedshift.schema.results import LAST

from .hospitals import Hospitals

PAGE = (ROOT / "docs" / "launchers.md").read_text(encoding="utf-8")
QUEUED = "HK"


def script_of_the_page(folder: Path) -> Path:
    """As a reader saves it, with the reader's own folders, on a queue without partitions or GPUs."""
    (text,) = re.findall(r"^```text\n(#!/bin/bash\n.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    environment, shared = folder / "fedshift-env" / "bin", "/shared"
    environment.mkdir(parents=True)
    paths = f"{ROOT / 'custom'}:{ROOT}"
    command = f'#!/bin/sh\nPYTHONPATH={paths} OMP_NUM_THREADS=1 exec {sys.executable} -m fedshift.cli "$@"\n'
    (environment / "fedshift").write_text(command, encoding="utf-8")
    (environment / "fedshift").chmod(0o755)
    for line in ("#SBATCH --partition=gpu\n", "#SBATCH --gres=gpu:1\n"):
        assert line in text
        text = text.replace(line, "")
    assert "--begin=now+10minutes " in text
    script = folder / "by_mailbox" / f"{QUEUED}-step.sh"
    script.write_text(text.replace("--begin=now+10minutes ", "").replace(shared, str(folder)), encoding="utf-8")
    return script


@needs_slurm
@pytest.mark.slow
def test_steps_of_a_queue_make_the_model_of_one_process(
    three_sites: Mapping[str, Path], kits_of: Callable[[str], Path], tmp_path: Path
) -> None:
    job = small_job("fedavg", "schedule.rounds=1")
    run_in_process(job, three_sites, tmp_path / "one")
    hospitals = Hospitals(job, three_sites, tmp_path / "by_mailbox", kits_of("prostate"))
    script, others = script_of_the_page(tmp_path), (SERVER, *(s for s in job.task.everyone if s != QUEUED))
    with running_slurm(tmp_path / "slurm") as cluster:
        cluster.ask("sbatch", str(script))
        end = time.monotonic() + 150
        while not hospitals.all_step(*others) or cluster.queue():
            assert time.monotonic() < end, script.with_name(f"{QUEUED}-step.log").read_text(encoding="utf-8")
            time.sleep(1)
    assert "the run has ended" in script.with_name(f"{QUEUED}-step.log").read_text(encoding="utf-8")
    assert_same_model(tmp_path / "one" / LAST, hospitals.run_folder / LAST)
