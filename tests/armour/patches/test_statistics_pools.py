"""NVFlare's statistics of messages."""

from __future__ import annotations

from nvflare.fuel.f3.stats_pool import CounterPool, HistPool

from flare_armour import patches
from flare_armour.patches.statistics_pools import LONGEST, MOST, OTHERS

patches.install()


def test_a_table_does_not_grow_with_the_names_that_messages_have() -> None:
    times, counts = HistPool("x", "x", [1.0, 2.0], "s"), CounterPool("x", "x", ["received"])
    for number in range(5 * MOST):
        times.record_value(f"{number}", 1.5)
        counts.increment(f"{number}", "received")
    assert len(times.cat_bins) == len(counts.cat_counters) == MOST + 1
    assert counts.cat_counters["7"] == {"received": 1}
    assert counts.cat_counters[OTHERS] == {"received": 4 * MOST}


def test_a_long_name_is_none() -> None:
    counts = CounterPool("x", "x", ["received"])
    counts.increment("x" * (LONGEST + 1), "received")
    assert set(counts.cat_counters) == {OTHERS}
