"""Robust aggregation: what each rule gives, that nothing else changes, and what it does to a poisoned site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import first_round, server_context, small_image_job, small_job
from errors import raises

from fedshift.federation.in_process import run_in_process
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.robust import present, trimmed_mean
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.server.update_check import Change
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.methods import fedavg, fedavgm
from fedshift.methods.base import ArraySpec, SiteUpdate
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import FederationSpec, JobSpec, RobustSpec
from fedshift.schema.messages import Update, Weights
from fedshift.schema.results import Rejection

RECEIVED: Weights = {
    "w": np.zeros((2, 2), np.float32),
    "running_var": np.ones(2, np.float32),
    "counter": np.array(7),
}
TRAINABLE = frozenset({"w"})
SGD = ("optimizer.name=sgd", "optimizer.lr=0.02", "optimizer.weight_decay=0")
SPECS = {
    "scaffold": {"c": ArraySpec((), averaged="changes"), "g": ArraySpec((), averaged="values"), "t": ArraySpec(())}
}


def stored(folder: Path, values: Sequence[float], *, n_samples: Sequence[int] | None = None) -> list[SpooledUpdate]:
    """Updates that moved every parameter by ``values``, each site's buffers and arrays with it."""
    updates = []
    for number, value in enumerate(values):
        weights = {
            "w": np.full((2, 2), value, np.float32),
            "running_var": np.full(2, 1 + abs(value), np.float32),
            "counter": np.array(8 + number),
        }
        arrays = {"scaffold": {name: np.array(value, np.float32) for name in "cgt"}}
        update = Update(
            f"S{number}", 1, n_samples=(n_samples or [1] * 9)[number], n_steps=1, weights=weights, arrays=arrays
        )
        change = Change(2 * abs(value), 2**0.5 * abs(value), {"scaffold": abs(value)})
        updates.append(SpooledUpdate(update, folder / "updates" / f"{number}.npz", change))
    return updates


def seen(updates: Sequence[SpooledUpdate], **spec: Any) -> Sequence[SiteUpdate]:
    return present(updates, RobustSpec(**spec), weights=RECEIVED, trainable=TRAINABLE, specs=SPECS)


def averaged(updates: Sequence[SiteUpdate], weights: str = "samples") -> Weights:
    return fedavg.Server(fedavg.Config.model_validate({"weights": weights})).combine(
        RECEIVED, updates, server_context("w")
    )


def test_fedavg_gives_exactly_the_median_whatever_its_weights(tmp_path: Path) -> None:
    updates = stored(tmp_path, (0.3, -0.1, 1e6, 0.2, 0.1), n_samples=(1, 1, 10**6, 1, 1))
    for weights in ("samples", "uniform"):
        combined = averaged(seen(updates, rule="median"), weights)
        np.testing.assert_array_equal(combined["w"], np.full((2, 2), np.float32(0.2)))
        np.testing.assert_array_equal(combined["running_var"], np.full(2, np.float32(1.2)))
        assert combined["counter"] == 12, "counters are the sites' own"
        assert {key: (v.dtype, v.shape) for key, v in combined.items()} == {
            key: (v.dtype, v.shape) for key, v in RECEIVED.items()
        }


def test_a_median_of_three_is_between_the_two_honest_sites_whatever_the_third_sends() -> None:
    rng = np.random.default_rng(0)
    honest = rng.normal(size=(2, 50)).astype(np.float32)
    for bad in (-honest[0] * 5, np.full(50, 1e30), rng.normal(size=50) * 100):
        middle = trimmed_mean(np.stack([*honest, bad.astype(np.float32)]), 1)
        assert ((middle >= honest.min(0)) & (middle <= honest.max(0))).all()


def test_a_trimmed_mean_leaves_out_as_many_at_each_end(tmp_path: Path) -> None:
    values = np.float32([[5], [1], [2], [100], [-100]])
    np.testing.assert_array_equal(trimmed_mean(values, 1), np.float32([8 / 3]))
    np.testing.assert_array_equal(trimmed_mean(values, 2), [2])
    np.testing.assert_array_equal(trimmed_mean(values[:4], 1), [3.5], "of an even number the mean of two")
    updates = stored(tmp_path, (0.5, 0.1, 0.3, 9, -9))
    np.testing.assert_allclose(averaged(seen(updates, rule="trimmed_mean"))["w"], 0.3, rtol=1e-6)


def test_a_trimmed_mean_that_leaves_out_nothing_is_the_uniform_mean(tmp_path: Path) -> None:
    updates = stored(tmp_path, (0.7, -0.3, 0.1), n_samples=(1, 2, 3))
    trimmed, plain = averaged(seen(updates, rule="trimmed_mean", trim=0)), averaged(updates, "uniform")
    for key in plain:
        np.testing.assert_array_max_ulp(trimmed[key].astype(np.float32), plain[key].astype(np.float32), maxulp=1)


