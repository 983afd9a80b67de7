"""Each party has its share of the threads that handle its requests, and of those by which it is answered.

NVFlare 2.9: what comes from one party, and what is sent to it, have no limit of their own.
Cost: one site can take the threads by which all others are heard and answered.
Instead: `THREADS` requests of a party are handled at a time, whatever these wait for, and `WAITING` further ones wait.
Answers do not count: who handles a request may wait for one of the same party. `MOST_OUTGOING` streams to one party are
on their way; the oldest is ended for another.
Fixed in NVFlare when: incoming messages and outgoing streams have limits for each party.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nvflare.fuel.f3.cellnet.defs import CellChannel
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_types import StreamError

from flare_armour.log_limits import REFUSALS, party_of
from flare_armour.patch import Patch

log = logging.getLogger("flare_armour")

THREADS = 4
"""Messages of one party that are handled at a time."""
WAITING = 32
"""Further ones of the same party that wait; what comes then is refused."""
MOST_OUTGOING = 16
"""Streams to one party. An honest one has asked for two or three things at a time."""

_Job: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]
"""A function, and its arguments: a future, a stream and others."""


@dataclass
class _Share:
    running: int = 0
    waiting: deque[_Job] = field(default_factory=deque)
    coming: set[int] = field(default_factory=set)
    """Identities of streams that were promised room, and whose messages are about to be submitted."""

    @property
    def count(self) -> int:
        return self.running + len(self.waiting) + len(self.coming)


class MessageShares:
    """Takes the place of the pool to which NVFlare gives every message as soon as its first bytes are there."""

    def __init__(self, pool: Any, sender: Callable[[Any], str], on_end: Callable[[Any], None]) -> None:
        """Hand work on to ``pool``, which is NVFlare's.

        Args:
            pool: has threads.
            sender: the party that a stream comes from.
            on_end: called with a stream whose message has been handled.
        """
        self._pool, self._sender, self._on_end = pool, sender, on_end
        self._lock = threading.Lock()
        self._shares: dict[str, _Share] = {}

    def takes(self, task: Any) -> bool:
        """Whether there is room for a further message, which is that of the stream ``task``.

        The room is kept until it is submitted or given back: NVFlare asks for many messages at the same time.
        """
        if _is_answer(task):
            return True
        with self._lock:
            share = self._shares.setdefault(self._sender(task), _Share())
            if share.count >= THREADS + WAITING:
                return False
            share.coming.add(id(task))
            return True

    def give_back(self, task: Any) -> None:
        """The message of a stream that was promised room may never be submitted."""
        party = self._sender(task)
        with self._lock:
            share = self._shares.get(party)
            if share is not None:
                share.coming.discard(id(task))
                self._forget_idle(party, share)

    def submit(self, work: Callable[..., None], future: Any, stream: Any, *others: Any) -> Any:
        """As the pool's: handle a message, which is ``future``'s result, in a thread."""
        party = self._sender(stream.task)
        job = (work, (future, stream, *others))
        if _is_answer(stream.task):
            return self._pool.submit(self._handle, job)
        with self._lock:
            share = self._shares.setdefault(party, _Share())
            share.coming.discard(id(stream.task))
            if share.running >= THREADS:
                share.waiting.append(job)
                return None
            share.running += 1
        return self._pool.submit(self._work, party, share, job)

    def _work(self, party: str, share: _Share, job: _Job | None) -> None:
        while job is not None:
            self._handle(job)
            job = self._next(party, share)

    def _handle(self, job: _Job) -> None:
        work, arguments = job
        try:
            work(*arguments)
        except Exception:
            log.exception("a message could not be handled")
        self._on_end(arguments[1].task)

    def _next(self, party: str, share: _Share) -> _Job | None:
        with self._lock:
            following = share.waiting.popleft() if share.waiting else None
            if following is None:
                share.running -= 1
                self._forget_idle(party, share)
            return following

    def _forget_idle(self, party: str, share: _Share) -> None:
        if not share.count:
            self._shares.pop(party, None)


def _is_answer(task: Any) -> bool:
    return bool(task.channel == CellChannel.RETURN_ONLY)


OUTGOING = Patch(
    name="outgoing_streams",
    kind="protects",
    without="one site can stop the answers to all others",
    sources={"nvflare.fuel.f3.streaming.byte_streamer:TxTask.stop": "9ad3810da398"},
)


@OUTGOING.replaces("nvflare.fuel.f3.streaming.byte_streamer:ByteStreamer.send", "364f8bce1608")
def _send(
    original: Callable[..., Any], self: Any, channel: str, topic: str, target: str, *others: Any, **named: Any
) -> Any:
    party = party_of(target)
    with ByteStreamer.map_lock:
        theirs = [task for task in ByteStreamer.tx_task_map.values() if party_of(task.target) == party]
    for task in theirs[: max(len(theirs) - MOST_OUTGOING + 1, 0)]:
        REFUSALS.add(party, "outgoing", f"acknowledges none of {MOST_OUTGOING} messages to it: the oldest is given up")
        task.stop(StreamError(f"{task} is ended: too many others to the same party are not acknowledged"))
    return original(self, channel, topic, target, *others, **named)
