"""What every method is held to, on every kind of task: one of fedshift, or of a package of one's own.

A method's run in one process must train; the same with every message serialised and a new executor for each task must
give the same bits; what goes over the wire must be what the method declares; and bf16 must begin with nearly the same
losses. In the serialised run every site is interrupted in the midst of each round, and on images the server starts
anew, with nothing but its files.

A package's test of its method::

    @pytest.fixture(scope="module")
    def runs(tmp_path_factory):
        return Runs(tmp_path_factory.mktemp("runs"))

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("check", CHECKS)
    def test_the_method(check, kind, runs, tmp_path):
        check("acme-nets:halved", kind, runs, tmp_path)
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.federation.model_files import read_model_file
from fedshift.federation.server.coordinator import Coordinator
from fedshift.methods import method_set
from fedshift.schema.job import JobSpec
from fedshift.schema.results import BEST, LAST
from fedshift_testing.jobs import KINDS as KINDS
from fedshift_testing.jobs import ROUNDS, job_for
from fedshift_testing.serialised import Federation
from fedshift_testing.sites import small_sites
from fedshift_testing.wire import assert_as_specified

RESTART = {"segmentation": None, "classification": 3}
"""The round of a serialised run in which the server starts anew: what it and the sites keep is of more than one."""
BF16 = 0.3
"""By how much of itself a first loss may differ in bf16."""
Data = Mapping[str, Path]


def run(job: JobSpec, data: Data, folder: Path, **options: object) -> Coordinator:
    """Run a job in one process; a centralised reference, too."""
    pooled = method_set.pooled_reference(job.methods)
    return (run_pooled if pooled else run_in_process)(job, data, folder, **options)  # type: ignore[arg-type]


class Runs:
    """Finished runs, in one process and with serialised messages; each job runs once."""

    def __init__(self, folder: Path, *, options: Mapping[str, Sequence[str]] = MappingProxyType({})) -> None:
        """Make the sites in a new folder. ``options``: kind of task -> ``key=value`` for its jobs, as ``--set``."""
        self.data, self._folder, self._options = small_sites(folder / "data"), folder, options
        self._coordinators: dict[tuple[str, str], Coordinator] = {}
        self._serialised: dict[tuple[str, str], tuple[Federation, Coordinator]] = {}

    def job(self, names: str, kind: str) -> JobSpec:
        """A small job with these methods, joined by +."""
        return job_for(names, kind, tuple(self._options.get(kind, ())))

    def __call__(self, names: str, kind: str) -> Coordinator:
        """The job's run in one process."""
        if (names, kind) not in self._coordinators:
            torch.set_num_threads(1)
            self._coordinators[names, kind] = run(
                self.job(names, kind), self.data[kind], self._folder / f"{names}_{kind}"
            )
        return self._coordinators[names, kind]

    def serialised(self, names: str, kind: str) -> tuple[Federation, Coordinator]:
        """The federation with all its messages."""
        if (names, kind) not in self._serialised:
            self._serialised.clear()  # the checks of a job follow each other, and the messages are large
            job = self.job(names, kind)
            schedule = job.task.schedule.model_copy(update={"checkpoint_minutes": 1e-9})  # after every step
            job = job.model_copy(update={"task": job.task.model_copy(update={"schedule": schedule})})
            folder = self._folder / f"{names}_{kind}_serialised"
            shutil.rmtree(folder, ignore_errors=True)  # another worker may have run the job's checks between two here
            federation = Federation(job, self.data[kind], folder)
            self._serialised[names, kind] = federation, federation.run(killed_in=RESTART[kind], interrupted=True)
        return self._serialised[names, kind]


def models(folder: Path) -> dict[str, np.ndarray]:
    """Weights and methods' arrays of both model files."""
    arrays_of: dict[str, np.ndarray] = {}
    for file in (BEST, LAST):
        content = read_model_file(folder / file)
        arrays_of |= {f"{file}:{key}": value.numpy() for key, value in content["weights"].items()}
        for name, arrays in content["methods"].items():
            arrays_of |= {f"{file}:{name}/{key}": value.numpy() for key, value in arrays.items()}
    return arrays_of


def scores(coordinator: Coordinator) -> object:
    """The results without timings."""
    rounds = [
        {site: site_record.model_dump(exclude={"seconds"}) for site, site_record in record.sites.items()}
        for record in coordinator.results.rounds
    ]
    return rounds, coordinator.results.final, coordinator.results.selected


def assert_same(run_a: Coordinator, run_b: Coordinator) -> None:
    """Two runs of a job have the same models, bit for bit, and the same scores."""
    a, b = models(run_a.folder), models(run_b.folder)
    assert a.keys() == b.keys()
    for key, value in a.items():
        np.testing.assert_array_equal(value, b[key], err_msg=key, strict=True)
    assert scores(run_a) == scores(run_b)


def it_trains(names: str, kind: str, runs: Runs, folder: Path) -> None:
    """Every site trains in every round, nothing is rejected, and the final models are scored."""
    results = runs(names, kind).results
    assert [record.rejected for record in results.rounds] == [[]] * ROUNDS[kind]
    assert results.statistics is not None and results.statistics.rejected == []
    sites = [site for record in results.rounds for site in record.sites.values()]
    assert len(sites) == 3 * ROUNDS[kind]
    assert all(site.steps > 0 and site.train_loss is not None and np.isfinite(site.train_loss) for site in sites)
    assert all(site.val for site in sites)
    assert results.final is not None and all(splits["test"] for splits in results.final.best.sites.values())


def serialised_messages_and_new_executors_change_no_bit(names: str, kind: str, runs: Runs, folder: Path) -> None:
    """As under FLARE, with every site interrupted in the midst of each round."""
    assert_same(runs(names, kind), runs.serialised(names, kind)[1])


def what_goes_over_the_wire_is_as_specified(names: str, kind: str, runs: Runs, folder: Path) -> None:
    """Of one method: what sites send, and what they receive."""
    assert_as_specified(names, runs.job(names, kind), runs.serialised(names, kind)[0])


def in_bf16_the_first_losses_are_nearly_the_same(names: str, kind: str, runs: Runs, folder: Path) -> None:
    """Of round 1, since small differences grow, and these networks are tiny. On many processors bf16 is the default."""
    job = runs.job(names, kind)
    schedule = job.task.schedule.model_copy(update={"precision": "bf16"})
    job = job.model_copy(update={"task": job.task.model_copy(update={"schedule": schedule})})
    full, half = (federated.results.rounds for federated in (runs(names, kind), run(job, runs.data[kind], folder)))
    first, again = (
        [site_record.train_loss for _, site_record in sorted(federated[0].sites.items())] for federated in (full, half)
    )
    assert first != again
    np.testing.assert_allclose(np.asarray(again, float), np.asarray(first, float), rtol=BF16)
    assert all(np.isfinite(value).all() for value in models(folder).values())


Check = Callable[[str, str, Runs, Path], None]
CHECKS: tuple[Check, ...] = (
    it_trains,
    serialised_messages_and_new_executors_change_no_bit,
    what_goes_over_the_wire_is_as_specified,
    in_bf16_the_first_losses_are_nearly_the_same,
)
"""Each is called with the methods' names joined by +, the kind of task, the runs, and an empty folder."""
