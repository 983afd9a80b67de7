"""The package in ``template/``: its wheel, installed in a folder of its own, trains and passes its own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import SMALL, make_site
from errors import raises

from fedshift.cli import main
from fedshift.federation.in_process import SITE_STATE, run_in_process
from fedshift.federation.resolve import resolve
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, make_ready
from fedshift.methods import method_set
from fedshift.schema import components
from fedshift.schema.packages import installed
from fedshift.schema.results import FILE_NAME, LAST, read_results

TEMPLATE = Path(__file__).parents[2] / "template"
NAME = "fedshift-template"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that the wheel was installed into, where Python looks."""
    folder = tmp_path_factory.mktemp("template")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(TEMPLATE)]
    done(build)
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    done([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(target))
        yield target


def done(command: list[str], **environ: str) -> str:
    ended = subprocess.run(
        command, env={**os.environ, **environ}, cwd=TEMPLATE, capture_output=True, encoding="utf-8", check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_two_rounds_in_one_process_with_its_method_network_loss_and_task(packages: Path, tmp_path: Path) -> None:
    options = [option for option in SMALL if option.startswith(("data", "schedule"))]
    job = resolve(
        f"{NAME}:prostate_ladder", f"{NAME}:contrast", sites=["BIDMC", "HK"], options=[*options, "data.context=1"]
    )
    assert job.packages == {NAME: installed(NAME).spec}
    data = {site: make_site(tmp_path, site, cases=3) for site in job.task.sites}
    run = run_in_process(job, data, tmp_path / "run")
    assert [(sorted(record.sites), record.rejected) for record in run.results.rounds] == [(["BIDMC", "HK"], [])] * 2
    assert Path(str(method_set.find(f"{NAME}:contrast").__file__)).is_relative_to(packages)
    model = open_model(run.folder / LAST)
    for choice, mend in ((Choice(), "--statistics own"), (Choice(site="HK"), "--site-state")):
        with raises("statistics-choice", naming=mend):  # its contrast is at the site
            make_ready(model, choice)
    states = run.folder / SITE_STATE / "HK"
    assert make_ready(model, Choice(state=states)).logits(torch.zeros(1, 1, 32, 32)).shape == (1, 2, 32, 32)


def test_all_that_it_offers_is_listed(packages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = installed(NAME)
    assert main(["site", "packages"]) == 0
    out = capsys.readouterr().out
    for kind in ("network", "method", "loss", "task"):
        (name,) = components.names(place, kind)  # type: ignore[arg-type]
        assert f"{kind:<8} {name}" in out
    assert place.spec.sha256 in out


@pytest.mark.slow
def test_its_own_tests_pass(packages: Path, tmp_path: Path) -> None:
    """Among them the checks of every method, from outside of this repository."""
    path = os.pathsep.join([str(packages), *sys.path])
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}"]
    said = done([sys.executable, "-m", "pytest", *options, str(TEMPLATE / "tests")], PYTHONPATH=path)
    assert "passed" in said and "skipped" not in said


@pytest.mark.slow
def test_it_trains_in_flares_simulator(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where server and sites are processes that are started, or forked, before the job is read."""
    for site in ("BIDMC", "HK"):
        make_site(tmp_path / "data", site, cases=3)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), *sys.path]))
    options = [option for option in SMALL if option.startswith(("data", "schedule"))]
    words = ["--sites", "BIDMC,HK", "--set", *options, "data.context=1", "--name", "packaged"]
    assert main(["job", f"{NAME}:contrast", f"{NAME}:prostate_ladder", *words]) == 0
    assert main(["run", "jobs/packaged"]) == 0
    (file,) = (tmp_path / "runs").rglob(FILE_NAME)
    results = read_results(file)
    assert [(sorted(record.sites), record.rejected) for record in results.rounds] == [(["BIDMC", "HK"], [])] * 2
    assert list(results.job.packages) == [NAME]
