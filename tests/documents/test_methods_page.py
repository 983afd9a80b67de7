"""docs/methods.md has every method with all its options, and links each to its file, its test and a job that runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from fedshift import cli
from fedshift.cli import _parser
from fedshift.methods import method_set

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "methods.md"


def entry(name: str) -> str:
    """The text of a method's entry."""
    found = re.search(rf"\n### {name}\n(.*?)(?=\n###? |\Z)", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert found is not None, f"no entry '### {name}'"
    return found.group(1)


@pytest.mark.parametrize("name", method_set.available())
def test_a_method_has_a_row_and_an_entry_with_all_its_options(name: str) -> None:
    assert f"\n| [{name}](#{name}) |" in PAGE.read_text(encoding="utf-8")
    text = entry(name)
    options = [option for option in method_set.find(name).Config.model_fields if option != "variant"]
    missing = [option for option in options if f"`{option}" not in text]
    assert not missing, f"options that the entry does not name: {missing}"
    assert "**Paper**" in text
    assert ("**Variants**" in text) is ("variant" in method_set.find(name).Config.model_fields)


@pytest.mark.parametrize("name", method_set.available())
def test_an_entry_links_the_methods_file_its_test_and_a_job_with_it(name: str, tmp_path: Path) -> None:
    line = re.findall(r"^- \*\*File\*\*: (.*)$", entry(name), flags=re.MULTILINE)[0]
    targets = [(PAGE.parent / target).resolve() for target in re.findall(r"\]\(([^)]+)\)", line)]
    assert targets[0] == ROOT / "custom" / "fedshift" / "methods" / f"{name}.py"
    assert targets[1] == ROOT / "tests" / "methods" / f"test_{name}.py"
    assert all(target.is_file() for target in targets)
    if len(targets) == 3:
        assert name in yaml.safe_load(targets[2].read_text(encoding="utf-8"))["methods"]
        return
    words = shlex.split(re.findall(r"`fedshift ([^`]+)`", line)[0])
    assert words[1] == name
    if words[0] == "job":
        assert cli.main([*words, "--out", str(tmp_path)]) == 0
    else:
        assert words[0] == "pooled" and method_set.find(name).Client.trains_on != "site"
        _parser().parse_args(words)


def test_every_entry_is_of_a_method() -> None:
    assert sorted(re.findall(r"\n### (\w+)\n", PAGE.read_text(encoding="utf-8"))) == method_set.available()
