"""What is checked of every command line, and options that several commands share."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cli.conftest import Refused
from fedshift import cli
from fedshift.cli.arguments import chosen_device, phantom_data
from fedshift.data.locate import DATA, DEVICE, phantom_home


@pytest.mark.parametrize("given", [" mine", "mine ", "mine / inner", "mine\n"])
def test_a_stray_space_in_a_path_is_named(given: str, bare: Path, refused: Refused) -> None:
    refused("job", "fedavg", "prostate", "--out", given, code="invalid-value", naming=f"out is {given!r}")
    assert not list(bare.iterdir())


def test_a_folder_that_is_called_so_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "mine ").mkdir()
    assert cli.main(["job", "fedavg", "prostate", "--out", str(tmp_path / "mine ")]) == 0


@pytest.mark.parametrize("command", [["job", "fedavg", "prostate"], ["data", "phantom"], ["pooled", "all", "prostate"]])
def test_a_negative_seed_is_refused(command: list[str], bare: Path, refused: Refused) -> None:
    refused(*command, "--seed", "-1", code="invalid-value", naming=("seed", "-1"))
    assert not list(bare.iterdir())


@pytest.mark.parametrize("former", ["/mine", None])
@pytest.mark.parametrize("name", [DATA, DEVICE])
def test_what_is_asked_for_holds_as_long_as_a_command_runs(
    name: str, former: str | None, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if former is not None:
        monkeypatch.setenv(name, former)

    def asked(for_it: bool) -> AbstractContextManager[None]:
        return phantom_data(for_it) if name == DATA else chosen_device("cpu" if for_it else None)

    with asked(False):
        assert os.environ.get(name) == former
    with pytest.raises(KeyboardInterrupt), asked(True):
        assert os.environ[name] == (str(phantom_home()) if name == DATA else "cpu")
        raise KeyboardInterrupt
    assert os.environ.get(name) == former


@pytest.mark.parametrize("command", [["run", "jobs/none"], ["pooled", "all", "prostate"]])
def test_a_device_that_is_not_there_is_refused_before_anything_else(
    command: list[str], bare: Path, refused: Refused
) -> None:
    refused(*command, "--device", "abacus", code="device-unusable", naming="'abacus'")
    assert not list(bare.iterdir())


@pytest.mark.parametrize(
    ("words", "usage", "message"),
    [
        ("predict m.pt a.nii --out o --overlayy", "predict", "unknown option --overlayy; did you mean --overlay?"),
        ("job fedfa prostate --hold-out=HK", "job", "unknown option --hold-out; did you mean --held-out?"),
        ("data check here --maskz there", "data check", "unknown option --maskz; did you mean --masks?"),
        ("data prepare pacs --source x --subsite 2 --qq", "data prepare pacs", "unknown option --qq"),
        ("tasks prostate", "tasks", "unexpected argument 'prostate'"),
        ("run job --log rond", "run", "argument --log: unknown value 'rond'; did you mean 'rounds'?"),
        ("rn job", "", "unknown command 'rn'; did you mean 'run'?"),
        ("data chck x", "data", "unknown command 'chck'; did you mean 'check'?"),
        ("--debugg tasks", "", "unknown option --debugg; did you mean --debug?"),
        ("run job --parallel two", "run", "invalid int value: 'two'"),
    ],
)
def test_a_mistake_is_named_below_the_usage_of_its_command(
    words: str, usage: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(" ".join(["usage: fedshift", *usage.split(), "["])) and message in error
