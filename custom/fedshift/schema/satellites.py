"""What packages beside the core add to it, found by entry points: the core imports none of them."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any


def parts_of_satellites(group: str) -> list[Any]:
    """What the entry points of a group name, such as ``fedshift.commands``, by the entry points' names."""
    return [point.load() for point in sorted(entry_points(group=group), key=lambda point: point.name)]
