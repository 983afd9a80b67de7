"""Random numbers of training samples, counted instead of drawn one after another: Philox4x32-10.

Every number is a function of a sample's seed, a stream (what it is for) and its place in the stream (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011). So it is the same in any batch, order, thread or process; whole
batches are drawn at once, on the device that the seeds are on, and integers and uniform numbers have the same bits on
every device. Normal ones differ in their last bits, as devices compute logarithms.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK = 0xFFFFFFFF
PLACE, CHANCES, TURNS, NOISE = range(4)
"""Streams of a sample: where its patch is, what its augmentation does, quarter turns and flips, and, from this one on,
the Gaussian noise of each sequence."""
WAYS = 1 << 14
"""Stream of how far a sample is shifted."""
BENDS = 1 << 15
"""Stream of how a sample is bent."""
SHAPES = 1 << 16
"""From this stream on, what a change of a sequence needs beyond chance and three values: curves, kernels, fields."""


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four words of 32 random bits for each counter and key, as int64, all of one shape."""
    a, b, c, d = counter
    first, second = key
    for _ in range(ROUNDS):
        # A product of 64 bits wraps around into the sign, which the mask takes away again.
        left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = (
            (right >> 32) & MASK ^ b ^ first,
            right & MASK,
            (left >> 32) & MASK ^ d ^ second,
            left & MASK,
        )
        first, second = (first + WEYL[0]) & MASK, (second + WEYL[1]) & MASK
    return a, b, c, d


def words(seeds: Tensor, count: int, *, stream: int | Tensor) -> Tensor:
    """The first ``count`` words of a stream, or of a stream (B,) for each seed: (B,) int64, not negative, to (B, count)
    int64 of 0 … 2³²-1.
    """
    block = torch.arange(-(-count // 4), device=seeds.device).expand(len(seeds), -1)
    zero = torch.zeros_like(block)
    streams = zero + (stream[:, None] if isinstance(stream, Tensor) else stream)
    low, high = (part[:, None].expand_as(block) for part in (seeds & MASK, seeds >> 32))
    drawn = philox((block, zero, streams, zero), (low, high))
    return torch.stack(drawn, -1).flatten(1)[:, :count]


def uniform(seeds: Tensor, count: int, *, stream: int | Tensor) -> Tensor:
    """(B, count) float32 in [0, 1), multiples of 2⁻²⁴."""
    return (words(seeds, count, stream=stream) >> 8).float() * 2.0**-24


def normal(seeds: Tensor, count: int, *, stream: int | Tensor) -> Tensor:
    """(B, count) float32 of mean 0 and deviation 1 (Box and Muller)."""
    half = -(-count // 2)
    radius, angle = torch.split(uniform(seeds, 2 * half, stream=stream), half, 1)
    radius = (1 - radius).log_().mul_(-2).sqrt_()  # 1 - u is above 0
    angle = angle * (2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)[:, :count]


def sample_seeds(seed: int, places: Tensor) -> Tensor:
    """A seed of 62 bits for each sample of a round, by its place in the round's order: (B,) int64 to (B,) int64."""
    zero = torch.zeros_like(places)
    key = (zero + (seed & MASK), zero + (seed >> 32))
    high, low, _, _ = philox((places & MASK, places >> 32, zero, zero), key)
    return (high >> 2 << 32) | low
