"""Replacements for parts of NVFlare 2.9 that are not public, one file each.

Every file opens with what NVFlare does, what that costs, what is done instead, and how to see that NVFlare has fixed
it. The costs are in docs/performance.md, minimal reproductions in docs/upstream.md.

A patch is applied only if the parts of NVFlare that it replaces or calls look as they did when it was written
(`fedshift.flare.patches.patch`). Otherwise the run goes on without it, and the log says so in one sentence.
"""

from __future__ import annotations

from types import ModuleType

from fedshift.flare.patches import (
    message_pieces,
    message_text,
    numpy_arrays,
    send_window,
    spooled_answers,
    steady_clock,
    unpack_in_turn,
)

MESSAGES: tuple[ModuleType, ...] = (
    message_text,
    numpy_arrays,
    message_pieces,
    unpack_in_turn,
    spooled_answers,
    send_window,
    steady_clock,
)
"""Patches of how messages are packed, sent and received, and of the clock. Each has a `PATCH` and an `apply()`."""

_installed: set[str] = set()


def install(modules: tuple[ModuleType, ...] = MESSAGES) -> None:
    """Apply these patches in this process, each at most once, where NVFlare looks as expected."""
    for module in modules:
        if module.PATCH.name not in _installed and module.PATCH.fits():
            module.apply()
            _installed.add(module.PATCH.name)
