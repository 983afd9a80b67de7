"""Names of classes are plain words, wherever they come from."""

from __future__ import annotations

import pytest
from conftest import small_image_job

from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec, read_yaml
from fedshift.schema.task_files import apps_dir, tasks

BAD = [
    "$__import__('os').system('id')",
    "@network",
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
    with pytest.raises(ConfigError, match="cannot be the name of a class"):
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
