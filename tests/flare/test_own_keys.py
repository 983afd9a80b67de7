"""docs/own-keys.md as coordinator and site type it: a key that is made at the site, real certificates and processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import small_image_job

from fedshift.cli.checks.server import ask_server
from fedshift.federation.encryption.kit_keys import KitIdentity, ProjectRoot
from fedshift.flare.export import write_job
from fedshift.flare.kit import open_kit
from fedshift.schema.results import read_results

from .conftest import image_sites
from .deployed import LEAD, OWNER, PROJECT, SERVER, Deployed, org, wait_for

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "own-keys.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
ONCE, REQUEST, SIGN, KIT, AGAIN, CHANGE = (
    [line[2:] for line in block.splitlines() if line[:2] == "$ "] for block in BLOCKS
)
"""The page's commands, by its parts."""
SITE = "B"
"""Who makes its key itself; the others' kits are provisioned."""


def test_the_profile_is_of_the_project() -> None:
    project, profile, participant = (
        yaml.safe_load((ROOT / "deploy" / name).read_text(encoding="utf-8"))
        for name in ("project.yml", "profile.yml", "participant.yml")
    )
    (server,) = (each for each in project["participants"] if each["type"] == "server")
    schemes = [builder.get("args", {}).get("scheme") for builder in project["builders"]]
    assert profile["name"] == participant["name"] == project["name"] and profile["scheme"] in schemes
    assert profile["server"] == {"host": server["name"], "fed_learn_port": server["fed_learn_port"]}


class Federation(Deployed):
    """Of sites A and B over web sockets, as in `deploy/project.yml`; B has no kit at first."""

    def _project(self, admin_port: int) -> dict[str, Any]:
        project = super()._project(admin_port)
        project["builders"][1]["args"]["scheme"] = "http"
        return project


