"""The limits that every job has: what one site of several can do is bounded, and honest sites do not meet them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import small_image_job
from threadpoolctl import threadpool_limits

from fedshift.federation.in_process import run_in_process
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.outliers import medians
from fedshift.federation.server.robust import Limits, clip, exceeded, limits_of_round, opposition, usual_limits
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.server.update_check import Change
from fedshift.federation.site.state import StateStore
from fedshift.schema.job import FederationSpec
from fedshift.schema.messages import SiteInfo, Update
from fedshift.tasks.kinds import build_task

from .test_robust import RECEIVED, SPECS, TRAINABLE, stored


def limited(
    updates: Sequence[SpooledUpdate],
    usual: Mapping[str, float],
    *,
    norm: float | None = 5,
    opposed: float | None = None,
    samples: float | None = 10,
    by_clock: bool = False,
) -> Limits | None:
    ratios = {"clip_norm_ratio": norm, "clip_opposed_ratio": opposed, "clip_sample_ratio": samples}
    federation = FederationSpec.model_validate({"min_sites": 1, **ratios})
    return usual_limits(updates, usual, federation, weights=RECEIVED, trainable=TRAINABLE, by_clock=by_clock)


def test_limits_are_the_ratio_times_the_largest_median_so_far(tmp_path: Path) -> None:
    updates = stored(tmp_path, (0.1, 0.2, 0.8), n_samples=(10, 20, 1000))
    usual = medians(updates, {"weights": 1.0, "buffers": 0.1, "scaffold": 0.3})
    limits = limited(updates, usual)
    assert limits is not None
    assert limits.parameters == [5.0] * 3, "of an earlier round"
    assert limits.buffers == pytest.approx([5 * 0.2 * 2**0.5] * 3), "of this one"
    assert limits.arrays == {"scaffold": [1.5] * 3}
    assert limited(updates[:2], usual) is None, "two have no majority"
    unlimited = Limits([np.inf] * 3, [np.inf] * 3, {"scaffold": [np.inf] * 3})
    assert limited(updates, usual, norm=None, samples=None) == unlimited
    assert limited(updates, {}, opposed=1, samples=None).parameters == [np.inf] * 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("counts", "most"),
    [((10, 20, 1000), 30), ((10, 10, 10, 10, 1000), 40), ((10,) * 7 + (1000,), 50), ((1, 2, 3, 100, 1000), 15)],
)
def test_no_site_weighs_more_than_all_others_or_five_times_the_median(
    counts: tuple[int, ...], most: float, tmp_path: Path
) -> None:
    updates = stored(tmp_path, (0.1,) * len(counts), n_samples=counts)
    limits = limited(updates, {}, samples=5)
    assert limits is not None and limits.samples == most


def test_a_site_with_more_steps_may_move_further(tmp_path: Path) -> None:
    updates = stored(tmp_path, (0.5, 0.5, 0.5))
    updates[2].n_steps = 4
    limits = limited(updates, medians(updates, {}))
    assert limits is not None and limits.parameters == [5, 5, 20]
    updates[2].n_steps = 2000  # as it would make with so many samples as it says
    limits = limited(updates, medians(updates, {}), samples=5)
    assert limits is not None and limits.parameters == [5, 5, 25]


def test_where_the_clock_ends_rounds_no_site_counts_with_far_fewer_steps_than_the_others(tmp_path: Path) -> None:
    """FedNova divides by them, and the server has only the site's word."""
    updates = stored(tmp_path, (0.5, 0.5, 0.5))
    for update, steps in zip(updates, (100, 80, 1), strict=True):
        update.n_steps = steps

    def counted(limits: Limits | None) -> list[int]:
        assert limits is not None
        clipped = clip(updates, limits, weights=RECEIVED, trainable=TRAINABLE, specs=SPECS)
        return [update.n_steps for update in clipped]

    by_clock = limited(updates, {}, samples=5, by_clock=True)
    assert counted(by_clock) == [100, 80, 16]
    assert counted(limited(updates, {}, samples=5)) == [100, 80, 1], "else they follow from the samples"
    assert counted(limited(updates, {}, samples=None, by_clock=True)) == [100, 80, 1]
    said = list(exceeded(updates, by_clock)) if by_clock is not None else []
    assert [site for site, sentence in said if "16 steps" in sentence and "clip_sample_ratio" in sentence] == [
        updates[2].site
    ]


def test_in_the_statistics_round_no_site_is_said_to_count_with_too_few_steps(tmp_path: Path) -> None:
    updates = stored(tmp_path, (0.5, 0.5, 0.5))
    for update in updates:
        update.n_steps = 0
    limits = limited(updates, {}, samples=5, by_clock=True)
    assert limits is not None and list(exceeded(updates, limits)) == []


