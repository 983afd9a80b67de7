"""The owner's files of a kit: a party lets in and gives away no more than it should."""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from errors import raises
from kits import ROOT, SERVER
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.security.security import FLAuthorizer

from fedshift.data.locate import SiteSettings
from fedshift.flare import kit_files as kits
from fedshift.flare.export import client_config, server_config
from fedshift.flare.kit import Kit, open_kit
from fedshift.flare.validation import job as validation
from fedshift.schema.policy import Policy
from fedshift_survey.flare import job as survey

SITE = "BIDMC"
LEAD = Person("coordinator@coordination.example", "coordination", "lead")
OWNER = Person("project@coordination.example", "coordination", "project_admin")
OWN, OTHER = (Person(f"admin@{org}.example", org, "org_admin") for org in ("bidmc", "hk"))


@pytest.fixture
def site(kits_of: Callable[[str], Path], tmp_path: Path) -> Kit:
    """A site's kit of the prostate project with its local settings."""
    return laid(kits_of("prostate") / SITE, tmp_path)


@pytest.fixture
def server(kits_of: Callable[[str], Path], tmp_path: Path) -> Kit:
    """The server's kit of the prostate project with its local settings."""
    return laid(kits_of("prostate") / SERVER, tmp_path)


def laid(folder: Path, tmp_path: Path) -> Kit:
    kit = open_kit(Path(shutil.copytree(folder, tmp_path / folder.name)))
    kits.lay(kits.local_files(kit, data={"prostate": Path("/DATA/prostate/BIDMC")}), kit.local)
    return kit


# --- what a job may build -----------------------------------------------------------------------------------


def builds(kit: Kit, path: str) -> bool:
    """Whether FLARE itself would build a component of a job in this kit."""
    try:
        workspace = Workspace(str(kit.folder), kit.name)
        ComponentPathAuthorizer().authorize_component_config({"path": path, "args": {}}, workspace=workspace)
    except UnsafeComponentError:
        return False
    return True


def test_a_job_builds_our_components_and_no_others(site: Kit, server: Kit) -> None:
    (executor,) = [entry["executor"]["path"] for entry in client_config()["executors"]]
    parts = [entry["path"] for part in ("workflows", "components") for entry in server_config()[part]]
    assert all(builds(server, path) for path in parts) and not builds(server, executor)
    assert builds(site, executor) and not any(builds(site, path) for path in parts)
    assert builds(server, survey.server_config()["workflows"][0]["path"])
    assert builds(site, survey.client_config()["executors"][0]["executor"]["path"])
    assert builds(server, validation.server_config()["workflows"][0]["path"])
    assert builds(site, validation.client_config()["executors"][0]["executor"]["path"])
    for path in (
        "nvflare.app_common.workflows.scatter_and_gather.ScatterAndGather",
        "nvflare.app_common.logging.job_log_streamer.JobLogStreamer",
        "nvflare.app_common.filters.exclude_vars.ExcludeVars",
        "fedshift.flare.executor",
        f"{executor}2",
        "subprocess.Popen",
    ):
        assert not builds(site, path) and not builds(server, path), path


def test_flares_default_would_let_a_job_do_more(kits_of: Callable[[str], Path]) -> None:
    kit = open_kit(kits_of("prostate") / SITE)
    assert builds(kit, "nvflare.app_common.logging.job_log_streamer.JobLogStreamer")


def test_every_component_of_the_local_settings_exists(site: Kit, server: Kit) -> None:
    """A name that is not there would only be noticed when the party is started."""
    for kit in (site, server):
        content = json.loads((kit.local / "resources.json").read_text(encoding="utf-8"))
        named = [entry["path"] for entry in content["components"]] + content["class_allow_list"]
        assert any(path.startswith("fedshift.flare.guard.") for path in named)
        for path in named:
            module, _, name = path.rpartition(".")
            assert isinstance(getattr(importlib.import_module(module), name), type), path


# --- who may do what ----------------------------------------------------------------------------------------


def may(kit: Kit, person: Person, right: str, *, file: str = "authorization.json") -> bool:
    """FLARE's own answer at this party."""
    policy = json.loads((kit.local / file).read_text(encoding="utf-8"))
    allowed, _ = FLAuthorizer(kit.organisation, policy).authorize(AuthzContext(right, person, person))
    return bool(allowed)