class Typists:
    """Coordinator and site, each in a folder of its own; what one sends the other is copied."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.coordinator, self.site = (federation.folder / name for name in ("coordination", "hospital"))
        self.fingerprint = self.doctor = ""
        for folder in (self.coordinator, self.site):
            shutil.copytree(ROOT / "deploy", folder / "deploy", ignore=shutil.ignore_patterns("*.lock"))
        shutil.copytree(federation.kits.parent, self.coordinator / "workspace" / PROJECT)
        profile = self.coordinator / "deploy" / "profile.yml"
        profile.write_text(profile.read_text(encoding="utf-8").replace("8002", str(federation.port)), encoding="utf-8")
        for file in (profile, self.site / "deploy" / "participant.yml"):
            text = file.read_text(encoding="utf-8").replace("fedshift_prostate", PROJECT)
            file.write_text(text.replace("HK", SITE).replace("org: hk", f"org: {org(SITE)}"), encoding="utf-8")

    @property
    def kit(self) -> Path:
        return self.federation.kits / SITE

    def type(self, command: str, folder: Path, *, code: int = 0) -> str:
        """What a command of the page prints; it must end with ``code``."""
        stands_for = {
            "fedshift_prostate": PROJECT,
            "DATA/prostate/HK": str(self.federation.data[SITE]),
            "FINGERPRINT": shlex.quote(self.fingerprint),
            "KIT": str(self.kit),
            "HK": SITE,
        }
        for word, name in stands_for.items():
            command = re.sub(rf"(?<![A-Za-z]){word}(?![A-Za-z])", lambda _, name=name: name, command)
        places = [str(Path(sys.executable).parent), os.environ["PATH"]]
        result = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=self.federation.environment() | {"PATH": os.pathsep.join(places), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        assert result.returncode == code, f"$ {command}\n{result.stdout}"
        return result.stdout

    def send(self, name: str, source: Path, target: Path) -> None:
        shutil.copy(source / name, target / Path(name).name)

    def start(self) -> None:
        """The site, by the script of its kit."""
        places = [str(Path(sys.executable).parent), os.environ["PATH"]]
        with (self.federation.folder / f"{SITE}.log").open("ab") as log:
            self.federation.processes[SITE] = subprocess.Popen(
                ["bash", str(self.kit / "startup" / "sub_start.sh"), "--once"],
                cwd=self.kit,
                env=self.federation.environment() | {"PATH": os.pathsep.join(places)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@pytest.fixture(scope="module")
def typists(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typists]:
    """A federation that runs, with a site that has made its key itself."""
    folder = tmp_path_factory.mktemp("own_keys")
    data = {site: path for site, path in image_sites(folder / "data").items() if site != "C"}
    with Federation(folder, data) as federation:
        typists = Typists(federation)
        coordinator, site = typists.coordinator, typists.site
        shutil.rmtree(typists.kit)
        typists.fingerprint = [typists.type(command, coordinator) for command in ONCE][-1].strip()
        for command in REQUEST:
            asked = typists.type(command, site)
        typists.send(f"{SITE}/{SITE}.request.zip", site, coordinator)
        said = [typists.type(command, coordinator) for command in SIGN]
        assert said[0].split()[0] == asked.split()[0], "the hash that the site reads out"
        assert json.loads(said[2])["kind"] == "site"
        typists.send(f"{SITE}.signed.zip", coordinator, site)
        package, init, doctor = KIT
        typists.type(package, site)
        shutil.move(site / "workspace" / PROJECT / "prod_00" / SITE, typists.kit)
        typists.type(f"{init} --phantom --allow-root", site)
        federation.start(SERVER, "A")
        federation.connected(["A"])
        typists.doctor = typists.type(doctor, site)
        typists.start()
        federation.connected(["A", SITE])
        yield typists


@pytest.mark.slow
def test_the_private_key_stays_at_the_site(typists: Typists) -> None:
    key = (typists.kit / "startup" / "client.key").read_bytes()
    assert b"PRIVATE KEY" in key and (typists.site / SITE / f"{SITE}.key").read_bytes() == key
    assert (typists.kit / "startup" / "client.key").stat().st_mode & 0o077 == 0
    elsewhere = [file for file in typists.coordinator.rglob("*") if file.is_file() and key in file.read_bytes()]
    assert not elsewhere


@pytest.mark.slow
def test_what_is_signed_with_the_key_counts_at_other_sites(typists: Typists) -> None:
    """As masks and mailboxes do."""
    signature, certificate = KitIdentity(typists.kit / "startup").sign(b"content")
    ProjectRoot(typists.federation.kits / "A" / "startup").check(SITE, b"content", signature, certificate)


@pytest.mark.slow
def test_doctor_finds_nothing_wrong_and_knows_the_servers_clock(typists: Typists) -> None:
    told = " ".join(typists.doctor.split())
    assert f"localhost:{typists.federation.port} answers, with a certificate until" in told
    assert "UTC, as the server's" in told and "ok data: shapes" in told
    warned = re.findall(r"^ +warning +(.*)", typists.doctor, flags=re.MULTILINE)
    assert all("simulated" in line for line in warned), warned


@pytest.mark.slow
def test_a_job_trains_at_both_kinds_of_sites(typists: Typists, tmp_path: Path) -> None:
    federation = typists.federation
    write_job(small_image_job("fedavg", "schedule.rounds=2", sites=["A", SITE]), tmp_path / "job", production=True)
    job_id = federation.submit(tmp_path / "job")
    assert federation.finished(job_id) == "FINISHED:COMPLETED"
    results = read_results(federation.download(job_id))
    assert [set(record.sites) for record in results.rounds] == [{"A", SITE}] * 2
    assert "dropped a message" not in federation.log(SERVER)


@pytest.mark.slow
def test_a_renewed_key_takes_part_and_the_former_still_counts(typists: Typists, tmp_path: Path) -> None:
    """As the page says of renewals, and of what NVFlare does not revoke."""
    former = Path(shutil.copytree(typists.kit, tmp_path / "former"))
    federation, coordinator, site = typists.federation, typists.coordinator, typists.site
    for command in AGAIN:
        typists.type(command, site)
    assert any((site / SITE / ".bak").rglob(f"{SITE}.key"))
    typists.send(f"{SITE}/{SITE}.request.zip", site, coordinator)
    typists.type(SIGN[-1], coordinator, code=1)
    typists.type(f"{SIGN[-1]} --force", coordinator)
    typists.send(f"{SITE}.signed.zip", coordinator, site)
    package, stop, copy, check = CHANGE
    typists.type(package, site)
    typists.type(stop, site)
    federation.kill(SITE)  # the file is for start.sh, which the runbook's test types
    typists.type(copy, site)
    typists.type(check, site)
    assert (typists.kit / "startup" / "client.key").read_bytes() != (former / "startup" / "client.key").read_bytes()
    joined = f"client:{SITE} for project"
    before = federation.log(SITE).count(joined)
    typists.start()
    wait_for(lambda: federation.log(SITE).count(joined) > before, 240, "the site to register with its new key")
    (answer,) = ask_server(open_kit(former)).remarks
    assert answer.level == "ok", "nothing is revoked"


@pytest.mark.slow
def test_a_disabled_name_is_out_with_either_key(typists: Typists) -> None:
    with typists.federation.console(OWNER) as console:
        assert console.disable_client(SITE)["clients"][0]["state"] == "disabled"
        wait_for(
            lambda: {each.name for each in console.get_connected_client_list()} == {"A"}, 120, "the name to be refused"
        )
        console.enable_client(SITE)


@pytest.mark.slow
def test_a_person_with_all_rights_cannot_ask_for_a_certificate(typists: Typists) -> None:
    """Why server and persons are provisioned."""
    asked = {"name": PROJECT, "participants": [{"name": OWNER, "type": "admin", "org": "hub", "role": "project_admin"}]}
    (typists.site / "owner.yml").write_text(yaml.safe_dump(asked), encoding="utf-8")
    answer = typists.type("nvflare cert request -p owner.yml", typists.site, code=4)
    assert "lead, member, org-admin" in answer


@pytest.mark.slow
def test_a_request_is_signed_as_whatever_it_says(typists: Typists) -> None:
    """Why the page has the coordinator look first."""
    asked = {"name": PROJECT, "participants": [{"name": LEAD, "type": "admin", "org": "hub", "role": "lead"}]}
    (typists.site / "lead.yml").write_text(yaml.safe_dump(asked), encoding="utf-8")
    typists.type("nvflare cert request -p lead.yml", typists.site)
    typists.send(f"{LEAD}/{LEAD}.request.zip", typists.site, typists.coordinator)
    answer = typists.type(f"{SIGN[-1].replace('HK', LEAD)}", typists.coordinator)
    assert "cert_type: lead" in answer and (typists.site / LEAD / f"{LEAD}.key").is_file()
