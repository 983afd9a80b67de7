"""Fixtures of the tests of comparisons."""

from __future__ import annotations

import pytest

from fedshift.reporting.comparison import estimate

START = 2.0


@pytest.fixture(autouse=True)
def known_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of a process takes seconds: it is not measured again in every test."""
    monkeypatch.setattr(estimate, "measure_start", lambda: START)
