"""From names and options to a job, and the sentences for what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import SHAPES
from errors import raises
from surveysites import survey_site

from fedshift.cli import main
from fedshift.federation.resolve import resolve, tasks
from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec, read_job
from fedshift.schema.results import new_results
from fedshift.schema.task import WeightsSpec
from fedshift.tasks.kinds import build_task


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
    assert fedfa.task.schedule.rounds == 500 and fedfa.task.optimizer.lr == 1e-4 and str(fedfa.task.loss) == "ce_dice"
    assert fedfa.methods["fedavg"]["weights"] == "uniform" and fedfa.task.data["split"] == "slice-legacy"
    fedrdn = resolve("prostate", "fedrdn", protocol="fedrdn")
    assert (fedrdn.task.schedule.rounds, fedrdn.task.schedule.local_epochs) == (200, 5)
    assert fedrdn.task.optimizer.lr == 1e-3 and str(fedrdn.task.loss) == "dice" and not fedrdn.task.optimizer.keep
    assert "prostate" in tasks()


def test_the_papers_select_the_round_by_the_dice_that_they_print() -> None:
    for protocol in ("fedfa", "fedrdn"):
        assert build_task(resolve("prostate", "fedavg", protocol=protocol)).metric == "dice_papers"
    assert build_task(resolve("prostate", "fedavg")).metric == "dice"


def test_a_job_says_what_its_protocol_has_and_it_has_not(tmp_path: Path) -> None:
    def lacks(task: str, methods: str, protocol: str, weights: WeightsSpec | None = None) -> tuple[str, ...]:
        return resolve(task, methods, protocol=protocol, weights=weights).task.departures

    for task, protocol in [(task, p) for task in ("domainnet", "office_caltech") for p in ("fedfa", "fedrdn", "fedbn")]:
        (lack,) = lacks(task, "fedavg", protocol)
        assert lack.startswith(f"protocol {protocol}") and lack.endswith("+augmentation")
        assert lacks(task, "fedavg+augmentation", protocol) == ()
    imagenet = WeightsSpec(file="resnet18-f37072fd.pth", sha256=64 * "f")
    for task in ("pacs", "officehome"):
        for methods, protocol in (("afl+fedrdn", "augmentation"), ("fraug", "fraug")):
            (lack,) = lacks(task, methods, protocol)
            assert "resnet18-f37072fd.pth" in lack
            assert lacks(task, methods, protocol, imagenet) == ()
    (lack,) = lacks("pacs", "fraug", "fraug", WeightsSpec(file="mine.pth", sha256=64 * "0"))
    assert "this job from mine.pth" in lack
    job = resolve("domainnet", "fedavg", protocol="fedfa")
    path = tmp_path / "fedshift.yaml"
    path.write_text(yaml.safe_dump(job.dump()), encoding="utf-8")
    assert read_job(path) == job and new_results(job, metric="accuracy").job.departures == list(job.task.departures)
    assert "departures" not in resolve("domainnet", "fedavg").dump()["task"]


def test_another_network_starts_from_its_own_defaults() -> None:
    job = resolve("prostate", "fedfa", options=["network.name=monai.UNet", "network.options.num_res_units=0"])
    assert job.task.network.options == {"num_res_units": 0}


def test_starting_weights_are_a_name_and_a_hash(tmp_path: Path) -> None:
    weights = WeightsSpec(file="start.pth", sha256=64 * "0")
    named = ["network.weights.file=former.pth", f"network.weights.sha256={64 * 'f'}"]
    for options, given, expected in (
        ([], None, None),
        ([], weights, weights),
        (named, None, WeightsSpec(file="former.pth", sha256=64 * "f")),
        (named, weights, weights),
        (["network.name=monai.UNet"], weights, weights),
    ):
        job = resolve("prostate", "fedavg", options=options, weights=given)
        assert job.task.network.weights == expected
        assert ("weights" in job.dump()["task"]["network"]) is (expected is not None)
        path = tmp_path / "fedshift.yaml"
        path.write_text(yaml.safe_dump(job.dump(), sort_keys=False), encoding="utf-8")
        assert read_job(path) == job


def test_a_part_of_the_sites_keeps_their_order() -> None:
    job = resolve("prostate", "fedavg", sites=["UCL", "BIDMC"])
    assert job.task.sites == ("BIDMC", "UCL")


@pytest.mark.parametrize(("sites", "fewest"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_a_federation_of_two_does_not_go_on_with_one(sites: int, fewest: int) -> None:
    named = ["BIDMC", "UCL", "HK", "BMC"][:sites]
    assert resolve("prostate", "fedavg", sites=named).federation.min_sites == fewest
    assert resolve("prostate", "fedavg", options=[f"federation.sites_per_round={sites}"]).federation.min_sites == fewest


@pytest.mark.parametrize(("sites", "fewest"), [(2, 2), (3, 3), (4, 3), (6, 5)])
def test_a_masked_sum_is_over_three_sites_or_more_where_there_are_as_many(sites: int, fewest: int) -> None:
    """What sites take part in by their own default."""
    named = ("BIDMC", "HK", "I2CVB", "BMC", "RUNMC", "UCL")[:sites]
    job = resolve("prostate", "fedavg", sites=named, options=["federation.encryption=masks"])
    assert job.federation.min_sites == fewest


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"task": "prostrate"}, "'prostrate'.*'prostate'"),
        ({"method_names": "fedfaa"}, "'fedfaa'.*'fedfa'"),
        ({"method_names": "fedfa+fedfa"}, "named twice"),
        ({"method_names": "FedFA+fedfa"}, "named twice"),
        ({"method_names": "fedfa+"}, "name is missing"),
        ({"protocol": "fedf"}, "'fedf'.*'fedfa'"),
        ({"task": "pacs", "method_names": "vm", "protocol": "augmentation"}, r"pacs.*vm\+fedrdn"),
        ({"sites": ["BIDMC", "HKK"]}, "'HKK'.*'HK'"),
        ({"sites": ["BIDMC", "BIDMC"]}, "'sites': BIDMC"),
        ({"held_out": ["HK", "HK"]}, "'held_out': HK"),
        ({"options": ["fedfa.pp=1"]}, "fedfa.*'pp'.*'p'"),
        ({"options": ["fedfa.p=2"]}, "fedfa: 'p'"),
        ({"options": ["schedule.round=3"]}, r"'schedule\.round'.*'rounds'"),
        ({"options": ["shedule.rounds=3"]}, "'shedule'.*'schedule'"),
        ({"options": ["fedrdn.mode=mean"]}, "fedrdn"),
        ({"options": ["rounds"]}, "takes path=value"),
        ({"options": ["federation.min_sites=9"]}, "min_sites is 9"),
        ({"options": ["federation.sites_per_round=7"]}, "sites_per_round is 7"),
        ({"options": ["federation.sites_per_round=2", "federation.min_sites=3"]}, "only 2 sites"),
        ({"options": ['federation.sites_per_round="2"', "federation.min_sites=3"]}, "only 2 sites"),
        ({"options": ["federation.tracking=mflow"]}, "'tracking'.*'mlflow'"),
        ({"options": ["federation.hosts=7"]}, r"hosts is 7"),
        (
            {"protocol": "quick", "options": ["evaluation.metric=dice_paper"]},
            "prostate.*'dice_paper'.*'dice_papers'",
        ),
        ({"options": ["evaluation.metric=hd95"]}, "'hd95'"),  # final models alone have it
        ({"options": ["network.name=digits_cnn"]}, "digits_cnn"),
        (
            {"options": ["network.name=monai.UNet", "network.options.features=16"]},
            r"monai\.UNet.*'features'",
        ),
        ({"options": ["network.name=monai.BasicUNet", "fedfa.layers=[7]"]}, r"layers \[7\]"),
        (
            {"protocol": "quick", "options": ["network.options.features=abc"]},
            "network unet",
        ),
        ({"options": ["network.name=monai.UNet", "network.options.channels=[4]"]}, "network monai.UNet"),
        ({"options": ["sites=[BIDMC, BIDMC]"]}, "'sites': BIDMC"),
        ({"options": ["sites=[../x]"]}, "pattern"),
        ({"name": "../../zz"}, "pattern"),
        ({"options": ["network.weights=/data/a.pth"]}, "'network.weights'"),
        ({"options": ["network.weights.file=/data/a.pth"]}, "'network.weights.file'"),
        ({"options": ["network.weights.file=a.pth", "network.weights.sha256=f37072fd"]}, "sha256'"),
        (
            {"options": ["network.weights.hash=f37072fd"]},
            "'network.weights.hash'.*sha256",
        ),
        ({"options": ["optimizer.lr=.inf"]}, "'optimizer.lr'"),
        ({"method_names": "fedprox", "options": ["fedprox.mu=.nan"]}, "'mu'"),
        ({"options": ["optimizer.lr=-1"]}, "'optimizer.lr'"),
    ],
)
def test_mistakes_get_a_sentence(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(**{"task": "prostate", "method_names": "fedfa", **kwargs})


THREE = "federation.min_sites=3"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            [THREE, "federation.robust.rule=median", "federation.clip_norm_ratio=2"],
            "clip_norm_ratio",
        ),
        ([THREE, "federation.encryption=masks", "federation.clip_norm_ratio=2"], "clip_norm_ratio"),
        ([THREE, "federation.encryption=ckks", "federation.clip_sample_ratio=2"], "clip_sample_ratio"),
        ([THREE, "federation.encryption=masks", "federation.max_norm_ratio=2"], "max_norm_ratio"),
        ([THREE, "federation.encryption=ckks", "federation.max_update_norm=2"], "max_update_norm"),
        (["schedule.rounds=6", "schedule.patience=4"], ("patience=4", "at least 7")),
        (["schedule.local_steps=3", "schedule.local_epochs=5"], ("local_epochs", "local_steps is 3")),
        (["schedule={local_epochs: 5, local_steps: 3, rounds: 2, batch_size: 8}"], "local_epochs"),
    ],
)
def test_settings_without_effect_are_refused(options: list[str], named: str | tuple[str, ...]) -> None:
    with raises("no-effect", naming=named):
        resolve("digits", "fedavg", options=options)


@pytest.mark.parametrize(
    "options",
    [
        [THREE, "federation.robust.rule=median", "federation.clip_norm_ratio=5", "federation.clip_opposed_ratio=null"],
        [THREE, "federation.robust.rule=median", "federation.max_norm_ratio=2"],
        [THREE, "federation.encryption=masks", "federation.max_sample_ratio=2"],
        [THREE, "federation.encryption=masks", "federation.max_update_norm=2"],
        ["schedule.rounds=6", "schedule.patience=3"],
        ["schedule.local_steps=null", "schedule.local_epochs=5"],
        ["schedule.local_steps=3"],
        ["schedule.local_steps=3", "schedule.local_epochs=1"],
    ],
)
def test_defaults_and_settings_with_an_effect_are_not(options: list[str]) -> None:
    job = resolve("digits", "fedavg", options=options)
    assert JobSpec.parse(job.dump(), where="job") == job


def test_two_owners_of_the_same_thing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = method_set.find

    def find(name: str) -> object:
        return real("fedavg") if name == "other" else real(name)

    monkeypatch.setattr(method_set, "find", find)
    with pytest.raises(ConfigError, match="fedavg and other"):
        method_set.load({"fedavg": {}, "other": {}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sites": None}, "'sites'"),
        ({"protocols": ["a"]}, "'protocols'"),
        ({"network": {"name": "unet", "options": {"features": 2}}}, "network unet"),
        ({"network": {"name": "digits_cnn", "options": {"size": 32, "width": 2}}}, "16 x 16"),
        (b"name: caf\xe9", r"mine\.yaml.*UTF-8"),
    ],
)
def test_what_is_wrong_with_a_task_of_ones_own_is_said(
    change: dict[str, object] | bytes, message: str, tmp_path: Path
) -> None:
    raw = yaml.safe_load(SHAPES.read_text(encoding="utf-8"))
    path = tmp_path / "mine.yaml"
    path.write_bytes(change if isinstance(change, bytes) else yaml.safe_dump(raw | change).encode())
    with pytest.raises(ConfigError, match=message):
        resolve(str(path), "fedavg", sites=["A"])


def many(path: Path, **changes: object) -> str:
    raw = yaml.safe_load(SHAPES.read_text(encoding="utf-8")) | {"sites": {"prefix": "site_", "count": 12}} | changes
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return str(path)


def test_sites_may_be_a_prefix_and_a_number(tmp_path: Path) -> None:
    task = many(
        tmp_path / "mine.yaml",
        held_out={"prefix": "new-", "count": 1},
        protocols={"more": {"sites": {"count": 1000}}, "named": {"sites": ["A", "B"]}, "all": {"held_out": []}},
    )
    job = resolve(task, "fedavg")
    assert job.task.sites == tuple(f"site_{k:03d}" for k in range(12)) and job.task.held_out == ("new-000",)
    assert job.dump()["task"]["sites"][11] == "site_011", "a job has the names themselves"
    assert resolve(task, "fedavg", sites=["site_010", "site_003"]).task.sites == ("site_003", "site_010")
    assert resolve(task, "fedavg", options=["sites.count=2"]).task.sites == ("site_000", "site_001")
    assert resolve(task, "fedavg", held_out=["site_004"]).task.held_out == ("site_004",)
    more = resolve(task, "fedavg", protocol="more").task.sites
    assert (len(more), more[0], more[-1]) == (1000, "site_0000", "site_0999"), "as many digits as the number has"
    assert resolve(task, "fedavg", protocol="named").task.sites == ("A", "B")
    assert resolve(task, "fedavg", protocol="all").task.held_out == ()
    with raises("unknown-site", naming=("site_012", "site_01")):
        resolve(task, "fedavg", sites=["site_012"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sites": {"prefix": "s", "cuont": 3}}, r"sites.*'cuont'.*'count'"),
        ({"sites": {"prefix": "s"}}, r"mine\.yaml: sites: 'count' field required"),
        ({"sites": {"prefix": "s", "count": 0}}, r"mine\.yaml: sites: 'count' .* greater than or equal to 1"),
        ({"sites": {"prefix": "s", "count": 10**9}}, r"mine\.yaml: sites: 'count' .* less than or equal to 100000"),
        ({"sites": {"prefix": "../s", "count": 3}}, r"mine\.yaml: sites: 'prefix' .* pattern"),
        ({"sites": {"prefix": "s", "count": 3, "first": 1}}, r"mine\.yaml: sites: unknown key 'first'"),
        (
            {"federation": {"sites_a_round": 4}},
            r"mine\.yaml: federation: unknown key 'sites_a_round'.* 'sites_per_round'",
        ),
        ({"federation": 4}, r"mine\.yaml: 'federation' must hold keys and values, not 4"),
    ],
)
def test_numbers_of_sites_that_make_no_sense(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        resolve(many(tmp_path / "mine.yaml", **changes), "fedavg")
    assert "\n" not in str(raised.value)


def test_a_task_and_its_protocols_may_say_how_many_sites_are_drawn(tmp_path: Path) -> None:
    task = many(
        tmp_path / "mine.yaml",
        federation={"sites_per_round": 4, "hosts": 2},
        protocols={"all": {"federation": {"sites_per_round": None}}, "two": {"federation": {"sites_per_round": 2}}},
    )
    job = resolve(task, "fedavg")
    assert (job.federation.sites_per_round, job.federation.hosts, job.federation.min_sites) == (4, 2, 3)
    two = resolve(task, "fedavg", protocol="two", options=["federation.hosts=null"]).federation
    assert (two.sites_per_round, two.hosts, two.min_sites) == (2, None, 2)
    everyone = resolve(task, "fedavg", protocol="all").federation
    assert (everyone.sites_per_round, everyone.min_sites) == (None, 11)
    assert resolve(task, "fedavg", options=["federation.sites_per_round=5"]).federation.sites_per_round == 5
    with raises("too-few-sites", naming=("sites_per_round", "4", "3")):
        resolve(task, "fedavg", sites=["site_000", "site_001", "site_002"])


def test_a_protocol_may_need_a_method() -> None:
    """Without it, a row of `test_mistakes_get_a_sentence`."""
    assert resolve("pacs", "fedprox+fedrdn", protocol="augmentation").methods["fedprox"]["mu"] == 0.3


def test_the_papers_splits_are_data_sets_of_their_own() -> None:
    for task, protocols in (("office_caltech", ("fedfa", "fedrdn")), ("domainnet", ("fedfa", "fedrdn", "fedbn"))):
        assert resolve(task, "fedavg").task.dataset == task
        assert {resolve(task, "fedavg", protocol=p).task.dataset for p in protocols} == {f"{task}_papers"}


def test_a_job_is_made_without_the_memory_that_its_patches_need() -> None:
    """The machine that makes a job need not be one that trains it."""
    job = resolve(
        "hippocampus", "fedavg", options=["data.patch=[2048, 2048, 2048]"]
    )  # 34 GB in the first layer's input
    assert build_task(job).spatial == (2048, 2048, 2048)


# --- sites that are prepared here -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "misfit"),
    [
        ({}, ""),
        ({"classes": ["background", "rim", "core"]}, "was prepared with the classes background, core, rim, the job"),
        ({"sequences": ["T2"]}, "has no sequence 'T2'"),
    ],
)
def test_a_job_says_what_of_the_data_here_does_not_fit_it(
    changes: dict[str, Any],
    misfit: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    for site, seeds in (("A", (1, 2, 3)), ("B", (4, 5, 6))):
        survey_site(tmp_path / "data", site, seeds)
    assert main(["survey", "organ"]) == 0
    task = yaml.safe_load((tmp_path / "surveys" / "organ" / "organ.yaml").read_text(encoding="utf-8"))
    task["sites"].append("ELSEWHERE")
    if "sequences" in changes:
        task["data"] |= changes
    else:
        task |= changes
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    capsys.readouterr()
    assert main(["job", "fedavg", "ours.yaml"]) == 0
    printed = capsys.readouterr().out
    assert misfit in printed and printed.count("fit the data") == (2 if misfit else 0)
