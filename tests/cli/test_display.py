"""Progress on the terminal: one line per moment, and every line says so if the data are simulated."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fedshift.cli.display import Lines, describe, steps_shown
from fedshift.reporting.progress import Progress, duration
from fedshift.reporting.table import PHANTOM_NOTE


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def moment(**changes: Any) -> Progress:
    fields = Progress(
        step="training",
        round=3,
        rounds=15,
        sites=["BIDMC", "HK"],
        sites_in=["HK"],
        metric="dice",
        score_round=1,
        score=0.41234,
        best_round=1,
        seconds_left=95.0,
    )
    return fields.model_copy(update=changes)


def test_work_in_steps_has_a_line_for_each_part_with_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter(range(0, 1000, 10))
    with steps_shown(lambda: float(next(seconds))) as show:
        show("scoring", 0, 0)
        for done in range(6):
            show(f"training {1 + done // 3} of 2", done, 6)
        show("training on all", 1, 9)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" left")[0] for line in lines] == [
        "scoring",
        "training 1 of 2",
        "training 2 of 2, 40 s",
        "training on all",
    ]


def test_a_moment_in_one_line() -> None:
    assert describe(None) == "starting the sites"
    assert re.fullmatch(r"round 3/15, 1/2 [a-z ]+, .* dice 0\.412 \(round 1\), 1 min 35 s left", describe(moment()))
    assert describe(moment(step="evaluation", round=15)).startswith("last evaluation, 1/2")
    assert "/2" not in describe(moment(sites_in=[]))


def test_every_line_about_the_phantom_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(phantom=True)
    for shown in (None, moment(step="statistics", round=0), moment(), moment(), moment(step="evaluation", round=15)):
        lines.show(shown)
    first, *others = capsys.readouterr().out.splitlines()
    assert first == PHANTOM_NOTE
    assert len(others) == 4 and all(line.startswith("PHANTOM ") for line in others)
    assert describe(moment(phantom=True)).startswith("PHANTOM round 3/15"), "as the run itself says"


def test_a_site_that_is_left_out_is_named_once_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(phantom=False)
    for round_ in (1, 1, 2):
        lines.show(moment(round=round_, rejected={"HK": "weights: not finite"}))
    out = capsys.readouterr().out
    assert len(re.findall("HK .*: weights: not finite", out)) == 2 and "PHANTOM" not in out
