"""The protocol between ``fedshift run`` and the simulator's process before the simulator starts."""

from __future__ import annotations

from typing import TypedDict

READY = "fedshift is ready: "
"""Starts the line that the process prints when everything is imported; the measured memory follows as JSON."""
MEASURE = "--measure"


class Start(TypedDict):
    """The JSON line that starts the simulator: its arguments, and additions to its environment."""

    argv: list[str]
    env: dict[str, str]
