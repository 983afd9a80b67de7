"""``fedshift watch`` and ``fedshift status``: what is found, in one line, as lines, as a page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert
from reporting.watch.standin import SITES, progress_at

from cli.conftest import Refused
from fedshift.cli import main
from fedshift.cli import watch as watch_module
from fedshift.federation.run_lock import lock_file, lock_run
from fedshift.reporting.progress import FILE_NAME, Progress


def written(folder: Path, progress: Progress) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text(progress.model_dump_json(by_alias=True), encoding="utf-8")
    return folder


def test_status_of_a_kit_warns_of_the_end_of_its_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its own stream, so that programs read the one line as before."""
    startup, now = tmp_path / "startup", datetime.now(UTC)
    startup.mkdir()
    (startup / "fed_server.json").touch()
    written(tmp_path / "ID", progress_at(3))
    private, public = generate_keys()
    for days, warned in ((20, True), (100, False)):
        span = {"not_valid_before": now - timedelta(days=9), "not_valid_after": now + timedelta(days=days)}
        certificate = generate_cert(Identity("fl.example.org"), Identity("root"), private, public, **span)
        (startup / "server.crt").write_bytes(serialize_cert(certificate))
        assert main(["status", str(tmp_path)]) == 0
        told = capsys.readouterr()
        assert len(told.out.splitlines()) == 1
        assert ("fl.example.org" in told.err) == warned


@pytest.mark.parametrize("place", [".", "server/simulate_job"])
def test_status_in_one_line_and_as_an_exit_code(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / place, progress_at(5, rounds=10, job="first\x1b[2J"))
    assert main(["status", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("first\\x1b[2J: running, PHANTOM round 5/10, 2/6 ")
    assert all(words in line for words in ("dice 0.633 (round 3)", "awaited: HK RUNMC UCL", "4 updates"))
    for state, code in (("finished", 0), ("failed", 1), ("stopped", 1)):
        written(tmp_path / place, progress_at(10, rounds=10, state=state, reason="" if code == 0 else "no\nquorum"))
        assert main(["status", str(tmp_path)]) == code
        assert ("no quorum" in capsys.readouterr().out) == bool(code)


def test_what_holds_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    for name in "ab":
        written(tmp_path / "many" / name, progress_at(3))
    for role in ("client", "server", "admin"):
        (tmp_path / "kits" / role / "startup").mkdir(parents=True)
        (tmp_path / "kits" / role / "startup" / f"fed_{role}.json").touch()
    a = tmp_path / "many" / "a"
    for words, code, naming in (
        (("none",), "not-a-folder", "none"),
        ((".",), "several-runs", "2 runs"),
        (("many",), "several-runs", str(a)),
        (("many/a", "--job", "x"), "options-clash", "--job"),
        (("kits/client",), "wrong-kit", "client"),
        (("kits/server",), "no-run", "server"),
        (("kits/admin",), "damaged-kit", "client.crt"),
    ):
        refused("status", tmp_path / words[0], *words[1:], code=code, naming=naming)
    written(tmp_path / "kits" / "server" / "one", progress_at(3, job="older"))
    os.utime(tmp_path / "kits" / "server" / "one" / FILE_NAME, (1, 1))
    written(tmp_path / "kits" / "server" / "two", progress_at(3, job="newer"))
    for job, name in (([], "newer"), (["--job", "one"], "older")):
        assert main(["status", str(tmp_path / "kits" / "server"), *job]) == 0
        assert capsys.readouterr().out.startswith(f"{name}: ")
    refused("status", tmp_path / "kits" / "server", "--job", "three", code="no-run", naming="job three")
    refused("watch", a, "--text", "--port", "1", code="options-clash", naming="--port")


def test_text_is_lines_until_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server").mkdir()
    moments = iter(
        [
            progress_at(1, rounds=3),
            progress_at(1, rounds=3),
            progress_at(3, rounds=3, rejected={"HK": "norm\nof \x1b[2J"}),
            progress_at(3, rounds=3, state="finished", sites_in=SITES),
        ]
    )
    monkeypatch.setattr("time.sleep", lambda seconds: written(tmp_path / "server" / "simulate_job", next(moments)))
    assert main(["watch", str(tmp_path), "--text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "starting the sites"
    assert lines[1].startswith("PHANTOM round 1/3")
    assert len([line for line in lines if "round 1/3" in line]) == 1
    assert not any("\x1b" in line for line in lines)
    assert lines[-1].startswith("fedfa_fedrdn_prostate: finished, PHANTOM 3 rounds")


def test_the_page_is_there_until_ctrl_c(tmp_path: Path) -> None:
    written(tmp_path, progress_at(5))
    # Tests that run in the background of a shell inherit an ignored SIGINT, and so would the command.
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from fedshift.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", script, "watch", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url)
        with urllib.request.urlopen(f"{url}snapshot.json", timeout=60) as answer:
            assert b"fedfa_fedrdn_prostate" in answer.read()
        process.send_signal(2)
        assert process.wait(240) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_browser_gets_the_address_by_a_file_of_this_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.uname", lambda: os.uname_result(("Linux", "", "", "", "")))
    show = watch_module._open
    show("http://127.0.0.1:1/secret/", tmp_path)
    assert opened == [], "without a screen it could only be a browser in this terminal"
    monkeypatch.setenv("DISPLAY", ":0")
    show("http://127.0.0.1:1/secret/", tmp_path)
    (url,) = opened
    file = Path(url.removeprefix("file://"))
    assert "secret" not in url and "/secret/" in file.read_text(encoding="utf-8")
    assert file.stat().st_mode & 0o077 == 0


def test_a_run_that_cannot_be_asked_for_is_an_error(tmp_path: Path, refused: Refused) -> None:
    refused("status", tmp_path, code="no-run", naming=str(tmp_path))
    (tmp_path / FILE_NAME).write_text("{", encoding="utf-8")
    refused("status", tmp_path, code="no-run", naming=FILE_NAME)


def test_a_run_that_was_killed_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "run", progress_at(5, rounds=10, job="lost"))
    os.utime(folder / FILE_NAME, (1, 1))
    assert main(["status", str(folder)]) == 0
    lock_file(folder).write_text("1\n", encoding="utf-8")
    for words in (["status", str(folder)], ["watch", str(folder), "--text"]):
        assert main(words) == 1
        assert "lost: failed" in (out := capsys.readouterr().out) and "--resume" in out
    with lock_run(folder):
        assert main(["status", str(folder)]) == 0
