"""From names and options to a job, and the sentences for what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from conftest import SHAPES

from fedshift import methods
from fedshift.errors import ConfigError
from fedshift.job import read_job
from fedshift.resolve import resolve, tasks


def test_names_become_a_job_that_survives_yaml(tmp_path: Path) -> None:
    job = resolve("prostate", "fedrdn+fedfa", options=["fedfa.p=0.3", "schedule.rounds=7"], seed=4)
    assert job.name == "fedrdn_fedfa_prostate"
    assert list(job.methods) == ["fedavg", "fedfa", "fedrdn"], "the owner of combine first, then by alphabet"
    assert job.methods["fedfa"]["p"] == 0.3 and job.task.schedule.rounds == 7
    assert job.federation.min_sites == 5
    path = tmp_path / "fedshift.yaml"
    path.write_text(yaml.safe_dump(job.dump(), sort_keys=False), encoding="utf-8")
    assert read_job(path) == job


def test_the_papers_protocols() -> None:
    fedfa = resolve("prostate", "fedfa", protocol="fedfa")
    assert fedfa.task.schedule.rounds == 500 and fedfa.task.optimizer.lr == 1e-4 and fedfa.task.loss == "ce_dice"
    assert fedfa.methods["fedavg"]["weights"] == "uniform" and fedfa.task.data["split"] == "slice-legacy"
    fedrdn = resolve("prostate", "fedrdn", protocol="fedrdn")
    assert (fedrdn.task.schedule.rounds, fedrdn.task.schedule.local_epochs) == (200, 5)
    assert fedrdn.task.optimizer.lr == 1e-3 and fedrdn.task.loss == "dice" and not fedrdn.task.optimizer.keep
    assert "prostate" in tasks()


def test_another_network_starts_from_its_own_defaults() -> None:
    job = resolve("prostate", "fedfa", options=["network.name=monai_unet", "network.options.residual=0"])
    assert job.task.network.options == {"residual": 0}
    with pytest.raises(ConfigError, match="network monai_unet: unknown option 'features'"):
        resolve("prostate", "fedfa", options=["network.name=monai_unet", "network.options.features=16"])
    with pytest.raises(ConfigError, match="layers \\[7\\] do not exist; the network has stages 1 to 5"):
        resolve("prostate", "fedfa", options=["network.name=monai_basic_unet", "fedfa.layers=[7]"])


def test_a_part_of_the_sites_keeps_their_order() -> None:
    job = resolve("prostate", "fedavg", sites=["UCL", "BIDMC"])
    assert job.task.sites == ("BIDMC", "UCL") and job.federation.min_sites == 1


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"task": "prostrate"}, "no task 'prostrate'; did you mean 'prostate'"),
        ({"method_names": "fedfaa"}, "no method 'fedfaa'; did you mean 'fedfa'"),
        ({"method_names": "fedfa+fedfa"}, "named twice"),
        ({"protocol": "fedf"}, "no protocol 'fedf'; did you mean 'fedfa'"),
        ({"sites": ["BIDMC", "HKK"]}, "no site 'HKK'; did you mean 'HK'"),
        ({"options": ["fedfa.pp=1"]}, "method fedfa: unknown key 'pp'; did you mean 'p'"),
        ({"options": ["fedfa.p=2"]}, "method fedfa: 'p' input should be less than or equal to 1"),
        ({"options": ["schedule.round=3"]}, "unknown key 'schedule.round'; did you mean 'rounds'"),
        ({"options": ["shedule.rounds=3"]}, "unknown key 'shedule'; did you mean 'schedule'"),
        ({"options": ["fedrdn.mode=mean"]}, "does not use method fedrdn"),
        ({"options": ["rounds"]}, "takes path=value"),
        ({"options": ["federation.min_sites=9"]}, "min_sites is 9, but a round has only 6 sites"),
        ({"options": ["federation.sites_per_round=7"]}, "sites_per_round is 7, but the job has only 6 sites"),
        ({"options": ["federation.sites_per_round=2", "federation.min_sites=3"]}, "a round has only 2 sites"),
        ({"options": ['federation.sites_per_round="2"', "federation.min_sites=3"]}, "a round has only 2 sites"),
        ({"options": ["network.name=digits_cnn"]}, "digits_cnn .*: change network.name"),
        ({"options": ["network.options.features=abc"]}, "network unet: no such network can be made with options"),
        ({"options": ["network.name=monai_unet", "network.options.channels=[4]"]}, "network monai_unet"),
        ({"options": ["sites=[BIDMC, BIDMC]"]}, "'sites' value error, BIDMC is named twice"),
        ({"options": ["sites=[../x]"]}, "string should match pattern"),
        ({"name": "../../zz"}, "string should match pattern"),
        ({"options": ["optimizer.lr=.inf"]}, "'optimizer.lr' input should be a finite number"),
        ({"method_names": "fedprox", "options": ["fedprox.mu=.nan"]}, "'mu' input should be a finite number"),
        ({"options": ["optimizer.lr=-1"]}, "'optimizer.lr' input should be greater than 0"),
    ],
)
def test_mistakes_get_a_sentence(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(**{"task": "prostate", "method_names": "fedfa", **kwargs})


def test_two_owners_of_the_same_thing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = methods.find

    def find(name: str) -> object:
        return real("fedavg") if name == "other" else real(name)

    monkeypatch.setattr(methods, "find", find)
    with pytest.raises(ConfigError, match="fedavg and other cannot be combined: both decide how updates are combined"):
        methods.load({"fedavg": {}, "other": {}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sites": None}, "'sites' must be a list of names"),
        ({"protocols": ["a"]}, "'protocols' must map names to settings"),
        ({"network": {"name": "unet", "options": {"features": 2}}}, "network unet .*change network.name"),
        ({"network": {"name": "digits_cnn", "options": {"size": 32, "width": 2}}}, "cannot take images of 16 x 16"),
    ],
)
def test_what_is_wrong_with_a_task_of_ones_own_is_said(change: dict[str, object], message: str, tmp_path: Path) -> None:
    raw = yaml.safe_load(SHAPES.read_text(encoding="utf-8")) | change
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        resolve(str(path), "fedavg", sites=["A"])
    path.write_bytes(b"name: caf\xe9")
    with pytest.raises(ConfigError, match="not text in UTF-8"):
        resolve(str(path), "fedavg")
