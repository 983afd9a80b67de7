"""What a site does for its server: NVFlare's own agent with NVFlare's own requests."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import small_image_job
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.net_manager import NetManager
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.sec.audit import AuditService
from nvflare.lighter.utils import load_private_key_file, sign_folders
from nvflare.private.admin_defs import Message, MsgHeader, ReturnCode
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.server.server_cmd_modules import ServerCommandModules

from armour.conftest import Enforce, Lower
from fedshift.flare.export import write_job
from fedshift.flare.guard import JOB_FILES, AppFiles
from flare_armour.guard import orders
from flare_armour.guard.console import COMMANDS
from flare_armour.patches import submissions

REPLACED = "_dispatch_request"
"""What the guard replaces in NVFlare's `FedAdminAgent`."""
JOB = "3f509f41-3a7e-406e-88f6-69672abb2e34"


class Site:
    """NVFlare's agent at a site, with all of NVFlare's processors; those that get something to do note it."""

    def __init__(self, lower: Lower, folder: Path) -> None:
        AuditService.close()
        AuditService.initialize(str(folder / "audit.txt"))
        self.audit = folder / "audit.txt"
        self.done: list[str] = []
        cell = SimpleNamespace(register_request_cb=lambda **named: None)
        engine = SimpleNamespace(
            new_context=lambda: nullcontext(FLContext()), args=SimpleNamespace(workspace=str(folder / "kit"))
        )
        self.agent = FedAdminAgent("agent", cell, engine)
        for processor in ClientRequestProcessors.request_processors:
            self.agent.register_processor(processor)
            lower(type(processor), process=lambda _, request, engine: self.done.append(request.topic))

    def asked(self, topic: str, body: Any = None, **headers: str) -> Message:
        request = Message(topic, body)
        request.set_headers(headers)
        reply: Message = getattr(self.agent, REPLACED)(CellMessage({}, request)).payload
        return reply


@pytest.fixture
def site(enforce: Enforce, lower: Lower, tmp_path: Path) -> Iterator[Site]:
    lower(NetManager, get_spec=NetManager.get_spec)
    lower(ServerCommandModules, cmd_modules=list(ServerCommandModules.cmd_modules))
    enforce(orders.orders(JOB_FILES))
    yield Site(lower, tmp_path)
    AuditService.close()


def refused(reply: Message) -> bool:
    return bool(reply.get_header(MsgHeader.RETURN_CODE) == ReturnCode.ERROR)


@pytest.mark.parametrize(
    "topic",
    [
        SysCommandTopic.SHELL,
        SysCommandTopic.CONFIGURE_SITE_LOG,
        SysCommandTopic.REPORT_ENV,
        TrainingTopic.CONFIGURE_JOB_LOG,
        "made.up",
    ],
)
def test_a_site_does_nothing_else(site: Site, topic: str) -> None:
    reply = site.asked(topic, job_id=JOB)
    assert refused(reply) and repr(topic) in reply.body and not site.done
    assert "[A:armour.dropped]" in site.audit.read_text(encoding="utf-8")


@pytest.mark.parametrize("topic", sorted({*orders.ORDERS} - {TrainingTopic.DEPLOY}))
def test_what_a_federation_needs_is_done(site: Site, topic: str) -> None:
    body = {"num_of_gpus": 1} if orders.ORDERS[topic].body == "resources" else ""
    assert not refused(site.asked(topic, body, job_id=JOB))
    assert site.done == [topic]


@pytest.mark.parametrize("topic", sorted({*orders.ORDERS} - {TrainingTopic.DEPLOY}))
def test_an_order_comes_with_what_belongs_to_it(site: Site, topic: str) -> None:
    """For a job if it is about one, and with no path, settings or text of another's."""
    fits = {"num_of_gpus": 1} if orders.ORDERS[topic].body == "resources" else ""
    for body in ("text", b"x", ["text"], *([{"config": "x"}] if fits == "" else [""])):
        assert refused(site.asked(topic, body, job_id=JOB)), body
    for job in ("../local", JOB.upper(), *([None] if orders.ORDERS[topic].job else [])):
        assert refused(site.asked(topic, fits, **({} if job is None else {RequestHeader.JOB_ID: job}))), job
    for command in ("made up", *(name for name, command in COMMANDS.items() if not command.roles)):
        assert refused(site.asked(topic, fits, job_id=JOB, **{RequestHeader.ADMIN_COMMAND: command})), command
    assert not site.done


def test_every_topic_of_nvflare_is_done_or_left_out_on_purpose() -> None:
    topics = {topic for p in ClientRequestProcessors.request_processors for topic in p.get_topics()}
    system = {SysCommandTopic.SHELL, SysCommandTopic.CONFIGURE_SITE_LOG, SysCommandTopic.REPORT_ENV}
    assert topics == {*orders.ORDERS} | system | {TrainingTopic.CONFIGURE_JOB_LOG}


@pytest.mark.parametrize("job", ["local", "startup", "../HK", JOB.upper(), f"{JOB}/..", "", None])
def test_only_ids_of_jobs_name_a_folder(site: Site, job: str | None) -> None:
    for topic in (TrainingTopic.DELETE_RUN, TrainingTopic.START_JOB, TrainingTopic.DEPLOY):
        headers = {} if job is None else {RequestHeader.JOB_ID: job}
        assert refused(site.asked(topic, b"", **headers))
    assert not site.done


