"""Updates that are far from the other sites' are left out of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_image_job

from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.outliers import medians, outliers
from fedshift.federation.server.run_files import STATE_FILE
from fedshift.federation.server.update_check import Change, Received, check_update
from fedshift.methods.base import ArraySpec
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import SiteInfo, Update


@dataclass
class Waiting:
    """An update that has passed its check."""

    site: str
    change: Change = field(default_factory=lambda: Change(parameters=1.0))
    n_samples: int = 10
    n_steps: int = 5
    arrays: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)


def left_out(*updates: Waiting, **options: Any) -> dict[str, str]:
    limits = {"usual": medians(updates, {}), "specs": {}, "max_norm_ratio": 20.0, "max_sample_ratio": 1000.0}
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
    assert usual == {"weights": 1, "buffers": 0, "fedfa": 1}
    late = sent(0.01, 0.01, 0.5)
    assert medians(late, usual) == usual and medians(sent(9, 9), usual) == usual, "two say nothing"
    assert left_out(*late) == {"C": "weights"}
    assert left_out(*late, usual=usual) == {}
    assert left_out(*sent(0.01, 0.01, 30), usual=usual) == {"C": "weights"}
    arrays = [Waiting(name, Change(0, arrays={"fedfa": size})) for name, size in zip("ABC", (0, 0, 30), strict=True)]
    assert left_out(*arrays, usual=usual) == {"C": "fedfa"}
    assert medians(sent(3, 4, 5), usual) == {"weights": 4, "buffers": 0, "fedfa": 4}


def test_running_statistics_far_from_the_others_are_left_out() -> None:
    """Such as variances of a million times, once: no training brings a model back from them."""
    others = [Waiting(name, Change(1.0, buffers=size)) for name, size in (("A", 0.8), ("B", 1.0), ("C", 1.3))]
    assert left_out(*others, Waiting("D", Change(1.0, buffers=20))) == {}
    assert left_out(*others, Waiting("D", Change(1.0, buffers=30))) == {"D": "buffers"}


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

    def sent(site: str, std: float) -> Waiting:
        arrays = {"fedrdn": {"mean": np.array([0.3, 0.3]), "std": np.array([0.2, std])}}
        update = Update(site, 0, 10, 0, arrays=arrays)
        received = Received({}, trainable=frozenset(), withheld=frozenset())
        change = check_update(update, round_=0, received=received, specs=specs, metrics={}, n_samples=10, max_norm=10.0)
        return Waiting(site, change, n_steps=0, arrays=arrays)

    honest = [sent("A", 0.1), sent("B", 0.2), sent("C", 0.6)]
    assert left_out(*honest, specs=specs) == {}
    assert left_out(*honest, sent("D", value), specs=specs) == {"D": key}


# --- a whole job ----------------------------------------------------------------------------------------


def a_round(coordinator: Coordinator, moves: Mapping[str, float]) -> dict[str, str]:
    """A round in which sites move one parameter so far: sites that are left out, and the key at fault."""
    round_ = coordinator.round + 1
    received = coordinator.open(round_).weights
    for site, move in moves.items():
        moved = {key: value.copy() for key, value in received.items()}
        moved["head.bias"][0] += move
        metrics = {coordinator.metric: 0.5}
        assert coordinator.accept(Update(site, round_, 10, coordinator.update_check.steps(10) or 0, moved, metrics))
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
    assert content.pop("medians") == {"weights": pytest.approx(1, rel=1e-3), "buffers": 0}
    torch.save(content, path)
    coordinator = Coordinator(job, tmp_path)
    assert coordinator.resume() == 1
    assert a_round(coordinator, {"A": 0.01, "B": 0.01, "C": 0.5}) == {"C": "weights"}
