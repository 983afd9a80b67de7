"""Every fault of a single update is found and named before anything is summed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedshift.federation.server.update_check import Change, Received, Rejected, check_update
from fedshift.methods.base import ArraySpec
from fedshift.schema.messages import Update

WEIGHTS = {
    "conv.weight": np.ones((2, 3), np.float32),
    "bn.running_var": np.ones(2, np.float32),
    "bn.num_batches_tracked": np.array(0),
}
SPECS = {
    "fedfa": {"std.1": ArraySpec((2,), low=0, high=1e6)},
    "fedrdn": {"std": ArraySpec((2,), "float64", when="once", low=1e-6, high=255)},
}
GOOD = Update(
    site="A",
    round=3,
    n_samples=10,
    n_steps=5,
    weights={k: np.asarray(v + 1) for k, v in WEIGHTS.items()},
    metrics={"dice": 0.5},
    arrays={"fedfa": {"std.1": np.float32([1, 2])}},
)


def check(update: Update, **options: Any) -> Change:
    received = Received(
        options.pop("weights", WEIGHTS),
        trainable=frozenset({"conv.weight"}),
        withheld=options.pop("withheld", frozenset()),
    )
    return check_update(
        update,
        **{
            "round_": 3,
            "received": received,
            "specs": SPECS,
            "metrics": {"dice": (0, 1)},
            "n_samples": 10,
            "max_norm": 10.0,
            **options,
        },
    )


def weights(**changes: Any) -> dict[str, Any]:
    merged = {**GOOD.weights, **{k.replace("__", "."): v for k, v in changes.items()}}
    return {"weights": {k: v for k, v in merged.items() if v is not None}}


def fedfa(value: Any) -> dict[str, Any]:
    return {"arrays": {"fedfa": {"std.1": value}}}


def test_a_good_update_passes() -> None:
    check(GOOD)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"round": 2}, "round"),
        ({"n_samples": 0}, "n_samples"),
        ({"n_samples": -3}, "n_samples"),
        ({"n_samples": 10**12}, "n_samples"),
        ({"n_samples": 11}, "n_samples"),
        ({"n_steps": 0}, "n_steps"),
        ({"round": True}, "round"),
        ({"n_samples": None}, "n_samples"),
        ({"n_samples": 10**5000}, "n_samples"),
        ({"n_steps": 5.0}, "n_steps"),
        (weights(conv__weight=None), "conv.weight"),
        (weights(extra=np.ones(1, np.float32)), "extra"),
        (weights(conv__weight=np.ones((3, 2), np.float32)), "conv.weight"),
        (weights(conv__weight=np.ones((1,), np.float32)), "conv.weight"),
        (weights(conv__weight=np.ones((1, 3), np.float32)), "conv.weight"),
        (weights(conv__weight=np.ones((2, 3), np.float64)), "conv.weight"),
        (weights(conv__weight=np.full((2, 3), np.nan, np.float32)), "conv.weight"),
        (weights(conv__weight=np.full((2, 3), np.inf, np.float32)), "conv.weight"),
        (weights(conv__weight=np.full((2, 3), 1e6, np.float32)), "weights"),
        (weights(bn__running_var=np.float32([1, -1])), "bn.running_var"),
        (weights(conv__weight=[[1, 2, 3], [1, 2, 3]]), "conv.weight"),
        (weights(conv__weight=np.ma.masked_invalid(np.full((2, 3), np.nan, np.float32))), "conv.weight"),
        (weights(conv__weight=np.ones((2, 3), ">f4")), "conv.weight"),
        (weights(conv__weight=np.full((2, 3), None)), "conv.weight"),
        (weights(bn__num_batches_tracked=np.array(2**63 - 1)), "bn.num_batches_tracked"),
        (weights(bn__num_batches_tracked=np.array(-1)), "bn.num_batches_tracked"),
        ({"metrics": {"dice": float("nan")}}, "metrics.dice"),
        ({"metrics": {"dice": 1e6}}, "metrics.dice"),
        ({"metrics": {"dice": None}}, "metrics.dice"),
        ({"metrics": {"dice": 10**400}}, "metrics.dice"),
        ({"arrays": {**GOOD.arrays, 7: {}}}, "7"),
        ({"metrics": {"case_07": 0.5}}, "metrics.case_07"),
        ({"arrays": {}}, "fedfa"),
        ({"arrays": {"fedfa": {}}}, "std.1"),
        ({"arrays": {**GOOD.arrays, "other": {}}}, "other"),
        (fedfa(np.float32([1, -1])), "fedfa/std.1"),
        (fedfa(np.float32([1, 1e9])), "fedfa/std.1"),
        (fedfa(np.float32([1, 2, 3])), "fedfa/std.1"),
    ],
)
def test_faults_are_named(change: dict[str, Any], key: str) -> None:
    with pytest.raises(Rejected) as caught:
        check(dataclasses.replace(GOOD, **change))
    assert caught.value.key == key


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, 1e9])
def test_a_poisoned_deviation_is_refused_in_the_statistics_round(value: float) -> None:
    good = Update("A", 0, 10, 0, arrays={"fedrdn": {"std": np.array([0.1, 0.2])}})
    check(good, round_=0)
    bad = dataclasses.replace(good, arrays={"fedrdn": {"std": np.array([0.1, value])}})
    with pytest.raises(Rejected) as caught:
        check(bad, round_=0)
    assert caught.value.key == "fedrdn/std"


def test_personal_keys_must_stay_at_home() -> None:
    personal = frozenset({"bn.running_var", "bn.num_batches_tracked"})
    with pytest.raises(Rejected) as caught:
        check(GOOD, withheld=personal)
    assert caught.value.key in personal
    check(dataclasses.replace(GOOD, weights={"conv.weight": GOOD.weights["conv.weight"]}), withheld=personal)


def test_large_buffers_do_not_loosen_the_limit_on_parameters_nor_break_it() -> None:
    received = {**WEIGHTS, "bn.running_var": np.full(2, 1e9, np.float32)}
    moved = {**GOOD.weights, "bn.running_var": np.full(2, 5e9, np.float32)}
    check(dataclasses.replace(GOOD, weights=moved), weights=received)
    far = {**moved, "conv.weight": np.full((2, 3), 100, np.float32)}
    with pytest.raises(Rejected, match=r"moved by 242 .* 24\.5"):
        check(dataclasses.replace(GOOD, weights=far), weights=received)


def test_the_statistics_round_carries_no_weights_and_arrays_of_the_right_length() -> None:
    good = Update("A", 0, 10, 0, arrays={"fedrdn": {"std": np.array([0.1, 0.2])}})
    for change in (
        {"weights": {"x": np.ones(3)}},
        {"arrays": {"fedrdn": {"std": np.zeros(0)}}},
        {"arrays": {"fedrdn": {"std": np.array([0.1, 0.2, 0.3])}}},
        {"arrays": {"fedrdn": {"std": np.array([0.1, None])}}},
    ):
        with pytest.raises(Rejected):
            check(dataclasses.replace(good, **change), round_=0)


def test_sizes_that_a_site_chooses_agree_and_are_no_more_than_its_samples() -> None:
    specs = {"fedmix": {"images": ArraySpec(("groups", 2)), "targets": ArraySpec(("groups",))}}

    def answer(images: int, targets: int) -> Update:
        arrays = {"images": np.ones((images, 2), np.float32), "targets": np.ones(targets, np.float32)}
        return dataclasses.replace(GOOD, arrays={"fedmix": arrays})

    check(answer(10, 10), specs=specs)
    for images, targets, reason in (
        (11, 11, "11 groups, .* 1 to 10"),
        (0, 0, "0 groups"),
        (3, 4, "another"),
    ):
        with pytest.raises(Rejected, match=reason):
            check(answer(images, targets), specs=specs)


def test_running_statistics_have_a_largest_value() -> None:
    key = next(key for key in WEIGHTS if key.endswith("running_var"))
    check(dataclasses.replace(GOOD, weights={**GOOD.weights, key: np.full_like(GOOD.weights[key], 1e5)}))
    with pytest.raises(Rejected) as caught:
        check(dataclasses.replace(GOOD, weights={**GOOD.weights, key: np.full_like(GOOD.weights[key], 3e38)}))
    assert caught.value.key == key


def test_steps_are_those_that_the_schedule_makes() -> None:
    """FedNova divides by them: a site that says 1 would count many times."""
    check(GOOD, n_steps=5)
    check(GOOD, n_steps=6, fewer_steps=True)
    for due, fewer, reason in ((6, False, "makes 6"), (4, True, "at most 4")):
        with pytest.raises(Rejected, match=f"is 5, .* {reason} of 10 samples"):
            check(GOOD, n_steps=due, fewer_steps=fewer)


def test_a_method_may_refuse_what_its_specification_cannot_say() -> None:
    def fault(arrays: dict[str, np.ndarray], n_samples: int) -> tuple[str, str] | None:
        return ("std.1", f"of {n_samples}") if arrays["std.1"][1] == 2 else None

    with pytest.raises(Rejected) as caught:
        check(GOOD, faults={"fedfa": fault})
    assert (caught.value.key, caught.value.reason) == ("fedfa/std.1", "of 10")
    check(dataclasses.replace(GOOD, **fedfa(np.float32([1, 3]))), faults={"fedfa": fault})


def test_changes_are_measured_apart_for_parameters_buffers_and_arrays() -> None:
    specs = {"fedfa": {"std.1": ArraySpec((2,), low=0, alike="norm")}}
    change = check(dataclasses.replace(GOOD, **fedfa(np.float32([3, 4]))), specs=specs)
    assert change == Change(parameters=6**0.5, buffers=2**0.5, arrays={"fedfa": 5.0})
    assert check(GOOD, specs={"fedfa": {"std.1": ArraySpec((2,))}}).arrays == {}


def test_a_norm_has_the_same_digits_with_any_number_of_blas_threads() -> None:
    values = np.random.default_rng(0).normal(size=500_001).astype(np.float32)
    update = dataclasses.replace(GOOD, weights={"conv.weight": values})
    received = {"conv.weight": np.zeros_like(values)}
    norms = set()
    for threads in (1, 2, 3):
        with threadpool_limits(threads, "blas"):
            norms.add(check(update, weights=received, max_norm=1e9).parameters)
    assert len(norms) == 1
