"""One FLARE client may do the work of several sites; every number stays what it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import SHAPES, make_image_site, small_image_job
from errors import raises
from modelfiles import assert_same_weights
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from torch.utils.hooks import RemovableHandle

from fedshift.federation.in_process import run_in_process
from fedshift.flare import codec
from fedshift.flare.aggregator import FedshiftAggregator
from fedshift.flare.export import hosts, meta, write_job
from fedshift.flare.simulate import balanced, work_of
from fedshift.methods import mixstyle
from fedshift.methods.base import Context
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Answer, SiteInfo, Update
from fedshift.schema.results import BEST, LAST, Rejection, Results
from fedshift_testing.serialised import Federation

from .conftest import run_simulator

DRAWN = ("federation.hosts=2", "federation.sites_per_round=3", "schedule.rounds=3")
SITES = ("A", "B", "C", "D", "E")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """The tests' task with five sites."""
    text = SHAPES.read_text(encoding="utf-8")
    path = tmp_path / "five.yaml"
    path.write_text(text.replace("[A, B, C]", "[A, B, C, D, E]"), encoding="utf-8")
    return path


@pytest.fixture
def job(task: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., JobSpec]:
    monkeypatch.setattr("fedshift_testing.jobs.SHAPES", task)
    return lambda names, *options: small_image_job(names, *options, sites=SITES)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Five sites of unequal size where the simulator looks for them."""
    home = tmp_path / "share"
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    phantom = home / "fedshift" / "phantom"
    return {site: make_image_site(phantom, site, images=36 + 6 * k, gain=1 - k / 10) for k, site in enumerate(SITES)}


def told(results: Results) -> object:
    """All that does not depend on the clock."""
    rounds = [
        {site: r.model_dump(exclude={"seconds"}) for site, r in sorted(record.sites.items())}
        for record in results.rounds
    ]
    return rounds, results.selected, results.final, results.data


def same_models(one: Path, other: Path) -> None:
    for file in (BEST, LAST):
        assert_same_weights(one / file, other / file)


def test_sites_are_dealt_out_in_turn(job: Callable[..., JobSpec]) -> None:
    assert hosts(job("fedavg")) == {site: (site,) for site in SITES}
    two = job("fedavg", "federation.hosts=2")
    assert hosts(two) == {"host_1": ("A", "C", "E"), "host_2": ("B", "D")}
    assert meta(two)["deploy_map"] == {"app": ["server", "host_1", "host_2"]} and meta(two)["min_clients"] == 2


@pytest.mark.parametrize(
    ("work", "count", "shares"),
    [
        ((36, 32, 36, 28, 30), 2, (("A", "B"), ("C", "D", "E"))),
        ((1, 1, 1, 1, 9), 2, (("E",), ("A", "B", "C", "D"))),
        ((5, 0, 0, 0, 0), 3, (("A",), ("B", "D"), ("C", "E"))),
        ((1, 1, 1, 1, 1), 1, (SITES,)),
        ((3, 1, 2, 5, 4), 5, (("D",), ("E",), ("A",), ("C",), ("B",))),
    ],
)
def test_hosts_have_about_as_much_to_do(work: tuple[int, ...], count: int, shares: tuple[tuple[str, ...], ...]) -> None:
    assert balanced(dict(zip(SITES, work, strict=True)), count) == shares


def test_work_is_what_a_site_trains_on_and_scores(job: Callable[..., JobSpec], data: dict[str, Path]) -> None:
    epochs = work_of(job("fedavg", "schedule.local_epochs=2"), data)
    counts = {site: 36 + 6 * k for k, site in enumerate(SITES)}
    assert list(epochs) == list(SITES) and sorted(epochs.values()) == list(epochs.values())
    assert all(2 / 2 < epochs[site] / counts[site] < 2 for site in SITES), "a part is for validation and test"
    steps = work_of(job("fedavg", "schedule.local_steps=3", "schedule.batch_size=8"), data)
    assert all(24 < work < 24 + counts[site] / 3 for site, work in steps.items())
    last = job("fedavg").model_copy(deep=True)
    held_out = last.model_copy(
        update={"task": last.task.model_copy(update={"sites": SITES[:4], "held_out": SITES[4:]})}
    )
    assert work_of(held_out, data)["E"] < min(work_of(held_out, data)[site] for site in SITES[:4])


def test_a_job_may_say_which_host_has_which_sites(job: Callable[..., JobSpec]) -> None:
    def shared(*shares: tuple[str, ...]) -> JobSpec:
        raw = job("fedavg").dump()
        raw["federation"] |= {"hosts": 2, "shares": shares}
        return JobSpec.parse(raw, where="a job")

    assert hosts(shared(("B",), ("A", "C", "D", "E"))) == {"host_1": ("B",), "host_2": ("A", "C", "D", "E")}


@pytest.mark.parametrize("names", ["fedbn", "scaffold", "fraug"])
def test_hosted_sites_remember_their_own(
    names: str, job: Callable[..., JobSpec], data: dict[str, Path], tmp_path: Path
) -> None:
    drawn = job(names, *DRAWN)
    alone = run_in_process(job(names, *DRAWN[1:]), data, tmp_path / "one")
    hosted = Federation(drawn, {}, tmp_path / "w").run()
    same_models(tmp_path / "one", tmp_path / "w" / "server")
    assert told(alone.results) == told(hosted.results)


@pytest.mark.slow
def test_in_the_real_simulator_too(job: Callable[..., JobSpec], data: dict[str, Path], tmp_path: Path) -> None:
    drawn = job("fedbn", *DRAWN)
    write_job(drawn, tmp_path / "job")
    alone = run_in_process(drawn, data, tmp_path / "one")
    run = run_simulator(tmp_path / "job", tmp_path / "w", home=tmp_path / "share", threads=2)
    assert run.code == 0, run.output[-3000:]
    same_models(tmp_path / "one", run.server)
    assert told(alone.results) == told(run.results)


def test_a_hosted_site_without_data_is_left_out_alone(
    job: Callable[..., JobSpec], data: dict[str, Path], tmp_path: Path
) -> None:
    (data["C"] / "manifest.json").unlink()
    results = Federation(job("fedavg", "federation.hosts=2"), {}, tmp_path / "w").run().results
    assert sorted(results.data) == ["A", "B", "D", "E"]
    assert [fault.site for fault in results.rounds[0].rejected] == ["C"]


def test_what_fails_at_one_site_leaves_no_trace_in_the_network_that_the_next_one_uses(
    job: Callable[..., JobSpec], data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MixStyle cannot be attached at A in round 2, when FedFA already is; each site alone has a network of its own."""
    attach = mixstyle.Client.attach

    def fail_once(half: mixstyle.Client, net: torch.nn.Module, ctx: Context) -> list[RemovableHandle]:
        if (ctx.run.site, ctx.run.round) == ("A", 2):
            raise OSError("no such layer")
        return attach(half, net, ctx)

    monkeypatch.setattr(mixstyle.Client, "attach", fail_once)
    options = ("schedule.rounds=3", "federation.min_sites=3")
    one = run_in_process(job("fedfa+mixstyle", *options), data, tmp_path / "one").results
    Federation(job("fedfa+mixstyle", *options), {}, tmp_path / "w").run()
    assert [fault.site for fault in one.rounds[1].rejected] == ["A"]
    same_models(tmp_path / "one", tmp_path / "w" / "server")


