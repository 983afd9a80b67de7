"""The simulator runs in folders with blanks or quotes in their names.

NVFlare 2.9: ``SimulatorClientRunner.do_one_task`` writes a worker's command as one text, paths as they are, and divides
it as a shell would.
Cost: in such a folder no worker understands its options, and the run ends after a minute without having begun.
Instead: the text is divided where its options begin, and what lies between two of them is one value.
Fixed in NVFlare when: ``do_one_task`` passes a list of arguments to ``subprocess.Popen``.
"""

from __future__ import annotations

import re

from flare_armour.patches.patch import Patch, find

PATCH = Patch(
    name="simulator_paths",
    without="the simulator starts no site in a folder with blanks or quotes in its name",
    replaces={
        "nvflare.private.fed.app.simulator.simulator_runner:SimulatorClientRunner.do_one_task": "b087997b1053",
    },
)

_OPTION = re.compile(r" (-m|-o|--[a-z_]+) ")


class Command:
    """Stands where the simulator's module expects Python's ``shlex``."""

    @staticmethod
    def split(command: str, comments: bool = False) -> list[str]:
        """A Python program, then options that each have one value; ``comments`` is NVFlare's, and there are none."""
        return _OPTION.split(command)


def apply() -> None:
    """Replace ``shlex`` in the simulator's module."""
    find("nvflare.private.fed.app.simulator:simulator_runner").shlex = Command
