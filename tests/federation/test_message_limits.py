"""The limits of a job's messages: every honest message is well below, and nothing is far above it."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import small_job

from fedshift.federation.message_limits import SLACK, MessageLimits
from fedshift.federation.tensors import read_weights
from fedshift.tasks.kinds import build_task


def network_bytes(job: object) -> int:
    return sum(value.nbytes for value in read_weights(build_task(job).network()).values())  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedfa+fedrdn"])
def test_a_model_fits_twice_and_not_much_more(method: str) -> None:
    job = small_job(method)
    limits, size = MessageLimits.from_job(job), network_bytes(job)
    for limit in (limits.answer, limits.task):
        assert 2 * size <= limit - SLACK <= 4 * size + 1_000_000


def test_control_variates_have_room() -> None:
    job, plain = small_job("scaffold", "optimizer.name=sgd", "optimizer.lr=0.01"), small_job("fedavg")
    assert MessageLimits.from_job(job).answer >= MessageLimits.from_job(plain).answer + network_bytes(job)


def test_ciphertexts_have_room() -> None:
    job = small_job("fedavg")
    sealed = job.model_copy(update={"federation": job.federation.model_copy(update={"encryption": "ckks"})})
    ciphertext = 2 * 16384 * 8 * 8  # two polynomials of degree 16384, with eight primes
    needed = -(-network_bytes(job) // 4 // 8192) * ciphertext
    assert MessageLimits.from_job(sealed).answer > needed


def test_a_client_that_hosts_several_sites_answers_for_all_of_them() -> None:
    job = small_job("fedavg")
    hosted = job.model_copy(update={"federation": job.federation.model_copy(update={"hosts": 1})})
    assert MessageLimits.from_job(hosted, most=3).answer == len(job.task.sites) * MessageLimits.from_job(job).answer
    assert MessageLimits.from_job(hosted, most=3).task == MessageLimits.from_job(job).task


def test_sizes_are_whole_numbers() -> None:
    limits = MessageLimits.from_job(small_job("fedavg"))
    assert isinstance(limits.answer, int) and not isinstance(limits.answer, np.integer)
