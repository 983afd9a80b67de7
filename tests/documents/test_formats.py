"""``fedshift data formats`` prints what is read, converted, warned of and refused, as the pages show it."""

from __future__ import annotations

import pytest

from fedshift import cli
from fedshift.data.reading_rules import RULES, table


def test_the_command_prints_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "formats"]) == 0
    assert capsys.readouterr().out == "\n\n".join(map(table, RULES)) + "\n"