def app(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def of_fedshift(tmp_path: Path, *, signed_with: Path | None = None) -> dict[str, bytes]:
    """The files of an app; with a kit, signed as NVFlare's console signs them."""
    folder = write_job(small_image_job("fedavg"), tmp_path / "job", production=True) / "app"
    if signed_with is not None:
        startup = signed_with / "startup"
        sign_folders(str(folder), load_private_key_file(str(startup / "client.key")), str(startup / "client.crt"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_job_of_fedshift_is_taken(site: Site, tmp_path: Path) -> None:
    assert not refused(site.asked(TrainingTopic.DEPLOY, app(of_fedshift(tmp_path)), job_id=JOB))
    assert site.done == [TrainingTopic.DEPLOY]


@pytest.mark.parametrize(
    "name",
    [
        "config/other.json",
        "other.json",
        "config/config_fed_client.yaml",
        "config/deeper/fedshift.yaml",
        "other/file.py",
        "../x",
        "/x",
        "custom/../x",
        "config\\x",
    ],
)
def test_a_job_brings_no_other_file(site: Site, tmp_path: Path, name: str) -> None:
    reply = site.asked(TrainingTopic.DEPLOY, app(of_fedshift(tmp_path) | {name: b"{}"}), job_id=JOB)
    assert refused(reply) and repr(name) in reply.body and not site.done


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"format_version": 2', '"format_version": 3'),
        ('"format_version": 2', '"format_version": 2, "x": 0'),
        ("{", ""),
    ],
)
def test_a_job_configures_nvflare_as_every_job_does_unless_it_brings_code(
    site: Site, tmp_path: Path, old: str, new: str
) -> None:
    files = of_fedshift(tmp_path)
    text = files["config/config_fed_client.json"].decode()
    changed = files | {"config/config_fed_client.json": text.replace(old, new, 1).encode()}
    assert old in text
    reply = site.asked(TrainingTopic.DEPLOY, app(changed), job_id=JOB)
    assert refused(reply) and "config_fed_client.json" in reply.body
    # NVFlare asks for the right to send code, which the owner of the kit has to have given.
    assert not refused(site.asked(TrainingTopic.DEPLOY, app(changed | {"custom/own.py": b""}), job_id=JOB))


@pytest.mark.parametrize("role", ["lead", "", None])
def test_a_job_is_signed_by_a_person_with_a_role(
    role: str | None, site: Site, tmp_path: Path, kits_of: Callable[[str], Path], lower: Lower
) -> None:
    kits = kits_of("prostate")
    shutil.copytree(kits / "BIDMC", tmp_path / "kit")
    files = of_fedshift(tmp_path, signed_with=kits / "coordinator@coordination.example")
    assert len(files) > 4
    changed = app(files | {"config/fedshift.yaml": b"{}"})
    assert refused(site.asked(TrainingTopic.DEPLOY, changed, job_id=JOB)), "after it was signed"
    verify = orders.verify_folder_signature_and_get_signers

    def signers(*args: Any) -> Any:
        valid, found = verify(*args)
        assert valid and found
        return valid, [(name, org, role) for name, org, _ in found]

    lower(orders, verify_folder_signature_and_get_signers=signers)
    assert refused(site.asked(TrainingTopic.DEPLOY, app(files), job_id=JOB)) is (not role)


def test_the_server_looks_at_a_jobs_files_too(tmp_path: Path) -> None:
    folder = write_job(small_image_job("fedavg"), tmp_path / "job", production=True) / "app"
    assert AppFiles().validate(str(folder)) == ("", {})
    (folder / "config" / "other.json").write_text("{}", encoding="utf-8")
    assert "'config/other.json'" in AppFiles().validate(str(folder))[0]


def test_a_job_is_an_archive_of_a_moderate_size(site: Site, tmp_path: Path, lower: Lower) -> None:
    damaged = bytearray(app(of_fedshift(tmp_path)))
    name = b"config/config_fed_client.json"
    start = damaged.index(name) + len(name)
    damaged[start : start + 20] = bytes(range(200, 220))
    file = tmp_path / "app.zip"
    file.write_bytes(app(of_fedshift(tmp_path)))
    for body in (b"no archive", None, "text", str(file), {}, bytes(damaged)):
        reply = site.asked(TrainingTopic.DEPLOY, body, job_id=JOB)
        assert refused(reply) and "no archive" in reply.body
    lower(submissions, LARGEST=100)
    assert "allowed are" in site.asked(TrainingTopic.DEPLOY, app(of_fedshift(tmp_path)), job_id=JOB).body
    assert not site.done


@pytest.mark.usefixtures("site")
def test_no_path_of_a_site_is_in_the_answer_to_a_deletion(tmp_path: Path) -> None:
    for name in ("startup", "local", JOB):
        (tmp_path / "other kit" / name).mkdir(parents=True)
    engine: Any = SimpleNamespace(args=SimpleNamespace(workspace=str(tmp_path / "other kit")))
    assert ClientEngine.delete_run(engine, JOB) == "OK"
    assert not (tmp_path / "other kit" / JOB).exists()


def test_the_console_has_no_commands_for_files_and_connections(site: Site) -> None:
    names = {spec.name for module in ServerCommandModules.cmd_modules for spec in module.get_spec().cmd_specs}
    assert "submit_job" in names and not names & {"cat", "ls", "tail", "grep", "head", "pwd"}
    assert not NetManager(SimpleNamespace()).get_spec().cmd_specs
