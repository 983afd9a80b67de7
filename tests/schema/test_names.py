"""Names of classes are plain words, wherever they come from, and other texts are lines that can be printed."""

from __future__ import annotations

import pytest
from conftest import small_image_job
from errors import raises

from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.names import MOST_TEXT, one_line, printable
from fedshift.schema.task_files import apps_dir, tasks
from fedshift.schema.yaml_file import read_yaml

BAD = [
    "$__import__('os').system('id')",
    "@net",
    "%macro",
    "=1+1",
    "-rf",
    "",
    " x",
    "x ",
    "a\nb",
    "<b>",
    "a" * 65,
    "a;b",
]


@pytest.mark.parametrize("name", BAD)
def test_what_a_tool_could_act_upon_is_no_name_of_a_class(name: str) -> None:
    job = small_image_job("fedavg").dump()
    job["task"]["classes"][1] = name
    with raises("invalid-value", naming="task.classes"):
        JobSpec.parse(job, where="job")


@pytest.mark.parametrize(
    "name", ["background", "transition zone", "3", "left atrium (LA)", "Mouse/trackpad", "Prostata-Rand", "größe"]
)
def test_ordinary_names_are_taken(name: str) -> None:
    job = small_image_job("fedavg").dump()
    job["task"]["classes"][1] = name
    assert JobSpec.parse(job, where="job").task.classes[1] == name


def test_the_committed_tasks_have_such_names() -> None:
    for task in tasks():
        assert read_yaml(apps_dir() / f"{task}.yaml")["classes"]


def test_a_text_from_elsewhere_becomes_one_short_line() -> None:
    forged = "x\n2026-11-23 12:00:00 INFO    fedshift: finished\r\x1b[2J\u2028\u202e\x9b31m\x00y"
    assert one_line(forged).split() == [*forged.split()[:5], "finished", "[2J", "31m", "y"]
    assert len(one_line("a" * 10**6)) == MOST_TEXT
    assert one_line("\n\t") == "" and one_line(None) == "None" and one_line("größe 3 – β") == "größe 3 – β"


def test_what_is_printed_keeps_its_lines_and_changes_no_terminal() -> None:
    assert printable("a\nb\tc ü") == "a\nb\tc ü"
    assert printable("\x1b[31m\r\x07\x9b\u202e\udc80") == r"\x1b[31m\r\x07\x9b\u202e\udc80"


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31m", "x" * 3000])
def test_a_job_that_names_an_odd_protocol_is_refused(text: str) -> None:
    job = small_image_job("fedavg").dump()
    job["task"]["protocol"] = text
    with pytest.raises(ConfigError, match=r"job: 'task\.protocol':? ") as error:
        JobSpec.parse(job, where="job")
    assert str(error.value).isprintable() and len(str(error.value)) < 200
