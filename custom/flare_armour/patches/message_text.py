"""No text of a received message's bytes is made for a debug line.

NVFlare 2.9: ``Adapter.call`` formats an f-string with the received message for every message, whether or not the debug
level is on. The message is a list of its pieces, so that all its bytes are made into text.
Cost: processor time in proportion to the bytes received, more than any other part of an idle round.
Instead: the list that holds a message's pieces has a short text.
Fixed in NVFlare when: ``nvflare.fuel.f3.cellnet.cell.Adapter.call`` no longer formats ``incoming data={result}``, or
does so lazily (``logger.debug("...%s", result)``).
"""

from __future__ import annotations

from typing import Any

from flare_armour.patches.patch import Patch, find

LIST = "nvflare.fuel.utils.buffer_list:ConsumableBufferList"
PATCH = Patch(
    name="message_text",
    without="rounds with large models take more processor time",
    replaces={LIST: "3a72f255775b", "nvflare.fuel.f3.cellnet.cell:Adapter.call": "a874a0e1bfaa"},
)


def apply() -> None:
    """Give lists of a message's pieces a short text."""
    find(LIST).__repr__ = _short


def _short(message: Any) -> str:
    return f"<message in {len(message)} pieces>"