# --- what a host may not do -----------------------------------------------------------------------------


@pytest.fixture
def aggregator(job: Callable[..., JobSpec], tmp_path: Path) -> FedshiftAggregator:
    aggregator = FedshiftAggregator()
    aggregator.begin(job("fedavg", "federation.hosts=2"), tmp_path / "server", on_progress=lambda coordinator: None)
    return aggregator


def send(aggregator: FedshiftAggregator, client: str, shareable: Shareable) -> list[Rejection]:
    shareable.set_header(ReservedHeaderKey.TASK_NAME, codec.STATISTICS)
    shareable.set_peer_props({ReservedKey.IDENTITY_NAME: client})
    assert not aggregator.accept(shareable, FLContext())
    return aggregator.coordinator.record.current.rejected


def statistics(*sites: str) -> Shareable:
    return codec.encode_answers(
        [
            Answer(Update(site, 0, n_samples=8, n_steps=0), SiteInfo(site, "phantom", 8, 4, 4, "sha", "x"))
            for site in sites
        ]
    )


def test_a_host_speaks_for_its_own_sites_only(aggregator: FedshiftAggregator) -> None:
    faults = send(aggregator, "host_2", statistics("B", "D", "E"))
    assert [(fault.site, fault.key) for fault in faults] == [("B", "site"), ("D", "site")]
    assert "answered for E" in faults[0].reason and not aggregator.coordinator.answered


def test_a_host_speaks_for_all_of_its_sites(aggregator: FedshiftAggregator) -> None:
    faults = send(aggregator, "host_2", statistics("D"))
    assert [fault.site for fault in faults] == ["B", "D"] and "answered for D" in faults[0].reason


def test_a_client_that_hosts_nothing_is_named(aggregator: FedshiftAggregator) -> None:
    assert [fault.site for fault in send(aggregator, "B", statistics("B"))] == ["B"]


def test_what_flare_reports_of_a_host_is_told_of_its_sites(aggregator: FedshiftAggregator) -> None:
    faults = send(aggregator, "host_1", make_reply(ReturnCode.EXECUTION_EXCEPTION))
    assert [fault.site for fault in faults] == ["A", "C", "E"]


def test_hosts_are_for_simulations(job: Callable[..., JobSpec], tmp_path: Path) -> None:
    with raises("options-clash", naming="federation.hosts"):
        write_job(job("fedavg", "federation.hosts=2"), tmp_path / "job", production=True)