def test_the_processes_that_are_always_there_do_without_torch() -> None:
    """A site's and the server's own process, which wait for jobs, build these components; jobs have theirs."""
    paths = [kits.GUARD["path"], kits.VALIDATOR["path"], kits.READMISSION["path"], *kits.LAUNCHERS.values()]
    modules = ", ".join(path.rpartition(".")[0] for path in paths)
    code = f"import sys, {modules}; print([name for name in ('torch', 'monai', 'scipy') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert result.stdout.strip() == "[]"


def test_nobody_sends_code_unless_the_owner_of_the_kit_allows_it(site: Kit, server: Kit) -> None:
    for kit in (site, server):
        for person in (LEAD, OWNER):
            assert may(kit, person, "byoc", file="authorization.json.default"), "FLARE's default has changed"
            assert may(kit, person, "submit_job") and not may(kit, person, "byoc")
        kits.lay(kits.local_files(kit, allow_code=True), kit.local, force=True)
        assert all(may(kit, person, "byoc") for person in (LEAD, OWNER))
        assert not may(kit, OWN, "byoc")


def test_nobody_reads_a_partys_files_at_the_console(site: Kit, server: Kit) -> None:
    for kit in (site, server):
        for command in ("cat", "tail", "grep", "head", "ls"):
            assert may(kit, OWNER, command, file="authorization.json.default"), "FLARE's default has changed"
            assert not any(may(kit, person, command) for person in (OWN, OTHER, LEAD, OWNER))


def test_who_may_download_a_job_may_read_the_servers_log_of_it(server: Kit) -> None:
    assert not may(server, LEAD, "get_job_log", file="authorization.json.default"), "FLARE's default has changed"
    assert may(server, LEAD, "get_job_log") and may(server, OWNER, "get_job_log")
    policy = json.loads((server.local / "authorization.json").read_text(encoding="utf-8"))
    others_job = AuthzContext("get_job_log", LEAD, OWNER)
    assert not FLAuthorizer(server.organisation, policy).authorize(others_job)[0]


def test_the_project_admin_keeps_the_other_rights(site: Kit, server: Kit) -> None:
    for kit in (site, server):
        for right in ("list_jobs", "abort_job", "download_job", "check_status", "shutdown", "show_stats", "sys_info"):
            assert may(kit, OWNER, right), right


# --- what leaves --------------------------------------------------------------------------------------------

REGISTER = """
import argparse, os, sys
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import FLClientStarterConfiger
from nvflare.private.fed.authenticator import Authenticator
from nvflare.private.fed.utils.fed_utils import fobs_initialize
from nvflare.fuel.utils import fobs

kit, name = sys.argv[1:]
workspace = Workspace(kit, name)
fobs_initialize(workspace)
options = ["secure_train=true", "uid=" + name, "org=bidmc", "config_folder=config"]
args = argparse.Namespace(workspace=kit, job_id=None, set=options, fed_client="fed_client.json")
configer = FLClientStarterConfiger(workspace=workspace, args=args, kv_list=options)
configer.configure()

class Cell:
    def send_request(self, *, request, **_):
        print(repr(request.headers), repr(dict(request.payload)))
        sys.stdout.flush()
        os._exit(0)

told = configer.config_data["client"].get("site_config")
Authenticator(Cell(), "fedshift_prostate", name, "regular", "localhost", False, "", "", "", 1.0, 1.0, None, told
              ).authenticate(FLContext(), Signal())
"""


def registration(kit: Kit, tmp_path: Path) -> str:
    """The message with which FLARE's client registers, caught before it is sent."""
    result = subprocess.run(
        [sys.executable, "-c", REGISTER, str(kit.folder), kit.name],
        env=os.environ | {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(ROOT / "custom"), str(ROOT)])},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "fedshift_prostate" in result.stdout
    return result.stdout


