"""The command line as a process: what it loads, and how it ends when nobody reads on."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedshift import cli


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("--help", ("PIL", "torch", "numpy", "rich")),
        ("methods", ("PIL", "torch")),
        ("tasks", ("PIL", "torch")),
        ("data prepare own --help", ("PIL", "torch")),
    ],
)
def test_what_a_command_does_not_need_is_not_loaded(command: str, unneeded: tuple[str, ...]) -> None:
    code = (
        "import atexit, sys; from fedshift import cli;"
        f"found = lambda: [name for name in sys.modules if name.startswith('data_prep.') or name in {unneeded!r}];"
        "atexit.register(lambda: print(found(), file=sys.stderr));"
        f"sys.exit(cli.main({command.split()!r}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert result.stdout and result.stderr.strip() == "[]"


def test_a_relative_root_of_the_data_is_the_same_for_processes_that_work_elsewhere(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", "rel/out")
    assert cli.main(["tasks"]) == 0
    assert os.environ["FEDSHIFT_DATA"] == str(bare / "rel" / "out")


def test_the_help_lists_every_data_set_and_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(["data", "prepare", *words, "--help"])
        assert ended.value.code == 0
        return " ".join(capsys.readouterr().out.split())

    every = said()
    assert "pacs PACS: " in every and "rotated_mnist Rotated MNIST: " in every
    pacs = said("pacs")
    assert "--source DIR" in pacs and "--subsites N" in pacs and "Hospedales" in pacs
    assert "(default: Clipart)" in said("officehome") and "--subsites" not in said("digits")


def test_an_error_of_the_machine_is_a_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    job = ["job", "fedavg", "prostate", "--out", str(tmp_path / "file")]
    assert cli.main(job) == 2
    printed = capsys.readouterr().err
    assert re.fullmatch(r"fedshift: \S+/file/\S+ .*\(Not a directory\).*\n", printed)
    with pytest.raises(NotADirectoryError):
        cli.main(["--debug", *job])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedshift.cli.methods.show_tasks", full)
    assert cli.main(["tasks"]) == 2
    assert "(No space left on device)" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["tasks", "tasks --help"])
def test_a_reader_that_has_gone_is_no_error_to_speak_of(command: str) -> None:
    words = [sys.executable, "-m", "fedshift.cli", *command.split()]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    read, write = os.pipe()
    os.close(read)
    try:
        result = subprocess.run(
            words, stdout=write, stderr=subprocess.PIPE, encoding="utf-8", env=buffered, check=False
        )
    finally:
        os.close(write)
    assert (result.returncode, result.stderr) == (1, "")
