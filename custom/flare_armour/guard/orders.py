"""What a site does when its server says so, and which files a job may bring.

NVFlare 2.9: a site does more on its server's word than a federation needs, and a job may hold more than settings.
Cost: a hostile server or coordinator, or whoever can speak as one, reads and changes everything at a site.
Instead: a site does what is in `ORDERS` and nothing else, with what is said there, for job ids that NVFlare gives and
for jobs that hold only the files that its project writes (`JobFiles`), signed by somebody with a role in the project.
The server's console has no commands to read files or to look into connections.
Fixed in NVFlare when: a site can list the topics that it takes and the files that a job may bring.
"""

from __future__ import annotations

import io
import json
import tempfile
import uuid
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.fuel.f3.cellnet.net_manager import NetManager
from nvflare.fuel.hci.reg import CommandModuleSpec
from nvflare.fuel.utils.zip_utils import unzip_all_from_bytes
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import verify_folder_signature_and_get_signers
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic, new_cell_message
from nvflare.private.fed.server.server_cmd_modules import ServerCommandModules
from nvflare.private.fed.server.shell_cmd import ShellCommandModule

from flare_armour.guard.console import COMMANDS
from flare_armour.log_limits import DROPS
from flare_armour.patch import Patch
from flare_armour.patches.submissions import ARRAYS, CODE, fault

AGENT = "nvflare.private.fed.client.admin:FedAdminAgent"
CONNECTIONS = "nvflare.fuel.f3.cellnet.net_manager:NetManager"
DEPLOY = "nvflare.private.fed.client.training_cmds:DeployProcessor.process"
Body = Literal["nothing", "resources", "archive"]


@dataclass(frozen=True)
class Order:
    """What comes with an order of the server's: whether a job's id has to, and what its body may be."""

    job: bool = False
    body: Body = "nothing"


ORDERS: Mapping[str, Order] = {
    TrainingTopic.CHECK_STATUS: Order(),
    TrainingTopic.GET_SCOPES: Order(),
    TrainingTopic.CHECK_RESOURCE: Order(job=True, body="resources"),
    TrainingTopic.CANCEL_RESOURCE: Order(body="resources"),
    TrainingTopic.DEPLOY: Order(job=True, body="archive"),
    TrainingTopic.START_JOB: Order(job=True, body="resources"),
    TrainingTopic.ABORT: Order(job=True),
    TrainingTopic.ABORT_TASK: Order(job=True),
    TrainingTopic.DELETE_RUN: Order(job=True),
    TrainingTopic.SHUTDOWN: Order(),
    TrainingTopic.RESTART: Order(),
    TrainingTopic.NOTIFY_JOB_STATUS: Order(job=True),
    SysCommandTopic.SYS_INFO: Order(),
    SysCommandTopic.REPORT_RESOURCES: Order(),
    SysCommandTopic.REPORT_VERSION: Order(),
    "info.show_stats": Order(job=True),
    "info.show_errors": Order(job=True),
    "info.reset_errors": Order(job=True),
}
"""Topics that a site acts on. What is not among them is not done."""
SIGNATURE = (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)
"""What NVFlare puts into each folder of a job when it is submitted."""


@dataclass(frozen=True)
class JobFiles:
    """The files of a project's jobs. A job with code may bring that too, and NVFlare's files may then name it: code
    needs a right that no site gives unless its owner says so.
    """

    configs: Mapping[str, Callable[[], Sequence[object]]] = field(default_factory=dict)
    """File of NVFlare's, as ``config/config_fed_client.json`` → all that it may hold, parsed."""
    others: Collection[str] = ()
    """Further files, whatever they hold."""
    arrays: str = ""
    """The folder, with a slash, of files of arrays (`ARRAYS`) that a job may bring, by any name; without one none."""
    written_by: str = "the project's own tools"
    """Completes the sentence "write it with ..."."""

    def fault(self, names: Collection[str], read: Callable[[str], bytes]) -> str | None:
        """What is wrong with the first file that is not as the project writes it; None if all are."""
        code = False
        for name in sorted(names):
            if ".." in name.split("/") or "\\" in name or name.startswith("/"):
                return f"the job brings {name[:100]!r}, which is outside its folder"
            if name.startswith(f"{CODE}/"):
                code = True
            elif not self._belongs(name):
                return (
                    f"the job brings {name[:100]!r}, which no job of this project has: write it with {self.written_by}"
                )
        for name in () if code else self.configs:
            if name in names and _json(read(name)) not in self.configs[name]():
                return f"the job's {name} is not as this project writes it: write it with {self.written_by}"
        return None

    def _belongs(self, name: str) -> bool:
        folder, _, file = name.rpartition("/")
        if name in self.configs or name in self.others or file in SIGNATURE:
            return True
        return bool(self.arrays) and f"{folder}/" == self.arrays and file.endswith(ARRAYS)

    def fault_of_archive(self, app: Any) -> str | None:
        """The same of a job's archive, which is not on disk yet."""
        if wrong := fault(app):
            return wrong
        try:
            with zipfile.ZipFile(io.BytesIO(app)) as archive:
                names = [info.filename for info in archive.infolist() if not info.is_dir()]
                contents = {name: archive.read(name) for name in self.configs if name in names}
        except (zipfile.BadZipFile, zlib.error, TypeError, ValueError, OSError, EOFError, RuntimeError):
            return "the job's app is no archive"
        return self.fault(names, contents.__getitem__)


