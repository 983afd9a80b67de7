"""A cell in FLARE's simulator is the cell in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_image_site

from fedshift import cli
from fedshift.reporting.comparison.record import read_comparison

from .made import write_spec


@pytest.mark.slow
def test_flare_gives_the_scores_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for site in "AB":
        make_image_site(tmp_path / "fedshift" / "phantom", site)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    spec = write_spec(
        tmp_path,
        sites=["A", "B"],
        axes={"method": {"FedBN": {"methods": "fedbn"}}},
        options={"schedule.rounds": 1, "optimizer.lr": 0.1},
    )
    found = []
    for words in (["--flare", "-w", "in_flare"], ["-w", "in_process", "--again"]):
        assert cli.main(["compare", str(spec), *words]) == 0
        found += read_comparison(tmp_path / "runs" / "small").cells
    in_flare, in_process = found
    assert in_flare.how == "FLARE's simulator" and in_process.how == "one process"
    assert in_flare.precision == in_process.precision == "fp32"
    assert in_flare.key == in_process.key and in_flare.scores == in_process.scores != {}
    assert not list((tmp_path / "in_flare").rglob("simulator.log"))
    assert list((tmp_path / "in_flare").rglob("best_global_model.pt"))