def test_clipping_shortens_what_is_longer_than_the_median_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    updates = stored(tmp_path, (1.0, 2.0, -8.0))
    clipped = seen(updates, rule="norm_clipping")
    for number, expected in enumerate((1.0, 2.0, -2.0)):
        np.testing.assert_allclose(clipped[number].weights["w"], expected)
        np.testing.assert_allclose(clipped[number].weights["running_var"], 1 + abs(expected))
        assert clipped[number].weights["counter"] == 8 + number
        assert clipped[number].weights["w"].dtype == np.float32


def test_a_clip_that_nothing_reaches_is_fedavg_to_the_last_bit(tmp_path: Path) -> None:
    updates = stored(tmp_path, (0.1, 0.7, -0.3), n_samples=(1, 2, 4))
    clipped, plain = averaged(seen(updates, rule="norm_clipping", clip=1e9)), averaged(updates)
    for key in plain:
        assert clipped[key].tobytes() == plain[key].tobytes()


def test_clipping_limits_a_site_that_lies_about_its_samples(tmp_path: Path) -> None:
    updates = stored(tmp_path, (0.5, 0.5, 0.5, 0.5, 0.5, -0.5), n_samples=(32, 32, 32, 32, 32, 32000))
    clipped, plain = averaged(seen(updates, rule="norm_clipping")), averaged(updates)
    assert (plain["w"] < -0.49).all(), "without the rule only the liar counts"
    np.testing.assert_allclose(clipped["w"], 0.5 * 4 / 6, rtol=1e-6)


@pytest.mark.parametrize(
    ("clip", "expected"),
    [(1, [1, 3, 3]), (0.5, [1, 2, 2]), (1e-9, [1, 1, 1]), (2, [1, 3, 6]), (1e9, [1, 3, 900]), (1e308, [1, 3, 900])],
)
def test_clipping_lets_no_site_count_for_more_than_its_share(clip: float, expected: list[int], tmp_path: Path) -> None:
    updates = stored(tmp_path, (1.0, 2.0, 3.0), n_samples=(1, 3, 900))
    assert [update.n_samples for update in seen(updates, rule="norm_clipping", clip=clip)] == expected
    assert [update.n_samples for update in seen(updates, rule="median")] == [1, 3, 900]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("median", {"c": [2, 2, 2], "g": [2, 2, 2], "t": [1, 2, 8]}),
        ("norm_clipping", {"c": [1, 2, 2], "g": [1, 2, 8], "t": [1, 2, 8]}),
    ],
)
def test_arrays_that_the_server_averages_are_treated_like_weights(
    rule: str, expected: Mapping[str, list[float]], tmp_path: Path
) -> None:
    updates = seen(stored(tmp_path, (1.0, 2.0, 8.0)), rule=rule)
    for name, values in expected.items():
        assert [float(update.arrays["scaffold"][name]) for update in updates] == values


def test_the_keys_of_an_update_stay_what_they_are(tmp_path: Path) -> None:
    (update, *_) = seen(stored(tmp_path, (1.0, 2.0, 8.0)), rule="median")
    assert list(update.weights) == list(RECEIVED) and len(update.weights) == 3 and "other" not in update.weights
    with pytest.raises(KeyError):
        update.weights["other"]
    assert (update.site, update.n_samples, update.n_steps) == ("S0", 1, 1)


def test_methods_that_move_along_changes_move_along_the_median(tmp_path: Path) -> None:
    updates = seen(stored(tmp_path, (0.25, 0.5, -50.0)), rule="median")
    server = fedavgm.Server(fedavgm.Config(beta=0.5))
    first = server.combine(RECEIVED, updates, server_context("w"))
    np.testing.assert_array_equal(first["w"], 0.25)
    np.testing.assert_array_equal(server.state["w"], -0.25)


@pytest.mark.parametrize(
    ("methods", "options", "code"),
    [
        ("fedavg", ["rule=trimmed_mean", "trim=2"], "too-few-sites"),
        ("fedavg", ["rule=median", "min_sites"], "too-few-sites"),
        ("afl", ["rule=median"], "options-clash"),
        ("gen_afl", ["rule=trimmed_mean"], "options-clash"),
        ("vm", ["rule=median"], "options-clash"),
        ("feddyn", ["rule=median"], "options-clash"),
        ("scaffold", ["rule=trimmed_mean", *SGD], "options-clash"),
        ("single", ["rule=median"], "nothing-sent"),
        ("all", ["rule=median"], "nothing-sent"),
    ],
)
def test_what_a_rule_cannot_do_is_refused_when_the_job_is_made(methods: str, options: list[str], code: str) -> None:
    least = () if "min_sites" in options else ("federation.min_sites=3",)
    texts = [o if o.startswith("optimizer") else f"federation.robust.{o}" for o in options if "=" in o]
    with raises(code, naming="federation.robust" if methods == "fedavg" else methods):
        small_job(methods, *least, *texts)


