"""One job, one seed: by mailbox, with a new process for every step, the weights are those of one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from conftest import make_site, small_job
from kits import provision_project
from modelfiles import assert_same_model

from fedshift.federation.encryption.kit_keys import SITE_KEYS, read_keys
from fedshift.federation.encryption.site import decrypt_model
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.server.run_files import load_state
from fedshift.flare.export import write_job
from fedshift.flare.simulate import simulate
from fedshift.schema.results import BEST, LAST, Results, read_results

from .hospitals import PROJECT, Hospitals

Kits = Callable[[str], Path]


def scores(results: Results) -> object:
    """All that does not depend on the clock."""
    rounds = [
        {site: entry.model_dump(exclude={"seconds"}) for site, entry in sorted(record.sites.items())}
        for record in results.rounds
    ]
    assert results.final is not None
    final = [(found.round, found.sites) for found in (results.final.best, results.final.last)]
    return rounds, results.selected, final, results.data, results.job  # without cases, which no hospital tells of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("methods", "options", "fresh"),
    [
        ("fedfa+fedrdn", (), True),
        ("scaffold", ("optimizer.name=sgd", "optimizer.lr=0.05"), False),
        ("fedbn", ("federation.weights_as=int8", "schedule.rounds=3"), True),
        ("fedavg", ("federation.encryption=masks", "federation.min_sites=3"), True),
    ],
)
def test_the_weights_are_those_of_one_process(
    methods: str,
    options: tuple[str, ...],
    fresh: bool,
    three_sites: Mapping[str, Path],
    kits_of: Kits,
    tmp_path: Path,
) -> None:
    job = small_job(methods, *options)
    run_in_process(job, three_sites, tmp_path / "one")
    hospitals = Hospitals(job, three_sites, tmp_path / "mailbox", kits_of("prostate"), fresh=fresh)
    hospitals.run()
    places = tmp_path / "one", hospitals.run_folder
    for file in (BEST, LAST):
        assert_same_model(*(place / file for place in places))
    states = [state for place in places if (state := load_state(place)) is not None]
    for method, arrays in states[0].methods.items() if job.federation.encryption is None else ():
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, states[1].methods[method][key], err_msg=key, strict=True)
    if job.federation.encryption is None:  # a site's keys are drawn, and their certificates are bytes too
        assert scores(read_results(places[0])) == scores(read_results(places[1]))


@pytest.mark.slow
def test_the_weights_are_those_of_nvflare(kits_of: Kits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its simulator, with a process a site."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    phantom = tmp_path / "share" / "fedshift" / "phantom"
    data = {site: make_site(phantom, site, gain=gain) for site, gain in (("BIDMC", 1.0), ("HK", 0.5), ("UCL", 1.3))}
    job = small_job("fedfa+fedrdn")
    write_job(job, tmp_path / "job")
    simulated = simulate(job, tmp_path / "job", tmp_path / "simulated", parallel=3, ignore_memory=True)
    hospitals = Hospitals(job, data, tmp_path / "mailbox", kits_of("prostate"))
    hospitals.run()
    for file in (BEST, LAST):
        assert_same_model(simulated.server / file, hospitals.run_folder / file)


@pytest.mark.slow
def test_encrypted_updates_have_the_sum_of_one_process(three_sites: Mapping[str, Path], tmp_path: Path) -> None:
    """With CKKS, whose sums are nearly those in clear; the keys are those of the project's builder."""
    project = tmp_path / "project.yml"
    builder = "- path: nvflare.lighter.impl.he.HEBuilder"
    project.write_text(PROJECT.read_text(encoding="utf-8").replace(f"# {builder}", builder), encoding="utf-8")
    kits = provision_project(project, tmp_path)
    options = ("optimizer.name=sgd", "optimizer.lr=0.02", "federation.min_sites=3")
    run_in_process(small_job("fedavg", *options), three_sites, tmp_path / "one")
    job = small_job("fedavg", *options, "federation.encryption=ckks")
    hospitals = Hospitals(job, three_sites, tmp_path / "mailbox", kits)
    hospitals.run()
    site = next(iter(three_sites))
    decrypt_model(hospitals.run_folder / LAST, tmp_path / LAST, read_keys(kits / site / "startup", SITE_KEYS))
    ours, theirs = (read_model_file(folder / LAST)["weights"] for folder in (tmp_path, tmp_path / "one"))
    for key, value in theirs.items():
        assert np.abs(ours[key].numpy() - value.numpy()).max() < 0.01, key
