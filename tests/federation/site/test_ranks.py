"""Several devices of a site share each batch: the same training, the same bits again, and no rank waits for ever."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from conftest import first_round, make_image_site, make_site, small_image_job, small_job
from errors import raises
from torch import nn
from volumesites import blob_job, make_volume_site

from fedshift.cli import main
from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site import local_training, parts
from fedshift.federation.site.checkpoint import Loop
from fedshift.federation.site.job_network import JobNetwork
from fedshift.federation.site.ranks import group, refusals, team
from fedshift.federation.site.ranks.channel import Channel
from fedshift.federation.site.ranks.team import Ranks
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.methods.base import Run
from fedshift.methods.listing import available
from fedshift.methods.method_set import MethodSet
from fedshift.reporting.report.setup import machine_name
from fedshift.schema.errors import ConfigError, Stopped
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Update
from fedshift.schema.policy import Policy
from fedshift.schema.results import MachineRecord
from fedshift.tasks.device import choose_devices
from fedshift.tasks.kinds import build_task
from fedshift.tasks.out_of_memory import BatchTooLarge

PLAIN = "network.name=lenet5", "network.options={size: 16}", "schedule.local_steps=3"
"""No norms, and a loss that is a mean over images."""
DRAWS = {"augmentation", "fedrdn"}
"""Methods that draw anew for every image of a batch: each rank has draws of its own."""
FIT = {
    *("afl", "augmentation", "fedadagrad", "fedadam", "fedavg", "fedavgm", "fedawa", "fedbn", "fedce", "feddg_ga"),
    *("feddyn", "fedgma", "fedharmo", "fedheal", "fedlws", "fednova", "fedomg", "fedper", "fedprox", "fedrdn"),
    *("fedrep", "fedsam", "fedsgd", "fedwon", "fedyogi", "gen_afl", "harmofl", "moon", "partialfed", "pfedavg"),
    *("scaffold", "silobn", "single", "vm"),
}
"""Methods that ranks can train."""
NEEDS_BATCH_NORM = {"silobn"}
"""Not in the network of `PLAIN`; with it two ranks are not as near to one."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """One other rank, for all tests: it takes seconds to start."""
    shared = Ranks(("cpu", "cpu"))
    yield shared
    shared.end()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image_site(tmp_path_factory.mktemp("data"), "A")


class Trial:
    """The first rounds of one site, from the same start as often as wanted."""

    def __init__(self, job: JobSpec, data: Path, folder: Path) -> None:
        federation = job.federation.model_copy(update={"min_sites": 1})
        self._job, self._data, self._folder = job.model_copy(update={"federation": federation}), data, folder

    def __call__(
        self, name: str, ranks: Ranks | None, *, rounds: int = 1, stop: Callable[[], bool] = lambda: False
    ) -> Update:
        """The site's last answer."""
        network = replace(JobNetwork.load(self._job, self._data.name, device="cpu"), ranks=ranks)
        options = SiteOptions(self._folder / name, device="cpu", job_network=network)
        site = Site(self._job, self._data.name, self._data, options)
        server = Coordinator(self._job, self._folder / f"{name} server")
        broadcast = first_round(server, {site.name: site})
        for number in range(1, rounds + 1):
            update = site.train(broadcast, stop=stop)
            if number < rounds:
                assert server.accept(update)
                server.close()
                broadcast = server.open(number + 1)
        return update


def arrays(update: Update) -> dict[str, np.ndarray]:
    of_methods = {f"{m} {name}": array for m, named in update.arrays.items() for name, array in named.items()}
    return {**update.weights, **of_methods, "loss": np.asarray(update.metrics["train_loss"])}


def assert_same(one: Update, other: Update) -> None:
    ours, theirs = arrays(one), arrays(other)
    assert ours.keys() == theirs.keys()
    for key, array in ours.items():
        np.testing.assert_array_equal(array, theirs[key], err_msg=key)


def job_with(method: str) -> JobSpec:
    given = {
        "fedrdn": ("fedrdn.mode=random",),
        "partialfed": ("partialfed.mode=adaptive",),
        "feddg_ga": ("feddg_ga.variant=released",),
    }.get(method, ())
    sgd = ("optimizer.momentum=0",) if method in ("fedsgd",) else ()
    return small_image_job(method, *PLAIN, *given, *sgd)


# --- the same training ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(FIT - NEEDS_BATCH_NORM))
def test_two_ranks_train_as_one_does_and_to_the_same_bits_again(
    method: str, ranks: Ranks, pictures: Path, tmp_path: Path
) -> None:
    trial = Trial(job_with(method), pictures, tmp_path)
    two = trial("two", ranks, rounds=2)
    assert_same(trial("again", ranks, rounds=2), two)
    one = arrays(trial("one", None, rounds=2))
    if method not in DRAWS:
        for key, array in arrays(two).items():
            np.testing.assert_allclose(array, one[key], rtol=2e-3, atol=2e-5, err_msg=key)
    assert any((arrays(two)[key] != one[key]).any() for key in one if key not in ("loss",)) or method == "single"


