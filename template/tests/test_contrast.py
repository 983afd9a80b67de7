"""The method passes what fedshift holds every method to, and does what it promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fedshift_template import contrast

from fedshift.federation.model_files import read_model_file
from fedshift.schema.results import LAST
from fedshift_testing.every_method import CHECKS, KINDS, Check, Runs

LOSS = "loss=fedshift-template:robust_ce"
NETWORK = ("network.name=fedshift-template:ladder", "network.options.features=4")
OPTIONS = {"segmentation": (*NETWORK, LOSS), "classification": (LOSS,)}
"""Its jobs have this package's other parts, too."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"), options=OPTIONS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_checks_of_every_method(check: Check, kind: str, runs: Runs, tmp_path: Path) -> None:
    check(contrast.NAME, kind, runs, tmp_path)


def test_the_server_sends_the_mean_of_what_sites_have_measured(runs: Runs) -> None:
    federation, run = runs.serialised(contrast.NAME, "segmentation")
    measured = [
        m.arrays("arrays")[contrast.NAME, "deviation"] for m in federation.messages if m.up and m.task == "statistics"
    ]
    mean = read_model_file(run.folder / LAST)["methods"][contrast.NAME]["mean"]
    assert len({float(own) for own in measured}) == len(measured) == 3
    assert float(mean) == pytest.approx(float(np.mean(measured)))
