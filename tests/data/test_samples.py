"""Batches of one site, of several as one, and of every site in equal parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import torch
from conftest import train_batches
from torch import Tensor

from fedshift.data.samples import EverySite, Samples, Union


class Numbers(Samples):
    """Samples ``start`` … ``start + n - 1``; the target is the number."""

    def __init__(self, start: int, n: int) -> None:
        self._start, self._n = start, n

    @property
    def n_train(self) -> int:
        return self._n

    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        numbers = torch.from_numpy(index + self._start)
        return numbers.float().reshape(-1, 1, 1, 1), numbers


def flat(batches: Iterable[list[int]]) -> list[int]:
    return sorted(chain.from_iterable(batches))


def epoch(data: Samples, batch_size: int, seed: int = 0, *, drop_last: bool = True) -> Iterator[list[int]]:
    order = torch.Generator().manual_seed(seed)
    for x, y in train_batches(data, batch_size=batch_size, order=order, drop_last=drop_last):
        assert torch.equal(x.flatten().long(), y)
        yield y.tolist()


def test_a_union_shows_every_sample_of_every_site_once() -> None:
    union = Union([Numbers(0, 5), Numbers(100, 3), Numbers(200, 4)])
    batches = list(epoch(union, 6))
    assert flat(batches) == [*range(5), 100, 101, 102, *range(200, 204)]
    assert any(min(batch) < 100 <= max(batch) for batch in batches), "batches mix sites"
    assert batches == list(epoch(union, 6)) != list(epoch(union, 6, seed=1))
    assert flat(y.tolist() for _, y in union.chunks()) == flat(batches)


def test_a_site_without_samples_has_no_batch() -> None:
    assert list(epoch(Numbers(0, 0), 6)) == list(epoch(Numbers(0, 0), 6, drop_last=False)) == []
    assert list(epoch(Numbers(7, 1), 6)) == [[7]]


def test_chunks_are_in_order_or_shuffled_by_a_seed() -> None:
    data = Numbers(0, 70)

    def chunks(order: torch.Generator | None = None) -> list[list[int]]:
        return [y.tolist() for _, y in data.chunks(order)]

    assert chunks() == [list(range(32)), list(range(32, 64)), list(range(64, 70))]
    one, again, other = (chunks(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert one == again != other and flat(one) == list(range(70)) and [len(chunk) for chunk in one] == [32, 32, 6]


def test_every_site_has_an_equal_part_of_each_batch_in_order() -> None:
    data = EverySite([Numbers(0, 9), Numbers(100, 4)])
    batches = list(epoch(data, 3))
    assert len(batches) == 3, "as long as the largest site's epoch"
    assert all(len(batch) == 6 for batch in batches)
    assert all(max(batch[:3]) < 100 <= min(batch[3:]) for batch in batches)
    assert flat(batch[:3] for batch in batches) == list(range(9))
    assert [len(batch) for batch in epoch(data, 8)] == [8, 8], "four of each: the smaller site has no more"


def test_the_last_batch_is_kept_or_left_out_but_never_a_single_sample() -> None:
    def sizes(n: int, *, drop_last: bool) -> list[int]:
        return [len(batch) for batch in epoch(Numbers(0, n), 32, drop_last=drop_last)]

    assert sizes(62, drop_last=True) == [32] and sizes(62, drop_last=False) == [32, 30]
    assert sizes(65, drop_last=False) == [32, 32], "batch norm cannot train on one sample"
    assert sizes(20, drop_last=True) == sizes(20, drop_last=False) == [20]
    assert sizes(1, drop_last=True) == sizes(1, drop_last=False) == [1]
    kept = list(epoch(Numbers(0, 62), 32, drop_last=False))
    assert flat(kept) == list(range(62)) and kept[0] == next(iter(epoch(Numbers(0, 62), 32)))