def test_other_methods_are_refused_and_named() -> None:
    job = small_image_job("fedavg", *PLAIN)
    fit, net = set(), build_task(job).network()
    for method in available():
        try:
            refusals.check(MethodSet(job.model_copy(update={"methods": {method: {}}}), net), devices=2, site="A")
        except ConfigError as error:
            assert error.code == "devices-unfit" and method in str(error)
        else:
            fit.add(method)
    assert fit == FIT


def test_running_statistics_are_the_mean_over_ranks(ranks: Ranks, tmp_path: Path) -> None:
    data = make_site(tmp_path / "data", "HK", cases=5)
    trial = Trial(small_job("fedavg", "schedule.local_steps=1"), data, tmp_path)
    one, two = trial("one", None), trial("two", ranks)
    assert_same(trial("again", ranks), two)
    key = next(key for key in two.weights if key.endswith("running_mean"))  # of a first layer, whose input is the same
    np.testing.assert_allclose(two.weights[key], one.weights[key], rtol=1e-4, atol=1e-6)
    key = next(key for key in two.weights if key.endswith("num_batches_tracked"))
    assert two.weights[key] == one.weights[key] == 1


def test_shares_make_up_the_batch_and_samples_are_augmented_alike(tmp_path: Path) -> None:
    job = blob_job(tmp_path, "data.augmentation=strong", "schedule.batch_size=5")
    data = build_task(job).open(make_volume_site(tmp_path / "data", "A"), "A")

    def batches(rank: int, ranks: int) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
        run = Run(0, "A", 1, 1, ("A",), nn.Linear(1, 1), nn.functional.cross_entropy, 3, rank=rank, ranks=ranks)
        return [(x, y, run.share) for x, y in local_training.batches(data, run, job.task.schedule)]

    whole, first, second = batches(0, 1), batches(0, 2), batches(1, 2)
    assert {part for _, _, part in whole} == {1.0} and {len(x) for x, _, _ in first} == {3}
    for (x, y, _), *shares in zip(whole, first, second, strict=True):
        assert torch.equal(torch.cat([share[0] for share in shares]), x)
        assert torch.equal(torch.cat([share[1] for share in shares]), y)
        assert sum(share[2] for share in shares) == 1


def test_a_rank_without_a_sample_takes_the_first_as_no_part() -> None:
    shares = [local_training.share_of(2, rank=rank, ranks=3) for rank in range(3)]
    assert shares == [(slice(0, 1), 0.5), (slice(1, 2), 0.5), (slice(0, 1), 0.0)]


