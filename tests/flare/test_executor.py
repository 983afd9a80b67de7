"""A site's answers: the same bytes when asked twice, a sentence when it cannot, and no path of its own in it."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from armour.pieces.messages import answer as large_answer
from armour.pieces.messages import ends, read_answer, same, site, weights
from armour.pieces.messages import task as large_task
from conftest import small_job
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.tensors import read_weights
from fedshift.flare import codec
from fedshift.flare.executor import FedshiftExecutor
from fedshift.flare.export import write_job
from fedshift.schema.messages import Answer, Broadcast, Failure, Scores, Update
from fedshift.tasks import machine
from fedshift.tasks.device import processor
from fedshift.tasks.kinds import build_task
from fedshift_testing.serialised import Kit
from flare_armour.pieces.site_end import SiteEnd
from flare_armour.protected import SiteProtection


def ask(executor: FedshiftExecutor, context: Kit, task: str, broadcast: Broadcast) -> Answer:
    asked = deepcopy(codec.encode_task(replace(broadcast, sites=("BIDMC", "HK", "UCL"))))  # as it comes from a server
    shareable = executor.execute(task, asked, context, Signal())  # type: ignore[arg-type]
    (answer,) = codec.decode_answers(shareable)
    return answer


def flat(answer: Answer) -> dict[str, bytes]:
    content = answer.content
    assert isinstance(content, Update), content
    named = {**content.weights, **{f"{m}/{k}": v for m, a in content.arrays.items() for k, v in a.items()}}
    metrics = {k: np.float64(v).tobytes() for k, v in content.metrics.items() if k != "seconds"}
    return {**{key: value.tobytes() for key, value in named.items()}, **metrics}


def test_a_repeated_task_gives_the_same_bytes(context: Kit, tmp_path: Path) -> None:
    coordinator = Coordinator(small_job("fedfa+fedrdn", "federation.min_sites=1"), tmp_path / "server")
    coordinator.open(0)
    statistics = ask(FedshiftExecutor(), context, codec.STATISTICS, Broadcast(0, 0, {}))
    assert statistics.info is not None
    assert statistics.info.kind == "phantom"
    assert isinstance(statistics.content, Update)
    coordinator.register(statistics.info)
    coordinator.accept(statistics.content)
    coordinator.close()
    broadcast = coordinator.open(1)
    kept = FedshiftExecutor()
    first = flat(ask(kept, context, codec.TRAIN, broadcast))
    second_round = Broadcast(2, 0, broadcast.weights, broadcast.arrays)
    next_ = flat(ask(kept, context, codec.TRAIN, second_round))
    assert next_ != first
    assert flat(ask(kept, context, codec.TRAIN, second_round)) == next_, "the same process asked again"
    assert flat(ask(FedshiftExecutor(), context, codec.TRAIN, second_round)) == next_, "a new process asked again"
    assert flat(ask(FedshiftExecutor(), context, codec.TRAIN, broadcast)) == first, "an earlier round asked again"


def test_a_stopped_run_stops_training(context: Kit, tmp_path: Path) -> None:
    broadcast = Coordinator(small_job("fedfa"), tmp_path / "server").open(1)
    broadcast.arrays["fedrdn"] = {"means": np.zeros((1, 3)), "stds": np.ones((1, 3))}
    signal = Signal()
    signal.trigger(True)
    answer = FedshiftExecutor().answer(codec.TRAIN, "HK", broadcast, context, signal)  # type: ignore[arg-type]
    assert isinstance(answer.content, Failure) and answer.content.reason.startswith("site HK, round 1: stopped")


@pytest.mark.parametrize("simulator", [True, False])
def test_missing_data_are_a_sentence_that_a_hospital_keeps_to_itself(
    context: Kit, simulator: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    context.simulator = simulator
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "my scans"))
    with caplog.at_level(logging.ERROR, "fedshift"):
        answer = ask(FedshiftExecutor(), context, codec.STATISTICS, Broadcast(0, 0, {}))
    assert isinstance(answer.content, Failure)
    sentence = f"no prostate data for site HK: looked in {tmp_path / 'my scans'}"
    assert sentence in caplog.text, "the site's own log has all of it"
    if simulator:
        assert answer.content.reason.startswith(sentence)
        assert "'fedshift data phantom'" in answer.content.reason
    else:
        assert answer.content.reason == "DataError (the site's log says more)"


@pytest.mark.parametrize(
    ("policy", "leave"), [("", False), ("privacy: {}", False), ("privacy: {case_scores: true}", True)]
)
def test_a_provisioned_sites_single_scores_leave_only_where_its_policy_says_so(
    context: Kit, policy: str, leave: bool, tmp_path: Path
) -> None:
    context.simulator = False
    data = f"data: {{prostate: {tmp_path / 'share' / 'fedshift' / 'phantom' / 'prostate' / 'HK'}}}\n"
    (Path(context.workspace.get_site_config_dir()) / "fedshift.yaml").write_text(data + policy, encoding="utf-8")
    job = small_job("fedavg")
    context.deploy(write_job(job, tmp_path / "plain"))
    model = Broadcast(3, 0, read_weights(build_task(job).network()))
    told = ask(FedshiftExecutor(), context, codec.VALIDATE, model).content
    assert isinstance(told, Scores), told
    spread = told.evaluations["test"].distributions["dice"]
    assert (spread.cases is not None) is leave
    assert spread.n == 1 and spread.mean == told.values["test"]["dice"]


def test_an_unforeseen_error_is_told_by_its_name_only(
    context: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("patient 17")

    monkeypatch.setattr("fedshift.federation.site.site.Site.statistics", broken)
    answer = ask(FedshiftExecutor(), context, codec.STATISTICS, Broadcast(0, 0, {}))
    assert isinstance(answer.content, Failure) and answer.content.reason.startswith("KeyError (")
    assert "patient 17" in caplog.text and "patient 17" not in answer.content.reason


def test_an_unknown_task_is_refused(context: Kit) -> None:
    answer = ask(FedshiftExecutor(), context, "upload_images", Broadcast(1, 0, {}))
    assert isinstance(answer.content, Failure)
    assert "'upload_images'" in answer.content.reason


def test_a_site_that_the_job_holds_out_neither_measures_nor_trains(context: Kit, tmp_path: Path) -> None:
    """Whatever the server asks for: with masks its answer would have none."""
    options = ("held_out=[HK]", "federation.min_sites=2", "federation.encryption=masks")
    context.deploy(write_job(small_job("fedavg", *options, sites=("BIDMC", "UCL")), tmp_path / "other"))
    for task, round_ in ((codec.STATISTICS, 0), (codec.TRAIN, 1), (codec.UNMASK, 1)):
        answer = ask(FedshiftExecutor(), context, task, Broadcast(round_, 0, {}))
        assert isinstance(answer.content, Failure)
        assert "held out" in answer.content.reason


def test_a_site_that_is_not_asked_says_nothing(context: Kit) -> None:
    task = codec.encode_task(Broadcast(0, 0, {}, sites=("BIDMC", "UCL")))
    shareable = FedshiftExecutor().execute(codec.STATISTICS, task, context, Signal())  # type: ignore[arg-type]
    assert codec.decode_answers(shareable) == []


@pytest.mark.parametrize(("simulator", "said", "expected"), [(True, "", 2), (True, "3", 2), (False, "", 6)])
def test_threads_are_shared_among_the_clients_of_a_simulation(
    context: Kit, simulator: bool, said: str, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A provisioned site has its machine to itself; FLARE's own command does not say how many it lets work."""
    context.simulator = simulator
    for name, value in ((machine.WORKERS, said), ("FEDSHIFT_DATA", str(tmp_path / "share" / "fedshift" / "phantom"))):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "cores", lambda: 6)
    context.deploy(write_job(small_job("fedavg", "schedule.threads=auto"), tmp_path / "plain"))
    info = ask(FedshiftExecutor(), context, codec.STATISTICS, Broadcast(0, 0, {})).info
    assert info is not None
    assert (info.device, info.precision, info.threads) == (processor(), "fp32", expected)


