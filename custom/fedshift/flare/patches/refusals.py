"""What a party is refused, in the log by its certificate's name, and without letting it fill the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("fedshift")

EVERY = 60.0
"""Seconds between two lines about the same party and the same limit."""
LONGEST = 80
"""Characters of a name that are logged: it may be its owner who wrote it."""
PERSON = "fedshift_person"
"""Header of a console's message: whose certificate its connection has. The guard writes it."""
CONSOLE = "_admin_"
"""What the names of consoles begin with. Sites have no such names."""


@dataclass
class _Count:
    told: float
    since: int = 0


class Refusals:
    """The first refusal of a party by a limit is told at once, later ones with their number once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], _Count] = {}

    def tell(self, party: str, limit: str, what: str) -> None:
        """Log that ``party`` has met ``limit``, a fixed word; ``what`` completes the sentence "UCL ..."."""
        with self._lock:
            now = self._clock()
            count = self._counts.setdefault((party, limit), _Count(now - EVERY))
            if now - count.told < EVERY:
                count.since += 1
                return
            earlier, count.told, count.since = count.since, now, 0
        more = f" ({earlier} more times since this was last said)" if earlier else ""
        log.warning("%a %s%s", party[:LONGEST], what, more)


REFUSALS = Refusals()
"""Of this process."""


def party_of(origin: str, person: object = None) -> str:
    """Whose certificate a message comes from, by its origin, a cell's full name, for instance ``HK.job``.

    The guard has compared both with the connection. ``person`` is the message's header `PERSON`.
    """
    if origin.startswith(CONSOLE) and isinstance(person, str) and person:
        return person
    return origin.partition(".")[0]
