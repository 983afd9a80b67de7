"""One job, one seed: by mailbox, with a new process for every step, the weights are those of one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from conftest import small_job
from modelfiles import assert_same_model

from fedshift.federation.in_process import run_in_process
from fedshift.federation.server.run_files import load_state
from fedshift.schema.results import BEST, LAST, Results, read_results

from .hospitals import Hospitals

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
