"""The runbook's sentences, the systemd units and the Dockerfile name commands, options and files that exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from configparser import RawConfigParser
from pathlib import Path

import kits
import pytest
from nvflare import cli as nvflare_cli

from fedshift.cli import _parser

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text(encoding="utf-8")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")

MENTIONED = sorted(set(re.findall(r"`((?:fedshift|nvflare) [a-z][^`]*)`", RUNBOOK)))


# --- the runbook --------------------------------------------------------------------------------------------


def parse(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the interpreter unless the command's own parser takes it."""
    name, *words = shlex.split(command)
    if name == "nvflare":
        monkeypatch.setattr("sys.argv", [name, *words])
        nvflare_cli.parse_args(name)
    else:
        _parser().parse_args(words)


@pytest.mark.parametrize("command", MENTIONED)
def test_a_command_that_a_sentence_of_the_runbook_mentions_exists(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It need not have all that the command requires."""
    try:
        parse(command.replace(" … ", " "), monkeypatch)
    except SystemExit:
        printed = capsys.readouterr()
        assert "arguments are required" in printed.out + printed.err


def test_every_file_that_the_runbook_names_exists() -> None:
    links = [target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", RUNBOOK)]
    paths = re.findall(r"\b(?:deploy|docs)/[\w./@-]*\w|\bconstraints\.txt", re.sub(r"\]\([^)]+\)", "", RUNBOOK))
    assert links and paths
    missing = [link for link in links if not (DEPLOY / link).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert not missing


def test_the_runbook_names_no_machine() -> None:
    assert not re.search(r"/(?:tmp|root|home/\w+|work)/", RUNBOOK)


# --- what starts a kit --------------------------------------------------------------------------------------


def unit(path: Path) -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path, encoding="utf-8")
    return parser


def starts() -> dict[str, str]:
    """Unit or Dockerfile -> what it gives to the shell."""
    found = {}
    for path in UNITS:
        shell, option, line = shlex.split(unit(path)["Service"]["ExecStart"])
        assert (shell, option) == ("/bin/sh", "-c")
        found[path.name] = line
    command = re.search(r"^CMD (.*)$", DOCKERFILE, flags=re.MULTILINE)
    assert command is not None
    shell, option, line = json.loads(command.group(1))
    assert (shell, option) == ("/bin/sh", "-c")
    return {**found, "Dockerfile": line}


@pytest.mark.parametrize("name", starts())
@pytest.mark.parametrize(
    ("script", "again"),
    [("exit 0", False), ("touch shutdown.fl", False), ("touch restart.fl", True), ("exit 3", True)],
    ids=["ends well", "shutdown", "restart", "fails"],
)
def test_a_kit_is_started_again_after_a_failure_or_flares_restart(
    name: str, script: str, again: bool, tmp_path: Path
) -> None:
    start = tmp_path / "startup" / "sub_start.sh"
    start.parent.mkdir()
    start.write_text(f'#!/bin/sh\ntest "$*" = --once || exit 0\n{script}\n', encoding="utf-8")
    start.chmod(0o755)
    result = subprocess.run(["/bin/sh", "-c", starts()[name]], cwd=tmp_path, check=False)
    assert (result.returncode != 0) is again


@pytest.mark.slow
def test_kits_have_the_script_and_the_option_that_starts_them(kits_of: Callable[[str], Path]) -> None:
    folder = kits_of("prostate")
    for name in ("HK", kits.SERVER):
        script = (folder / name / "startup" / "sub_start.sh").read_text(encoding="utf-8")
        assert "--once)" in script and "restart.fl" in script and "exec python3" in script


# --- systemd ------------------------------------------------------------------------------------------------


def test_there_is_a_unit_for_a_site_and_one_for_the_server() -> None:
    assert [path.name for path in UNITS] == ["fedshift-server.service", "fedshift-site@.service"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_nothing_in_a_unit(path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is missing: install systemd to check the units")
    result = subprocess.run([tool, "verify", str(path)], capture_output=True, encoding="utf-8", check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_writes_to_its_kit_only_and_not_as_root(path: Path) -> None:
    service = unit(path)["Service"]
    assert service["ProtectSystem"] == "strict"
    assert service["ReadWritePaths"] == service["WorkingDirectory"]
    assert service["User"] != "root" and service["NoNewPrivileges"] == "true"
    assert service["CapabilityBoundingSet"] == ""
    assert service["Restart"] == "on-failure"


def test_the_units_differ_only_where_they_must() -> None:
    site, server = (
        dict(unit(DEPLOY / "systemd" / f"fedshift-{name}.service")["Service"]) for name in ("site@", "server")
    )
    differ = {key for key in site.keys() | server.keys() if site.get(key) != server.get(key)}
    assert differ == {"WorkingDirectory", "ReadWritePaths", "Environment", "PrivateDevices"}


# --- Docker -------------------------------------------------------------------------------------------------


def test_the_image_is_of_the_tested_python_without_root_and_without_a_package_index() -> None:
    assert re.search(r"^FROM python:3\.11-slim$", DOCKERFILE, flags=re.MULTILINE)
    (user,) = re.findall(r"^USER (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    (install,) = re.findall(r"pip install [^&\n]*", DOCKERFILE)
    assert "--no-index" in install and "fedshift" in install


def test_the_image_is_made_from_what_make_wheelhouse_leaves() -> None:
    """The context is the wheelhouse: nothing is copied from the checkout, so no file of it can be missing there."""
    assert not re.search(r"^(COPY|ADD) ", DOCKERFILE, flags=re.MULTILINE)
    assert "--mount=type=bind,target=/wheels" in DOCKERFILE
    assert re.search(r"^wheelhouse:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
