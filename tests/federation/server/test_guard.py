"""Every fault that an update can have is found and named before anything is summed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_image_job

from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.guard import Change, Received, Rejected, check_scores, check_update, medians, outliers
from fedshift.federation.server.state_files import STATE_FILE
from fedshift.methods.base import ArraySpec
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Scores, SiteInfo, Update

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
    with pytest.raises(Rejected, match="fedrdn/std"):
        check(bad, round_=0)


def test_personal_keys_must_stay_at_home() -> None:
    personal = frozenset({"bn.running_var", "bn.num_batches_tracked"})
    with pytest.raises(Rejected, match=r"bn\.num_batches_tracked.*not expected"):
        check(GOOD, withheld=personal)
    check(dataclasses.replace(GOOD, weights={"conv.weight": GOOD.weights["conv.weight"]}), withheld=personal)


def test_large_buffers_do_not_loosen_the_limit_on_parameters_nor_break_it() -> None:
    received = {**WEIGHTS, "bn.running_var": np.full(2, 1e9, np.float32)}
    moved = {**GOOD.weights, "bn.running_var": np.full(2, 5e9, np.float32)}
    check(dataclasses.replace(GOOD, weights=moved), weights=received)
    far = {**moved, "conv.weight": np.full((2, 3), 100, np.float32)}
    with pytest.raises(Rejected, match=r"moved by 242 in one round, allowed is 24\.5"):
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
        (11, 11, "has 11 groups, allowed are 1 to 10"),
        (0, 0, "0 groups"),
        (3, 4, "another"),
    ):
        with pytest.raises(Rejected, match=reason):
            check(answer(images, targets), specs=specs)


def test_scores_have_the_tasks_names_and_ranges() -> None:
    ranges = {"dice": (0.0, 1.0)}
    check_scores(Scores("A", 3, {"val": {"dice": 0.5}, "test": {"dice": 1.0}}), round_=3, metrics=ranges)
    check_scores(Scores("A", 3, {}), round_=3, metrics=ranges)
    for bad in (
        Scores("A", 2, {"val": {"dice": 0.5}}),
        Scores("A", 3, {"train": {"dice": 0.5}}),
        Scores("A", 3, {"val": {"dice": 1.5}}),
        Scores("A", 3, {"val": {"dice": float("nan")}}),
        Scores("A", 3, {"val": {"Case07": 0.5}}),
    ):
        with pytest.raises(Rejected):
            check_scores(bad, round_=3, metrics=ranges)


def test_running_statistics_have_a_largest_value_and_personal_scores_a_reason() -> None:
    key = next(key for key in WEIGHTS if key.endswith("running_var"))
    check(dataclasses.replace(GOOD, weights={**GOOD.weights, key: np.full_like(GOOD.weights[key], 1e5)}))
    with pytest.raises(Rejected, match="allowed is"):
        check(dataclasses.replace(GOOD, weights={**GOOD.weights, key: np.full_like(GOOD.weights[key], 3e38)}))
    own = Scores("A", 3, {}, personal={"test": {"dice": 1.0}})
    check_scores(own, round_=3, metrics={"dice": (0, 1)}, personal=True)
    with pytest.raises(Rejected, match="no method of the job fine-tunes"):
        check_scores(own, round_=3, metrics={"dice": (0, 1)})


def test_steps_are_those_that_the_schedule_makes() -> None:
    """FedNova divides by them: a site that says 1 would count many times."""
    check(GOOD, n_steps=5)
    with pytest.raises(Rejected, match="is 5, but the job makes 6 of 10 samples"):
        check(GOOD, n_steps=6)


def test_a_method_may_refuse_what_its_specification_cannot_say() -> None:
    def fault(arrays: dict[str, np.ndarray], n_samples: int) -> tuple[str, str] | None:
        return ("std.1", f"of {n_samples}") if arrays["std.1"][1] == 2 else None

    with pytest.raises(Rejected, match=r"fedfa/std\.1: of 10"):
        check(GOOD, faults={"fedfa": fault})
    check(dataclasses.replace(GOOD, **fedfa(np.float32([1, 3]))), faults={"fedfa": fault})


def test_changes_are_measured_apart_for_parameters_buffers_and_arrays() -> None:
    specs = {"fedfa": {"std.1": ArraySpec((2,), low=0, alike="norm")}}
    change = check(dataclasses.replace(GOOD, **fedfa(np.float32([3, 4]))), specs=specs)
    assert change == Change(parameters=6**0.5, buffers=2**0.5, arrays={"fedfa": 5.0})
    assert check(GOOD, specs={"fedfa": {"std.1": ArraySpec((2,))}}).arrays == {}


@dataclass
class Waiting:
    """An update that has passed the guard."""

    site: str
    change: Change = field(default_factory=lambda: Change(parameters=1.0))
    n_samples: int = 10
    n_steps: int = 5
    arrays: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)


def left_out(*updates: Waiting, **options: Any) -> dict[str, str]:
    limits = {"usual": medians(updates, {}), "specs": SPECS, "max_norm_ratio": 20.0, "max_sample_ratio": 1000.0}
    return {site: fault.key for site, fault in outliers(updates, **{**limits, **options})}


def test_a_norm_far_outside_the_others_is_left_out() -> None:
    others = [Waiting(name, Change(parameters=size)) for name, size in (("A", 0.8), ("B", 1.0), ("C", 1.3))]
    assert left_out(*others, Waiting("D", Change(parameters=20))) == {}
    assert left_out(*others, Waiting("D", Change(parameters=30))) == {"D": "weights"}
    assert left_out(*others, Waiting("D", Change(parameters=float("inf")))) == {"D": "weights"}
    assert left_out(*others, Waiting("D", Change(parameters=30)), max_norm_ratio=None) == {}
    assert left_out(*others[:1], Waiting("D", Change(parameters=30))) == {}, "two cannot say which of them is right"
    assert left_out(*others, Waiting("D", Change(parameters=0))) == {}, "a site may stand still"


def test_what_was_usual_in_an_earlier_round_stays_allowed() -> None:
    def sent(*sizes: float) -> list[Waiting]:
        return [Waiting(name, Change(size, arrays={"fedfa": size})) for name, size in zip("ABC", sizes, strict=False)]

    usual = medians(sent(0.5, 1, 2), {})
    assert usual == {"weights": 1, "fedfa": 1}
    late = sent(0.01, 0.01, 0.5)
    assert medians(late, usual) == usual and medians(sent(9, 9), usual) == usual, "two say nothing"
    assert left_out(*late) == {"C": "weights"}
    assert left_out(*late, usual=usual) == {}
    assert left_out(*sent(0.01, 0.01, 30), usual=usual) == {"C": "weights"}
    arrays = [Waiting(name, Change(0, arrays={"fedfa": size})) for name, size in zip("ABC", (0, 0, 30), strict=True)]
    assert left_out(*arrays, usual=usual) == {"C": "fedfa"}
    assert medians(sent(3, 4, 5), usual) == {"weights": 4, "fedfa": 4}


def test_a_site_with_more_steps_may_move_further() -> None:
    others = [Waiting(name) for name in "ABC"]
    assert left_out(*others, Waiting("D", Change(parameters=90), n_steps=25)) == {}
    assert left_out(*others, Waiting("D", Change(parameters=110), n_steps=25)) == {"D": "weights"}
    assert left_out(*others, Waiting("D", Change(parameters=30), n_steps=1)) == {"D": "weights"}, "fewer change nothing"


def test_an_absurd_sample_count_is_left_out() -> None:
    others = [Waiting(name, n_samples=n) for name, n in (("A", 10), ("B", 40), ("C", 900))]
    assert left_out(*others) == {}
    assert left_out(*others, Waiting("D", n_samples=10**9)) == {"D": "n_samples"}
    assert left_out(*others, Waiting("D", n_samples=10**9), max_sample_ratio=None) == {}


@pytest.mark.parametrize(("value", "key"), [(1e-6, "fedrdn/std"), (255.0, "fedrdn"), (0.001, "fedrdn/std")])
def test_a_statistic_that_is_allowed_but_far_from_the_others_is_left_out(value: float, key: str) -> None:
    """Every site divides its images by it."""
    specs = {
        "fedrdn": {
            "mean": ArraySpec((2,), "float64", when="once", alike="norm"),
            "std": ArraySpec((2,), "float64", when="once", low=1e-6, high=255, alike="elements"),
        }
    }

    def told(site: str, std: float) -> Waiting:
        arrays = {"fedrdn": {"mean": np.array([0.3, 0.3]), "std": np.array([0.2, std])}}
        update = Update(site, 0, 10, 0, arrays=arrays)
        change = check(update, round_=0, specs=specs)
        return Waiting(site, change, n_steps=0, arrays=arrays)

    honest = [told("A", 0.1), told("B", 0.2), told("C", 0.6)]
    assert left_out(*honest, specs=specs) == {}
    assert left_out(*honest, told("D", value), specs=specs) == {"D": key}


# --- a whole job ----------------------------------------------------------------------------------------


def a_round(coordinator: Coordinator, moves: Mapping[str, float]) -> dict[str, str]:
    """A round in which sites move one parameter so far: sites that are left out, and the key at fault."""
    round_ = coordinator.round + 1
    received = coordinator.open(round_).weights
    for site, move in moves.items():
        moved = {key: value.copy() for key, value in received.items()}
        moved["head.bias"][0] += move
        metrics = {coordinator.metric: 0.5}
        assert coordinator.accept(Update(site, round_, 10, coordinator.inbound.steps(10) or 0, moved, metrics))
    coordinator.close()
    return {rejected.site: rejected.key for rejected in coordinator.results.rounds[-1].rejected}


def begun(job: JobSpec, folder: Path, moves: Sequence[float] = (0.8, 1.0, 1.2)) -> Coordinator:
    """A job after its first round."""
    coordinator = Coordinator(job, folder)
    coordinator.open(0)
    for site in job.task.sites:
        coordinator.register(SiteInfo(site, "images", 10, 2, 2, manifest_sha256="0" * 64, split_rule="given"))
        assert coordinator.accept(Update(site, 0, 10, 0))
    coordinator.close()
    assert a_round(coordinator, dict(zip(job.task.sites, moves, strict=True))) == {}
    return coordinator


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(("move", "refused"), [(0.5, {}), (30, {"C": "weights"})])
def test_a_site_is_not_refused_because_the_others_have_come_to_rest(
    move: float, refused: dict[str, str], resumed: bool, tmp_path: Path
) -> None:
    job = small_image_job("fedavg", "federation.max_update_norm=1000")
    coordinator = begun(job, tmp_path)
    if resumed:
        coordinator = Coordinator(job, tmp_path)
        assert coordinator.resume() == 1
    assert a_round(coordinator, {"A": 0.01, "B": 0.01, "C": move}) == refused


def test_a_state_without_medians_is_gone_on_from(tmp_path: Path) -> None:
    """As earlier versions wrote it."""
    job = small_image_job("fedavg")
    begun(job, tmp_path)
    path = tmp_path / STATE_FILE
    content = torch.load(path, weights_only=True)
    assert content.pop("medians") == {"weights": pytest.approx(1, rel=1e-3)}
    torch.save(content, path)
    coordinator = Coordinator(job, tmp_path)
    assert coordinator.resume() == 1
    assert a_round(coordinator, {"A": 0.01, "B": 0.01, "C": 0.5}) == {"C": "weights"}
