"""A provisioned site's executor refuses a package that its policy does not list, in a sentence that may leave."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import small_job
from nvflare.apis.signal import Signal
from packagefiles import install

from fedshift.federation.resolve import resolve
from fedshift.flare import codec
from fedshift.flare.executor import FedshiftExecutor
from fedshift.flare.export import write_job
from fedshift.schema.messages import Answer, Broadcast, Failure
from fedshift.schema.packages import PackageSpec, installed
from fedshift_testing.serialised import Kit

NAME = "acme-provisioned"


@pytest.mark.parametrize("listed", ["no policy", "no package", "another hash", "it"])
def test_a_provisioned_site_asks_its_policy(
    listed: str, three_sites: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "packages", NAME)))
    spec = installed(NAME).spec
    job = small_job("fedavg").model_copy(update={"packages": {NAME: spec}})
    network = job.task.network.model_copy(update={"name": f"{NAME}:small", "options": {}})
    job = job.model_copy(update={"task": job.task.model_copy(update={"network": network})})
    kit = Kit.make(job, "HK", three_sites["HK"], tmp_path / "HK", sent=write_job(job, tmp_path / "sent"))
    kit.simulator = False
    lines = {
        "no policy": "",
        "no package": "privacy: {min_cases: 1}\n",
        "another hash": f"privacy: {{packages: {{{NAME}: {{version: '1.0', sha256: '{'0' * 64}'}}}}}}\n",
        "it": f"privacy: {{packages: {{{NAME}: {{version: '1.0', sha256: {spec.sha256}}}}}}}\n",
    }
    with (tmp_path / "HK" / "local" / "fedshift.yaml").open("a", encoding="utf-8") as file:
        file.write(lines[listed])
    answer = told(kit)
    if listed == "it":
        assert not isinstance(answer.content, Failure), answer.content
        assert "acme_provisioned.network" in sys.modules
        return
    assert isinstance(answer.content, Failure)
    reason = answer.content.reason
    assert all(part in reason for part in ("site HK", NAME, "1.0", spec.sha256[:12], "privacy.packages"))
    assert str(tmp_path) not in reason, "no folder of the site leaves"
    assert "acme_provisioned.network" not in sys.modules


def told(kit: Kit) -> Answer:
    executor = FedshiftExecutor()
    return executor.answer(codec.STATISTICS, kit.client, Broadcast(0, 0, {}), kit, Signal())  # type: ignore[arg-type]


def test_in_the_simulator_what_is_installed_is_compared_with_the_job(
    three_sites: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "packages", "acme-simulated")))
    job = resolve("prostate", "fedavg", protocol="quick", options=["loss=acme-simulated:squared", "data.matrix=32"])
    other = {"acme-simulated": PackageSpec(version="0.9", sha256="0" * 64)}
    for number, (packages, fails) in enumerate([(job.packages, False), (other, True)]):
        sent = write_job(job.model_copy(update={"packages": packages}), tmp_path / f"sent{number}")
        answer = told(Kit.make(job, "HK", three_sites["HK"], tmp_path / str(number), sent=sent))
        assert isinstance(answer.content, Failure) is fails, answer.content
        assert not fails or "0.9" in answer.content.reason
