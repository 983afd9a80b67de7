"""Every method, and every combination that the papers report, on every kind of task.

Each runs in one process, then with every message serialised and a new executor for each task, whose messages are
compared with the page on what leaves a site, and in bf16. In the serialised run every site is interrupted in the midst
of each round, and on images the server starts anew, with nothing but its files; a few jobs are real processes that are
killed and resumed.
Sites differ in size. Image jobs have three rounds, because their rounds are short, and so cover state kept over rounds.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_image_site, make_site
from errors import raises
from flare.serialised import Federation
from shallow import shallow_networks

from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.federation.model_files import read_model_file
from fedshift.federation.server.coordinator import Coordinator
from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.results import BEST, LAST

from .cases import KINDS, REFUSED, ROUNDS, cases, job_for
from .wire_page import assert_as_specified

CASES = list(cases())
POOLED = [name for name in method_set.available() if method_set.load({name: {}})[-1].is_pooled]
KILLED = ("fedavg", "fedavgm", "fraug", *POOLED)
"""Methods whose process is killed on the way. No message of a centralised reference is ever serialised."""
RESTART = {"segmentation": None, "classification": 3}
"""The round of a serialised run in which the server starts anew: what it and the sites keep is of more than one."""
Data = Mapping[str, Path]


_shallow = pytest.fixture(autouse=True, scope="module")(shallow_networks)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Data]:
    root = tmp_path_factory.mktemp("data")
    shifts = [(1.0, 0.0), (0.5, 20.0), (1.4, -30.0)]
    sizes = (2, 3, 1)  # of the training parts, so sites take different numbers of steps
    slices = {
        s: make_site(root, s, cases=n + 2, gain=g, offset=o)
        for s, n, (g, o) in zip(("BIDMC", "HK", "UCL"), sizes, shifts, strict=True)
    }
    images = {
        s: make_image_site(root, s, images=18 * n, gain=g, offset=o)
        for s, n, (g, o) in zip("ABC", sizes, shifts, strict=True)
    }
    return {"segmentation": slices, "classification": images}


def run(job: JobSpec, data: Data, folder: Path, **options: object) -> Coordinator:
    pooled = method_set.pooled_reference(job.methods)
    return (run_pooled if pooled else run_in_process)(job, data, folder, **options)  # type: ignore[arg-type]


class Runs:
    """Finished runs, in one process and with serialised messages; each job runs once."""

    def __init__(self, data: dict[str, Data], folder: Path) -> None:
        self.data, self._folder = data, folder
        self._done: dict[tuple[str, str], Coordinator] = {}
        self._serialised: dict[tuple[str, str], tuple[Federation, Coordinator]] = {}

    def __call__(self, names: str, kind: str) -> Coordinator:
        if (names, kind) not in self._done:
            torch.set_num_threads(1)
            self._done[names, kind] = run(job_for(names, kind), self.data[kind], self._folder / f"{names}_{kind}")
        return self._done[names, kind]

    def serialised(self, names: str, kind: str) -> tuple[Federation, Coordinator]:
        """The federation with all its messages."""
        if (names, kind) not in self._serialised:
            self._serialised.clear()  # the checks of a job follow each other, and the messages are large
            job = job_for(names, kind)
            schedule = job.task.schedule.model_copy(update={"checkpoint_minutes": 1e-9})  # after every step
            job = job.model_copy(update={"task": job.task.model_copy(update={"schedule": schedule})})
            folder = self._folder / f"{names}_{kind}_serialised"
            shutil.rmtree(folder, ignore_errors=True)  # another worker may have run the job's checks between two here
            federation = Federation(job, self.data[kind], folder)
            self._serialised[names, kind] = federation, federation.run(killed_in=RESTART[kind], interrupted=True)
        return self._serialised[names, kind]


@pytest.fixture(scope="module")
def runs(data: dict[str, Data], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(data, tmp_path_factory.mktemp("runs"))


def models(folder: Path) -> dict[str, np.ndarray]:
    """Weights and methods' arrays of both model files."""
    found: dict[str, np.ndarray] = {}
    for file in (BEST, LAST):
        content = read_model_file(folder / file)
        found |= {f"{file}:{key}": value.numpy() for key, value in content["weights"].items()}
        for name, arrays in content["methods"].items():
            found |= {f"{file}:{name}/{key}": value.numpy() for key, value in arrays.items()}
    return found


def scores(coordinator: Coordinator) -> object:
    """The results without timings."""
    rounds = [
        {site: told.model_dump(exclude={"seconds"}) for site, told in record.sites.items()}
        for record in coordinator.results.rounds
    ]
    return rounds, coordinator.results.final, coordinator.results.selected


