"""What passes between ``fedshift run`` and the simulator's process before the simulator is started."""

from __future__ import annotations

from typing import TypedDict

READY = "fedshift is ready: "
"""Begins the line that says that everything is imported; what was measured follows, as JSON."""
MEASURE = "--measure"


class Start(TypedDict):
    """The line that starts the simulator: its arguments, and what is added to its environment."""

    argv: list[str]
    env: dict[str, str]
