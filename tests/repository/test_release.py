"""The release script refuses what must not be released; version, changelog and citation say the same."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import fedshift

ROOT = Path(__file__).parents[2]
FILES = ("scripts/release.sh", "custom/fedshift/__init__.py", "CHANGELOG.md", "CITATION.cff")


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clean git repository with what the script looks at."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "all")


def check(folder: Path) -> tuple[int, str]:
    result = subprocess.run(
        [str(folder / "scripts" / "release.sh"), "--check"], capture_output=True, encoding="utf-8", check=False
    )
    return result.returncode, result.stdout + result.stderr


def test_a_clean_checkout_can_be_released(checkout: Path) -> None:
    code, printed = check(checkout)
    assert code == 0 and fedshift.__version__ in printed


def test_changes_that_are_not_committed_are_refused(checkout: Path) -> None:
    (checkout / "new.txt").write_text("new", encoding="utf-8")
    code, printed = check(checkout)
    assert code != 0 and "working tree" in printed


@pytest.mark.parametrize("name", FILES[1:])
def test_another_version_in_one_file_is_refused(checkout: Path, name: str) -> None:
    text = (checkout / name).read_text(encoding="utf-8")
    (checkout / name).write_text(text.replace(fedshift.__version__, "7.7.7"), encoding="utf-8")
    commit(checkout)
    code, printed = check(checkout)
    assert code != 0 and ("CITATION.cff" if name == "CITATION.cff" else "7.7.7") in printed


def test_a_version_is_released_once(checkout: Path) -> None:
    git(checkout, "tag", f"v{fedshift.__version__}")
    code, printed = check(checkout)
    assert code != 0 and "tag" in printed


def test_the_script_never_pushes() -> None:
    lines = (ROOT / FILES[0]).read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if re.match(r"\s*(git push|twine)", line)]


def test_hooks_and_citation_can_be_read() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert lint is not None
    tools = {Path(hook["entry"].split()[0]).name for hook in hooks}
    assert tools == set(re.findall(r"\$\(BIN\)/([\w-]+)", lint.group(1)))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["type"] == "software" and citation["version"] == fedshift.__version__


def test_every_target_of_the_makefile_is_in_its_help() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.findall(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)[0].split()
    said = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, encoding="utf-8", check=True).stdout
    assert set(re.findall(r"^  make ([\w-]+) +\S", said, flags=re.MULTILINE)) == set(phony)
