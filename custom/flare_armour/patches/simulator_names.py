"""Every worker of the simulator gets the name of its own client.

NVFlare 2.9: ``SimulatorClientRunner.do_one_task`` writes the name of the client it starts into one dictionary that all
its threads share, and then sends the dictionary to the worker.
Cost: two threads that start their workers at the same moment may both send the same name. One site then runs twice,
the other never, and the run waits for it in vain.
Instead: each thread sends the name that it has set itself.
Fixed in NVFlare when: ``do_one_task`` sends a dictionary of its own instead of ``self.build_ctx``.
"""

from __future__ import annotations

import threading
from typing import Any

from flare_armour.patches.patch import Patch, find

NAME = "client_name"
RUNNER = "nvflare.private.fed.app.simulator.simulator_runner:SimulatorClientRunner"
PATCH = Patch(
    name="simulator_names",
    without="now and then the simulator runs one site twice and another never",
    replaces={f"{RUNNER}.__init__": "0964157c0e4a", f"{RUNNER}.do_one_task": "b087997b1053"},
)


class ThreadNames(dict[str, Any]):
    """NVFlare's context for workers. Pickled, it has the client's name that the pickling thread has set."""

    def __init__(self, context: dict[str, Any]) -> None:
        """``context`` is shared by all threads."""
        super().__init__(context)
        self._own = threading.local()

    def __setitem__(self, key: str, value: Any) -> None:
        if key == NAME:
            self._own.name = value
        else:
            super().__setitem__(key, value)

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, ({**self, **({NAME: self._own.name} if hasattr(self._own, "name") else {})},)


def apply() -> None:
    """Replace the context that a runner is made with."""
    runner = find(RUNNER)
    original = runner.__init__

    def init(self: Any, *args: Any) -> None:
        *others, context = args
        original(self, *others, ThreadNames(context))

    runner.__init__ = init
