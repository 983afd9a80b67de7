"""What the page of methods is made from: every method's text, the meaning of its options, its test."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedshift.methods import method_set
from fedshift.schema.settings import settings

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / "docs" / "hooks"


@pytest.mark.parametrize("name", method_set.available())
def test_a_method_tells_when_to_use_it_and_what_its_options_mean_and_has_a_test(name: str) -> None:
    module = method_set.find(name)
    assert "\nWhen: " in (module.__doc__ or "")
    assert [setting.key for setting in settings(module.Config) if not setting.meaning] == []
    assert (ROOT / "tests" / "methods" / f"test_{name}.py").is_file()


def test_a_docstring_becomes_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HOOKS))
    from method_pages import markdown  # type: ignore[import-not-found]

    text = "A formula::\n\n    x ← x < y\n\nChoices:\n\n- One, of ``a``\n  and b::\n\n      y\n\n- Two of x < y.\n"
    assert list(markdown(text)) == [
        *("A formula:", "", "```text", "x ← x < y", "```", "**Choices**:", ""),
        *("- One, of `a`", "    and b:", "", "    ```text", "    y", "    ```", "- Two of x &lt; y."),
    ]