class AppFiles(AppValidator):
    """For the server's ``app_validator``: looks at the files of a job there, as a site does. Subclass it."""

    files = JobFiles()

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """NVFlare calls this before a job starts; the text says why it must not."""
        folder = Path(app_folder)
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
        return self.files.fault(names, lambda name: (folder / name).read_bytes()) or "", {}


def orders(files: JobFiles) -> Patch:
    """Restrict what a site does, and take the commands that it doesn't do from the server's console."""
    patch = Patch(
        name="orders",
        kind="protects",
        without="whoever speaks for the server reads and changes everything at a site",
        also=_take_commands_away,
        sources={f"{AGENT}.register_cell_cb": "7fd156a1a0de", DEPLOY: "4f24d3c44723"},
        calls={
            f"{CONNECTIONS}.get_spec": "self",
            "nvflare.lighter.utils:verify_folder_signature_and_get_signers": (
                "src_folder, root_ca_path, single_signer, signature_file"
            ),
        },
    )

    @patch.replaces(f"{AGENT}._dispatch_request", "cdc6f6f9852c")
    def dispatch(original: Callable[..., Any], self: Any, request: Any) -> Any:
        reason = refusal(request.payload, files) or _signed_by_nobody(request.payload, self.app_ctx)
        if reason is None:
            return original(self, request)
        DROPS.add("server", f"admin/{getattr(request.payload, 'topic', '?')}", reason)
        return new_cell_message({}, error_reply(reason))

    @patch.replaces("nvflare.private.fed.client.client_engine:ClientEngine.delete_run", "e4b35a99442a")
    def delete_run(original: Callable[..., str], self: Any, job_id: str) -> str:
        original(self, job_id)
        return "OK"  # and no path

    return patch


def _take_commands_away() -> None:
    modules = ServerCommandModules.cmd_modules
    modules[:] = [module for module in modules if not isinstance(module, ShellCommandModule)]
    NetManager.get_spec = lambda self: CommandModuleSpec("cellnet", cmd_specs=[])


def refusal(request: Any, files: JobFiles) -> str | None:
    """Why a site doesn't do this, or None if it does."""
    if not isinstance(request, Message):
        return "it is no request"
    order = ORDERS.get(request.topic)
    if order is None:
        return f"this site does not do {request.topic!r}"
    job = request.get_header(RequestHeader.JOB_ID)
    if (order.job or job is not None) and not _is_job_id(job):
        return f"{job!r} is no id of a job"
    command = request.get_header(RequestHeader.ADMIN_COMMAND)
    if command not in (None, AdminCommandNames.CHECK_RESOURCES) and not (
        command in COMMANDS and COMMANDS[command].roles
    ):
        return f"no console of this federation has {command!r}"
    if order.body == "archive":
        return files.fault_of_archive(request.body)
    if order.body == "resources":
        return None if isinstance(request.body, dict) else "what it says of resources is no table"
    return f"{request.topic!r} comes with nothing" if request.body else None


def _signed_by_nobody(request: Message, engine: Any) -> str | None:
    """Whether a job that is to be deployed has a signature of somebody without a role: only people's have one."""
    if request.topic != TrainingTopic.DEPLOY:
        return None
    root = Path(engine.args.workspace) / "startup" / "rootCA.pem"
    with tempfile.TemporaryDirectory() as folder:
        unzip_all_from_bytes(request.body, folder)
        if not (Path(folder) / NVFLARE_SIG_FILE).is_file():
            return None  # NVFlare refuses it, or the site's owner has said that it need not be signed
        valid, signers = verify_folder_signature_and_get_signers(folder, str(root))
    if not valid:
        return "the job's signature is not valid"
    unknown = sorted(str(name) for name, _, role in signers if not role)
    return f"the job is signed by {', '.join(unknown)}, who has no role in this project" if unknown else None


def _is_job_id(text: Any) -> bool:
    """Whether it is an id as NVFlare gives them: nothing else is the name of a folder that a job may replace."""
    try:
        return isinstance(text, str) and str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _json(text: bytes) -> Any:
    """What a JSON file holds; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


PATCH = orders(JobFiles())
