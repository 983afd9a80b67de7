"""docs/methods.md knows every method and every option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedshift.methods import method_set

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


@pytest.mark.parametrize("name", method_set.available())
def test_a_method_has_a_row_and_an_entry_with_all_its_options(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"\n| [{name}](#{name}) |" in page
    found = re.search(rf"\n### {name}\n(.*?)(?=\n###? |\Z)", page, flags=re.DOTALL)
    assert found is not None, f"no entry '### {name}'"
    entry = found.group(1)
    options = [option for option in method_set.find(name).Config.model_fields if option != "variant"]
    missing = [option for option in options if f"`{option}" not in entry]
    assert not missing, f"options that the entry does not name: {missing}"
    assert "**Paper**" in entry
    assert ("**Variants**" in entry) is ("variant" in method_set.find(name).Config.model_fields)


def test_every_entry_is_of_a_method() -> None:
    assert sorted(re.findall(r"\n### (\w+)\n", PAGE.read_text(encoding="utf-8"))) == method_set.available()
