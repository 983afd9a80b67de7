"""Job folders: the committed ones are what export writes, FLARE accepts them, and nothing else is overwritten."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from conftest import make_site, small_job
from errors import raises
from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator

from fedshift import cli
from fedshift.federation import effect
from fedshift.flare.export import SPEC, hosts, read_job_folder, share_out, write_job
from fedshift.schema.errors import ConfigError
from fedshift.schema.identity import own_identity, source_hash
from fedshift.schema.job import JobSpec
from fedshift.schema.results import read_results

from .conftest import ROOT

LINES = (ROOT / "jobs" / "commands.txt").read_text(encoding="utf-8").splitlines()
COMMANDS = [line for line in LINES if line and not line.startswith("#")]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", COMMANDS)
def test_committed_jobs_are_what_the_command_writes(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the trials of methods behind the command's warnings, which no file has."""
    monkeypatch.setattr(effect, "without_effect", lambda job: [])
    assert cli.main(["job", *command.split(), "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    assert files(ROOT / "jobs" / folder.name) == files(folder), (
        f"run 'fedshift job {command}' and commit what it writes"
    )


def test_no_other_job_is_committed() -> None:
    """One folder for each line, which the test before has compared."""
    assert len([path for path in (ROOT / "jobs").iterdir() if path.is_dir()]) == len(set(COMMANDS)) == len(COMMANDS)


@pytest.mark.parametrize("production", [False, True])
def test_flare_accepts_a_job(production: bool, tmp_path: Path) -> None:
    job = small_job("fedfa")
    write_job(job, tmp_path / "job", production=production)
    valid, error, meta = JobMetaValidator().validate("job", zip_directory_to_bytes("", str(tmp_path / "job")))
    assert valid, error
    assert meta["deploy_map"] == {"app": ["server", "BIDMC", "HK", "UCL"]}
    assert meta["min_clients"] == 2
    assert bool(meta.get("byoc")) is not production
    assert read_job_folder(tmp_path / "job") == job


def test_a_job_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    write_job(small_job("fedfa"), tmp_path / "job")
    write_job(small_job("fedavg"), tmp_path / "job", production=True)
    assert list(read_job_folder(tmp_path / "job").methods) == ["fedavg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job"]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_text("years of work", encoding="utf-8")
    with raises("output-exists", naming="thesis"):
        write_job(small_job("fedavg"), tmp_path / "thesis")
    assert (tmp_path / "thesis" / "text").is_file()


def test_an_edited_job_is_refused_with_the_nearest_key_and_another_folder_with_the_way_out(tmp_path: Path) -> None:
    write_job(small_job("fedavg"), tmp_path / "job")
    path = tmp_path / "job" / SPEC
    path.write_text(path.read_text(encoding="utf-8").replace("batch_size:", "batchsize:"))
    for folder, reason in (
        (tmp_path / "job", r"'task\.schedule\.batchsize'.* 'batch_size'"),
        (tmp_path, "'fedshift job' writes one"),
    ):
        with pytest.raises(ConfigError, match=reason):
            read_job_folder(folder)


# --- jobs that carry code -----------------------------------------------------------------------------------


def test_a_job_carries_the_package_that_it_was_made_with(tmp_path: Path) -> None:
    """By the same identity, or an installed and a carried fedshift could not work together."""
    write_job(small_job("fedfa"), tmp_path / "job", with_code=True)
    carried = tmp_path / "job" / "app" / "custom"
    assert source_hash([carried / "fedshift", carried / "flare_armour"]) == own_identity().source
    assert {path.suffix for path in carried.rglob("*") if path.is_file()} == {".py", ".md"}
    valid, error, meta = JobMetaValidator().validate("job", zip_directory_to_bytes("", str(tmp_path / "job")))
    assert valid, error
    assert meta["byoc"] is True


def test_a_job_for_sites_that_take_no_code_carries_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["job", "fedfa", "prostate", "--production", "--with-code", "--out", str(tmp_path)]
    assert cli.main(command) == 2
    assert "[options-clash]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def without_fedshift(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A Python that has all that is installed here but fedshift, and its environment; so have its child processes."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        # A .pth file is how the checkout is installed; Python reads none in a folder that is merely on its path.
        if entry.suffix != ".pth" and not entry.name.lstrip("_").startswith(("fedshift", "data_prep")):
            (libraries / entry.name).symlink_to(entry)
    venv.create(tmp_path / "venv", with_pip=False)
    ours = ("FEDSHIFT", "PYTHON", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"PYTHONPATH": str(libraries), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    return tmp_path / "venv" / "bin" / "python", environment


def simulate(job: JobSpec, folder: Path, python: Path, environment: dict[str, str], *, with_code: bool) -> str:
    """FLARE's stock simulator; returns what it printed."""
    write_job(job, folder / "job", with_code=with_code)
    command = [str(python), "-m", "nvflare.private.fed.app.simulator.simulator", str(folder / "job")]
    result = subprocess.run(
        [*command, "-w", str(folder / "run"), "-t", str(len(job.task.sites))],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    return result.stdout


@pytest.mark.slow
def test_a_job_with_its_code_runs_where_fedshift_is_not_installed(
    without_fedshift: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """Without the code the same job fails there."""
    python, environment = without_fedshift
    job = small_job("fedfa+fedrdn", "schedule.rounds=1", sites=("BIDMC", "HK"))
    for site in job.task.sites:
        make_site(tmp_path / "share" / "fedshift" / "phantom", site)
    environment["XDG_DATA_HOME"] = str(tmp_path / "share")
    assert "No module named 'fedshift'" in simulate(job, tmp_path / "bare", python, environment, with_code=False)
    output = simulate(job, tmp_path / "with", python, environment, with_code=True)
    server = tmp_path / "with" / "run" / "server" / "simulate_job"
    assert (server / "results.json").is_file(), output[-3000:]
    assert read_results(server).final is not None, output[-3000:]
    assert (server / "best_global_model.pt").is_file()


def test_sites_are_shared_out_in_a_copy_that_carries_all_else(tmp_path: Path) -> None:
    job = small_job("fedfa")
    folder = write_job(job, tmp_path / "job")
    (folder / "app" / "custom" / "own.py").write_text("# code of one's own", encoding="utf-8")
    before, sites = files(folder), job.task.sites
    shared = share_out(job, folder, tmp_path / "copy", shares=(sites[:1], sites[1:]))
    assert files(folder) == before
    assert read_job_folder(tmp_path / "copy") == shared
    assert hosts(shared) == {"host_1": sites[:1], "host_2": sites[1:]}
    assert shared.task == job.task
    told = json.loads((tmp_path / "copy" / "meta.json").read_text(encoding="utf-8"))
    assert told["deploy_map"] == {"app": ["server", "host_1", "host_2"]}
    assert told["min_clients"] == 2
    assert (tmp_path / "copy" / "app" / "custom" / "own.py").is_file()
