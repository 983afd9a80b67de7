"""The guard as a component of ``local/resources.json``, which NVFlare makes before a process has a connection."""

from __future__ import annotations

import logging
import os
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

from flare_armour import patches
from flare_armour.disabled_sites import DISABLED
from flare_armour.guard import console, disabling
from flare_armour.guard.gate import gate
from flare_armour.guard.orders import JobFiles, orders
from flare_armour.guard.rules import ASKS, Asks
from flare_armour.locks import hold_kit
from flare_armour.patch import ArmourError

log = logging.getLogger("flare_armour")

_once = threading.Lock()


class Guard(FLComponent):
    """Drops messages that a party may not get, in the process between jobs and in that of every job. Subclass it.

    Attributes:
        files: what a job may bring.
        asks: who may ask whom for what: `rules.ASKS`, and what else the project's own components say to each other.
    """

    files = JobFiles()
    asks: Asks = ASKS

    def __init__(self) -> None:
        """Install it.

        Raises:
            NotAsExpectedError: NVFlare is another than the guard was written for.
            ArmourError: the process has connections already, over which messages may have come.
        """
        super().__init__()
        self._lock: IO[str] | None = None
        with _once:
            parts = (gate(self.asks), orders(self.files), console.PATCH, disabling.PATCH)
            if CoreCell.ALL_CELLS and not all(part.in_place for part in parts):
                raise ArmourError("the guard must be made before the first connection: name it in resources.json")
            for part in parts:
                part.enforce()
        patches.protect()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Before anybody can register, find out who is disabled; say once how the party runs.

        Raises:
            UnsafeComponentError: the process must not go on; NVFlare then ends it.
        """
        if event_type == EventType.SYSTEM_BOOTSTRAP:  # in the process between jobs only
            try:
                self._begin(Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()))
            except ArmourError as error:
                log.error("%s", error)
                raise UnsafeComponentError(str(error)) from None
        elif event_type == EventType.SYSTEM_START:
            log.info("the guard is in place: what no party of this federation may say is dropped")
            if hasattr(os, "geteuid") and os.geteuid() == 0:
                text = (
                    "this party runs as root, so a fault of it is one of the whole machine: give it a user of its own"
                )
                log.warning(text)
                AuditService.add_event(user="armour", action="armour.root", msg=text)

    def _begin(self, kit: Path) -> None:
        DISABLED.use(kit)
        if not (kit / "startup" / "fed_server.json").is_file():  # a server locks its store (`flare_armour.readmission`)
            self._lock = hold_kit(kit)