@pytest.mark.parametrize(
    ("moves", "limits"),
    [
        ((0.5, 0.5, 0.5, -1), [5, 5, 5, 0.5]),
        ((0.5, 0.5, 0.5, -0.2), [5, 5, 5, 5]),  # short enough
        ((0.5, 0.5, 0.5, 4), [5, 5, 5, 5]),  # along with the others
        ((0.5, 0.5, 1, -20), [7.5, 7.5, 7.5, 0.75]),  # whose length gives it no more votes
    ],
)
def test_a_change_against_the_others_has_a_lower_limit(
    moves: tuple[float, ...], limits: list[float], tmp_path: Path
) -> None:
    updates = stored(tmp_path, moves)
    found = limited(updates, medians(updates, {}), opposed=0.5)
    assert found is not None and found.parameters == pytest.approx(limits)
    lower = limits[-1] < limits[0]
    said = [sentence for site, sentence in exceeded(updates, found) if "against the others" in sentence]
    assert [sentence.endswith("(federation.clip_opposed_ratio)") for sentence in said] == [True] * lower


def test_how_far_a_site_moves_against_the_others_is_the_part_along_their_sum(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    changes = [rng.normal(size=(2, 2)).astype(np.float32) for _ in range(5)]
    changes[4] = -3 * (changes[0] + changes[1])
    updates = []
    for number, change in enumerate(changes):
        update = Update(f"S{number}", 1, n_samples=1 + 99 * number, n_steps=1, weights={**RECEIVED, "w": change})
        length = float(np.linalg.norm(change))
        updates.append(SpooledUpdate(update, tmp_path / "updates" / f"{number}", Change(length, 0, {})))
    usual = 1.5
    found = opposition(updates, usual=usual, weights=RECEIVED, trainable=TRAINABLE)
    votes = [change * min(1.0, usual / float(np.linalg.norm(change))) for change in changes]
    for number, change in enumerate(changes):
        others = sum(vote for other, vote in enumerate(votes) if other != number)
        part = -float(np.vdot(change, others)) / float(np.linalg.norm(others))
        assert found[number] == pytest.approx(max(0, part), abs=1e-6)
    assert found[4] > 1 and min(found) == 0


def test_a_part_against_the_others_has_the_same_digits_with_any_number_of_blas_threads(tmp_path: Path) -> None:
    rng, received = np.random.default_rng(0), {"w": np.zeros(500_001, np.float32)}
    updates = []
    for number, mean in enumerate((0.5, 0.5, -0.5)):
        change = rng.normal(mean, size=500_001).astype(np.float32)
        update = Update(f"S{number}", 1, n_samples=1, n_steps=1, weights={"w": change})
        updates.append(SpooledUpdate(update, tmp_path / "updates" / f"{number}", Change(700.0, 0, {})))
    parts = set()
    for threads in (1, 2, 3):
        with threadpool_limits(threads, "blas"):
            parts.add(tuple(opposition(updates, usual=700.0, weights=received, trainable=frozenset({"w"}))))
    assert len(parts) == 1


def test_what_is_beyond_a_limit_is_scaled_down_and_named(tmp_path: Path) -> None:
    updates = stored(tmp_path, (0.5, 0.5, 0.5, 6), n_samples=(10, 10, 10, 1000))
    limits = limits_of_round(updates, 3)
    within = clip(updates, limits, weights=RECEIVED, trainable=TRAINABLE, specs=SPECS)
    assert list(within[:3]) == updates[:3]
    far = within[3]
    np.testing.assert_allclose(far.weights["w"], 1.5)
    np.testing.assert_allclose(far.weights["running_var"], 2.5)
    assert far.weights["counter"] == 11 and far.n_samples == 30
    assert far.arrays["scaffold"]["c"] == 1.5 and far.arrays["scaffold"]["g"] == 6, "only what is a change"
    assert far.scaled == pytest.approx({"weights": 0.25, "buffers": 0.25, "scaffold": 0.25})
    assert not any(update.scaled for update in within[:3])
    told = dict.fromkeys(site for site, _ in exceeded(updates, limits))
    assert list(told) == ["S3"]
    sentences = " / ".join(sentence for _, sentence in exceeded(updates, limits))
    assert "to 0.25 of it" in sentences and "30 samples" in sentences and "1000" in sentences


# --- in a job ---------------------------------------------------------------------------------------------


Attack = Callable[[Update, dict[str, np.ndarray]], Update]


def reverse(update: Update, received: dict[str, np.ndarray]) -> Update:
    """The change reversed and fifteen times as large: below what is refused."""
    weights = {k: received[k] - 15 * (v - received[k]) if v.dtype.kind == "f" else v for k, v in update.weights.items()}
    return replace(update, weights={**update.weights, **weights})


def train(folder: Path, *options: str, attack: Attack | None = None, n_samples: int = 12) -> Coordinator:
    """Two rounds of three sites that move all floating arrays by 0.01; C attacks in the second round."""
    job = small_image_job("fedavg", "schedule.rounds=2", "federation.max_update_norm=1000", *options)
    server, names = Coordinator(job, folder), build_task(job).metrics
    counts = {"A": 12, "B": 12, "C": n_samples}
    for round_ in range(3):
        broadcast = server.open(round_)
        for site, n in counts.items():
            if round_ == 0:
                server.register(SiteInfo(site, "images", n, 2, 2, "0" * 64, "by hand"))
                assert server.accept(Update(site, 0, n, 0))
                continue
            received = broadcast.weights
            moved = {k: v + np.float32(0.01) if v.dtype.kind == "f" else v for k, v in received.items()}
            metrics = {"train_loss": 1.0, **(dict.fromkeys(names, 0.5) if round_ > 1 else {})}
            update = Update(site, round_, n, server.update_check.steps(n) or 1, moved, metrics)
            if attack is not None and (site, round_) == ("C", 2):
                update = attack(update, received)
            assert server.accept(update)
        server.close()
    return server


def moved(server: Coordinator, honest: Coordinator) -> float:
    """How far the model is from that of honest sites, in multiples of what a round moves it."""
    keys = server.model.trainable
    distance = sum(float(np.square(server.model.weights[k] - honest.model.weights[k]).sum()) for k in keys) ** 0.5
    return distance / (0.01 * sum(honest.model.weights[k].size for k in keys) ** 0.5)


def test_a_reversed_change_can_do_no_more_than_the_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    honest = train(tmp_path / "honest")
    assert not caplog.records
    limited = train(tmp_path / "limited", attack=reverse)
    assert "round 2: site C" in caplog.text and "to 0.033 of it" in caplog.text
    longer = train(tmp_path / "longer", "federation.clip_opposed_ratio=null", attack=reverse)
    assert "to 0.33 of it" in caplog.text
    off = ("federation.clip_norm_ratio=null", "federation.clip_opposed_ratio=null")
    free = train(tmp_path / "free", *off, attack=reverse)
    assert not limited.results.rounds[-1].rejected and not free.results.rounds[-1].rejected
    assert moved(free, honest) == pytest.approx(16 / 3, rel=1e-3), "one of three sites, reversed and times 15"
    assert moved(longer, honest) == pytest.approx(6 / 3, rel=1e-3), "reversed and times 5"
    assert moved(limited, honest) == pytest.approx(1.5 / 3, rel=1e-3), "reversed and half as long"


def test_a_thousandfold_sample_count_weighs_as_all_others_from_the_first_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = train(tmp_path, attack=reverse, n_samples=12000)
    assert "round 0: site C" in caplog.text and "24 samples in" in caplog.text
    free = train(tmp_path / "free", "federation.clip_sample_ratio=null", attack=reverse, n_samples=12000)
    honest = train(tmp_path / "honest")
    assert moved(free, honest) > moved(server, honest)


def test_limits_that_nobody_meets_change_no_bit(tmp_path: Path) -> None:
    ours = train(tmp_path / "ours")
    options = (f"federation.clip_{name}_ratio=null" for name in ("norm", "opposed", "sample"))
    free = train(tmp_path / "free", *options)
    assert all(ours.model.weights[key].tobytes() == value.tobytes() for key, value in free.model.weights.items())


@pytest.mark.parametrize(("method", "prefix", "what"), [("scaffold", "", "scaffold"), ("feddyn", "moved.", "weights")])
def test_what_sites_keep_of_a_change_is_what_the_server_used(
    method: str,
    prefix: str,
    what: str,
    three_image_sites: dict[str, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server's mean of the sites' values is right after rounds in which limits were met."""
    limits = ("federation.clip_norm_ratio=1", "federation.clip_opposed_ratio=0.01")
    job = small_image_job(method, "network.options.width=2", "schedule.rounds=3", *limits)
    server = dict(run_in_process(job, three_image_sites, tmp_path).model.halves)[method].state
    assert server["accepted"].tolist() == [3, 3, 3] and f"change of {what}" in caplog.text
    found = [StateStore(tmp_path / "site_state" / site).before(4) for site in three_image_sites]
    states = [state.methods[method] for state in found if state is not None]
    for key in ("head.weight", "head.bias"):
        counted, sent = (np.stack([state[f"{of}.{key}"].numpy() for state in states]) for of in ("counted", "sent"))
        part = server["used"].reshape(-1, *[1] * (counted.ndim - 1))
        np.testing.assert_allclose((counted + part * (sent - counted)).mean(0), server[prefix + key], atol=1e-6)