def test_a_round_ends_at_all_ranks_by_the_clock_of_the_first(
    ranks: Ranks, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(small_image_job("fedavg", *PLAIN, "schedule.minutes=1e-9"), pictures, tmp_path)
    assert trial("two", ranks).n_steps == 1
    monkeypatch.setattr(Loop, "seconds", 0.0)  # of the first rank, which alone decides
    assert trial("longer", ranks).n_steps == 3


# --- when something goes wrong --------------------------------------------------------------------


def killing(ranks: Ranks, *, times: int) -> Callable[[], bool]:
    """Kills the other rank before the second step of a round, so many times; never stops a round."""
    asked: list[int] = []
    pids: set[int] = set()

    def stop() -> bool:
        pid = ranks.members[0].process.pid
        asked.append(pid)
        if asked.count(pid) == 2 and len(pids) < times:
            pids.add(pid)
            os.kill(pid, signal.SIGKILL)
        return False

    return stop


@pytest.mark.slow
def test_a_round_whose_rank_is_killed_is_repeated_to_the_same_bits(
    ranks: Ranks, pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = Trial(small_image_job("fedprox", *PLAIN, "fedprox.mu=1"), pictures, tmp_path)
    undisturbed = trial("undisturbed", ranks)
    with caplog.at_level(logging.WARNING, logger="fedshift"):
        assert_same(trial("killed", ranks, stop=killing(ranks, times=1)), undisturbed)
    logged = [record.getMessage() for record in caplog.records if "rank 1 (cpu)" in record.getMessage()]
    assert len(logged) == 1 and "-9" in logged[0] and "site A, round 1" in logged[0]
    with raises("rank-died", naming=("site A, round 1", "rank 1 (cpu)", "-9")):
        trial("twice", ranks, stop=killing(ranks, times=2))
    assert not ranks.members


@pytest.mark.slow
def test_an_error_at_a_rank_is_the_sites(ranks: Ranks, pictures: Path, tmp_path: Path) -> None:
    trial = Trial(small_image_job("fedavg", *PLAIN), pictures, tmp_path)
    gone = tmp_path / "A"
    network = replace(JobNetwork.load(trial._job, "A", device="cpu"), ranks=ranks)
    site = Site(trial._job, "A", pictures, SiteOptions(tmp_path / "state", job_network=network))
    broadcast = first_round(Coordinator(trial._job, tmp_path / "server"), {"A": site})
    site._folder = gone  # as if the folder had been moved away
    with raises("rank-died", naming=("rank 1 (cpu)", str(gone))):
        site.train(broadcast)


@pytest.mark.slow
def test_ranks_take_their_shares_in_parts_where_memory_is_short(ranks: Ranks, pictures: Path, tmp_path: Path) -> None:
    trial = Trial(small_image_job("fedavg", *PLAIN), pictures, tmp_path)
    whole = arrays(trial("whole", ranks))
    (tmp_path / "parts" / "A").mkdir(parents=True)
    (tmp_path / "parts" / "A" / parts.FILE).write_text('{"1": 4}')
    in_parts = trial("parts", ranks)
    assert in_parts.metrics["parts"] == 4
    for key, array in arrays(in_parts).items():
        np.testing.assert_allclose(array, whole[key], rtol=2e-3, atol=2e-5, err_msg=key)
    assert any((array != whole[key]).any() for key, array in arrays(in_parts).items())


def test_a_rank_whose_memory_runs_out_has_the_site_take_parts() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    here, there = socket.socketpair()
    Channel(there).send({"error": "site A, round 1: memory ran out; take less", "code": "out-of-memory"})
    there.close()
    first = team.First([team.Member(1, "cpu", process, Channel(here, seconds=60))])
    process.wait()
    with raises("out-of-memory", naming="site A, round 1") as raised:
        first.look()
    assert isinstance(raised.value, BatchTooLarge)


def test_a_stopped_round_leaves_no_process(ranks: Ranks, pictures: Path, tmp_path: Path) -> None:
    asked = iter((False, True))
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(Stopped):
        Trial(small_image_job("fedavg", *PLAIN), pictures, tmp_path)("stopped", ranks, stop=lambda: next(asked))
    assert not ranks.members and {child.pid for child in psutil.Process().children()} <= before


@pytest.mark.slow
def test_a_rank_ends_with_a_site_that_is_killed() -> None:
    code = f"import os; from {team.__name__} import _started; print(_started(1, 'cpu').process.pid, flush=True); "
    result = subprocess.run([sys.executable, "-c", f"{code} os.kill(os.getpid(), 9)"], capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while psutil.pid_exists(int(result.stdout)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not psutil.pid_exists(int(result.stdout))


@pytest.mark.slow
def test_ranks_that_differ_are_an_error(
    ranks: Ranks, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = group.fingerprints
    monkeypatch.setattr(group, "fingerprints", lambda *given: inner(*given) | {"network conv1.bias": "another"})
    with raises("ranks-differ", naming=("site A, round 1", "rank 1 (cpu)", "network conv1.bias")):
        Trial(small_image_job("fedavg", *PLAIN), pictures, tmp_path)("two", ranks)


def test_ranks_of_another_version_are_refused(
    ranks: Ranks, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.end()
    monkeypatch.setattr(team, "versions", lambda: {"torch": "0.1"})
    with raises("other-version", naming=("rank 1 (cpu)", "torch", "0.1")):
        Trial(small_image_job("fedavg", *PLAIN), pictures, tmp_path)("two", ranks)


# --- what a site asks for, and what is recorded ---------------------------------------------------


def test_what_cannot_be_shared_is_refused(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedshift.tasks.device.cores", lambda: 2)
    with raises("device-unusable", naming="1000"):
        choose_devices("cpu", 1000)
    with raises("devices-unfit", naming=("site A", "schedule.batch_size")):
        JobNetwork.load(small_image_job("fedavg", *PLAIN, "schedule.batch_size=1"), "A", device="cpu", devices=2)
    with raises("devices-unfit", naming=("site A", "fc1.1")):  # batch norm of one value an image
        JobNetwork.load(small_image_job("fedavg", "schedule.batch_size=3"), "A", device="cpu", devices=2)
    private = Policy.parse({"dp_sgd": {"epsilon": 8, "delta": 1e-3, "clip": 0.5}}, where="policy")
    with raises("devices-unfit", naming=("site A", "dp_sgd")):
        options = SiteOptions(tmp_path, device="cpu", devices=2, policy=private)
        Site(small_image_job("fedavg", *PLAIN), "A", pictures, options)
    monkeypatch.setenv("FEDSHIFT_DEVICES", "2")
    with raises("devices-unfit", naming="FEDSHIFT_DEVICES"):
        run_pooled(small_image_job("all", *PLAIN), {}, tmp_path / "pooled", device="cpu")
    assert main(["run", str(tmp_path), "--device", "cpu", "--devices", "1000"]) == 2
    assert "device-unusable" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_in_one_process_records_its_devices_and_ends_them(
    three_image_sites: dict[str, Path], ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.end()
    job = small_image_job("fedavg", *PLAIN, "schedule.rounds=1")
    monkeypatch.setattr("fedshift.tasks.device.cores", lambda: 2)
    results = run_in_process(job, three_image_sites, tmp_path / "run", device="cpu", devices=2).results
    assert {machine.devices for machine in results.machines.values()} == {2}
    assert not [child for child in psutil.Process().children() if team.MODULE in child.cmdline()]
    two = results.machines["A"]
    assert two.model_dump()["devices"] == 2 and machine_name(two).startswith("2 ")
    assert "devices" not in MachineRecord(device="cpu", precision="fp32", threads=1).model_dump(mode="json")
