"""docs/mailbox.md as its readers type it: a process for every command, folders that share nothing but one directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kits import ROOT
from modelfiles import assert_same_model

from fedshift.cli import main
from fedshift.federation.in_process import run_in_process
from fedshift.flare.export import read_job_folder
from fedshift.schema.results import BEST, LAST

PAGE = (ROOT / "docs" / "mailbox.md").read_text(encoding="utf-8")
SMALL = [
    *("--set", "data.matrix=32", "network.options.features=4", "schedule.rounds=2", "schedule.local_epochs=1"),
    *("schedule.batch_size=8", "schedule.precision=fp32"),
]
ADDED = {
    "fedshift data phantom": ["--sites", "BIDMC,HK,UCL", "--cases", "3", "--matrix", "32"],
    "fedshift job": SMALL,
    "fedshift site init": ["--allow-root"],
}
"""What makes a command end in seconds, or run on a test machine."""
PARTIES = ("coordinator", "BIDMC", "HK", "UCL")


class Person:
    """Who types, in a folder with a home of its own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, printed: pytest.CaptureFixture[str]) -> None:
        self.home, self._printed = folder / "home", printed
        self.home.mkdir()
        (folder / "deploy").mkdir()
        shutil.copy(ROOT / "deploy" / "project.yml", folder / "deploy")
        patch.chdir(folder)
        for name in [name for name in os.environ if name.startswith(("FEDSHIFT", "XDG"))]:
            patch.delenv(name)
        patch.setenv("HOME", str(self.home))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "custom"), str(ROOT)]))

    def type(self, line: str) -> tuple[int, str]:
        """Exit code and output of a line; those of fedshift run in this process, which saves loading it each time."""
        added = next((more for start, more in ADDED.items() if line.startswith(start)), [])
        name, *words = line.replace("~", str(self.home)).split()
        if name == "fedshift":
            code = main([*words, *added])
            printed = self._printed.readouterr()
            return code, printed.out + printed.err
        command = [sys.executable, "-m", "nvflare.cli"] if name == "nvflare" else [name]
        result = subprocess.run([*command, *words], capture_output=True, encoding="utf-8", check=False)
        return result.returncode, result.stdout + result.stderr


@pytest.mark.slow
def test_three_hospitals_train_by_repeated_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the weights of one process, by the lines that the page gives for cron."""
    torch.set_num_threads(1)
    person = Person(tmp_path, monkeypatch, capsys)
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    blocks = [content for language, content in fences if not language]
    begin, init, steps, looks, *rest = blocks
    for line in (begin + init).splitlines():
        code, said = person.type(line)
        assert code == 0 or "site init" in line, said  # it also says that no server can be reached, and none is needed
    cron = [" ".join(line.split()[6:]) for line in re.findall(r"^\*/5.*", PAGE, flags=re.MULTILINE)]
    assert [line.partition(" $HOME")[0] for line in cron] == ["mailbox step"] * 2
    codes = {}
    for _ in range(12):
        for line in steps.splitlines():
            code, said = person.type(line + (" --until 3d" if "coordinator" in line else ""))
            assert code in (0, 3) and len(said.strip().splitlines()) >= 1, said
            codes[line.rpartition("/")[2]] = code
        if not any(codes.values()):
            break
    assert codes == dict.fromkeys(PARTIES, 0)
    for line in "".join([looks, *rest]).splitlines():
        code, said = person.type(line)
        assert code == 0, said
    assert (tmp_path / "by_mailbox.html").is_file()
    job = read_job_folder(tmp_path / "jobs" / "by_mailbox")
    data = {site: person.home / ".local/share/fedshift/phantom/prostate" / site for site in job.task.sites}
    run_in_process(job, data, tmp_path / "one")
    for file in (BEST, LAST):
        assert_same_model(tmp_path / "one" / file, tmp_path / "by_mailbox" / "coordinator" / "run" / file)


@pytest.mark.slow
def test_no_step_needs_nvflare(tmp_path: Path) -> None:
    """Nor does one that finds nothing to do import torch."""
    code = (
        "import sys; sys.modules['nvflare'] = None\n"
        "import fedshift.mailbox.site_party, fedshift.mailbox.coordinator_party\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
        "import fedshift.mailbox.live_run, fedshift.federation.site.site\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr
