"""Each rule of `fedshift.data.reading_rules` has a test that draws its input, and each such test a rule."""

import re
from pathlib import Path

from fedshift.data.reading_rules import RULES

TESTS = Path(__file__).parents[1]


def test_each_rule_is_shown_by_a_test_and_each_such_test_shows_a_rule():
    marks = {
        name
        for file in TESTS.rglob("test_*.py")
        for name in re.findall(r"mark\.reads\(\s*\"([^\"]+)\"", file.read_text(encoding="utf-8"))
    }
    rules = {f"{group}: {rule.input}" for group, of_group in RULES.items() for rule in of_group}
    assert rules == marks
