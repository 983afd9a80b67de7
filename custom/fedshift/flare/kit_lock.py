"""No two processes run from one site's kit at a time: they would write the same files, and push each other out.

NVFlare 2.9 takes a site that registers again for the same site started anew: the last one to register counts, and the
former goes on in vain. The lock is the operating system's and ends with the process, however that ends. A copy of the
kit on another machine is not found here; the server then says that the site has registered again
(`flare_armour.patches.readmission`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from fedshift.federation.run_lock import owner_of, take_when_free
from fedshift.schema.errors import ConfigError

log = logging.getLogger("fedshift")

FILE = ".running.lock"
"""In the kit."""
PATIENCE = 5.0
"""Seconds that a process which is just ending is waited for."""


def hold_kit(kit: Path, *, wait: Callable[[float], None] = time.sleep) -> IO[str] | None:
    """Lock a kit until what is returned is closed; None where nothing can be locked.

    Raises:
        ConfigError: another process runs from it.
    """
    path = kit / FILE
    try:
        return take_when_free(path, patience=PATIENCE, wait=wait)
    except BlockingIOError:
        raise ConfigError(
            f"{kit} is in use by another process ({owner_of(path) or 'unknown'}), which is this site already: a second "
            "one would take its place in running jobs. Stop one of the two"
        ) from None
    except OSError as error:
        log.warning("%s cannot be locked (%s): see that no other process runs from this kit", path, error)
        return None
