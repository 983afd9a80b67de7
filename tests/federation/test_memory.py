"""What a run needs is compared with what there is, and what is suggested fits."""

from __future__ import annotations

import gc
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import make_site, small_job
from errors import raises

from fedshift.cli import main
from fedshift.federation import footprint as seen
from fedshift.federation import memory
from fedshift.federation.footprint import footprint
from fedshift.federation.memory import (
    Measured,
    Need,
    choose_workers,
    most_images,
    most_workers,
    need_at_server,
    needs_at_site,
    needs_in_process,
    needs_in_simulator,
)
from fedshift.schema.errors import TooLittleMemory
from fedshift.tasks import machine

MB = 10**6
NEED = Need(base=500 * MB, process=400 * MB, image=50 * MB, batch=16, free=8000 * MB)  # 1.7 GB for one, 7.7 for six


def test_what_fits_is_run_as_it_is_and_said_when_it_is_tight() -> None:
    assert choose_workers([NEED], wanted=4, asked=True) == (4, "")
    count, note = choose_workers([NEED], wanted=6, asked=True)
    assert count == 6 and "7.7 GB" in note and "8.0 GB" in note


def test_fewer_are_taken_where_nobody_asked_for_a_number() -> None:
    count, note = choose_workers([replace(NEED, free=4000 * MB)], wanted=6, asked=False)
    assert count == 2 and "7.7 GB" in note and note.endswith("2 at a time")


def test_a_number_that_was_asked_for_is_refused_with_suggestions_that_fit() -> None:
    need = replace(NEED, free=4000 * MB)
    with pytest.raises(TooLittleMemory) as caught:
        choose_workers([need], wanted=6, asked=True)
    message = str(caught.value)
    assert all(word in message for word in ("6 workers", "7.7 GB", "4.0 GB", "-p 2"))
    (batch,) = map(int, re.findall(r"schedule.batch_size=(\d+)", message))
    assert need.fits(2) and not need.fits(3)
    assert replace(need, batch=batch).fits(6) and not replace(need, batch=2 * batch).fits(6)
    assert "--ignore-memory" in message


@pytest.mark.parametrize("asked", [True, False])
def test_where_not_even_one_fits_a_batch_is_suggested_at_which_it_does(asked: bool) -> None:
    need = replace(NEED, free=1400 * MB)
    for free, wanted, named in ((1400, 6, ("-p 1", "schedule.batch_size=8")), (800, 1, "smaller images")):
        with raises("too-little-memory", naming=named):
            choose_workers([replace(need, free=free * MB)], wanted=wanted, asked=asked)
    assert replace(need, batch=8).fits(1) and not need.fits(1)


def test_gpus_share_the_processes_and_the_one_with_most_decides() -> None:
    gpu = Need(0, 1000 * MB, 0, 16, 3500 * MB, "GPU ", shared_by=2)
    host = replace(NEED, free=10**12)
    assert [gpu.bytes_for(n) // MB for n in (1, 2, 3, 6)] == [1000, 1000, 2000, 3000]
    assert most_workers([host, gpu], 12) == 6
    with raises("too-little-memory", naming=("12", "6.0", "GB", "GPU", "3.5")):
        choose_workers([host, gpu], wanted=12, asked=True)
    assert most_images([gpu], 12) == 0, "a smaller batch would not help"


def test_batches_are_no_larger_than_the_largest_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 10**10)
    data = {site: make_site(tmp_path, site) for site in ("BIDMC", "HK")}  # 2 cases of 8 slices to train on
    measured = Measured(activations=MB, network=MB, evaluation=2560 * 4096)
    jobs = [small_job("fedavg", f"schedule.batch_size={n}", sites=["BIDMC", "HK"]) for n in (4, 10**6)]
    small, whole = (needs_in_simulator(job, data, measured)[0].batch for job in jobs)
    assert small == 4 and 4 < whole <= 16
    job = small_job("fedavg", sites=["BIDMC", "HK"])
    (alone,), (pooled,) = (needs_in_process(job, data, measured, together=n) for n in (1, 2))
    assert pooled.image == 2 * alone.image
    on_gpus = needs_in_simulator(job, data, replace(measured, gpus=(5 * MB, 3 * MB)))
    assert [(need.where, need.shared_by) for need in on_gpus] == [("", 1), ("GPU ", 2)]
    assert on_gpus[1].free == 3 * MB


