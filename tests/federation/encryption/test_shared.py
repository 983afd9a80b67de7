"""What needs more than an encrypted sum is refused when the job is made, whichever way the sum is encrypted."""

from __future__ import annotations

import pytest
from conftest import small_job

from fedshift.schema.errors import ConfigError

MORE_THAN_SUMS = [
    ("fedfa", r"method fedfa sends 'mean\.1' for the server to read, .*fedfa\.share=sums"),
    ("fedrdn", "method fedrdn sends .* for the server to read"),
    ("fednova optimizer.name=sgd", "method fednova .* more .* than a weighted sum"),
    ("fedavgm", "method fedavgm .* more .* than a weighted sum"),
    ("fedavg federation.robust.rule=median federation.min_sites=3", "compares single updates"),
    ("fedavg federation.min_sites=1", r"one site .*federation\.min_sites=2"),
]


@pytest.mark.parametrize(
    ("encryption", "job", "reason"),
    [
        *((encryption, *refused) for encryption in ("ckks", "masks") for refused in MORE_THAN_SUMS),
        ("masks", "fedavg federation.sites_per_round=2", "every round asks all sites"),
        ("masks", "fedavg federation.weights_as=int8", "cannot be made smaller"),
    ],
)
def test_what_needs_more_than_sums_is_refused_when_the_job_is_made(encryption: str, job: str, reason: str) -> None:
    methods, *options = job.split()
    with pytest.raises(ConfigError, match=reason):
        small_job(methods, "federation.min_sites=2", *options, f"federation.encryption={encryption}")
