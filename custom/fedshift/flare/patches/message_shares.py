"""Each party has its share of the threads that handle messages, whatever these wait for."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger("fedshift")

THREADS = 4
"""Messages of one party that are handled at a time. NVFlare has 64 threads for those of all, and a request for a task
waits in one of them."""
WAITING = 32
"""Further ones of the same party that wait; what comes then is refused."""


@dataclass
class _Share:
    running: int = 0
    waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = field(default_factory=deque)


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

    def is_full(self, party: str) -> bool:
        """Whether a further message of this party has to be refused."""
        with self._lock:
            share = self._shares.get(party)
            return share is not None and len(share.waiting) >= WAITING

    def submit(self, work: Callable[..., None], future: Any, stream: Any, *others: Any) -> Any:
        """As the pool's: handle a message, which is ``future``'s result, in a thread."""
        party = self._party_of(stream.task)
        job = (work, (future, stream, *others))
        with self._lock:
            share = self._shares.setdefault(party, _Share())
            if share.running >= THREADS:
                share.waiting.append(job)
                return None
            share.running += 1
        return self._pool.submit(self._work, party, share, job)

    def _work(self, party: str, share: _Share, job: tuple[Callable[..., None], tuple[Any, ...]] | None) -> None:
        while job is not None:
            work, arguments = job
            try:
                work(*arguments)
            except Exception:
                log.exception("a message could not be handled")
            job = self._next(party, share, arguments[1].task)

    def _next(self, party: str, share: _Share, handled: Any) -> tuple[Callable[..., None], tuple[Any, ...]] | None:
        with self._lock:
            following = share.waiting.popleft() if share.waiting else None
            if following is None:
                share.running -= 1
                if not share.running:
                    self._shares.pop(party, None)
        self._done(handled)
        return following