@pytest.mark.parametrize(("simulator", "asked", "expected"), [(True, "auto", "cuda:1"), (False, "auto", "auto")])
def test_clients_of_a_simulation_are_spread_over_gpus(
    context: Kit, simulator: bool, asked: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context.simulator = simulator
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "share" / "fedshift" / "phantom"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("FEDSHIFT_DEVICE", asked)
    taken = []

    def chosen(device: str, number: int) -> tuple[str, ...]:
        taken.append(device)
        return ("cpu",)

    monkeypatch.setattr("fedshift.federation.site.job_network.choose_devices", chosen)
    ask(FedshiftExecutor(), context, codec.STATISTICS, Broadcast(0, 0, {}))
    assert taken == [expected]  # HK is the second of BIDMC, HK, UCL


def test_a_site_without_memory_says_so(context: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedshift.federation.site.local_training.train", lambda *_: torch.empty(1 << 50))
    broadcast = Coordinator(small_job("fedfa"), tmp_path / "server").open(1)
    broadcast.arrays["fedrdn"] = {"means": np.zeros((1, 3)), "stds": np.ones((1, 3))}
    answer = ask(FedshiftExecutor(), context, codec.TRAIN, broadcast)
    assert isinstance(answer.content, Failure)
    assert answer.content.reason.startswith("site HK, round 1: memory ran out")


def executor_with(pieces: SiteEnd) -> FedshiftExecutor:
    executor = FedshiftExecutor()
    executor.protection = SiteProtection(pieces)
    return executor


def test_a_large_task_is_fetched_before_filters_see_it_and_a_large_answer_sent_after(tmp_path: Path) -> None:
    message, given = large_task(), FLContext()
    server, line = ends(tmp_path, task=message)
    executor = executor_with(site(tmp_path, line))
    given.set_prop(FLContextKey.TASK_DATA, message, private=True, sticky=False)
    executor.handle_event(EventType.BEFORE_TASK_DATA_FILTER, given)
    assert same(codec.decode_task(message).weights, weights())
    result = large_answer()
    given.set_prop(FLContextKey.TASK_RESULT, result, private=True, sticky=False)
    executor.handle_event(EventType.AFTER_TASK_RESULT_FILTER, given)
    server.restore("HK", result)
    assert same(read_answer(result).weights, weights())
    executor.handle_event(EventType.END_RUN, given)
    assert not list((tmp_path / "HK").iterdir())


def test_a_task_that_the_server_no_longer_gives_is_left(context: Kit, tmp_path: Path) -> None:
    message, given = large_task(), FLContext()
    server, line = ends(tmp_path, task=message)
    executor = executor_with(site(tmp_path, line))
    server.close()
    given.set_prop(FLContextKey.TASK_DATA, message, private=True, sticky=False)
    executor.handle_event(EventType.BEFORE_TASK_DATA_FILTER, given)
    reply = executor.execute(codec.TRAIN, message, context, Signal())  # type: ignore[arg-type]
    assert reply.get_return_code() == ReturnCode.TASK_ABORTED
