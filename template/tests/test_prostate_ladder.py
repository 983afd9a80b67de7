"""The task makes a job, which names this package with version and hash."""

from __future__ import annotations

from fedshift.federation.resolve import resolve
from fedshift.schema.packages import installed


def test_it_makes_a_job() -> None:
    job = resolve("fedshift-template:prostate_ladder", "fedshift-template:contrast")
    assert job.task.network.name == "fedshift-template:ladder"
    assert job.packages == {"fedshift-template": installed("fedshift-template").spec}
