"""Mistakes on the command line: the usage of the command that was called, and the nearest name."""

from __future__ import annotations

import pytest

from fedshift import cli


@pytest.mark.parametrize(
    ("words", "usage", "message"),
    [
        (
            "predict m.pt a.nii --out o --overlayy",
            "fedshift predict",
            "unknown option --overlayy; did you mean --overlay?",
        ),
        ("job fedfa prostate --hold-out=HK", "fedshift job", "unknown option --hold-out; did you mean --held-out?"),
        ("data check here --maskz there", "fedshift data check", "unknown option --maskz; did you mean --masks?"),
        ("data prepare pacs --source x --subsite 2 --qq", "fedshift data prepare pacs", "unknown option --qq"),
        ("tasks prostate", "fedshift tasks", "unexpected argument 'prostate'"),
        ("run job --log rond", "fedshift run", "argument --log: unknown value 'rond'; did you mean 'rounds'?"),
        ("rn job", "fedshift", "unknown command 'rn'; did you mean 'run'?"),
        ("data chck x", "fedshift data", "unknown command 'chck'; did you mean 'check'?"),
        ("--debugg tasks", "fedshift", "unknown option --debugg; did you mean --debug?"),
        ("run job --parallel two", "fedshift run", "invalid int value: 'two'"),
    ],
)
def test_a_mistake_is_named_below_the_usage_of_its_command(
    words: str, usage: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"usage: {usage} [")
    assert message in error


def test_a_method_is_shown_whatever_the_case_of_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["methods", "FedFA"]) == 0
    shown = capsys.readouterr().out
    assert "fedfa.p = " in shown and "What leaves a site" in shown
    assert cli.main(["methods", "FedFAA"]) == 2
    assert "did you mean 'fedfa'" in capsys.readouterr().err
