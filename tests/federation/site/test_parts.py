"""A site whose batches do not fit into memory trains with their parts, and no round is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import first_round, make_image_site, make_site, small_image_job, small_job
from errors import raises

from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.federation.model_files import read_model_file
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.parts import FILE, Parts, sees_parts
from fedshift.federation.site.passes import Passes, split
from fedshift.federation.site.privacy import dp_sgd
from fedshift.federation.site.privacy.noise import ANSWERED
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.methods import method_set
from fedshift.methods.base import Batch
from fedshift.methods.method_set import MethodSet
from fedshift.schema.job import JobSpec
from fedshift.schema.policy import Policy
from fedshift.schema.results import BEST, LAST
from fedshift.tasks.base import Task
from fedshift.tasks.kinds import build_task
from fedshift.tasks.out_of_memory import batch_out_of_memory
from fedshift_testing.serialised import Federation

Limit = Callable[..., None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Give sites memory for a number of samples in a pass of training, if nothing of an attempt that failed is held."""
    passes = Passes._forward_and_backward
    failed: list[weakref.ref[torch.Tensor]] = []

    def to(samples: int, *, site: str = "", since: int = 1) -> None:
        def limited(self: Passes, batch: Batch, share: float = 1.0) -> torch.Tensor:
            run = self.run
            assert all(held() is None for held in failed)
            # Not in the first step: when memory runs out weights and running statistics have moved.
            if run.round >= since and site in ("", run.site) and run.step > 0 and len(batch.x) > samples:
                failed.append(weakref.ref(batch.x))
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
            return passes(self, batch, share)

        monkeypatch.setattr(Passes, "_forward_and_backward", limited)

    return to


@pytest.fixture
def two_sites(tmp_path: Path) -> dict[str, Path]:
    return {site: make_site(tmp_path / "data", site) for site in ("BIDMC", "HK")}


@pytest.fixture
def pictures(tmp_path: Path) -> dict[str, Path]:
    return {site: make_image_site(tmp_path / "data", site) for site in "ABC"}


def begin_with(monkeypatch: pytest.MonkeyPatch, number: int, *, site: str = "", since: int = 1) -> None:
    """Have batches in so many parts from the start."""

    def fixed(self: Parts, round_: int) -> int:
        return number if round_ >= since and site in ("", self.folder.name) else 1

    monkeypatch.setattr(Parts, "number", fixed)


def weights(coordinator: Coordinator) -> dict[str, np.ndarray]:
    files = {file: read_model_file(coordinator.folder / file)["weights"] for file in (BEST, LAST)}
    return {f"{file}:{key}": value.numpy() for file, content in files.items() for key, value in content.items()}


def told(coordinator: Coordinator) -> object:
    """The results without times."""
    rounds = [
        {site: record.model_dump(exclude={"seconds"}) for site, record in each.sites.items()}
        for each in coordinator.results.rounds
    ]
    return rounds, coordinator.results.final


def assert_same_bits(one: Coordinator, other: Coordinator) -> None:
    ours, theirs = weights(one), weights(other)
    for key, value in ours.items():
        np.testing.assert_array_equal(value, theirs[key], err_msg=key, strict=True)
    assert told(one) == told(other)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "parts" in record.getMessage()]


