"""The server of a kit that is a copy, with real processes: it does not start while the first one runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .deployed import SERVER, Deployed, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_server_of_a_copied_kit_does_not_touch_the_first_ones_jobs(tmp_path: Path) -> None:
    with Deployed(tmp_path / "federation", {}) as federation:
        federation.start(SERVER)
        wait_for(lambda: "Server started" in federation.log(SERVER), 240, "the server")
        copy = Path(shutil.copytree(federation.kits / SERVER, tmp_path / "copy"))
        done = subprocess.run(
            [
                *(sys.executable, "-u", "-m", "nvflare.private.fed.app.server.server_train", "-m", str(copy)),
                *("-s", "fed_server.json", "--set", "secure_train=true", "org=hub", "config_folder=config"),
            ],
            cwd=copy,
            env=federation.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=240,
            check=False,
        )
        assert done.returncode != 0
        number = federation.processes[SERVER].pid
        assert f"store/jobs is in use by another server (process {number})" in done.stdout
        assert "Server started" not in done.stdout
        assert federation.processes[SERVER].poll() is None
