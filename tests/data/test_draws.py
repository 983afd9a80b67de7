"""Counted random numbers: the generator's published answers, the distributions, and that nothing else decides them."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import kstest

from fedshift.data import draws


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_words_are_those_that_the_authors_publish(counter: list[int], key: list[int], words: list[int]) -> None:
    """Random123's known answers for philox4x32-10."""
    a, b, c, d = map(torch.tensor, counter)
    first, second = map(torch.tensor, key)
    assert [int(word) for word in draws.philox((a, b, c, d), (first, second))] == words


def test_numbers_depend_on_seed_stream_and_place_alone() -> None:
    seeds = draws.sample_seeds(2**62 + 5, torch.arange(50))
    assert len(set(seeds.tolist())) == 50 and (seeds >= 0).all()
    assert torch.equal(draws.sample_seeds(2**62 + 5, torch.tensor([40, 7])), seeds[[40, 7]])
    assert not torch.equal(draws.sample_seeds(2**62 + 6, torch.arange(50)), seeds)
    for numbers in (draws.uniform, draws.normal):
        all_at_once = numbers(seeds, 8, stream=2)
        assert torch.equal(numbers(seeds[3:5].flip(0), 8, stream=2), all_at_once[[4, 3]])
        assert not torch.equal(numbers(seeds, 8, stream=3), all_at_once)
    assert torch.equal(draws.uniform(seeds, 3, stream=2), draws.uniform(seeds, 8, stream=2)[:, :3])
    streams = torch.arange(50)
    assert torch.equal(draws.uniform(seeds, 5, stream=streams)[4], draws.uniform(seeds[4:5], 5, stream=4)[0])


def test_distributions() -> None:
    seeds = draws.sample_seeds(3, torch.arange(40))
    uniform, normal = draws.uniform(seeds, 999, stream=0), draws.normal(seeds, 999, stream=0)
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1
    assert kstest(uniform.flatten().numpy(), "uniform").pvalue > 1e-3
    assert kstest(normal.flatten().numpy(), "norm").pvalue > 1e-3
    assert abs(float(torch.corrcoef(normal[:, :2].T)[0, 1])) < 0.5