# --- a round that runs out of memory ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("methods", ["fedavg", "fedfa+mixup", "fedproto+fedrdn", "fedsam+pfedavg"])
def test_a_round_is_begun_anew_to_the_bits_of_a_site_that_had_the_parts_from_the_start(
    methods: str,
    pictures: Mapping[str, Path],
    tmp_path: Path,
    limit: Limit,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With its own model, and a checkpoint of the attempt that failed."""
    options = ("schedule.rounds=3", "evaluation.local=true", "schedule.checkpoint_minutes=1e-9", "optimizer.lr=0.01")
    job = small_image_job(methods, *options)
    with pytest.MonkeyPatch.context() as patch:
        begin_with(patch, 4, site="B", since=2)
        expected = run_in_process(job, pictures, tmp_path / "expected")
    caplog.clear()
    limit(2, site="B", since=2)
    outcome = run_in_process(job, pictures, tmp_path / "run")
    assert_same_bits(outcome, expected)
    rounds = outcome.results.rounds
    assert [record.rejected for record in rounds] == [[], [], []]
    assert [[record.sites[site].parts for site in "ABC"] for record in rounds] == [[1, 1, 1], [1, 4, 1], [1, 4, 1]]
    sentences = warned(caplog)
    assert [f"{number} parts" in sentence for number, sentence in zip((2, 4), sentences, strict=True)] == [True, True]
    assert all(word in sentence for word in ("site B", "round 2", "schedule.batch_size") for sentence in sentences)


def test_only_parts_are_recorded(two_sites: Mapping[str, Path], tmp_path: Path, limit: Limit) -> None:
    limit(4, site="HK")
    run_in_process(small_job("fedavg", sites=["BIDMC", "HK"]), two_sites, tmp_path)
    first = json.loads((tmp_path / "results.json").read_text())["rounds"][0]["sites"]
    assert ("parts" in first["BIDMC"], first["HK"]["parts"]) == (False, 2)


def test_norms_move_once_a_step(two_sites: Mapping[str, Path], tmp_path: Path, limit: Limit) -> None:
    limit(1)
    outcome = run_in_process(
        small_job("fedavg", "schedule.batch_size=16"), {**two_sites, "UCL": two_sites["HK"]}, tmp_path
    )
    counters = [value for key, value in weights(outcome).items() if "last" in key and "num_batches" in key]
    assert counters and {int(value) for value in counters} == {sum(r.sites["HK"].steps for r in outcome.results.rounds)}


@pytest.mark.slow
def test_over_the_wire_too_and_a_restarted_site_remembers(
    pictures: Mapping[str, Path], tmp_path: Path, limit: Limit, caplog: pytest.LogCaptureFixture
) -> None:
    """Every task meets a new executor, which has nothing but the site's files, and each round is interrupted.

    In round 1 before memory has run out, so that a checkpoint of whole batches is gone on with first.
    """
    limit(4)
    job = small_image_job("fedavg", "schedule.rounds=3", "schedule.checkpoint_minutes=1e-9")
    done = Federation(job, pictures, tmp_path / "flare").run(interrupted=True)
    assert [{told.parts for told in record.sites.values()} for record in done.results.rounds] == [{2}] * 3
    assert len(warned(caplog)) == len(pictures)
    assert_same_bits(done, run_in_process(job, pictures, tmp_path / "run"))


def test_a_centralised_reference_and_fine_tuning_go_on(
    pictures: Mapping[str, Path], tmp_path: Path, limit: Limit
) -> None:
    limit(4)
    pooled = run_pooled(small_image_job("all"), pictures, tmp_path / "pooled")
    assert {told.parts for record in pooled.results.rounds for told in record.sites.values()} == {2}
    limit(4, since=3)
    tuned = run_in_process(small_image_job("pfedavg"), pictures, tmp_path / "tuned").results
    assert tuned.final is not None and tuned.final.fine_tuned and set(tuned.final.personal) == set(pictures)


LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from conftest import make_site, small_job
from fedshift.federation.in_process import run_in_process

def run(name, *options):
    net = "data.matrix=128", "network.options.features=16", "schedule.local_steps=2", "schedule.rounds=1"
    job = small_job("fedavg", *net, *options, "federation.min_sites=1", sites=["HK"])
    return run_in_process(job, {"HK": data}, folder / name, device="cpu").results.rounds[0]

folder = Path(sys.argv[1])
data = make_site(folder, "HK", matrix=128)
run("first", "schedule.batch_size=2")  # loads what is loaded when it is first needed
(size,) = (line for line in open("/proc/self/status") if line.startswith("VmSize"))
limit = (int(size.split()[1]) << 10) + (250 << 20)  # batches of 16 take some 600 MB more, pairs some 60
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(run("second", "schedule.batch_size=16").sites["HK"].parts)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_whose_memory_really_runs_out_goes_on(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split()[-1]) > 1


@pytest.mark.slow
def test_dp_sgd_has_the_same_noise_in_smaller_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a second attempt adds up differs by rounding from what the first would have sent."""
    policy = Policy.parse({"dp_sgd": {"epsilon": 8, "delta": 1e-3, "clip": 0.5}}, where="a site's policy")
    groups = "network.name=monai.BasicUNet", "network.options.features=[4, 4, 4, 4, 4, 4]"
    job = small_job("fedavg", *groups, "schedule.local_steps=3", "federation.min_sites=1", sites=["HK"])
    data = make_site(tmp_path / "data", "HK", cases=14, depth=2)
    site = Site(job, "HK", data, SiteOptions(tmp_path, policy=policy))
    broadcast = first_round(Coordinator(job, tmp_path / "server"), {"HK": site})
    whole, backward = site.train(broadcast), dp_sgd._backward

    def limited(task: Task, net: torch.nn.Module, batch: Batch) -> list[float]:
        if len(batch.x) > 3:
            raise MemoryError
        return backward(task, net, batch)

    monkeypatch.setattr(dp_sgd, "_backward", limited)
    (tmp_path / "HK" / ANSWERED).write_text("{}")
    update = site.train(broadcast)
    assert (update.metrics["parts"], "parts" in whole.metrics) == (4, False)
    for key, value in whole.weights.items():
        np.testing.assert_allclose(update.weights[key], value, rtol=1e-3, atol=1e-5, err_msg=key)


# --- where there is no way ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "room", "named"),
    [
        ("ditto", 4, ("method ditto",)),
        ("manifold_mixup+fedprox", 4, ("method manifold_mixup",)),
        ("fedavg", 0, ("2 samples",)),  # batch norm of single pictures
        ("fedavg+fedwon", 0, ("single sample",)),
    ],
)
def test_a_site_without_a_way_is_left_out_with_the_reason(
    methods: str, room: int, named: tuple[str, ...], pictures: Mapping[str, Path], tmp_path: Path, limit: Limit
) -> None:
    limit(room, site="B", since=2)
    job = small_image_job(methods, "federation.min_sites=1")
    second = run_in_process(job, pictures, tmp_path).results.rounds[1]
    (rejection,) = second.rejected
    assert second.absent == ["B"]
    assert all(word in rejection.reason for word in ("site B", "round 2", "schedule.batch_size", *named))


