"""Messages: packed weights come back, and only in the place of what they replace."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.schema.compression import pack
from fedshift.schema.messages import Broadcast, Update

OLD = {
    "conv": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "bias": np.ones(3, np.float32),
    "n": np.array(4),
}


def test_a_broadcast_with_nothing_packed_is_itself() -> None:
    broadcast = Broadcast(1, 0, OLD)
    assert broadcast.unpacked() is broadcast


@pytest.mark.parametrize(("weights_as", "error"), [("bf16", 2**-8), ("int8", 1 / 127)])
def test_a_packed_broadcast_has_all_weights_afterwards(weights_as: str, error: float) -> None:
    plain = {key: value for key, value in OLD.items() if key != "conv"}
    sent = Broadcast(3, 1, plain, {"m": {"a": np.ones(1)}}, ("A",), {"conv": pack(OLD["conv"], weights_as)})  # type: ignore[arg-type]
    opened = sent.unpacked()
    assert set(opened.weights) == set(OLD) and not opened.packed
    np.testing.assert_allclose(opened.weights["conv"], OLD["conv"], atol=error)
    assert (opened.round, opened.best_round, opened.sites, opened.arrays) == (3, 1, ("A",), sent.arrays)


def test_an_update_with_nothing_packed_is_itself() -> None:
    update = Update("A", 1, 10, 5, weights=OLD)
    assert update.restored({}) is update


def test_packed_changes_are_added_in_the_order_of_the_reference() -> None:
    change = np.full((3, 4), 0.25, np.float32)
    update = Update("A", 1, 10, 5, {"n": np.array(9), "bias": OLD["bias"] * 2}, packed={"conv": pack(change, "bf16")})
    restored = update.restored(OLD)
    assert list(restored.weights) == list(OLD) and not restored.packed
    np.testing.assert_array_equal(restored.weights["conv"], OLD["conv"] + change)
    assert restored.weights["n"] == 9 and (restored.weights["bias"] == 2).all()


def test_keys_that_the_reference_does_not_have_stay_for_the_check_to_name() -> None:
    update = Update("A", 1, 10, 5, {"extra": np.ones(1)}, packed={"conv": pack(OLD["conv"], "bf16")})
    assert list(update.restored(OLD).weights) == ["conv", "extra"]
