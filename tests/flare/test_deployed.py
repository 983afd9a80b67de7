"""Provisioned, submitted, run by real processes over mutual TLS, downloaded: the weights of one process.

In clear, with masks and encrypted, all in one federation: a job costs its sites a second, and their start many.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conftest import SHAPES, small_image_job
from modelfiles import assert_same_model
from nvflare.recipe import ProdEnv

from fedshift.federation.encryption.kit_keys import SITE_KEYS, read_keys
from fedshift.federation.encryption.site import decrypt_model
from fedshift.federation.in_process import run_in_process
from fedshift.federation.ledger_heads import LedgerHeads
from fedshift.federation.model_files import read_model_file
from fedshift.federation.site.privacy.ledger import HEAD_FILE
from fedshift.flare.export import write_job
from fedshift.flare.recipe import FeatureShiftRecipe
from fedshift.schema.job import JobSpec
from fedshift.schema.paired import COMPARISON_FILE, LocalComparison
from fedshift.schema.policy import LEDGER_FILE
from fedshift.schema.results import BEST, LAST, Rejection, Results, read_results

from .deployed import LEAD, SERVER, Deployed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SGD = ("optimizer.name=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9")
SUMS = ("fedfa.share=sums", "schedule.rounds=2", *SGD)


@dataclass(frozen=True)
class Ran:
    """A job that was run by a recipe in the federation, and in one process."""

    job_id: str
    status: str | None
    result: Path
    """As the recipe has downloaded it."""
    one_process: Path

    @property
    def folder(self) -> Path:
        """Of the job at the server."""
        return self.result / "workspace"

    @property
    def results(self) -> Results:
        return read_results(self.folder)


@pytest.fixture(scope="module")
def ran(federation: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    options = ["schedule.rounds=2", "evaluation.local=true"]
    recipe = FeatureShiftRecipe(task=str(SHAPES), method="fedfa+fedrdn", options=options)
    kit = str(federation.kits / LEAD)
    run = recipe.run(ProdEnv(startup_kit_location=kit, username=LEAD, login_timeout=600))
    result = run.get_result(timeout=600)
    assert result is not None, federation.log(SERVER)[-3000:]
    one = tmp_path_factory.mktemp("one_process")
    run_in_process(recipe.spec, federation.data, one)
    return Ran(run.get_job_id(), run.get_status(), Path(result), one)


def test_the_weights_are_those_of_one_process(ran: Ran) -> None:
    assert ran.status == "FINISHED:COMPLETED"
    for file in (BEST, LAST):
        assert_same_model(ran.one_process / file, ran.folder / file)
    assert not list(ran.result.rglob("custom")), "sites of a federation take no code"


def test_the_results_name_all_sites(ran: Ran) -> None:
    results = ran.results
    assert all(set(record.sites) == {"A", "B", "C"} and not record.rejected for record in results.rounds)
    assert results.final is not None and set(results.final.best.sites) == {"A", "B", "C"}


def test_a_sites_address_is_what_the_table_says_of_it(federation: Deployed, ran: Ran) -> None:
    """docs/what-leaves-a-site.md has it because NVFlare sends it, not because anything of ours needs it."""
    address = r"\bA@(\d+\.\d+\.\d+\.\d+)\b"
    assert re.search(address, federation.log(SERVER)), "it is in the server's log"
    kept = [path for path in ran.folder.rglob("*") if path.name in ("results.json", "progress.json")]
    assert len(kept) == 2 and not any(re.search(address, path.read_text(encoding="utf-8")) for path in kept)


def test_no_path_of_a_site_reaches_the_server(federation: Deployed, ran: Ran) -> None:
    folders = {site: str(path).encode() for site, path in federation.data.items()}
    kept = [path for path in (federation.kits / SERVER).rglob("*") if path.is_file()]
    assert kept
    for path in (*kept, *(path for path in ran.result.rglob("*") if path.is_file())):
        content = path.read_bytes()
        told = [site for site, folder in folders.items() if folder in content]
        assert not told, f"{path} holds the folder of {told}"


def test_of_a_comparison_with_local_models_only_what_the_policy_allows_leaves(federation: Deployed, ran: Ran) -> None:
    told, beside = ran.results.final, read_results(ran.one_process).final
    assert told is not None and beside is not None and [*told.against_local] == ["A", "B", "C"]
    for site, whole in beside.against_local.items():
        withheld = {"cases": None, "interval": None, "std": None, "quantiles": None}
        assert told.against_local[site] == whole.model_copy(update=withheld)
        (own,) = (federation.kits / site / ran.job_id).rglob(COMPARISON_FILE)
        assert LocalComparison.model_validate_json(own.read_text(encoding="utf-8")) == whole


@pytest.fixture
def run(federation: Deployed, tmp_path: Path) -> Callable[[JobSpec], Path]:
    """Runs a job in the federation; returns its folder as the coordinator downloads it."""

    def submit(job: JobSpec) -> Path:
        job_id = federation.submit(write_job(job, tmp_path / "jobs" / "job", production=True))
        assert federation.finished(job_id) == "FINISHED:COMPLETED", federation.log(SERVER)[-3000:]
        downloaded = federation.download(job_id)
        rounds = read_results(downloaded).rounds
        assert all(set(record.sites) == {"A", "B", "C"} and not record.rejected for record in rounds)
        return downloaded

    return submit


def test_provisioned_sites_run_a_masked_job_to_the_same_bits(
    federation: Deployed, run: Callable[[JobSpec], Path], tmp_path: Path
) -> None:
    job = small_image_job("fedfa", *SUMS, "federation.encryption=masks")
    run_in_process(job, federation.data, tmp_path / "here")
    assert_same_model(tmp_path / "here" / LAST, run(job) / LAST)
    assert "not signed" not in federation.log("B")


def test_provisioned_sites_run_an_encrypted_job(
    federation: Deployed, run: Callable[[JobSpec], Path], tmp_path: Path
) -> None:
    run_in_process(small_image_job("fedfa", *SUMS), federation.data, tmp_path / "plain")
    downloaded = run(small_image_job("fedfa", *SUMS, "federation.encryption=ckks"))
    keys = read_keys(federation.kits / "B" / "startup", SITE_KEYS)
    decrypt_model(downloaded / LAST, tmp_path / LAST, keys)
    ours, theirs = read_model_file(tmp_path / LAST), read_model_file(tmp_path / "plain" / LAST)
    for key, value in theirs["weights"].items():
        assert np.abs(ours["weights"][key].numpy() - value.numpy()).max() < 0.01, key


def test_a_ledger_that_is_behind_keeps_a_provisioned_site_out_until_it_is_mended(
    federation: Deployed, tmp_path: Path
) -> None:
    local, known = federation.kits / "B" / "local", LedgerHeads(federation.kits / SERVER / "local")
    settings, files = local / "fedshift.yaml", (LEDGER_FILE, HEAD_FILE)
    before = settings.read_text(encoding="utf-8")

    def rejected() -> list[Rejection]:
        job = small_image_job("fedrdn", "schedule.rounds=1", "federation.min_sites=2")
        job_id = federation.submit(write_job(job, tmp_path / "jobs" / "job", production=True))
        assert federation.finished(job_id) == "FINISHED:COMPLETED", federation.log(SERVER)[-3000:]
        return read_results(federation.download(job_id)).statistics.rejected

    settings.write_text(f"{before}\nprivacy: {{statistics: {{epsilon: 3}}}}\n", encoding="utf-8")
    try:
        assert not rejected()
        assert {site: head.number for site, head in known.all().items()} == {"B": 1}
        for file in files:
            (local / file).rename(tmp_path / file)
        (fault,) = rejected()
        assert fault.site == "B" and "seen 1 releases" in fault.reason and LEDGER_FILE in fault.reason
        for file in files:
            (tmp_path / file).rename(local / file)
        assert not rejected() and known.all()["B"].number == 2
    finally:
        settings.write_text(before, encoding="utf-8")


def test_the_server_of_a_copied_kit_does_not_touch_the_first_ones_jobs(federation: Deployed, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(federation.kits / SERVER, tmp_path / "copy"))
    result = subprocess.run(
        [
            *(sys.executable, "-u", "-m", "nvflare.private.fed.app.server.server_train", "-m", str(copy)),
            *("-s", "fed_server.json", "--set", "secure_train=true", "org=hub", "config_folder=config"),
        ],
        cwd=copy,
        env=federation.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
    assert result.returncode != 0
    assert "in use by" in result.stdout and f"(process {federation.processes[SERVER].pid})" in result.stdout
    assert "Server started" not in result.stdout
    assert federation.processes[SERVER].poll() is None
