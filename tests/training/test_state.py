"""State files: repeatable tasks, bounded space, nothing half-written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedshift.errors import DataError
from fedshift.training.seeding import derive_seed, generator
from fedshift.training.state import SiteState, StateStore


def mark(value: int) -> SiteState:
    return SiteState(methods={"m": {"value": torch.tensor(value)}})


def value_of(state: SiteState) -> int:
    return int(state.methods["m"]["value"])


def test_a_round_starts_from_the_last_finished_one_before_it(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "A")
    assert store.before(1) == SiteState()
    store.write(1, mark(1), best_round=0)
    store.write(2, mark(2), best_round=0)
    assert value_of(store.before(3)) == 2
    assert value_of(store.before(2)) == 1, "round 2 again starts from where it started before"
    store.write(5, mark(5), best_round=0)
    assert value_of(store.before(5)) == 2, "rounds that the site missed do not matter"


def test_files_do_not_pile_up(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "A")
    for round_ in range(10):
        store.write(round_, mark(round_), best_round=0)
    assert sorted(p.name for p in (tmp_path / "A").iterdir()) == [f"round_00000{r}.pt" for r in (0, 8, 9)]


def test_the_best_round_survives_when_named_in_time(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "A")
    store.write(3, mark(3), best_round=0)
    store.write(4, mark(4), best_round=2)
    for round_ in range(5, 9):
        store.write(round_, mark(round_), best_round=3)
    assert value_of(store.at(3)) == 3
    assert len(list((tmp_path / "A").iterdir())) == 3


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.write(1, mark(1), best_round=0)
    path = tmp_path / "round_000001.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"round_000001\.pt cannot be read"):
        store.before(2)


def test_seeds_depend_on_all_four_coordinates() -> None:
    base = (0, "A", 1, "order")
    others = [(1, "A", 1, "order"), (0, "B", 1, "order"), (0, "A", 2, "order"), (0, "A", 1, "noise")]
    seeds = {derive_seed(*c) for c in (base, *others)}
    assert len(seeds) == 5 and all(0 <= s < 2**63 for s in seeds)
    first = torch.rand(3, generator=generator(*base))
    assert torch.equal(first, torch.rand(3, generator=generator(*base)))
