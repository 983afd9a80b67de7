"""What a site does with a task or a job that is none: nothing."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import make_site, small_job
from errors import raises
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.privacy.noise import ANSWERED, SECRET
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.flare import codec
from fedshift.flare.executor import FedshiftExecutor
from fedshift.flare.export import write_job
from fedshift.flare.kit_files import components
from fedshift.schema.errors import ConfigError, PolicyError
from fedshift.schema.job import FILE_NAME, JobSpec, read_job
from fedshift.schema.messages import Answer, Broadcast, Failure
from fedshift.schema.policy import Policy
from fedshift_testing.serialised import Kit

WEIGHTS = {"conv.weight": np.ones((2, 3), np.float32)}
METHODS = {"fedrdn": {"means": np.zeros((1, 3))}}


def task(change: Callable[[DXO], None]) -> Shareable:
    """A task with one change."""
    dxo = from_shareable(codec.encode_task(Broadcast(1, 0, dict(WEIGHTS), deepcopy(METHODS), sites=("HK",))))
    change(dxo)
    sent: Shareable = dxo.to_shareable()
    return sent


def meta(key: str, value: Any) -> Callable[[DXO], None]:
    def change(dxo: DXO) -> None:
        dxo.meta[key] = value

    return change


def part(name: str, content: Any) -> Callable[[DXO], None]:
    def change(dxo: DXO) -> None:
        dxo.data[name] = content

    return change


def weight(value: Any, name: Any = "conv.weight") -> Callable[[DXO], None]:
    def change(dxo: DXO) -> None:
        dxo.data["weights"].data = {name: value}

    return change


def array(value: Any, name: Any = "means", method: Any = "fedrdn") -> Callable[[DXO], None]:
    def change(dxo: DXO) -> None:
        dxo.data["arrays"].data = {method: DXO(DataKind.STATISTICS, {name: value})}

    return change


class Anything:
    """An object that a message should not bring."""


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (meta("round", True), "round: is True"),  # another key than 1 in a record by rounds
        (meta("round", 1.0), "round: is 1.0"),
        (meta("round", "1"), "round: is '1'"),
        (meta("round", None), "round: is None"),
        (meta("round", -1), "best_round: is 0 in round -1"),
        (meta("best_round", 2), "best_round: is 2 in round 1"),
        (meta("best_round", -1), "best_round: is -1"),
        (meta("best_round", False), "best_round: is False"),
        (meta("sites", "HK"), "sites: is no list of names"),
        (meta("sites", 7), "sites: is no list of names"),
        (meta("sites", ["HK", Anything()]), "sites: is no list of names"),
        (meta("sites", [np.ones(2)]), "sites: is no list of names"),
        (part("weights", [1, 2]), "weights: is missing"),
        (part("weights", DXO(DataKind.WEIGHTS, {"w": 1.0})), "weights/w: is float"),
        (part("arrays", {"fedrdn": {}}), "arrays: is missing"),
        (part("arrays", DXO(DataKind.COLLECTION, {"fedrdn": {"means": 1}})), "fedrdn: is missing"),
        (part("packed", {"codes": {}}), "packed: is missing"),
        (weight("text"), "weights/conv.weight: is str"),
        (weight([1.0, 2.0]), "weights/conv.weight: is list"),
        (weight(Anything()), "weights/conv.weight: is Anything"),
        (weight(np.array([Anything()], dtype=object)), "weights/conv.weight: is object"),
        (weight(np.ones(3, np.complex64)), "weights/conv.weight: is complex64"),
        (weight(np.array(["a"])), "weights/conv.weight: is <U1"),
        (weight(np.array([1], "M8[s]")), "weights/conv.weight: is datetime64"),
        (weight(np.ma.masked_array([1.0], [True])), "weights/conv.weight: is float64"),
        (weight(np.ones(3, np.float32), 5), "weights: has 5 for a name"),
        (array("text"), "fedrdn/means: is str"),
        (array(np.ones(1), ("a", "b")), "fedrdn: has ('a', 'b') for a name"),
        (array(np.ones(1), method=3), "arrays: has names that are no text"),
    ],
)
def test_what_is_no_task_is_refused_by_its_key(change: Callable[[DXO], None], named: str) -> None:
    with pytest.raises(codec.WireError) as refusal:
        codec.decode_task(task(change))
    assert named in str(refusal.value)


def test_a_message_without_parts_is_refused() -> None:
    for content in (Shareable(), Shareable({"DXO": {"kind": "COLLECTION", "data": 1}})):
        with pytest.raises(codec.WireError) as refusal:
            codec.decode_task(content)
        assert refusal.value.key == "message"


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["../x", "/x", "a\0b", "..", "{x}", "a" * 500])
def test_names_in_a_task_lead_to_no_file(
    context: Kit, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context.simulator = False
    settings = f"data: {{prostate: {tmp_path / 'share' / 'fedshift' / 'phantom' / 'prostate' / 'HK'}}}\n"
    (Path(context.workspace.get_site_config_dir()) / FILE_NAME).write_text(settings, encoding="utf-8")
    context.deploy(write_job(small_job("fedavg"), tmp_path / "plain"))
    good = Coordinator(small_job("fedavg"), tmp_path / "server").open(1)
    before = files(tmp_path)

    def answered(broadcast: Broadcast) -> Answer:
        task = deepcopy(codec.encode_task(broadcast))
        reply = FedshiftExecutor().execute(codec.TRAIN, task, context, Signal())  # type: ignore[arg-type]
        (answer,) = codec.decode_answers(reply)
        return answer

    sites = ("HK", name)
    refused = answered(Broadcast(1, 0, {**good.weights, name: np.ones(3, np.float32)}, sites=sites))
    assert refused.content == Failure("HK", 1, "DataError (the site's log says more)")
    assert f"sent {name} (3,)," in caplog.text
    ignored = answered(Broadcast(1, 0, good.weights, {name: {name: np.ones(3)}}, sites=sites))
    assert not isinstance(ignored.content, Failure)
    state = Path(context.workspace.get_run_dir("job")).relative_to(tmp_path) / "sites" / "HK"
    assert {Path(one).parent for one in files(tmp_path) - before} == {state}


@pytest.mark.parametrize("key", ["missing", "shape"])
def test_weights_of_another_network_are_refused_by_name(key: str, tmp_path: Path) -> None:
    job = small_job("fedavg")
    site = Site(job, "HK", make_site(tmp_path, "HK"), SiteOptions(tmp_path / "state"))
    weights = dict(Coordinator(job, tmp_path / "server").open(1).weights)
    name = next(iter(weights))
    if key == "missing":
        del weights[name]
    else:
        weights[name] = weights[name].reshape(-1)
    for ask in (site.train, site.validate):
        with raises("wrong-weights", naming=("site HK, round 1", name)):
            ask(Broadcast(1, 0, weights))
    assert not (tmp_path / "state").exists()


def test_a_site_answers_the_rounds_that_its_noise_was_worked_out_for_and_no_other(tmp_path: Path) -> None:
    job = small_job("fedbn")
    rules = Policy.model_validate({"weights": {"epsilon": 8.0, "clip": 1.0}})
    site = Site(job, "HK", make_site(tmp_path, "HK"), SiteOptions(tmp_path / "state", policy=rules))
    weights = Coordinator(job, tmp_path / "server").open(1).weights
    asked = [(site.train, round_, 2) for round_ in (-1, 0, 3, 10**9, 2**70)]
    for ask, round_, last in [*asked, (site.validate, 4, 3)]:
        with pytest.raises(PolicyError, match=f"round {round_} is beyond the job's {last}"):
            ask(Broadcast(round_, 0, weights))
        assert not (tmp_path / "state" / "HK").exists(), "the refused round used up nothing"
    site.train(Broadcast(1, 0, weights))
    assert {ANSWERED, SECRET} <= files(tmp_path / "state" / "HK")


def job_with(path: str, value: Any) -> dict[str, Any]:
    content = small_job("fedavg").dump()
    *parents, last = path.split(".")
    inner = content
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return content


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "/job"),
        ("name", "job\n"),
        ("task.name", "../prostate"),
        ("task.dataset", "../../local"),
        ("task.dataset", "/x"),
        ("task.sites", ["HK", "../UCL", "BIDMC"]),
        ("task.sites", ["HK", "/UCL", "BIDMC"]),
        ("task.sites", ["HK", {"path": "os"}, "BIDMC"]),
        ("task.held_out", ["..\\x"]),
        ("task.kind", "../../flare/simulator"),
        ("task.kind", "segmentation.os"),
        ("task.network.name", "os"),
        ("task.network.name", "..weights"),
        ("task.network.options", {"path": "/x"}),
        ("methods", {"os": {}}),
        ("methods", {"base": {}}),
        ("methods", {"fedavg": {"path": "os"}}),
        ("seed", "{x}"),
        ("task.schedule.rounds", "{x}"),
        ("output", "/x"),
        ("data", {"prostate": "/x"}),
        ("privacy", {"train": True}),
    ],
)
def test_a_job_names_no_path_and_no_module(path: str, value: Any, tmp_path: Path) -> None:
    """Neither the schema nor what reads it at a site takes a path, a module, or what only the site decides."""
    before = set(sys.modules)
    with pytest.raises(ConfigError):
        job = JobSpec.parse(job_with(path, value), where="job")
        Site(job, "HK", make_site(tmp_path, "HK"), SiteOptions(tmp_path / "state"))
    assert not {name for name in set(sys.modules) - before if name.startswith("fedshift.flare")}
    assert not (tmp_path / "state").exists()


def test_a_jobs_configuration_can_give_a_sites_components_no_value() -> None:
    for name in components("site"):
        module, _, last = name.rpartition(".")
        component = getattr(importlib.import_module(module), last)
        assert not inspect.signature(component).parameters, name


def test_a_jobs_values_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(yaml.safe_dump(job_with("task.protocol", "{x}")), encoding="utf-8")
    assert read_job(path).task.protocol == "{x}"
