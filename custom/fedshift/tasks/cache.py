"""Where the arrays lie that a site's training batches are cut from: ``data.cache``.

``device``: in the memory of the device that trains, from which whole batches are gathered at once. ``host``: in the
machine's memory. ``disk``: in the mapped files, which the system keeps in memory as long as nobody else needs it.
``auto``: on a GPU the first of these that takes at most `PART` of the memory that is free; on a processor ``disk``. The
batches have the same bits wherever the arrays lie.
"""

from __future__ import annotations

from typing import Literal

import torch

from fedshift.schema.errors import DataError
from fedshift.tasks.machine import free_memory

Cache = Literal["auto", "device", "host", "disk"]
Place = Literal["device", "host", "disk"]
PART = 0.5
"""Of the free memory: the rest is for the network and its features."""


def place(cache: Cache, size: int, device: torch.device, *, site: str) -> Place:
    """Where ``size`` bytes of arrays go.

    Raises:
        DataError: they do not fit where ``cache`` says.
    """
    if cache == "disk" or (cache == "auto" and device.type == "cpu"):
        return "disk"
    host = free_memory()
    free = {"device": torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else host, "host": host}
    if cache == "auto":
        return next((name for name in ("device", "host") if size <= PART * free[name]), "disk")
    if size > PART * free[cache]:
        raise DataError(
            "cache-memory",
            f"site {site}: data.cache={cache} needs {size / 1e9:.2f} GB, and there is room for "
            f"{PART * free[cache] / 1e9:.2f} GB ({PART:.0%} of the free memory): set data.cache=auto",
        )
    return cache
