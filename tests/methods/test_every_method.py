"""Every method, and every combination that the papers report, on every kind of task: `fedshift_testing.every_method`.

Sites differ in size. Image jobs have three rounds, because their rounds are short, and so cover state kept over rounds.
A few jobs are real processes that are killed and resumed.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from errors import raises
from shallow import shallow_networks

from fedshift.federation.server.coordinator import Coordinator
from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError
from fedshift_testing.every_method import (
    Check,
    Runs,
    assert_same,
    in_bf16_the_first_losses_are_nearly_the_same,
    it_trains,
    run,
    serialised_messages_and_new_executors_change_no_bit,
    what_goes_over_the_wire_is_as_specified,
)
from fedshift_testing.jobs import KINDS, job_for

from .cases import REFUSED, cases

CASES = list(cases())
POOLED = [name for name in method_set.available() if method_set.load({name: {}})[-1].is_pooled]
KILLED = ("fedavg", "fedavgm", "fraug", *POOLED)
"""Methods whose process is killed on the way. No message of a centralised reference is ever serialised."""


_shallow = pytest.fixture(autouse=True, scope="module")(shallow_networks)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


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
