"""The context of FLARE, as its tests have it; bounds and patches for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flare.conftest import context as context

from flare_armour.log_limits import DROPS, REFUSALS
from flare_armour.patch import IN_PLACE, Patch

Lower = Callable[..., None]
"""Takes a module, and its bounds by name."""
Enforce = Callable[[Patch], None]


@pytest.fixture(autouse=True)
def nothing_logged() -> None:
    """What was logged in another test is logged again."""
    DROPS.clear()
    REFUSALS.clear()


@pytest.fixture
def lower(monkeypatch: pytest.MonkeyPatch) -> Lower:
    """Gives bounds of a module other values."""

    def lower(module: Any, **bounds: Any) -> None:
        for name, value in bounds.items():
            monkeypatch.setattr(module, name, value)

    return lower


@pytest.fixture
def enforce() -> Iterator[Enforce]:
    """Puts a patch in place."""
    patches = list[Patch]()

    def enforce(patch: Patch) -> None:
        IN_PLACE.discard(patch.name)
        patch.enforce()
        patches.append(patch)

    yield enforce
    for patch in patches:
        patch.remove()
