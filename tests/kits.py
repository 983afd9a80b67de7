"""Startup kits for tests, made by FLARE's own command from the projects in ``deploy/``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = {"prostate": "project.yml", "office_caltech": "project_classification.yml"}
"""Task -> its project."""
SERVER = "localhost"


def provision(task: str, folder: Path) -> Path:
    """``nvflare provision`` of a task's project; returns the folder that holds the kits."""
    return provision_project(ROOT / "deploy" / PROJECTS[task], folder)


def provision_project(project: Path, folder: Path) -> Path:
    """``nvflare provision`` of any project file."""
    (folder / "home").mkdir(parents=True, exist_ok=True)
    result = subprocess.run(
        [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(project), "-w", str(folder), "--force"],
        cwd=folder,
        env=os.environ | {"HOME": str(folder / "home")},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    name = yaml.safe_load(project.read_text(encoding="utf-8"))["name"]
    return folder / name / "prod_00"
