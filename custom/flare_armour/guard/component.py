"""The guard as a component of ``local/resources.json``, which NVFlare makes before a process has a connection."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import IO

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.sec.audit import AuditService

from fedshift.flare.kit import is_root, open_kit
from fedshift.flare.kit_lock import hold_kit
from fedshift.schema.errors import ConfigError
from flare_armour import patches
from flare_armour.disabled_sites import DISABLED
from flare_armour.guard import commands, disabling, gate, sessions

log = logging.getLogger("fedshift")

_once = threading.Lock()
_installed: list[str] = []


class Guard(FLComponent):
    """Drops messages that a party may not get, in the process between jobs and in that of every job."""

    def __init__(self) -> None:
        """Install it.

        Raises:
            NotAsExpectedError: NVFlare is another than the guard was written for.
            RuntimeError: the process has connections already, over which messages may have come.
        """
        super().__init__()
        self._lock: IO[str] | None = None
        with _once:
            if not _installed:
                if CoreCell.ALL_CELLS:
                    raise RuntimeError("the guard must be made before the first connection: name it in resources.json")
                gate.apply()
                commands.apply()
                sessions.apply()
                disabling.apply()
                _installed.append("guard")
        patches.protect()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Before anybody can register, find out who is disabled; say once how the party runs.

        Raises:
            UnsafeComponentError: the process must not go on; NVFlare then ends it.
        """
        if event_type == EventType.SYSTEM_BOOTSTRAP:  # in the process between jobs only
            try:
                self._begin(Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()))
            except ConfigError as error:
                log.error("%s", error)
                raise UnsafeComponentError(str(error)) from None
        elif event_type == EventType.SYSTEM_START:
            log.info("the guard is in place: what no party of this federation may say is dropped")
            if is_root():
                text = (
                    "this party runs as root, so a fault of it is one of the whole machine: give it a user of its own"
                )
                log.warning(text)
                AuditService.add_event(user="fedshift", action="fedshift.root", msg=text)

    def _begin(self, folder: Path) -> None:
        DISABLED.use(folder)
        if open_kit(folder).role == "site":  # a server locks its store
            self._lock = hold_kit(folder)
