"""Freed features are kept for the next pass."""

from __future__ import annotations

import subprocess
import sys

import pytest

PASSES = """
import resource, sys, torch
from fedshift.tasks.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory(torch.device("cpu"))

def one():
    features = [torch.ones(6_000_000) for _ in range(4)]

one()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    one()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_memory_of_a_pass_is_not_fetched_anew_for_the_next() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", PASSES, how], capture_output=True, check=True).stdout)
        for how in ("kept", "returned")
    }
    assert faults["kept"] < faults["returned"] / 10
