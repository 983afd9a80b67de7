"""The lock: every dependency with the versions that are tested and with hashes, and where no index is named."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "deploy" / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {name: needs for name, needs in PROJECT["optional-dependencies"].items() if name not in ("dev", "docs")}


def versions(text: str) -> dict[str, str]:
    """Normalised name to version, without the local part that names a build (``+cpu``)."""
    matches = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s+;]+)", text, flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in matches}


def test_versions_are_those_that_are_tested() -> None:
    tested = versions((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    other = {name: v for name, v in versions(LOCK).items() if name != "setuptools" and tested.get(name) != v}
    assert not other, "run `make lock`, or add them to constraints.txt"


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_all_that_a_user_can_install_is_locked(extra: str) -> None:
    needs = [Requirement(text) for text in (EXTRAS[extra] if extra else PROJECT["dependencies"])]
    locked = versions(LOCK)
    assert not [need.name for need in needs if canonicalize_name(need.name) not in locked], "run `make lock`"
    assert all(need.specifier.contains(locked[canonicalize_name(need.name)]) for need in needs)


def test_every_version_has_hashes_and_no_address_is_in_it() -> None:
    entries = re.split(r"^(?=[A-Za-z0-9])", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE), flags=re.MULTILINE)[1:]
    assert len(entries) == len(versions(LOCK))
    assert not [entry.split()[0] for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry)]
    assert "://" not in LOCK
