"""What a site tells of the comparison with its own model cannot contradict itself."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fedshift.schema.paired import LocalComparison

GOOD = LocalComparison(
    score="dice",
    n=6,
    federated=0.75,
    local=0.5,
    round=2,
    verdict="better",
    test="wilcoxon",
    p=0.03125,
    interval=(0.2, 0.3),
    cases=[(0.75, 0.5)] * 6,
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"verdict": "worse"}, "does not follow"),
        ({"p": 0.2}, "does not follow"),
        ({"p": None}, "must come with its test"),
        ({"interval": (1.0, 0.0)}, "must ascend"),
        ({"local": 0.2}, "is not the mean"),
        ({"cases": [(0.5, 0.5)]}, "pairs were given"),
        ({"subjects": 6}, "6 subjects were given for n = 6 cases"),
        ({"subjects": 5}, "enough subjects"),
    ],
)
def test_a_comparison_that_contradicts_itself_is_refused(changes: dict[str, object], reason: str) -> None:
    assert LocalComparison.model_validate_json(GOOD.model_dump_json()) == GOOD
    with pytest.raises(ValidationError, match=reason):
        LocalComparison.model_validate(GOOD.model_dump() | changes)
