"""The simulator's workers get paths with blanks and quotes as they are."""

from __future__ import annotations

import shlex

import pytest

from flare_armour.patches.simulator_paths import Command

OPTIONS = ("-m", "nvflare.the_worker", "-o", "{folder}/site-1", "--logging_config", "{folder}/log.json", "--gpu", "0,1")


@pytest.mark.parametrize("folder", ["/plain", "/mit blank", "/Dr. O'Hara's \"data\"", "/a - b/-o", "/# 1", "/ends "])
def test_a_value_is_one_argument(folder: str) -> None:
    arguments = [f"{folder}/bin/python", *(option.format(folder=folder) for option in OPTIONS)]
    assert Command.split(" ".join(arguments), True) == arguments


def test_usual_paths_are_divided_as_nvflare_divides_them() -> None:
    command = " ".join(["python", *(option.format(folder="/plain") for option in OPTIONS)])
    assert Command.split(command, True) == shlex.split(command, True)
