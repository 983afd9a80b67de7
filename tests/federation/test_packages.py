"""A job with parts of a package runs as others do, and is refused wherever the package is another than it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapted import with_base
from conftest import SHAPES, small_image_job, small_job
from errors import raises
from packagefiles import install

from fedshift.cli import main
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.flare.export import read_job_folder, write_job
from fedshift.inference.model import open_model
from fedshift.reporting.report.repeat import repeat_section
from fedshift.reporting.report.runs import read
from fedshift.reporting.report.section import Commands
from fedshift.schema.errors import PolicyError
from fedshift.schema.job import JobSpec
from fedshift.schema.packages import PackageSpec
from fedshift.schema.policy import Policy
from fedshift.schema.results import BEST, FILE_NAME, LAST
from fedshift_testing.serialised import Federation

OTHER = PackageSpec(version="1.0", sha256="0" * 64)
NAME = "acme-run"
PARTS = (f"network.name={NAME}:small", f"loss={NAME}:squared", f"{NAME}:halved.share=0.25")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package; the same files in each test."""
    monkeypatch.syspath_prepend(str(install(tmp_path / "packages", NAME)))
    return NAME


@pytest.fixture
def job(package: str) -> JobSpec:
    return small_job(f"{package}:halved", *PARTS)


def with_package(job: JobSpec, spec: PackageSpec) -> JobSpec:
    return job.model_copy(update={"packages": {NAME: spec}})


def test_a_job_names_what_it_needs_and_its_folder_has_no_colon(job: JobSpec, tmp_path: Path) -> None:
    assert list(job.packages) == [NAME]
    assert job.methods[f"{NAME}:halved"] == {"share": 0.25} and job.name == f"{NAME}_halved_prostate"
    assert read_job_folder(write_job(job, tmp_path / job.name)) == job
    assert "packages" not in small_job("fedavg").dump()


def test_it_trains_and_its_model_is_read_again(job: JobSpec, three_sites: Mapping[str, Path], tmp_path: Path) -> None:
    """The same bits with every message serialised; the network is the package's."""
    run = run_in_process(job, three_sites, tmp_path / "run")
    assert [record.rejected for record in run.results.rounds] == [[], []]
    written = json.loads((tmp_path / "run" / FILE_NAME).read_text(encoding="utf-8"))
    assert list(written["job"]["packages"]) == [NAME]
    weights = read_model_file(tmp_path / "run" / LAST)["weights"]
    assert set(weights) == {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}
    federation = Federation(job, three_sites, tmp_path / "serialised")
    federation.run()
    for key, value in read_model_file(tmp_path / "serialised" / "server" / LAST)["weights"].items():
        np.testing.assert_array_equal(value, weights[key])
    assert open_model(tmp_path / "run" / LAST).header.job == job


