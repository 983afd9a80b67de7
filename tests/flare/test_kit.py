"""Projects and kits: everybody gets a kit, which is told from other folders; and where a server keeps its jobs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from errors import raises
from kits import PROJECTS, SERVER
from nvflare.lighter.utils import cert_to_dict, load_crt

from fedshift.federation.resolve import resolve
from fedshift.flare.kit import holder, jobs_folder, open_kit
from flare_armour.locks import hold_store

SITE = "BIDMC"


@pytest.fixture(scope="session")
def provisioned(kits_of: Callable[[str], Path]) -> dict[str, Path]:
    """Both projects' kits, as handed out."""
    return {task: kits_of(task) for task in PROJECTS}


@pytest.mark.parametrize("task", PROJECTS)
def test_everybody_of_a_federation_gets_a_kit(task: str, provisioned: dict[str, Path]) -> None:
    """The task's sites by their names, the server, a lead, a project admin, an admin for each site's organisation."""
    folder = provisioned[task]
    roles: dict[str, set[str]] = {}
    sites: dict[str, str] = {}
    for kit in folder.iterdir():
        if (kit / "startup" / "fed_admin.json").is_file():
            subject = cert_to_dict(load_crt(kit / "startup" / "client.crt"))["subject"]
            roles.setdefault(subject["unstructuredName"], set()).add(subject["organizationName"])
            assert (kit / "startup" / "fl_admin.sh").is_file()
        elif open_kit(kit).role == "site":
            sites[kit.name] = open_kit(kit).organisation
            assert open_kit(kit).name == kit.name
            assert (kit / "startup" / "start.sh").is_file()
    assert set(sites) == set(resolve(task, "fedavg").task.sites)
    assert roles == {"lead": {"coordination"}, "project_admin": {"coordination"}, "org_admin": set(sites.values())}
    assert open_kit(folder / SERVER).role == "server"
    for name in sites:
        target = open_kit(folder / name)
        assert (target.host, target.port) == (SERVER, 8002)


@pytest.mark.parametrize("task", PROJECTS)
def test_no_site_sends_its_log_even_before_its_own_settings(task: str, provisioned: dict[str, Path]) -> None:
    for site in resolve(task, "fedavg").task.sites:
        default = json.loads(
            (provisioned[task] / site / "local" / "resources.json.default").read_text(encoding="utf-8")
        )
        assert default["allow_log_streaming"] is False


def test_a_kit_is_told_from_other_folders(provisioned: dict[str, Path], tmp_path: Path) -> None:
    of_site = provisioned["prostate"] / SITE
    mixed, damaged = (Path(shutil.copytree(of_site, tmp_path / name / SITE)) for name in ("mixed", "damaged"))
    shutil.copy(provisioned["office_caltech"] / "amazon" / "startup" / "rootCA.pem", mixed / "startup")
    (damaged / "startup" / "client.crt").write_text("no certificate", encoding="utf-8")
    for folder, code in (
        (tmp_path, "wrong-kit"),
        (provisioned["prostate"] / "admin@hk.example", "wrong-kit"),
        (mixed, "other-project"),
        (damaged, "damaged-kit"),
    ):
        with raises(code, naming=str(folder)):
            open_kit(folder)


def test_a_consoles_kit_is_opened_where_that_is_meant(provisioned: dict[str, Path]) -> None:
    of_site = open_kit(provisioned["prostate"] / SITE)
    of_person = open_kit(provisioned["prostate"] / "admin@hk.example", console=True)
    assert (of_person.role, of_person.name) == ("console", "admin@hk.example")
    assert (of_person.host, of_person.port, of_person.scheme) == (of_site.host, of_site.port, of_site.scheme)
    assert of_person.server == of_site.server == open_kit(provisioned["prostate"] / SERVER).name


def test_who_holds_a_store_is_known(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    held = hold_store(jobs_folder(tmp_path))
    assert held is not None and holder(tmp_path) == str(os.getpid())
    held.close()
    assert holder(tmp_path) is None
