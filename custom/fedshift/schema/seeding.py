"""Random numbers that depend on (seed, site, round, purpose) and on nothing else.

A process that dies, a site that comes late, a different number of threads or clients: none of them
changes a draw, because no draw comes from a generator that somebody else also uses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(seed: int, site: str, round_: int, purpose: str) -> int:
    """A 63-bit seed from the four coordinates (SHA-256, so neighbours are unrelated)."""
    text = f"{seed}|{site}|{round_}|{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, site: str, round_: int, purpose: str) -> torch.Generator:
    """A CPU generator for one purpose; draws are made on the CPU so that devices agree."""
    return torch.Generator().manual_seed(derive_seed(seed, site, round_, purpose))


@contextmanager
def seeded_global(seed: int) -> Iterator[None]:
    """Give code that insists on torch's global generator (layer initialisation, dropout) a fixed one.

    The caller's global state is put back afterwards.
    """
    # Of GPUs only the one that this process uses: to look at the others would take memory there.
    used = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=used):
        torch.manual_seed(seed)
        yield
