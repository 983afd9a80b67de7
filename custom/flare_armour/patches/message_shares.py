"""Each party has its share of the threads that handle requests, whatever these wait for.

Answers do not count: who handles a request may wait for one of the same party.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nvflare.fuel.f3.cellnet.defs import CellChannel

log = logging.getLogger("fedshift")

THREADS = 4
"""Messages of one party that are handled at a time."""
WAITING = 32
"""Further ones of the same party that wait; what comes then is refused."""


_Job: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]
"""A function, and its arguments: a future, a stream and others."""


@dataclass
class _Share:
    running: int = 0
    waiting: deque[_Job] = field(default_factory=deque)


class MessageShares:
    """Takes the place of the pool to which NVFlare gives every message as soon as its first bytes are there."""

    def __init__(self, pool: Any, party_of: Callable[[Any], str], done: Callable[[Any], None]) -> None:
        """Hand work on to ``pool``.

        Args:
            pool: NVFlare's.
            party_of: the party that a stream comes from.
            done: called with a stream whose message has been handled.
        """
        self._pool, self._party_of, self._done = pool, party_of, done
        self._lock = threading.Lock()
        self._shares: dict[str, _Share] = {}

    def takes(self, task: Any) -> bool:
        """Whether there is room for a further message, which is that of the stream ``task``."""
        with self._lock:
            share = self._shares.get(self._party_of(task))
            return _is_answer(task) or share is None or len(share.waiting) < WAITING

    def submit(self, work: Callable[..., None], future: Any, stream: Any, *others: Any) -> Any:
        """As the pool's: handle a message, which is ``future``'s result, in a thread."""
        party = self._party_of(stream.task)
        job = (work, (future, stream, *others))
        if _is_answer(stream.task):
            return self._pool.submit(self._handle, job)
        with self._lock:
            share = self._shares.setdefault(party, _Share())
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
        self._done(arguments[1].task)

    def _next(self, party: str, share: _Share) -> _Job | None:
        with self._lock:
            following = share.waiting.popleft() if share.waiting else None
            if following is None:
                share.running -= 1
                if not share.running:
                    self._shares.pop(party, None)
            return following


def _is_answer(task: Any) -> bool:
    return bool(task.channel == CellChannel.RETURN_ONLY)
