"""A cell in FLARE's simulator is the cell in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import make_image_site

from fedshift import cli
from fedshift.flare import simulate
from fedshift.reporting.progress import Progress
from fedshift_bench.record import read_comparison

from .made import write_spec


def fedbn(folder: Path, monkeypatch: pytest.MonkeyPatch, *, rounds: int) -> Path:
    """A spec of one cell at two sites, whose data lie in ``folder``."""
    for site in "AB":
        make_image_site(folder / "fedshift" / "phantom", site)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.chdir(folder)
    return write_spec(
        folder,
        sites=["A", "B"],
        axes={"method": {"FedBN": {"methods": "fedbn"}}},
        options={"schedule.rounds": rounds, "optimizer.lr": 0.1},
    )


@pytest.mark.slow
def test_flare_gives_the_scores_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = fedbn(tmp_path, monkeypatch, rounds=1)
    cells = []
    for words in (["--flare", "-w", "in_flare"], ["-w", "in_process", "--again"]):
        assert cli.main(["compare", str(spec), *words]) == 0
        cells += read_comparison(tmp_path / "runs" / "small").cells
    in_flare, in_process = cells
    assert in_flare.how == "FLARE's simulator" and in_process.how == "one process"
    assert in_flare.precision == in_process.precision == "fp32"
    assert in_flare.key == in_process.key and in_flare.scores == in_process.scores != {}
    assert not list((tmp_path / "in_flare").rglob("simulator.log"))
    assert list((tmp_path / "in_flare").rglob("best_global_model.pt"))


@pytest.mark.slow
def test_an_interrupted_cell_goes_on_after_its_last_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, run, begun = fedbn(tmp_path, monkeypatch, rounds=30), simulate.simulate, list[int]()

    def interrupted(*arguments: Any, on_look: Any, **options: Any) -> Any:
        def look(progress: Progress | None) -> None:
            on_look(progress)
            if progress is not None and progress.round >= 10:
                raise KeyboardInterrupt

        return run(*arguments, on_look=look, **options)

    def watched(*arguments: Any, on_look: Any, **options: Any) -> Any:
        def look(progress: Progress | None) -> None:
            on_look(progress)
            if progress is not None and progress.step != "statistics":
                begun.append(progress.round)

        return run(*arguments, on_look=look, **options)

    monkeypatch.setattr(simulate, "simulate", interrupted)
    assert cli.main(["compare", str(spec), "--flare", "-w", "in_flare"]) == 130
    monkeypatch.setattr(simulate, "simulate", watched)
    assert cli.main(["compare", str(spec), "--flare", "-w", "in_flare"]) == 0
    (resumed,) = read_comparison(tmp_path / "runs" / "small").cells
    assert begun[0] >= 10 and resumed.rounds == 30
    assert cli.main(["compare", str(spec), "-w", "in_process", "--again"]) == 0
    (whole,) = read_comparison(tmp_path / "runs" / "small").cells
    assert resumed.how == "FLARE's simulator" and whole.how == "one process"
    assert resumed.scores == whole.scores != {} and resumed.curve == whole.curve
