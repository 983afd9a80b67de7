"""NVFlare's own statistics of messages do not grow with what messages say.

NVFlare 2.9: its statistics of messages keep a row for each different name for as long as the process lives.
Cost: a party can fill the memory of the server's processes.
Instead: a table has `MOST` rows with names of at most `LONGEST` characters; all further ones are one row.
Fixed in NVFlare when: ``StatsPool`` has a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flare_armour.patches.patch import Patch, find

MOST = 500
"""Rows of a table. A run has about 30."""
LONGEST = 200
"""Characters of a row's name."""
OTHERS = "others"
POOLS = "nvflare.fuel.f3.stats_pool"
PATCH = Patch(
    name="statistics_pools",
    without="one site can fill the memory of the server with names",
    replaces={f"{POOLS}:HistPool.record_value": "167f2a717f13", f"{POOLS}:CounterPool.increment": "1a00c6dcfef7"},
)


def apply() -> None:
    """Replace what adds to a table."""
    times, counts = find(f"{POOLS}:HistPool"), find(f"{POOLS}:CounterPool")
    times.record_value = _bounded(times.record_value, "cat_bins")
    counts.increment = _bounded(counts.increment, "cat_counters")


def _bounded(original: Callable[..., None], table: str) -> Callable[..., None]:
    def add(self: Any, category: str, *others: Any, **named: Any) -> None:
        rows = getattr(self, table)
        if category not in rows and (len(rows) >= MOST or len(category) > LONGEST):
            category = OTHERS
        original(self, category, *others, **named)

    return add
