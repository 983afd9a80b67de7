"""Freed features are kept for the next pass, and large tensors lie in huge pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SWITCH = "THP_MEM_ALLOC_ENABLE"

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
    # glibc's own default, which it would else adapt: with some layouts of the heap it then keeps the memory by itself.
    environ = {SWITCH: "0", "MALLOC_TRIM_THRESHOLD_": str(128 * 1024)}
    faults = {how: int(told(PASSES, how, str(dims), environ=environ)) for how in ("kept", "returned")}
    assert faults["kept"] < faults["returned"] / 3, "pages that the system has zeroed"


TENSOR = """
from pathlib import Path
import fedshift
import torch

x = torch.ones(16 * 2**20)
inside = False
for line in Path("/proc/self/smaps").read_text().splitlines():
    key, *values = line.split()
    if not key.endswith(":"):
        first, last = (int(value, 16) for value in key.split("-"))
        inside = first <= x.data_ptr() < last
    elif inside and key == "VmFlags:":
        print("hg" in values)
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this system has no transparent huge pages"
)
@pytest.mark.parametrize(("environ", "expected"), [({}, "True"), ({SWITCH: "0"}, "False"), ({SWITCH: "1"}, "True")])
def test_large_tensors_lie_in_huge_pages_unless_the_environment_says_otherwise(
    environ: dict[str, str], expected: str
) -> None:
    assert told(TENSOR, environ=environ).strip() == expected


def told(program: str, *arguments: str, environ: dict[str, str]) -> str:
    """What a program prints in a process of its own."""
    inherited = {key: value for key, value in os.environ.items() if key != SWITCH}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=inherited | environ, capture_output=True, check=True, text=True).stdout
