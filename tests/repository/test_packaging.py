"""The wheel, built twice with the same bytes, works in another folder with all that it needs inside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


def run(*command: str, cwd: Path, **environ: str) -> str:
    result = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environ}, capture_output=True, encoding="utf-8", check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel was unpacked into, as pip does it."""
    folder = tmp_path_factory.mktemp("wheel")
    # It compares two builds. The build backend is a development dependency, so nothing is downloaded.
    run(str(CHECKOUT / "scripts" / "build.sh"), str(folder / "dist"), sys.prefix, cwd=folder)
    wheel = next((folder / "dist").glob("*.whl"))
    target = folder / "site"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel), cwd=folder)
    return target


@pytest.mark.slow
def test_tasks_and_jobs_from_another_folder(installed: Path, tmp_path: Path) -> None:
    where = run(
        sys.executable, "-c", "import fedshift; print(fedshift.__file__)", cwd=tmp_path, PYTHONPATH=str(installed)
    )
    assert Path(where.strip()).is_relative_to(installed)
    listed = run(sys.executable, "-m", "fedshift.cli", "tasks", cwd=tmp_path, PYTHONPATH=str(installed))
    (prostate,) = [line for line in listed.splitlines() if line.startswith("prostate ")]
    assert prostate.endswith("protocols default, nnunet, quick, fedfa, fedrdn")
    assert len(listed.splitlines()) == len(list((CHECKOUT / "apps").glob("*.yaml")))
    command = (sys.executable, "-m", "fedshift.cli", "job", "fedfa", "prostate", "--out", "jobs")
    run(*command, cwd=tmp_path, PYTHONPATH=str(installed))
    assert (tmp_path / "jobs" / "fedfa_prostate" / "meta.json").is_file()


@pytest.mark.slow
def test_data_preparation_is_inside(installed: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "fedshift.cli", "data", "phantom", "--out", "p", "--sites", "HK", "--cases", "3")
    run(*command, cwd=tmp_path, PYTHONPATH=str(installed))
    assert (tmp_path / "p" / "prostate" / "HK" / "manifest.json").is_file()


def test_the_command_is_installed_with_the_checkout(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "fedshift"
    assert "fedshift 0." in run(str(command), "--version", cwd=tmp_path)
    assert "prostate" in run(str(command), "tasks", cwd=tmp_path)


@pytest.mark.slow
def test_the_command_line_gives_one_sentence_for_a_mistake(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "fedshift.cli", "job", "fedfaa", "prostate"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert result.returncode == 2
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and "did you mean 'fedfa'" in lines[0]
