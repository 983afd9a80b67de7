"""Freed features are kept for the next pass."""

from __future__ import annotations

import subprocess
import sys

import pytest

PASSES = """
import resource, sys, torch
from torch import nn
from fedshift.tasks.precision import prepare

torch.set_num_threads(1)
dims = int(sys.argv[2])
layers, norms = (nn.Conv2d, nn.Conv3d)[dims - 2], (nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 2]
pairs = ((1, 16), (16, 32), (32, 4))
net = nn.Sequential(*(nn.Sequential(layers(a, b, 3, padding=1), norms(b)) for a, b in pairs))
if sys.argv[1] == "kept":
    prepare(net, "fp32", torch.device("cpu"))
x = torch.ones(4, 1, 192, 192) if dims == 2 else torch.ones(1, 1, 48, 48, 48)
with torch.inference_mode():
    for _ in range(3):
        net(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        net(x)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
@pytest.mark.parametrize("dims", [2, 3])
def test_memory_of_a_pass_is_not_fetched_anew_for_the_next(dims: int) -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", PASSES, how, str(dims)], capture_output=True, check=True).stdout)
        for how in ("kept", "returned")
    }
    assert faults["kept"] < faults["returned"] / 3, "pages that the system has zeroed"
