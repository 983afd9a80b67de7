"""No command trains on the phantom unless nothing else is set or it is asked to, and then everything says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from bench.conftest import START, run_here
from conftest import SHAPES, make_image_site

from cli.conftest import Refused
from fedshift.cli import main
from fedshift.flare.export import read_job_folder
from fedshift.reporting.table import PHANTOM_NOTE
from fedshift.schema.manifest import FILE_NAME
from fedshift_bench import estimate, runner

TITLE = "PHANTOM, no patients:"
SHORT = ("--set", "schedule.rounds=1")


def real(root: Path, site: str) -> None:
    """A site whose pictures are not simulated."""
    path = make_image_site(root, site) / FILE_NAME
    path.write_text(path.read_text(encoding="utf-8").replace('"phantom"', '"images"'), encoding="utf-8")


@pytest.fixture
def both(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The phantom of three sites, the same sites' real data, and a working directory with a job and a comparison."""
    for site in "ABC":
        real(home / "mine", site)
    monkeypatch.setattr(estimate, "measure_start", lambda: START)
    monkeypatch.setattr(runner, "start_child", run_here)
    assert main(["job", "fedavg", str(SHAPES), "--name", "job", *SHORT]) == 0
    spec = {
        "name": "small",
        "title": "Small",
        "what": "two methods",
        "task": str(SHAPES),
        "axes": {"method": {"FedAvg": {"methods": "fedavg"}}},
        "seeds": [0],
        "options": {"schedule.rounds": 1},
    }
    Path("small.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    return home


@pytest.fixture
def real_data(both: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`both`, with the real data named."""
    monkeypatch.setenv("FEDSHIFT_DATA", str(both / "mine"))
    return both


COMMANDS = {
    "run": ("run", "jobs/job"),
    "run --in-process": ("run", "jobs/job", "--in-process"),
    "pooled": ("pooled", "all", str(SHAPES), *SHORT),
    "leave-one-out": ("leave-one-out", "fedavg", str(SHAPES), *SHORT),
    "leave-one-out --flare": ("leave-one-out", "fedavg", str(SHAPES), "--flare", *SHORT),
    "cross-site": ("cross-site", str(SHAPES), *SHORT),
}


@pytest.mark.slow
def test_making_the_phantom_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["data", "phantom", "--cases", "5", "--out", str(tmp_path / "made")]) == 0
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("named", ["nosuch", "mine/shapes"])
def test_a_wrong_path_ends_every_command(
    command: tuple[str, ...], named: str, both: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", str(both / named))
    message = refused(*command, code="site-missing", naming=f"{both / named}/shapes/A")
    assert named == "nosuch" or f"FEDSHIFT_DATA={both / 'mine'}" in message
    assert not (both / "runs").exists()


@pytest.mark.parametrize("command", [key for key in COMMANDS if key not in ("run", "leave-one-out --flare")])
def test_the_phantom_can_be_asked_for_and_every_line_says_so(
    command: str, real_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main([*COMMANDS[command], "--phantom"]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if "round 1/1" in line or "statistics" in line or "evaluation" in line]
    assert len(lines) >= 3 and all(line.startswith("PHANTOM ") for line in lines)
    assert TITLE in out
    shutil.rmtree("runs")
    assert main([*COMMANDS[command]]) == 0
    assert "phantom" not in capsys.readouterr().out.casefold().replace(str(real_data).casefold(), "")


def test_a_comparison_says_so_before_and_after(real_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    words = ["compare", "small.yaml", "--jobs", "1"]
    assert main([*words, "--dry-run"]) == 0
    assert "phantom" not in capsys.readouterr().out.casefold().replace(str(real_data).casefold(), "")
    assert main([*words, "--dry-run", "--phantom"]) == 0
    out = capsys.readouterr().out
    assert PHANTOM_NOTE in out and f"{TITLE} cells to run" in out
    assert main([*words, "--phantom"]) == 0
    out = capsys.readouterr().out
    shown = [line for line in out.splitlines() if " cells ended" in line]
    assert shown and all(line.startswith("PHANTOM ") for line in shown) and f"{TITLE} Small" in out
    assert main([*words, "--dry-run"]) == 0
    assert "0 are done" in capsys.readouterr().out, "the other data are other cells"


def test_a_comparison_with_a_wrong_path_says_what_is_lacking(
    both: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", str(both / "nosuch"))
    assert main(["compare", "small.yaml", "--jobs", "1"]) == 1
    assert f"{both}/nosuch/shapes/A" in capsys.readouterr().out


def test_a_job_does_not_hold_the_choice(both: Path) -> None:
    assert "phantom" not in str(read_job_folder(both / "jobs" / "job").dump())
