"""What is sent to one party and not acknowledged does not stop what is sent to the others.

NVFlare 2.9: what is sent to one party has no limit of its own.
Cost: one site can take the threads by which all others are answered.
Instead: `MOST_OPEN` streams to one party are on their way; the oldest is ended for another.
Fixed in NVFlare when: outgoing streams have a limit for each receiver.
"""

from __future__ import annotations

from typing import Any

from flare_armour.patches.patch import Patch, find
from flare_armour.patches.refusals import REFUSALS, party_of

MOST_OPEN = 16
"""Streams to one party. An honest one has asked for two or three things at a time."""
STREAMER = "nvflare.fuel.f3.streaming.byte_streamer:ByteStreamer"
PATCH = Patch(
    name="outgoing_streams",
    without="one site can stop the answers to all others",
    replaces={
        f"{STREAMER}.send": "364f8bce1608",
        # Not replaced: what ends a stream.
        "nvflare.fuel.f3.streaming.byte_streamer:TxTask.stop": "9ad3810da398",
    },
)


def apply() -> None:
    """Replace what begins a stream."""
    streamer, error = find(STREAMER), find("nvflare.fuel.f3.streaming.stream_types:StreamError")
    original = streamer.send

    def send(self: Any, channel: str, topic: str, target: str, *others: Any, **named: Any) -> Any:
        party = party_of(target)
        with streamer.map_lock:
            own = [task for task in streamer.tx_task_map.values() if party_of(task.target) == party]
        for task in own[: max(len(own) - MOST_OPEN + 1, 0)]:
            REFUSALS.tell(party, "outgoing", f"acknowledges none of {MOST_OPEN} messages to it: the oldest is given up")
            task.stop(error(f"{task} is ended: too many others to the same party are not acknowledged"))
        return original(self, channel, topic, target, *others, **named)

    streamer.send = send
