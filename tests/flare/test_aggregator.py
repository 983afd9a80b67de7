"""What the server makes of answers: the right are taken, the wrong are recorded under the site's name."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import small_job
from errors import raises
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply

from fedshift.federation.site.site import Site, SiteOptions
from fedshift.flare import codec
from fedshift.flare.aggregator import FedshiftAggregator
from fedshift.schema.messages import Answer, Failure, Scores, SiteInfo, Update
from fedshift.schema.results import Rejection

Send = Callable[..., bool]


@pytest.fixture
def aggregator(tmp_path: Path) -> FedshiftAggregator:
    aggregator = FedshiftAggregator()
    aggregator.begin(small_job("fedavg"), tmp_path / "server", on_progress=lambda coordinator: None)
    return aggregator


def send(aggregator: FedshiftAggregator, shareable: Shareable, *, client: str, task: str) -> bool:
    shareable.set_header(ReservedHeaderKey.TASK_NAME, task)
    shareable.set_peer_props({ReservedKey.IDENTITY_NAME: client})
    return aggregator.accept(shareable, FLContext())


def statistics(site: str, kind: str = "phantom") -> Answer:
    return Answer(Update(site, 0, n_samples=8, n_steps=0), SiteInfo(site, kind, 8, 4, 4, "sha", "case"))


def faults(aggregator: FedshiftAggregator) -> list[Rejection]:
    return aggregator.coordinator.record.current.rejected


def test_answers_of_the_statistics_round_are_taken(aggregator: FedshiftAggregator) -> None:
    for site in ("UCL", "BIDMC", "HK"):
        assert send(aggregator, codec.encode_answers([statistics(site)]), client=site, task=codec.STATISTICS)
    aggregator.coordinator.close()
    assert "encoder1.enc1_conv1.weight" in aggregator.coordinator.open(1).weights
    assert list(aggregator.coordinator.results.data) == ["BIDMC", "HK", "UCL"], "in the job's order"


def of_another_version() -> Shareable:
    dxo = from_shareable(codec.encode_answers([statistics("HK")]))
    dxo.meta["fedshift"] = {"version": "9.9", "source": "feedfeedfeed"}
    sent: Shareable = dxo.to_shareable()
    return sent


@pytest.mark.parametrize(
    ("shareable", "key", "reason"),
    [
        (make_reply(ReturnCode.EXECUTION_EXCEPTION), "statistics", "EXECUTION_EXCEPTION"),
        (of_another_version(), "version", "9.9 (source feedfeedfeed)"),
        (codec.encode_answers([statistics("UCL")]), "site", "UCL"),
        (codec.encode_answers([]), "site", "no site"),
        (codec.encode_answers([Answer(Failure("HK", 0, "no space"))]), "statistics", "no space"),
        (codec.encode_answers([statistics("HK", "mice")]), "info", ""),
    ],
    ids=["return code", "version", "another site", "nobody", "failure", "kind of data"],
)
def test_an_answer_that_does_not_count_is_left_out_with_its_reason(
    shareable: Shareable, key: str, reason: str, aggregator: FedshiftAggregator
) -> None:
    assert not send(aggregator, deepcopy(shareable), client="HK", task=codec.STATISTICS)
    (fault,) = faults(aggregator)
    assert (fault.site, fault.key) == ("HK", key) and reason in fault.reason
    assert not aggregator.coordinator.results.data


def test_a_site_with_other_data_than_the_others_is_left_out(aggregator: FedshiftAggregator) -> None:
    for site, kind in (("HK", "patients"), ("BIDMC", "phantom"), ("UCL", "phantom")):
        send(aggregator, codec.encode_answers([statistics(site, kind)]), client=site, task=codec.STATISTICS)
    aggregator.coordinator.close()
    assert [(fault.site, fault.key) for fault in aggregator.coordinator.results.statistics.rejected] == [("HK", "info")]


def test_a_lost_quorum_names_every_site(aggregator: FedshiftAggregator) -> None:
    shareable = codec.encode_answers([Answer(Failure("HK", 0, "no space"))])
    send(aggregator, shareable, client="HK", task=codec.STATISTICS)
    with raises("too-few-answers", naming=("HK (statistics: no space)", "BIDMC, UCL (")):
        aggregator.coordinator.close()


def test_scores_that_select_a_model_are_checked(
    aggregator: FedshiftAggregator, three_sites: dict[str, Path], tmp_path: Path
) -> None:
    coordinator = aggregator.coordinator
    sites = {name: Site(coordinator.job, name, data, SiteOptions(tmp_path / "s")) for name, data in three_sites.items()}
    broadcast = coordinator.open(3)
    good = sites["HK"].validate(broadcast)
    assert good.round == 2
    bad = {
        "round": replace(good, round=1),
        "metrics.dice": replace(good, values={"val": {"dice": float("nan")}}),
        "metrics.f1": replace(good, values={"val": {"f1": 1.0}}),
        "scores.train": replace(good, values={"train": {"dice": 1.0}}),
    }
    for scores in bad.values():
        assert not send(aggregator, codec.encode_answers([Answer(scores)]), client="HK", task=codec.VALIDATE)
    assert [fault.key for fault in faults(aggregator)] == list(bad)
    assert not send(aggregator, codec.encode_answers([statistics("HK")]), client="HK", task=codec.VALIDATE)
    assert send(aggregator, codec.encode_answers([Answer(good)]), client="HK", task=codec.VALIDATE)
    assert isinstance(good, Scores) and coordinator.answered == ["HK"]


def test_the_mean_score_does_not_depend_on_who_answers_first(aggregator: FedshiftAggregator) -> None:
    coordinator = aggregator.coordinator
    told = {"BIDMC": 0.1, "HK": 0.2, "UCL": 0.3}
    means = []
    for round_, order in ((2, ("BIDMC", "HK", "UCL")), (3, ("UCL", "HK", "BIDMC"))):
        coordinator.open(round_)
        for site in order:
            coordinator.add_scores(Scores(site, round_ - 1, {"val": {"dice": told[site]}}))
        means.append(coordinator.mean_score(round_ - 1))
    assert means[0] == means[1]
    assert sum([0.1, 0.2, 0.3]) != sum([0.3, 0.2, 0.1]), "the order of summation does matter"


def damaged(part: str, value: object) -> Shareable:
    """An answer of HK in which one part is not what it should be."""
    dxo = from_shareable(codec.encode_answers([statistics("HK")]))
    dxo.data["HK"].data[part] = value
    return dxo.to_shareable()


@pytest.mark.parametrize(
    "shareable",
    [
        Shareable(),
        DXO(DataKind.WEIGHTS, data={"HK": np.ones(3)}).to_shareable(),
        damaged("weights", np.ones(3)),
        damaged("weights", DXO(DataKind.WEIGHTS, data={"file": np.ones(3)})),
        damaged("weights", DXO(DataKind.WEIGHTS, data={1: np.ones(3), "x": np.ones(3)})),
        damaged("arrays", DXO(DataKind.COLLECTION, data={"fedrdn": np.ones(3)})),
        damaged("arrays", DXO(DataKind.COLLECTION, data={1: DXO(DataKind.STATISTICS, data={"x": 1}), "x": 2})),
        damaged("metrics", DXO(DataKind.METRICS, data={"dice": np.float32(1)})),
    ],
    ids=range(8),
)
def test_no_answer_however_strange_ends_the_job(aggregator: FedshiftAggregator, shareable: Shareable) -> None:
    assert not send(aggregator, shareable, client="HK", task=codec.STATISTICS)
    assert {fault.site for fault in faults(aggregator)} == {"HK"}
    for site in ("UCL", "BIDMC"):
        assert send(aggregator, codec.encode_answers([statistics(site)]), client=site, task=codec.STATISTICS)
    aggregator.coordinator.close()
    assert aggregator.coordinator.next_round == 1


def test_a_site_whose_data_change_during_the_run_is_left_out(aggregator: FedshiftAggregator) -> None:
    first = statistics("HK")
    assert send(aggregator, codec.encode_answers([first]), client="HK", task=codec.STATISTICS)
    assert first.info is not None
    changed = replace(first, info=replace(first.info, manifest_sha256="other"))
    assert not send(aggregator, codec.encode_answers([changed]), client="HK", task=codec.STATISTICS)
    assert "data have changed" in faults(aggregator)[0].reason


def on(site: str, **machine: object) -> Answer:
    answer = statistics(site)
    assert answer.info is not None
    return replace(answer, info=replace(answer.info, **machine))  # type: ignore[arg-type]


def test_what_sites_compute_on_is_recorded_and_two_precisions_are_said_once(
    aggregator: FedshiftAggregator, caplog: pytest.LogCaptureFixture
) -> None:
    answers = {
        "UCL": on("UCL", device="NVIDIA H100", precision="bf16", threads=4),
        "BIDMC": on("BIDMC"),
        "HK": on("HK"),
    }
    for site, answer in answers.items():
        assert send(aggregator, codec.encode_answers([answer]), client=site, task=codec.STATISTICS)
    aggregator.coordinator.close()
    aggregator.coordinator.record.warn_of_mixed_precision()
    told = aggregator.coordinator.results.machines
    assert {site: (m.device, m.precision, m.threads) for site, m in told.items()} == {
        "BIDMC": ("cpu", "fp32", 1),
        "HK": ("cpu", "fp32", 1),
        "UCL": ("NVIDIA H100", "bf16", 4),
    }
    assert list(told) == ["BIDMC", "HK", "UCL"], "in the job's order"
    assert caplog.text.count("bf16 at UCL") == 1


@pytest.mark.parametrize(
    "machine",
    [
        {"device": "x" * 65},
        {"device": ""},
        {"device": "a\nb"},
        {"device": "\x1b[31m"},
        {"device": ["cpu"]},
        {"precision": "fp64"},
        {"precision": "auto"},
        {"threads": 0},
        {"threads": 10**9},
        {"threads": "1"},
        {"threads": True},
    ],
    ids=str,
)
def test_a_machine_that_is_none_is_left_out(aggregator: FedshiftAggregator, machine: dict[str, object]) -> None:
    assert not send(aggregator, codec.encode_answers([on("HK", **machine)]), client="HK", task=codec.STATISTICS)
    assert [(fault.site, fault.key) for fault in faults(aggregator)] == [("HK", "info")]
    assert not aggregator.coordinator.results.machines and not aggregator.coordinator.results.data