def test_nothing_of_a_sites_settings_is_in_its_registration(site: Kit, tmp_path: Path) -> None:
    assert "/DATA" in (site.local / "fedshift.yaml").read_text(encoding="utf-8")
    message = registration(site, tmp_path)
    assert "/DATA" not in message and str(site.folder) not in message
    for word in ("data", "privacy", "device", "class_allow_list", "min_cases"):
        assert f"'{word}'" not in message
    assert kits.registered(site) == {"allow_log_streaming": False}


def test_a_path_that_would_be_registered_is_found(site: Kit, tmp_path: Path) -> None:
    """The same message shows what the check warns of."""
    path = site.local / "resources.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | {"scans": {"folder": "/DATA/secret"}}), encoding="utf-8")
    assert "/DATA/secret" in registration(site, tmp_path)
    (fault,) = kits.faults(site)
    assert fault.grave and "/DATA/secret" in fault.sentence


@pytest.mark.parametrize("unknown", ["fedshift.flare.nowhere.SiteJobLauncher", "fedshift.flare.guard.No"])
def test_a_kit_that_names_what_is_not_there_is_found(site: Kit, unknown: str) -> None:
    path = site.local / "resources.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("fedshift.flare.guard.SiteJobLauncher", unknown), encoding="utf-8")
    (fault,) = kits.faults(site)
    assert fault.grave and unknown in fault.sentence


def test_a_kit_without_the_guard_is_found(site: Kit, server: Kit) -> None:
    for kit in (site, server):
        path = kit.local / "resources.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        without = [part for part in content["components"] if part["id"] != "guard"]
        path.write_text(json.dumps(content | {"components": without}), encoding="utf-8")
        (fault,) = kits.faults(kit)
        assert fault.grave and "lacks fedshift.flare.guard.Guard" in fault.sentence
        path.write_text(json.dumps(content | {"app_validator": None}), encoding="utf-8")
        assert [fault.grave for fault in kits.faults(kit)] == [True] * (kit is server)


def test_loosened_settings_are_found(site: Kit) -> None:
    assert not list(kits.faults(site))
    path = site.local / "resources.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for change, said in (
        ({"class_allow_list": ["fedshift.", *content["class_allow_list"]]}, "allows fedshift., which"),
        ({"class_allow_list": ["*"]}, "allows *, which"),
        ({"class_allow_list": []}, "FedshiftExecutor, which our jobs need"),
        ({"class_list_enforcement_mode": "warn"}, "only warns"),
        ({"allow_log_streaming": True}, "error log"),
    ):
        path.write_text(json.dumps(content | change), encoding="utf-8")
        assert any(fault.grave for fault in kits.faults(site))
        assert said in next(kits.faults(site)).sentence
    path.write_text(json.dumps(content), encoding="utf-8")
    kits.lay(kits.local_files(site, allow_code=True), site.local, force=True)
    assert [fault.grave for fault in kits.faults(site)] == [False, False]


def test_a_servers_kit_that_was_copied_is_found(server: Kit, tmp_path: Path) -> None:
    """Its server would work in the store of the first one, whose running jobs it would end."""
    assert not list(kits.faults(server))
    copy = open_kit(Path(shutil.copytree(server.folder, tmp_path / "copy")))
    faults = list(kits.faults(copy))
    assert [fault.grave for fault in faults] == [True, True]
    for what, fault in zip(("jobs", "snapshots"), faults, strict=True):
        assert f"{server.folder}/store/{what}" in fault.sentence and str(copy.folder) in fault.sentence
    kits.lay(kits.local_files(copy), copy.local, force=True)
    assert not list(kits.faults(copy))
    (tmp_path / "link").symlink_to(copy.folder)
    assert not list(kits.faults(open_kit(tmp_path / "link"))), "the same kit, by another way"


def test_one_job_runs_at_a_time_and_more_are_noticed(server: Kit) -> None:
    path = server.local / "resources.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"max_jobs": 1', '"max_jobs": 4'), encoding="utf-8")
    (fault,) = kits.faults(server)
    assert not fault.grave and "4 jobs" in fault.sentence


