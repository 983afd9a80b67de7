"""Precision and threads, as they are settled where a site trains."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_site, small_job
from errors import raises
from torch import nn

from fedshift.federation.in_process import run_in_process
from fedshift.tasks.device import device_name
from fedshift.tasks.machine import own_cores
from fedshift.tasks.precision import autocast, prepare, settled, use_threads, uses_bf16

CPU, GPU, APPLE = torch.device("cpu"), torch.device("cuda:1"), torch.device("mps")


def processor(monkeypatch: pytest.MonkeyPatch, **flags: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx512_bf16": True}, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True),
        ({"avx2": True, "avx512_f": True}, False),  # emulates it
        ({"neon": True, "bf16": True}, False),
    ],
)
def test_auto_is_bf16_on_a_processor_that_multiplies_it(
    flags: Mapping[str, bool], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(monkeypatch, **flags)
    assert uses_bf16("auto", CPU) is expected
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not uses_bf16("auto", CPU)


def test_a_torch_that_cannot_say_what_the_processor_has_stays_with_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert settled("auto", CPU) == "fp32"


@pytest.mark.parametrize("there", [True, False])
def test_auto_on_a_gpu_is_what_that_gpu_has(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def supported(including_emulation: bool = True) -> bool:
        return there or including_emulation

    monkeypatch.setattr(torch.cuda, "device", lambda device: (asked.append(device), nullcontext())[1])
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    processor(monkeypatch, avx512_bf16=not there)
    assert settled("auto", GPU) == ("bf16" if there else "fp32")
    assert asked == [GPU]


def test_auto_elsewhere_is_fp32_and_a_named_precision_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, avx512_bf16=True)
    assert settled("auto", APPLE) == "fp32"
    processor(monkeypatch)
    assert [settled("bf16", CPU), settled("fp32", CPU)] == ["bf16", "fp32"]


@pytest.mark.parametrize("has", [True, False])
def test_auto_gives_the_same_numbers_and_layout_as_what_it_stands_for(
    has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(monkeypatch, avx512_bf16=has)
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = []
    for asked in ("auto", settled("auto", CPU)):
        torch.manual_seed(0)
        net = prepare(torch.nn.Conv2d(3, 4, 3), asked, CPU)
        with autocast(asked, CPU):
            found.append((net(x), net.weight.stride()))
    (first, *layout), (second, *other) = found
    assert first.dtype == second.dtype == (torch.bfloat16 if has else torch.float32)
    assert torch.equal(first, second) and layout == other


@pytest.mark.parametrize("has", [True, False])
def test_a_run_with_auto_is_the_run_with_what_it_stands_for(
    has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(monkeypatch, avx512_bf16=has)
    data = {site: make_site(tmp_path, site) for site in ("BIDMC", "HK")}
    weights = []
    for asked in ("auto", "bf16" if has else "fp32"):
        job = small_job("fedavg", "schedule.rounds=1", f"schedule.precision={asked}", sites=["BIDMC", "HK"])
        run = run_in_process(job, data, tmp_path / asked)
        weights.append(run.model.weights)
        told = run.results.machines
        assert list(told) == ["BIDMC", "HK"]
        assert {(m.device, m.precision, m.threads) for m in told.values()} == {
            (device_name(CPU), "bf16" if has else "fp32", 1)
        }
    assert all(weights[0][key].tobytes() == weights[1][key].tobytes() for key in weights[1])


def test_threads_are_a_number_or_this_process_s_share_of_the_cores() -> None:
    for threads, workers, expected in ((3, None, 3), ("auto", None, own_cores()), ("auto", 10**6, 1), (1, None, 1)):
        assert use_threads(threads, workers=workers) == torch.get_num_threads() == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["0", "many", "1.5", "true", "null"])
def test_other_threads_are_refused(value: str) -> None:
    with raises("invalid-value", naming="threads"):
        small_job("fedavg", f"schedule.threads={value}")


def test_both_may_be_auto_in_a_job_and_are_written_so() -> None:
    job = small_job("fedavg", "schedule.threads=auto", "schedule.precision=auto")
    written: dict[str, Any] = job.dump()["task"]["schedule"]
    assert (written["threads"], written["precision"]) == ("auto", "auto")
    assert type(job).parse(job.dump(), where="again") == job


class Classifier(nn.Sequential):
    """A network whose `head` gives an image's classes; without its head, as seen here, it gives the features."""

    head = nn.Linear(4, 2)


KINDS = (nn.Sequential, Classifier)


@pytest.mark.parametrize(
    ("dims", "norm", "kind", "last"),
    [
        *((2, norm, kind, True) for norm in (nn.BatchNorm2d(4), nn.InstanceNorm2d(4)) for kind in KINDS),
        *((2, nn.Identity(), kind, True) for kind in KINDS),
        (2, nn.GroupNorm(2, 4), Classifier, True),
        *((dims, nn.GroupNorm(2, 4), nn.Sequential, False) for dims in (2, 3)),  # slow gradients of large features
        *((3, norm, nn.Sequential, True) for norm in (nn.BatchNorm3d(4), nn.InstanceNorm3d(4))),
    ],
)
def test_features_are_in_channels_last_where_the_normalisation_is_fast_in_it(
    dims: int, norm: nn.Module, kind: type[nn.Sequential], last: bool
) -> None:
    if dims == 3 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch convolves bf16 volumes in their layout only with AVX-512: run this on such a processor")
    layer, layout = ((nn.Conv2d, torch.channels_last), (nn.Conv3d, torch.channels_last_3d))[dims - 2]
    net = prepare(kind(layer(3, 4, 3), norm, layer(4, 2, 3)), "bf16", CPU)
    with autocast("bf16", CPU):
        features = net(torch.rand(2, 3, *[8] * dims))
    assert features.is_contiguous(memory_format=layout) is last
    assert features.is_contiguous() is not last


# --- freed features are kept for the next pass, and large tensors lie in huge pages -------------------


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


@pytest.mark.slow
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


@pytest.mark.slow
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
