"""What a finished cell's record says of a site that answered only in part."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from fedshift.federation.site.site import Site
from fedshift.schema.results import Results, read_results
from fedshift.tasks.device import processor
from fedshift_bench.cell_run import run_cell
from fedshift_bench.cells import make_cells
from fedshift_bench.collect import Collector
from fedshift_bench.notes import notes
from fedshift_bench.record import Comparison, LeftOutSite
from fedshift_bench.spec import read_spec
from fedshift_bench.store import RUN_FOLDER, Store

from .made import write_spec


class Ran:
    """The only cell of a comparison, which has run."""

    def __init__(self, home: Path) -> None:
        path = write_spec(home, axes={"method": {"FedAvg": {"methods": "fedavg"}}}, options={"schedule.rounds": 2})
        self._spec, self._scale = read_spec(path)
        self._cells, self._store, self._home = make_cells(self._spec, folder=home), Store(home / "cells"), home
        work = self._cells[0].work
        assert work is not None
        run_cell(self._store.prepare(work))
        self._run = self._store.folder_of(work) / RUN_FOLDER

    @property
    def results(self) -> Results:
        return read_results(self._run)

    def collect(self, results: Results | None = None) -> Comparison:
        """The comparison, with other results of the cell if they are given."""
        if results is not None:
            results.write(self._run)
        return Collector(self._spec, self._scale, self._cells, self._store, folder=self._home).collect()


def test_a_run_without_the_validation_score_of_a_site_has_none(home: Path) -> None:
    ran = Ran(home)
    results = ran.results
    assert results.final is not None
    scores = {site: splits["val"][results.job.metric] for site, splits in results.final.best.sites.items()}
    assert ran.collect().cells[0].validation == pytest.approx(fmean(scores.values()))
    silent = results.model_copy(deep=True)
    assert silent.final is not None
    del silent.final.best.sites["C"]
    assert ran.collect(silent).cells[0].validation is None
    unknown = silent.model_copy(update={"data": {site: silent.data[site] for site in "AB"}})
    assert ran.collect(unknown).cells[0].validation is None, "nor one that never answered"
    silent.data["C"].n["val"] = 0
    assert ran.collect(silent).cells[0].validation == pytest.approx(fmean([scores["A"], scores["B"]]))


def test_a_cell_says_on_which_processors_its_sites_trained(home: Path) -> None:
    ran = Ran(home)
    assert ran.collect().cells[0].device == processor()
    results = ran.results
    results.machines["C"].device = "a GPU"
    assert ran.collect(results).cells[0].device == " and ".join(sorted((processor(), "a GPU")))


def test_evaluations_that_a_site_missed_are_not_called_rounds(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    validate = Site.validate

    def breaks_at_c(site: Site, *args: object, **options: object) -> object:
        if site.name == "C":
            raise RuntimeError("no memory")
        return validate(site, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Site, "validate", breaks_at_c)
    ran = Ran(home)
    results = ran.results
    told = ran.collect()
    (left,) = told.cells[0].left_out
    assert (left.site, left.rounds, left.statistics) == ("C", 0, 0) and left.evaluations == len(results.evaluations) > 0
    (note,) = (note for note in notes(told) if "left out" in note)
    missed = "1 evaluation" if left.evaluations == 1 else f"{left.evaluations} evaluations"
    assert f" {missed} (" in note and "no memory" in note
    assert results.statistics is not None
    results.statistics.absent = ["C"]
    results.rounds[0].absent = results.rounds[1].absent = ["C"]
    results.evaluations = results.evaluations[:1]
    (note,) = (note for note in notes(ran.collect(results)) if "left out" in note)
    assert " round, 2 rounds, 1 evaluation (" in note


def test_a_site_that_missed_rounds_alone_is_told_of_as_ever() -> None:
    assert LeftOutSite(site="C", rounds=2, reason="no answer").left_out_of == "2 rounds"
