"""What a party is refused, in the log by its certificate's name, and without letting it fill the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flare_armour.once_a_minute import OnceAMinute

log = logging.getLogger("fedshift")

LONGEST = 80
"""Characters of a name that are logged: it may be its owner who wrote it."""
PERSON = "fedshift_person"
"""Header of a console's message: whose certificate its connection has. The guard writes it."""
CONSOLE = "_admin_"
"""What the names of consoles begin with. Sites have no such names."""


class Refusals:
    """The first refusal of a party by a limit is told at once, later ones with their number once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives seconds."""
        self._told = OnceAMinute(clock)

    def tell(self, party: str, limit: str, what: str) -> None:
        """Log that ``party`` has met ``limit``, a fixed word; ``what`` completes the sentence "UCL ..."."""
        earlier = self._told.due((party, limit))
        if earlier is None:
            return
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