def test_more_parts_than_samples_are_refused_by_code(tmp_path: Path) -> None:
    job = small_job("fedavg")
    parts = Parts(tmp_path, MethodSet(job, build_task(job).network()), largest=3)

    def never_fits() -> None:
        with batch_out_of_memory("HK", 4):
            raise MemoryError

    with raises("out-of-memory", naming=("site HK", "round 4", "schedule.batch_size")):
        parts.fitted(4, never_fits)
    assert (parts.number(3), parts.number(4), parts.size(4)) == (1, 3, 1)
    assert Parts(tmp_path, parts.methods, largest=3).number(9) == 3
    (tmp_path / FILE).write_text("{")
    assert Parts(tmp_path, parts.methods, largest=3).number(9) == 1


# --- the same step ------------------------------------------------------------------------------------


def plain(methods: str, *options: str) -> JobSpec:
    """A job whose network has no batch norm and whose loss is a mean over images."""
    return small_image_job(methods, "network.name=lenet5", "network.options.size=16", "schedule.rounds=2", *options)


SAME_STEP: Mapping[str, Callable[[], JobSpec]] = {
    "fedavg, clipped": lambda: plain("fedavg", "optimizer.clip_norm=0.5"),
    "fedprox": lambda: plain("fedprox", "fedprox.mu=1"),
    "fedsam": lambda: plain("fedsam"),
    "fedsgd": lambda: plain("fedsgd", "optimizer.name=sgd", "optimizer.momentum=0"),
    "fedmix": lambda: plain("fedmix"),
    "fedmix, released": lambda: plain("fedmix", "fedmix.variant=released"),
    "fedproto": lambda: plain("fedproto", "fedproto.average_weights=true"),
    "fedrod": lambda: plain("fedrod"),
    "fpl": lambda: plain("fpl"),
    "moon": lambda: plain("moon"),
    "fedsr, without noise": lambda: plain("fedsr", "fedsr.stochastic=false"),
    "fedrdn and mixup": lambda: plain("fedrdn+mixup"),
    "fedrobust": lambda: plain("fedrobust"),
    "pn, in place of batch norms": lambda: small_image_job("fedavg+pn"),
    "fedwon, in place of batch norms": lambda: small_image_job("fedavg+fedwon"),
}


@pytest.mark.parametrize("case", SAME_STEP)
def test_the_parts_step_is_the_whole_batchs(
    case: str, pictures: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = SAME_STEP[case]()
    whole = run_in_process(job, pictures, tmp_path / "whole", device="cpu")
    begin_with(monkeypatch, 3)
    parts = run_in_process(job, pictures, tmp_path / "parts", device="cpu")
    ours, theirs = weights(whole), weights(parts)
    assert any((ours[key] != theirs[key]).any() for key in ours)  # other sums
    for key, value in ours.items():
        np.testing.assert_allclose(theirs[key], value, rtol=1e-3, atol=2e-5, err_msg=key)


def test_every_method_with_a_loss_or_layers_says_whether_it_takes_parts() -> None:
    """Those that say nothing need whole batches, so a new one is safe; others are in `SAME_STEP` or compare samples."""
    halves = {name: method_set.load({name: {}})[-1].client() for name in method_set.available()}
    seeing = {name for name, half in halves.items() if sees_parts(half)}
    tried = {word.strip(",") for case in SAME_STEP for word in case.split()}
    compare = {"fedfa", "mixstyle"}
    least = {name: half.least_part for name, half in halves.items() if half.least_part}
    assert least == dict.fromkeys(tried & seeing, 1) | dict.fromkeys(compare, 2)


@pytest.mark.parametrize(
    ("size", "most", "sizes"),
    [(8, 8, [8]), (8, 4, [4, 4]), (7, 2, [3, 2, 2]), (3, 2, [3]), (5, 3, [3, 2]), (3, 1, [1] * 3)],
)
def test_no_single_sample_is_left_beside_larger_parts(size: int, most: int, sizes: list[int]) -> None:
    batch = Batch(torch.arange(size), torch.arange(size) + 1)
    parts = split(batch, most)
    assert [len(part.x) for part in parts] == sizes
    assert torch.equal(torch.cat([part.x for part in parts]), batch.x)
    assert all(torch.equal(part.x + 1, part.y) for part in parts)
