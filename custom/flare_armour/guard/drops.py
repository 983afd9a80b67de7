"""What was dropped: in the log and in NVFlare's audit log, without letting a sender fill either."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from nvflare.fuel.sec.audit import AuditService

from flare_armour.once_a_minute import OnceAMinute

log = logging.getLogger("fedshift")

TOPICS = 20
"""Different topics of a sender that are told apart."""
OTHERS = "other topics"
LONGEST = 120
"""Characters of what a sender wrote that go into a line."""


class Drops:
    """Counts for each sender and topic. The first one is told at once, later ones with their number once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives seconds."""
        self._lock = threading.Lock()
        self._topics: dict[str, set[str]] = {}
        self._told = OnceAMinute(clock)

    def add(self, sender: str, topic: str, reason: str) -> None:
        """Note one message; ``sender`` is whom the connection belongs to, ``topic`` what it wanted."""
        sender, topic = _printable(sender), _printable(topic)
        with self._lock:
            topics = self._topics.setdefault(sender, set())
            if topic not in topics and len(topics) >= TOPICS:
                topic = OTHERS
            topics.add(topic)
        earlier = self._told.due((sender, topic))
        if earlier is None:
            return
        more = f" ({earlier} more since this was last said)" if earlier else ""
        text = f"dropped a message from {sender} ({topic}): {reason}{more}"
        log.warning(text)
        AuditService.add_event(user=sender, action="fedshift.dropped", msg=text)


def _printable(text: str) -> str:
    """At most so many characters, on one line; brackets would look like fields of the audit log."""
    shown = "".join(c if c.isprintable() and c not in "[]" else "?" for c in str(text)[:LONGEST])
    return shown or "?"
