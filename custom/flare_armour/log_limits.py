"""What other parties cause is logged, and cannot fill the log: at once, and then with its number once a minute."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from nvflare.fuel.sec.audit import AuditService

log = logging.getLogger("flare_armour")

MINUTE = 60.0
"""Seconds between two lines about the same."""
TOPICS = 20
"""Different topics of a sender that are told apart."""
OTHERS = "other topics"
LONGEST = 120
"""Characters of what a sender wrote that go into a line."""
PERSON = "armour_person"
"""Header of a console's message: whose certificate its connection has. The guard writes it."""
CONSOLE = "_admin_"
"""What the names of consoles begin with. Sites have no such names."""

Clock = Callable[[], float]
"""Gives seconds."""


@dataclass
class _Count:
    logged: float
    since: int = 0


class OnceAMinute:
    """Counts what happens, by a key."""

    def __init__(self, clock: Clock = time.monotonic, *, most: int | None = None) -> None:
        """Of more than ``most`` keys nothing is logged: others may think of new ones."""
        self._clock, self._most = clock, most
        self._lock = threading.Lock()
        self._counts: dict[Hashable, _Count] = {}

    def due(self, key: Hashable) -> int | None:
        """How often it has happened since it was last logged, if it is to be logged now; None if not."""
        with self._lock:
            now = self._clock()
            if self._most is not None and key not in self._counts and len(self._counts) >= self._most:
                return None
            count = self._counts.setdefault(key, _Count(now - MINUTE))
            if now - count.logged < MINUTE:
                count.since += 1
                return None
            earlier, count.logged, count.since = count.since, now, 0
            return earlier

    def clear(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self._counts.clear()


class Refusals:
    """What a party is refused by a limit, in the log by its certificate's name."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._often = OnceAMinute(clock)

    def add(self, party: str, limit: str, what: str) -> None:
        """``party`` has met ``limit``, a fixed word; ``what`` completes the sentence "UCL ..."."""
        earlier = self._often.due((party, limit))
        if earlier is not None:
            log.warning("%a %s%s", party[:LONGEST], what, _more(earlier))

    def clear(self) -> None:
        self._often.clear()


REFUSALS = Refusals()
"""Of this process."""


class Drops:
    """Messages that were dropped, by sender and topic: in the log and in NVFlare's audit log."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, set[str]] = {}
        self._often = OnceAMinute(clock)

    def add(self, sender: str, topic: str, reason: str) -> None:
        """Note one message; ``sender`` is whom the connection belongs to, ``topic`` what it wanted."""
        sender, topic = _printable(sender), _printable(topic)
        with self._lock:
            topics = self._topics.setdefault(sender, set())
            if topic not in topics and len(topics) >= TOPICS:
                topic = OTHERS
            topics.add(topic)
        earlier = self._often.due((sender, topic))
        if earlier is None:
            return
        text = f"dropped a message from {sender} ({topic}): {reason}{_more(earlier)}"
        log.warning(text)
        AuditService.add_event(user=sender, action="armour.dropped", msg=text)

    def clear(self) -> None:
        self._often.clear()
        self._topics.clear()


DROPS = Drops()
"""Of this process."""


def party_of(origin: str, person: object = None) -> str:
    """Whose certificate a message comes from, by its origin, a cell's full name, for instance ``HK.job``.

    The guard has compared both with the connection. ``person`` is the message's header `PERSON`.
    """
    if origin.startswith(CONSOLE) and isinstance(person, str) and person:
        return person
    return origin.partition(".")[0]


def _more(earlier: int) -> str:
    return f" ({earlier} more since this was last said)" if earlier else ""


def _printable(text: str) -> str:
    """At most so many characters, on one line; brackets would look like fields of the audit log."""
    shown = "".join(c if c.isprintable() and c not in "[]" else "?" for c in str(text)[:LONGEST])
    return shown or "?"