def test_adapters_stand_beside_its_network(
    package: str, three_sites: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSHIFT_WEIGHTS", str(tmp_path / "bases"))
    network, beside = f"network.name={package}:small", "network.adapters={on: conv, rank: 2}"
    job, _ = with_base(small_job, tmp_path / "bases", "fedavg", network, adapted=beside)
    run = run_in_process(job, three_sites, tmp_path / "run")
    assert [record.rejected for record in run.results.rounds] == [[], []]
    content = read_model_file(tmp_path / "run" / LAST)
    base = torch.load(tmp_path / "bases" / "base.pt", weights_only=True)
    assert content["weights"].keys() == base.keys()
    assert not torch.equal(content["weights"]["body.0.weight"], base["body.0.weight"])
    assert torch.equal(content["weights"]["body.0.bias"], base["body.0.bias"]), "it is frozen"


def test_its_report_repeats_it_only_with_the_same_package(
    job: JobSpec, three_sites: Mapping[str, Path], tmp_path: Path
) -> None:
    """A report of others' results runs no code of a package that is another here."""
    run = run_in_process(job, three_sites, tmp_path / "run")
    (repeated,) = commands(run.folder)
    assert f"fedshift job {NAME}:halved prostate" in repeated and "--name" not in repeated
    record = run.results.model_copy(update={"job": run.results.job.model_copy(update={"packages": {NAME: OTHER}})})
    record.write(run.folder)
    (run.folder / LAST).unlink()
    (run.folder / BEST).unlink()
    (reconstructed,) = commands(run.folder)
    assert "fedavg" in reconstructed, "what is implied is not known"


def commands(folder: Path) -> list[str]:
    """What the report says a run was made with."""
    section = repeat_section(read(folder))
    shown = next(block for block in section.blocks if isinstance(block, Commands))
    return [line for line in shown.lines if line.startswith("fedshift job")]


def test_pictures_are_classified_with_a_packages_loss(
    package: str, three_image_sites: Mapping[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("fedavg", f"loss={package}:squared", "schedule.rounds=1")
    run = run_in_process(job, three_image_sites, tmp_path / "run")
    assert all(site.train_loss is not None and site.train_loss < 1 for site in run.results.rounds[0].sites.values())


def test_a_job_without_the_hash_is_refused(job: JobSpec, tmp_path: Path) -> None:
    raw = job.dump()
    del raw["packages"]
    with raises("invalid-value", naming=NAME):
        JobSpec.parse(raw, where="job")


def test_every_party_refuses_another_package(job: JobSpec, three_sites: Mapping[str, Path], tmp_path: Path) -> None:
    other = with_package(job, OTHER)
    with raises("package-differs", naming=("the server", NAME, OTHER.sha256[:12])):
        Coordinator(other, tmp_path / "server")
    with raises("package-differs", naming=("site HK", NAME)):
        Site(other, "HK", three_sites["HK"], SiteOptions(tmp_path / "site"))


def test_a_sites_policy_decides_in_one_process_too(
    job: JobSpec, three_sites: Mapping[str, Path], tmp_path: Path
) -> None:
    """One site has a policy that lists the package, one that does not, and one has none."""
    policies = {"HK": Policy(), "UCL": Policy(packages=job.packages)}
    run = run_in_process(job, three_sites, tmp_path / "run", privacy=policies)
    for record in run.results.rounds:
        assert sorted(record.sites) == ["BIDMC", "UCL"]
        assert [(r.site, NAME in r.reason and "privacy.packages" in r.reason) for r in record.rejected] == [
            ("HK", True)
        ]


def test_a_provisioned_site_without_a_policy_lists_nothing(
    job: JobSpec, three_sites: Mapping[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(PolicyError, match=r"privacy\.packages"):
        Site(job, "HK", three_sites["HK"], SiteOptions(tmp_path / "site", packages={}))


def test_a_model_file_is_not_used_with_another_package(
    job: JobSpec, three_sites: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in_process(job, three_sites, tmp_path / "run")
    model = tmp_path / "run" / LAST
    file = tmp_path / "packages" / "acme_run" / "loss.py"
    file.write_text(file.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    with raises("package-changed", naming=(str(model), "acme_run/loss.py")):
        open_model(model)
    install(tmp_path / "packages", NAME)  # as it was
    monkeypatch.undo()  # Python no longer looks there
    with raises("package-missing", naming=(str(model), NAME)):
        open_model(model)


def test_one_sentence_on_the_command_line(
    job: JobSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_job(with_package(job, OTHER), tmp_path / "job")
    assert main(["run", str(folder), "--in-process", "-w", str(tmp_path / "run")]) == 2
    assert main(["job", str(folder), "--show"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2 and all(NAME in line for line in lines)


def test_a_task_of_a_package_is_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites need nothing installed for it: the job has all of it."""
    text = SHAPES.read_text(encoding="utf-8")
    files = {"acme_task/__init__.py": "raise RuntimeError('run')\n", "acme_task/tasks/pictures.yaml": text}
    points = {"fedshift.tasks": {"pictures": "acme_task.tasks"}}
    monkeypatch.syspath_prepend(str(install(tmp_path / "packages", "acme-task", files=files, points=points)))
    job: dict[str, Any] = resolve("acme-task:pictures", "fedavg").dump()
    assert job == resolve(str(SHAPES), "fedavg").dump()
    with raises("unknown-component", naming="acme-task:pictures"):
        resolve("acme-task:picture", "fedavg")
