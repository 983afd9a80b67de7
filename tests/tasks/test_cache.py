"""Where a site's arrays lie: the same batches everywhere, and a refusal of what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_site, small_image_job, small_job
from errors import raises

from fedshift.data.draws import sample_seeds
from fedshift.schema.job import JobSpec
from fedshift.tasks.base import SiteData
from fedshift.tasks.cache import place
from fedshift.tasks.kinds import build_task

CPU = torch.device("cpu")


@pytest.mark.parametrize("cache", ["auto", "host", "device"])
def test_slices_and_pictures_have_the_same_bits_wherever_they_lie(
    cache: str, tmp_path: Path, three_image_sites: dict[str, Path]
) -> None:
    scans = make_site(tmp_path, "BIDMC", cases=4, depth=9)

    def opened(where: str) -> list[SiteData]:
        jobs: list[tuple[JobSpec, Path, str]] = [
            (small_job("fedavg", "data.augmentation=rot90-flip", f"data.cache={where}"), scans, "BIDMC"),
            (small_image_job("fedavg", f"data.cache={where}"), three_image_sites["A"], "A"),
        ]
        return [build_task(job).open(folder, site) for job, folder, site in jobs]

    for on_disk, held in zip(opened("disk"), opened(cache), strict=True):
        held.hold(CPU)
        index = np.array([5, 0, 7])
        seeds = sample_seeds(4, torch.from_numpy(index))
        for part, same in zip(
            on_disk.train_batch(index, seeds=seeds), held.train_batch(index, seeds=seeds), strict=True
        ):
            assert torch.equal(part, same) and part.dtype == same.dtype


@pytest.mark.parametrize(("size", "where"), [(40, "device"), (400, "host"), (4000, "disk")])
def test_on_a_gpu_its_own_memory_counts(size: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr("fedshift.tasks.cache.free_memory", lambda: 1000)
    assert place("auto", size, gpu, site="A") == where
    if where != "device":
        with raises("cache-memory", naming=("site A", "data.cache=device")):
            place("device", size, gpu, site="A")


def test_auto_on_a_processor_leaves_the_files_to_the_system() -> None:
    assert place("auto", 1, CPU, site="A") == "disk"


@pytest.mark.parametrize("cache", ["host", "device"])
def test_what_does_not_fit_is_refused_with_the_room_that_there_is(cache: str) -> None:
    assert place(cache, 1000, CPU, site="A") == cache  # type: ignore[arg-type]
    with raises("cache-memory", naming=("site A", f"data.cache={cache}", "1000000.00 GB", "data.cache=auto")):
        place(cache, 10**15, CPU, site="A")  # type: ignore[arg-type]
