"""The exponential average of the rounds' models: its formula, where it goes, and when it is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import small_image_job
from errors import raises

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.global_model import ModelAverage
from fedshift.schema.results import LAST

DECAY = 0.6
OPTION = f"federation.model_average={DECAY}"


def test_it_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    models = rng.normal(size=(4, 3)).astype(np.float32)
    average = ModelAverage(DECAY)
    for number, w in enumerate(models):
        average.add({"w": w, "batches": np.int64(number)})
    factors = DECAY ** np.arange(3, -1, -1)
    value = average.value({"w": models[-1], "batches": np.int64(3)})
    np.testing.assert_allclose(value["w"], factors @ models / factors.sum(), rtol=1e-6)
    assert value["w"].dtype == np.float32 and value["batches"] == 3


def models_of(data: dict[str, Path], folder: Path, *options: str) -> list[dict[str, np.ndarray]]:
    """The server's model after each round."""
    found: dict[int, dict[str, np.ndarray]] = {}

    def note(coordinator: Coordinator) -> None:
        if coordinator.next_round > 1:
            found[coordinator.next_round - 1] = {k: v.copy() for k, v in coordinator.model.weights.items()}

    run_in_process(small_image_job("fedavg", "schedule.rounds=3", *options), data, folder, on_progress=note)
    return [found[round_] for round_ in sorted(found)]


def test_it_replaces_the_last_model_and_changes_no_round(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    plain = models_of(three_image_sites, tmp_path / "plain")
    averaged = models_of(three_image_sites, tmp_path / "averaged", OPTION)
    last = read_model_file(tmp_path / "averaged" / LAST)["weights"]
    for key, value in plain[2].items():
        np.testing.assert_array_equal(plain[1][key], averaged[1][key])
        if np.issubdtype(value.dtype, np.floating):
            expected = sum(DECAY ** (2 - k) * plain[k][key].astype(np.float64) for k in range(3))
            np.testing.assert_allclose(
                averaged[2][key], expected / (1 + DECAY + DECAY**2), rtol=1e-5, atol=1e-7, err_msg=key
            )
        assert torch.equal(last[key], torch.from_numpy(averaged[2][key])), "it is what is scored and saved"
    assert not np.allclose(plain[2]["head.weight"], averaged[2]["head.weight"], atol=1e-5)


def test_a_run_that_was_interrupted_goes_on_with_it(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    job = small_image_job("fedavg", "schedule.rounds=3", OPTION)
    run_in_process(job, three_image_sites, tmp_path / "whole")

    class Interrupted(Exception):
        pass

    def stop(coordinator: Coordinator) -> None:
        if coordinator.round == 3 and coordinator.answered:
            raise Interrupted

    with pytest.raises(Interrupted):
        run_in_process(job, three_image_sites, tmp_path / "cut", on_progress=stop)
    run_in_process(job, three_image_sites, tmp_path / "cut", resume=True)
    one, other = (read_model_file(tmp_path / name / LAST)["weights"] for name in ("whole", "cut"))
    assert all(torch.equal(value, other[key]) for key, value in one.items())


@pytest.mark.parametrize(
    ("methods", "options", "code"),
    [
        ("fedavg", (OPTION, "schedule.rounds=1"), "no-effect"),
        ("fedproto", (OPTION,), "nothing-sent"),
        ("fedavg", (OPTION, "federation.encryption=ckks"), "options-clash"),
    ],
)
def test_it_is_refused_where_there_is_nothing_to_average(methods: str, options: tuple[str, ...], code: str) -> None:
    with raises(code, naming="model_average"):
        small_image_job(methods, *options)
