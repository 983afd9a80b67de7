"""Where a site trains."""

from __future__ import annotations

import pytest
import torch
from errors import raises

from fedshift.schema.results import MachineRecord
from fedshift.tasks.device import MAX_NAME_LENGTH, choose_device, device_name, processor, recordable, spread


def test_a_gpu_is_used_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device("auto") == torch.device("cuda:0" if there else "cpu")
    assert choose_device("cpu").type == "cpu"


def test_a_gpu_is_chosen_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda size, device: None)
    assert [choose_device(asked) for asked in ("cuda", "cuda:1")] == [torch.device("cuda:0"), torch.device("cuda:1")], (
        "torch.cuda.set_device takes no other"
    )


@pytest.mark.parametrize("asked", ["gpu", "cuda:99", "mps"])
def test_a_device_that_is_not_there_is_named_in_one_short_sentence(asked: str) -> None:
    with raises("device-unusable", naming=f"'{asked}'") as error:
        choose_device(asked)
    assert len(str(error.value)) < 120, "PyTorch's list of backends is left out"


@pytest.mark.parametrize(
    ("asked", "gpus", "expected"),
    [
        ("auto", 3, ["cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:1"]),
        ("auto", 1, ["auto"] * 5),  # all share it
        ("auto", 0, ["auto"] * 5),
        ("cuda:1", 3, ["cuda:1"] * 5),
        ("cpu", 3, ["cpu"] * 5),
    ],
)
def test_processes_are_spread_over_gpus_in_turn_unless_one_was_named(
    asked: str, gpus: int, expected: list[str]
) -> None:
    assert [spread(asked, number, gpus=gpus) for number in range(5)] == expected


@pytest.mark.parametrize(
    ("flags", "told"),
    [({"amx_bf16": True, "avx512_bf16": True}, "AMX"), ({"avx512_bf16": True}, "AVX512 BF16"), ({}, "AVX2")],
)
def test_a_processor_is_named_with_the_instructions_that_results_depend_on(
    flags: dict[str, bool], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, **flags})
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    name, _, instructions = processor().rpartition(" (")
    assert name and instructions == f"{told})"
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert processor() == f"{name} (AVX2)", "of a torch that cannot say"


def test_a_device_s_name_is_short_and_plain() -> None:
    assert device_name(torch.device("cpu")) == processor()
    assert device_name(torch.device("mps")) == "mps" and recordable("\n") == ""
    assert recordable("NVIDIA H100") == "NVIDIA H100" and recordable("(r) GPU") == "r) GPU"
    long = recordable("GPU\x1b[31m\u2122" + "x" * 99)
    MachineRecord(device=long, precision="fp32", threads=1)
    assert long.isprintable() and long.isascii() and len(long) <= MAX_NAME_LENGTH
