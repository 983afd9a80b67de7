"""One job, one seed: the same weights bit for bit in one process and in the simulator at any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_image_site, make_site, small_image_job, small_job
from modelfiles import assert_same_model
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.server.run_files import ServerState, load_state
from fedshift.flare.export import write_job
from fedshift.flare.simulate import simulate
from fedshift.schema.job import JobSpec
from fedshift.schema.results import BEST, LAST, Results, read_results
from fedshift_testing.jobs import job_for
from flare_armour.pieces.array_files import LARGE

from .conftest import JOB, SHIFTS, SimulatorRun, cut, run_simulator

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="session")
def in_process(phantom_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in_process")
    torch.set_num_threads(1)
    job = cut(JOB, tmp_path_factory.mktemp("jobs") / JOB.name)
    data = {site: phantom_home / "fedshift" / "phantom" / "prostate" / site for site in job.task.sites}
    run_in_process(job, data, folder)
    return folder


@pytest.fixture(scope="session")
def two_at_a_time(short_job: Path, phantom_home: Path, tmp_path_factory: pytest.TempPathFactory) -> SimulatorRun:
    return run_simulator(short_job, tmp_path_factory.mktemp("two at work"), home=phantom_home, threads=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["side_by_side", pytest.param("two_at_a_time", marks=pytest.mark.slow)])
def test_the_simulator_gives_the_weights_of_one_process(
    name: str, in_process: Path, request: pytest.FixtureRequest
) -> None:
    run: SimulatorRun = request.getfixturevalue(name)
    assert run.code == 0, run.output[-3000:]
    for file in (BEST, LAST):
        ours, theirs = read_model_file(in_process / file), read_model_file(run.server / file)
        assert ours["round"] == theirs["round"]
        assert ours["scores"] == theirs["scores"]
        assert_same_model(in_process / file, run.server / file)
        assert [w.dtype for w in ours["weights"].values()] == [w.dtype for w in theirs["weights"].values()]
    assert _scores(read_results(in_process)) == _scores(run.results)


def _scores(results: Results) -> object:
    """All that does not depend on the clock. `fedshift run` adds the image-free guess."""
    rounds = [
        {site: r.model_dump(exclude={"seconds"}) for site, r in sorted(record.sites.items())}
        for record in results.rounds
    ]
    assert results.final is not None
    return rounds, results.selected, results.final.model_dump(exclude={"image_free"}), results.data, results.job


def test_a_run_leaves_what_a_person_needs(side_by_side: SimulatorRun) -> None:
    run = side_by_side
    assert run.progress.state == "finished"
    assert run.progress.score_round == 2
    assert run.progress.score == pytest.approx(_mean(run.results, 2))
    assert run.progress.phantom
    assert "not patients" in run.log
    assert not (run.server / "updates").exists()
    assert list(run.results.data) == list(SHIFTS)
    events = EventAccumulator(str(run.server / "tb_events"))
    events.Reload()
    assert [e.value for e in events.Scalars("val/dice/mean")] == pytest.approx(
        [_mean(run.results, 1), _mean(run.results, 2)]
    )
    assert {"train_loss/HK", "val/dice/UCL", "test_best/dice/BMC", "test_last/dice/mean"} <= set(
        events.Tags()["scalars"]
    )


def _mean(results: Results, round_: int) -> float:
    sites = results.rounds[round_ - 1].sites.values()
    return sum(site.val["dice"] for site in sites) / len(sites)


BothWays = Callable[[JobSpec, Mapping[str, Path]], tuple[list[Results], list[ServerState]]]


@pytest.fixture
def phantom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the simulator looks for data."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.setenv("FEDSHIFT_DEVICE", "cpu")
    return tmp_path / "share" / "fedshift" / "phantom"


@pytest.fixture
def both_ways(phantom: Path, tmp_path: Path) -> BothWays:
    """In one process and in the simulator, with a process a site: the same models. Results and states of both."""

    def run(job: JobSpec, data: Mapping[str, Path]) -> tuple[list[Results], list[ServerState]]:
        write_job(job, tmp_path / "job")
        run_in_process(job, data, tmp_path / "one")
        other = simulate(job, tmp_path / "job", tmp_path / "w", parallel=len(data), ignore_memory=True)
        places = tmp_path / "one", other.server
        for file in (BEST, LAST):
            assert_same_model(*(place / file for place in places))
        states = [state for place in places if (state := load_state(place)) is not None]
        assert len(states) == 2
        return [read_results(place) for place in places], states

    return run


@pytest.mark.slow
def test_packed_weights_give_the_same_weights_in_the_simulator(phantom: Path, both_ways: BothWays) -> None:
    """Each site in a process of its own, which goes on from what its last answer left out."""
    gains = {"BIDMC": 1.0, "HK": 0.5, "UCL": 1.3}
    data = {site: make_site(phantom, site, gain=gain) for site, gain in gains.items()}
    job = small_job("fedfa+fedrdn", "schedule.rounds=3", "federation.weights_as=int8")
    results, states = both_ways(job, data)
    for key, array in states[0].weights.items():
        np.testing.assert_array_equal(array, states[1].weights[key], err_msg=key, strict=True)
    assert _scores(results[0]) == _scores(results[1])


@pytest.mark.slow
def test_models_in_files_give_the_same_weights_in_the_simulator(phantom: Path, both_ways: BothWays) -> None:
    """Tasks and answers of this size are handed over on the disk; here all three come at about the same moment."""
    data = {site: make_site(phantom, site, gain=gain) for site, gain in (("BIDMC", 1.0), ("HK", 0.5), ("UCL", 1.3))}
    job = small_job("fedavg", "schedule.rounds=1", "network.options.features=18")
    _, states = both_ways(job, data)
    assert sum(array.nbytes for array in states[1].weights.values()) > LARGE


@pytest.mark.slow
@pytest.mark.parametrize(("names", "kind"), [("scaffold", "segmentation"), ("fraug", "classification")])
def test_methods_with_much_to_remember_give_the_same_weights_in_the_simulator(
    names: str, kind: str, phantom: Path, both_ways: BothWays
) -> None:
    """In the second case one of the sites is held out."""
    make, sites = (make_site, ("BIDMC", "HK", "UCL")) if kind == "segmentation" else (make_image_site, ("A", "B", "C"))
    data = {site: make(phantom, site, gain=gain) for site, gain in zip(sites, (1.0, 0.5, 1.3), strict=True)}
    held_out = kind == "classification"
    job = small_image_job(names, "held_out=[C]", sites=("A", "B")) if held_out else job_for(names, kind)
    results, states = both_ways(job, data)
    remembered = [state.methods[names] for state in states]
    assert remembered[0] and remembered[0].keys() == remembered[1].keys()
    for key, array in remembered[0].items():
        np.testing.assert_array_equal(array, remembered[1][key], err_msg=key, strict=True)
    assert _scores(results[0]) == _scores(results[1])
    final = results[1].final
    assert final is not None and list(final.last.held_out) == (["C"] if held_out else [])