@pytest.mark.parametrize(
    ("options", "named"),
    [(["rule=median", "trim=1", "clip=2"], "'clip'"), (["rule=krum"], "rule"), (["rule=median", "trimm=1"], "'trim'")],
)
def test_options_that_a_rule_does_not_have_are_named(options: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        small_job("fedavg", "federation.min_sites=3", *(f"federation.robust.{option}" for option in options))


def test_options_that_are_not_used_are_not_written_into_a_job() -> None:
    plain = small_job("fedavg").dump()["federation"]
    assert not {"robust", "max_norm_ratio", "max_sample_ratio"} & set(plain)
    job = small_job("fedavg", "federation.min_sites=3", *robust("median"), "federation.max_norm_ratio=null")
    dumped = job.dump()["federation"]
    assert dumped["robust"]["rule"] == "median" and dumped["max_norm_ratio"] is None
    assert JobSpec.parse(job.dump(), where="job") == job
    assert FederationSpec(min_sites=1).max_norm_ratio == 20


# --- whole jobs -----------------------------------------------------------------------------------------


def robust(rule: str, **options: float) -> tuple[str, ...]:
    return (f"federation.robust.rule={rule}", *(f"federation.robust.{k}={v}" for k, v in options.items()))


def last_weights(coordinator: Coordinator) -> Weights:
    return coordinator.open(coordinator.rounds + 1).weights


def one_round(job: JobSpec, data: Mapping[str, Path], folder: Path, poisoned: str = "") -> Weights:
    """The aggregate of a round in which one site may send its change five times and turned around."""
    rejected: list[tuple[Rejection, int]] = []
    coordinator = Coordinator(job, folder, on_reject=lambda rejection, round_: rejected.append((rejection, round_)))
    sites = {name: Site(job, name, path, SiteOptions(folder / "sites")) for name, path in data.items()}
    broadcast = first_round(coordinator, sites)
    for name, site in sites.items():
        update = site.train(broadcast)
        if name == poisoned:
            bad = {
                key: np.asarray(value - 6 * (value - broadcast.weights[key]), value.dtype)
                for key, value in update.weights.items()
                if key in coordinator.model.trainable
            }
            update = replace(update, weights={**update.weights, **bad})
        assert coordinator.accept(update)
    coordinator.close()
    assert not rejected, "the guard has nothing against such an update"
    return coordinator.open(2).weights


def test_a_huge_clip_is_the_plain_job_to_the_last_bit(three_sites: dict[str, Path], tmp_path: Path) -> None:
    runs = [
        last_weights(run_in_process(small_job("fedavg", *options), three_sites, tmp_path / name))
        for name, options in {
            "plain": (),
            "clipped": ("federation.min_sites=3", *robust("norm_clipping", clip=1e9)),
        }.items()
    ]
    for key in runs[0]:
        assert runs[0][key].tobytes() == runs[1][key].tobytes(), key


def test_a_poisoned_site_moves_the_mean_and_hardly_the_median(
    three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    def far(name: str, *options: str) -> float:
        job = small_image_job("fedavg", "federation.min_sites=3", *options)
        runs = [one_round(job, three_image_sites, tmp_path / name / p, poisoned=p) for p in ("", "B")]
        return max(float(np.abs(runs[0][key] - runs[1][key]).max()) for key in ("head.weight", "head.bias"))

    plain = far("plain", *(f"federation.clip_{limit}_ratio=null" for limit in ("norm", "opposed", "sample")))
    for name, options in {
        "median": robust("median"),
        "trimmed": robust("trimmed_mean"),
        "clipped": robust("norm_clipping", clip=0.5),
    }.items():
        assert far(name, *options) < 0.7 * plain, name


@pytest.mark.parametrize(
    ("methods", "rule"),
    [
        *product(["fedrdn", "fraug", "fedfa", "fedavgm", "fedbn"], ["median", "norm_clipping"]),
        ("scaffold+fedrdn", "norm_clipping"),
    ],
)
def test_other_methods_run_with_a_rule(
    methods: str, rule: str, three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    options = ("federation.min_sites=3", "schedule.rounds=1", "optimizer.keep=false", *robust(rule))
    try:
        job = small_image_job(methods, *options)
    except ConfigError as error:
        pytest.fail(str(error))
    weights = last_weights(run_in_process(job, three_image_sites, tmp_path))
    assert all(np.isfinite(value).all() for value in weights.values())
