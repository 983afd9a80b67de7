"""By mailbox, too, a site answers with a sentence where its policy does not list a package of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from conftest import small_job
from packagefiles import install

from fedshift.schema.results import read_results

from .hospitals import Hospitals


def test_a_site_that_does_not_list_a_package_is_left_out(
    three_sites: Mapping[str, Path], kits_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "acme-mailed"
    monkeypatch.syspath_prepend(str(install(tmp_path / "packages", name)))
    job = small_job("fedavg", f"network.name={name}:small", "schedule.rounds=1")
    spec = job.packages[name]
    lists = f"privacy: {{packages: {{{name}: {{version: '{spec.version}', sha256: {spec.sha256}}}}}}}\n"
    policies = {"BIDMC": lists, "UCL": lists}
    hospitals = Hospitals(job, three_sites, tmp_path / "mailbox", kits_of("prostate"), policies=policies, fresh=False)
    hospitals.run()
    (record,) = read_results(hospitals.run_folder).rounds
    assert sorted(record.sites) == ["BIDMC", "UCL"]
    (rejected,) = record.rejected
    assert rejected.site == "HK" and name in rejected.reason and "privacy.packages" in rejected.reason
