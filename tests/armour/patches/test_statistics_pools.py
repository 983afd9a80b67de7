"""NVFlare's statistics of messages."""

from __future__ import annotations

import pytest
from nvflare.fuel.f3.stats_pool import CounterPool, HistPool

from flare_armour import patches
from flare_armour.patches import statistics_pools
from flare_armour.patches.statistics_pools import LONGEST, OTHERS

patches.install()


def test_a_table_does_not_grow_with_the_names_that_messages_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_pools, "MOST", 10)
    times, counts = HistPool("x", "x", [1.0, 2.0], "s"), CounterPool("x", "x", ["received"])
    for number in range(15):
        times.record_value(f"{number}", 1.5)
        counts.increment(f"{number}", "received")
    assert len(times.cat_bins) == len(counts.cat_counters) == 11
    assert counts.cat_counters["7"] == {"received": 1}
    assert counts.cat_counters[OTHERS] == {"received": 5}


def test_a_long_name_is_none() -> None:
    counts = CounterPool("x", "x", ["received"])
    counts.increment("x" * (LONGEST + 1), "received")
    assert set(counts.cat_counters) == {OTHERS}
