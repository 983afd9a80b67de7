"""An array of 64 KiB or more is a piece of its own in a message.

NVFlare 2.9: values below 10 MB are copied, one after another, into one growing block before a message is sent, and are
copied again when the block is read.
Cost: copies of the model at the sender and at the receiver, for every message.
Instead: the limit from which a value stays apart is 64 KiB.
Fixed in NVFlare when: ``nvflare.fuel.utils.fobs.datum.TEN_MEGA`` is a setting.
"""

from __future__ import annotations

from flare_armour.patches.patch import Patch, find

APART = 64 * 1024
"""Bytes."""
PATCH = Patch(
    name="message_pieces",
    without="server and sites need more memory while they send",
    replaces={"nvflare.fuel.utils.fobs.datum:DatumManager.__init__": "3c52f8097c5c"},
)


def apply() -> None:
    """Lower the limit."""
    find("nvflare.fuel.utils.fobs:datum").TEN_MEGA = APART