@pytest.mark.parametrize(
    ("device", "several", "free"),
    [("auto", True, (10, 11, 12)), ("auto", False, (10,)), ("cuda:1", True, (11,)), ("cpu", True, ())],
)
def test_only_gpus_that_a_run_uses_are_looked_at(
    device: str, several: bool, free: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSHIFT_DEVICE", device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda one: (10 + (one if isinstance(one, int) else one.index), 80))
    monkeypatch.setattr(seen, "choose_device", lambda asked: torch.device("cuda:0" if asked == "auto" else asked))
    monkeypatch.setattr(seen, "settled", lambda precision, device: "fp32")
    assert seen.measure(small_job("fedavg"), several=several).gpus == free, "each takes memory on the GPU for itself"


def test_bf16_leaves_less_and_a_wider_network_more_for_the_backward_pass() -> None:
    full, half = (footprint(small_job("fedavg", f"schedule.precision={p}")) for p in ("fp32", "bf16"))
    assert half.network == full.network and half.activations < 0.75 * full.activations
    wide = footprint(small_job("fedavg", "network.options.features=8"))
    assert wide.activations > 1.5 * full.activations


def test_what_a_job_is_measured_by_is_freed() -> None:
    """Where activations are made in place, what the backward pass keeps of a layer is the layer's own output."""

    def kept() -> int:
        gc.collect()
        return sum(isinstance(each, torch.Tensor) and each.grad_fn is not None for each in gc.get_objects())

    job = small_job("fedavg", "network.name=monai.DynUNet", "network.options={strides: [1, 2, 2], filters: [4, 8, 8]}")
    before = kept()
    footprint(job)
    assert kept() == before


def test_the_limit_of_a_container_counts_without_pages_that_it_can_drop(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n", encoding="ascii")
    (tmp_path / "memory.current").write_text("700000\n", encoding="ascii")
    (tmp_path / "memory.stat").write_text("anon 100000\ninactive_file 400000\n", encoding="ascii")
    assert machine.free_memory(tmp_path) == 700000
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    assert machine.free_memory(tmp_path) > 10**7


def test_a_run_in_one_process_is_refused_before_it_begins_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in ("BIDMC", "HK"):
        make_site(tmp_path / "share" / "fedshift" / "phantom", site)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    options = ["data.matrix=32", "network.options.features=2", "schedule.rounds=1", "schedule.local_epochs=1"]
    out, run = str(tmp_path / "jobs"), str(tmp_path / "run")
    words = ["job", "fedavg", "prostate", "--protocol", "quick", "--sites", "BIDMC,HK", "--out", out]
    assert main([*words, "--set", *options]) == 0
    monkeypatch.setattr(memory, "free_memory", lambda: MB)
    words = ["run", f"{out}/fedavg_prostate", "--in-process", "-w", run]
    assert main(words) == 2
    assert "GB of memory" in capsys.readouterr().err
    assert main([*words, "--ignore-memory"]) == 0


def test_a_party_under_flare_needs_its_own_process_beside_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 10**10)
    folder, measured = make_site(tmp_path, "HK"), Measured(activations=MB, network=MB, evaluation=MB)
    job = small_job("fedavg", sites=["BIDMC", "HK"])
    (alone,), (here,) = needs_at_site(job, folder, measured), needs_in_process(job, {"HK": folder}, measured)
    assert alone.process == here.process and alone.image == here.image
    assert alone.base >= memory.PROCESS and alone.bytes_for(1) > here.bytes_for(1)
    host, gpu = needs_at_site(job, folder, replace(measured, gpus=(10**9,)))
    assert gpu.free == 10**9 and gpu.image == alone.image and not host.image
    assert need_at_server(measured).bytes_for(1) < alone.bytes_for(1), "it trains nothing"