# --- the files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("party", ["site", "server"])
def test_the_files_shown_in_deploy_are_those_that_are_written(party: str, request: pytest.FixtureRequest) -> None:
    kit = request.getfixturevalue(party)
    files = kits.local_files(kit, data={"prostate": Path("/DATA/prostate/BIDMC")})
    shown = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "deploy" / party).iterdir()}
    shown.pop("README.md")
    assert shown == {name: text.replace(str(kit.folder), "/KIT") for name, text in files.items()}


def test_the_sites_settings_are_valid_as_written_and_with_all_that_is_commented_out() -> None:
    text = kits.site_settings({"prostate": Path('/a path: with "signs"'), "pacs": Path("/b")})
    settings = SiteSettings.parse(yaml.safe_load(text), where="test")
    only = yaml.safe_load(kits.site_settings({"pacs": Path("/b")}, train=False))
    assert SiteSettings.parse(only, where="test").privacy == Policy(train=False)
    assert settings.data == {"prostate": '/a path: with "signs"', "pacs": "/b"}
    assert settings.privacy == Policy(), "written out, not changed"
    for network, other in (("weights", "dp_sgd"), ("dp_sgd", "weights")):
        shown = text
        for key in ("strata", "packages", "statistics", network, "budget"):
            shown = shown.replace(f"  # {key}:", f"  {key}:")
        with_noise = yaml.safe_load(shown)
        assert set(with_noise["privacy"]) == set(Policy.model_fields) - {"encryption", other}
        SiteSettings.parse(with_noise, where="test")


LOGGING = """
import logging, sys
from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils.log_utils import configure_logging
configure_logging(Workspace(sys.argv[1], "BIDMC"))
logging.getLogger("nvflare.private.Thing").info("[identity=BIDMC, run=7]: a thing happened")
for _ in range(int(sys.argv[2])):
    logging.getLogger("fedshift").error("a site failed " + "x" * 1000)
"""


def test_flare_takes_the_log_settings_and_its_files_stay_small(site: Kit) -> None:
    path = site.local / "log_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    files = [handler for handler in content["handlers"].values() if "filename" in handler]
    assert sum(handler["maxBytes"] * (1 + handler["backupCount"]) for handler in files) <= 60_000_000
    for handler in files:
        handler["maxBytes"] //= 1000
    path.write_text(json.dumps(content), encoding="utf-8")
    run = [sys.executable, "-c", LOGGING, str(site.folder)]
    for count, said in (("1", " INFO    Thing: a thing happened\n"), ("200", " ERROR   fedshift: a site failed x")):
        result = subprocess.run([*run, count], capture_output=True, encoding="utf-8", timeout=300, check=False)
        assert result.returncode == 0, result.stderr
        assert said in result.stdout
        if count == "1":
            assert said in (site.folder / "log.txt").read_text(encoding="utf-8")
    logs = [*site.folder.glob("log.txt*"), *site.folder.glob("error_log.txt*")]
    assert len(logs) == 7 and sum(file.stat().st_size for file in logs) <= 60_000


def test_a_changed_file_is_kept_unless_forced(site: Kit) -> None:
    files = kits.local_files(site, data={"prostate": Path("/elsewhere")})
    before = (site.local / "fedshift.yaml").read_text(encoding="utf-8")
    (site.local / "resources.json").unlink()
    with raises("output-exists", naming="fedshift.yaml"):
        kits.lay(files, site.local)
    assert not (site.local / "resources.json").exists(), "all or nothing"
    assert kits.lay(files, site.local, force=True) == ["resources.json", "fedshift.yaml"]
    assert (site.local / "fedshift.yaml.old").read_text(encoding="utf-8") == before
    assert kits.lay(files, site.local) == []


def test_a_full_disk_leaves_a_kit_its_settings(site: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `fedshift.yaml` the site would have no policy of its own."""
    before = {path.name: path.read_bytes() for path in site.local.iterdir()}
    original = Path.write_text

    def full(path: Path, text: str, **options: Any) -> int:
        original(path, text[:10], **options)
        if "fedshift.yaml" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(path, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with raises("folder-unwritable", naming=(str(site.local), "No space left on device")):
        kits.lay(kits.local_files(site, data={"prostate": Path("/elsewhere")}, allow_code=True), site.local, force=True)
    assert {path.name: path.read_bytes() for path in site.local.iterdir()} == before
