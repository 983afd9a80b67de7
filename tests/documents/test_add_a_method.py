"""The example in docs/add-a-method.md does what the page says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import small_job

from fedshift import methods
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import LAST

PAGE = Path(__file__).parents[2] / "docs" / "add-a-method.md"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The page's method, in place as a file of its name; returns the page's test."""
    method, test = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    folder = tmp_path / "methods"
    folder.mkdir()
    (folder / "brightness.py").write_text(method, encoding="utf-8")
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(folder)])
    yield test
    sys.modules.pop("fedshift.methods.brightness", None)
    vars(methods).pop("brightness", None)


def test_the_pages_test_passes(example: str) -> None:
    names: dict[str, object] = {}
    exec(compile(example, str(PAGE), "exec"), names)
    (check,) = [value for name, value in names.items() if name.startswith("test_")]
    check()  # type: ignore[operator]


def test_the_pages_method_is_found_and_trains(example: str, three_sites: dict[str, Path], tmp_path: Path) -> None:
    assert "brightness" in method_set.available()
    job = small_job("brightness+fedfa", "brightness.strength=0.5")
    run = run_in_process(job, three_sites, tmp_path)
    assert [record.rejected for record in run.results.rounds] == [[], []]
    told = read_model_file(tmp_path / LAST)["methods"]["brightness"]["mean"]
    assert 0 < float(told) < 1 and np.isfinite(float(told))
    with pytest.raises(ConfigError, match="strength"):
        small_job("brightness", "brightness.strength=2")
