"""What needs more than an encrypted sum is refused when the job is made, whichever way the sum is encrypted."""

from __future__ import annotations

import pytest
from conftest import small_job
from errors import raises

MORE_THAN_SUMS = [
    ("fedfa", "needs-single-updates", "fedfa.share=sums"),
    ("fedrdn", "needs-single-updates", "fedrdn"),
    ("fednova optimizer.name=sgd", "needs-single-updates", "fednova"),
    ("fedavgm", "needs-single-updates", "fedavgm"),
    ("fedavg federation.robust.rule=median federation.min_sites=3", "options-clash", "federation.robust"),
    ("fedavg federation.min_sites=1", "too-few-sites", "federation.min_sites=2"),
]


@pytest.mark.parametrize(
    ("encryption", "job", "code", "named"),
    [
        *((encryption, *refused) for encryption in ("ckks", "masks") for refused in MORE_THAN_SUMS),
        ("masks", "fedavg federation.sites_per_round=2", "options-clash", "federation.sites_per_round"),
        ("masks", "fedavg federation.weights_as=int8", "options-clash", "federation.weights_as"),
    ],
)
def test_what_needs_more_than_sums_is_refused_when_the_job_is_made(
    encryption: str, job: str, code: str, named: str
) -> None:
    methods, *options = job.split()
    with raises(code, naming=named):
        small_job(methods, "federation.min_sites=2", *options, f"federation.encryption={encryption}")
