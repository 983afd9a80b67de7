"""Random numbers depend on seed, site, round and purpose, and on nothing else."""

from __future__ import annotations

import torch

from fedshift.schema.seeding import derive_seed, generator, seeded_global


def test_every_value_changes_the_seed() -> None:
    values = [(0, "A", 1, "order"), (1, "A", 1, "order"), (0, "B", 1, "order"), (0, "A", 2, "order"), (0, "A", 1, "x")]
    seeds = [derive_seed(*value) for value in values]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, "2", 3, "p") != derive_seed(12, "", 3, "p"), "values do not run into each other"


def test_two_generators_for_one_purpose_draw_the_same() -> None:
    first, second = (torch.rand(5, generator=generator(3, "A", 2, "mix")) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, torch.rand(5, generator=generator(3, "A", 3, "mix")))


def test_torchs_own_generator_is_as_before_afterwards() -> None:
    before = torch.random.get_rng_state()
    with seeded_global(4):
        drawn = torch.rand(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    with seeded_global(4):
        assert torch.equal(torch.rand(3), drawn)