def assert_same(one: Coordinator, other: Coordinator) -> None:
    a, b = models(one.folder), models(other.folder)
    assert a.keys() == b.keys()
    for key, value in a.items():
        np.testing.assert_array_equal(value, b[key], err_msg=key, strict=True)
    assert scores(one) == scores(other)


def it_trains(names: str, kind: str, runs: Runs, folder: Path) -> None:
    results = runs(names, kind).results
    assert [record.rejected for record in results.rounds] == [[]] * ROUNDS[kind]
    assert results.statistics is not None and results.statistics.rejected == []
    sites = [site for record in results.rounds for site in record.sites.values()]
    assert len(sites) == 3 * ROUNDS[kind]
    assert all(site.steps > 0 and site.train_loss is not None and np.isfinite(site.train_loss) for site in sites)
    assert all(site.val for site in sites)
    assert results.final is not None and all(splits["test"] for splits in results.final.best.sites.values())


def serialised_messages_and_new_executors_change_no_bit(names: str, kind: str, runs: Runs, folder: Path) -> None:
    assert_same(runs(names, kind), runs.serialised(names, kind)[1])


def what_goes_over_the_wire_is_as_specified(names: str, kind: str, runs: Runs, folder: Path) -> None:
    assert_as_specified(names, job_for(names, kind), runs.serialised(names, kind)[0])


def in_bf16_the_first_losses_are_nearly_the_same(names: str, kind: str, runs: Runs, folder: Path) -> None:
    """Of round 1, since small differences grow, and these networks are tiny. On many processors bf16 is the default."""
    job = job_for(names, kind)
    schedule = job.task.schedule.model_copy(update={"precision": "bf16"})
    job = job.model_copy(update={"task": job.task.model_copy(update={"schedule": schedule})})
    full, half = (made.results.rounds for made in (runs(names, kind), run(job, runs.data[kind], folder)))
    losses = [{site: told.train_loss for site, told in made[0].sites.items()} for made in (full, half)]
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.3)
    assert all(np.isfinite(value).all() for value in models(folder).values())


def a_killed_run_goes_on_to_the_same_numbers(names: str, kind: str, runs: Runs, folder: Path) -> None:
    """Killed after a site's answer in round 3: the site's state and the server's state of round 2 are on disk."""
    job = job_for(names, kind)
    child = os.fork()
    if child == 0:

        def die(coordinator: Coordinator) -> None:
            if coordinator.round == 3 and coordinator.answered:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            run(job, runs.data[kind], folder, on_progress=die)
        finally:
            os._exit(1)  # not reached: the process is killed
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert (folder / "server_state.pt").is_file()
    assert_same(runs(names, kind), run(job, runs.data[kind], folder, resume=True))


Check = Callable[[str, str, Runs, Path], None]


def checks() -> Iterator[tuple[str, str, Check]]:
    """The checks of one job follow each other, so that one worker process runs it once for all of them."""
    for names, kind in CASES:
        one, images = "+" not in names, kind == "classification"
        yield names, kind, it_trains
        if names not in POOLED and (one or images):
            yield names, kind, serialised_messages_and_new_executors_change_no_bit
        if names not in POOLED and one:
            yield names, kind, what_goes_over_the_wire_is_as_specified
        if one:
            yield names, kind, in_bf16_the_first_losses_are_nearly_the_same
        if names in KILLED and images:
            yield names, kind, a_killed_run_goes_on_to_the_same_numbers


def marked() -> Iterator[object]:
    """Slow is all but the training of combinations, and of methods on slices that images have shown already."""
    on_images = {names for names, kind in CASES if kind == "classification"}
    for names, kind, check in checks():
        slow = "+" in names and kind == "segmentation"
        slow |= check is not it_trains and ("+" in names or (kind == "segmentation" and names in on_images))
        marks = [pytest.mark.slow] if slow else []
        yield pytest.param(names, kind, check, id=f"{names}-{kind}-{check.__name__}", marks=marks)


@pytest.mark.parametrize(("names", "kind", "check"), list(marked()))
def test_every_method(names: str, kind: str, check: Check, runs: Runs, tmp_path: Path) -> None:
    check(names, kind, runs, tmp_path)


@pytest.mark.parametrize(("name", "kind"), sorted(REFUSED))
def test_it_is_refused_with_the_reason(name: str, kind: str) -> None:
    with raises("method-needs", naming=name):
        KINDS[kind](name)


def test_a_run_of_another_job_is_not_gone_on_with(runs: Runs, tmp_path: Path) -> None:
    shutil.copytree(runs("fedavg", "classification").folder, tmp_path / "run")
    with pytest.raises(ConfigError):
        run(job_for("fedavgm", "classification"), runs.data["classification"], tmp_path / "run", resume=True)
