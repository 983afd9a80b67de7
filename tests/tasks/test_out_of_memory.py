"""Memory that runs out at a site is a sentence with a mend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_site, small_job
from errors import raises

from fedshift.federation.in_process import run_in_process
from fedshift.federation.site import local_training
from fedshift.tasks.out_of_memory import training_out_of_memory


def in_onednn() -> None:
    raise RuntimeError("could not create a primitive")


def on_a_gpu() -> None:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


@pytest.mark.parametrize("exhaust", [lambda: torch.empty(1 << 50), lambda: np.ones(1 << 55), in_onednn, on_a_gpu])
def test_what_torch_and_numpy_raise_names_site_round_and_mend(exhaust: Callable[[], object]) -> None:
    with (
        raises("out-of-memory", naming=("site HK", "round 3", "schedule.batch_size")) as caught,
        training_out_of_memory("HK", 3),
    ):
        exhaust()
    assert ("the GPU's" in str(caught.value)) is (exhaust is on_a_gpu)


@pytest.mark.parametrize("message", ["shapes do not fit", "could not create a primitive descriptor for a matmul"])
def test_other_errors_pass(message: str) -> None:
    with pytest.raises(RuntimeError, match=message), training_out_of_memory("HK", 3):
        raise RuntimeError(message)


def test_a_site_without_memory_is_left_out_of_the_round_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {site: make_site(tmp_path, site) for site in ("BIDMC", "HK")}
    train = local_training.train

    def hungry(task, samples, chain, run, *rest):  # type: ignore[no-untyped-def]
        if (run.site, run.round) == ("HK", 2):
            torch.empty(1 << 50)
        return train(task, samples, chain, run, *rest)

    monkeypatch.setattr(local_training, "train", hungry)
    job = small_job("fedavg", "schedule.rounds=3", "federation.min_sites=1", sites=["BIDMC", "HK"])
    rounds = run_in_process(job, data, tmp_path / "run").results.rounds
    assert [record.absent for record in rounds] == [[], ["HK"], []]
    (rejection,) = rounds[1].rejected
    assert all(name in rejection.reason for name in ("site HK", "round 2", "schedule.batch_size"))
