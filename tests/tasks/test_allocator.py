"""Freed features are kept for the next pass."""

from __future__ import annotations

import subprocess
import sys

import pytest

PASSES = """
import resource, sys, torch
from torch import nn
from fedshift.tasks.allocator import keep_freed_memory

torch.set_num_threads(1)
if sys.argv[1] == "kept":
    keep_freed_memory(torch.device("cpu"))
pairs = ((1, 16), (16, 32), (32, 4))
net = nn.Sequential(*(nn.Sequential(nn.Conv3d(a, b, 3, padding=1), nn.InstanceNorm3d(b)) for a, b in pairs))
x = torch.ones(1, 1, 48, 48, 48)
with torch.inference_mode():
    for _ in range(3):
        net(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        net(x)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_memory_of_a_pass_is_not_fetched_anew_for_the_next() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", PASSES, how], capture_output=True, check=True).stdout)
        for how in ("kept", "returned")
    }
    assert faults["kept"] < faults["returned"] / 3, "pages that the system has zeroed"
