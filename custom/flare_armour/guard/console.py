"""The console's commands: who may give each one, with which arguments. What is not in the table is refused.

NVFlare 2.9: asks a right of some commands only and checks few arguments, and a console's session is not bound to its
owner's connection.
Cost: a coordinator may give orders with another's rights.
Instead: the gate writes down whose certificate a console's connection has, and a login or a token of somebody else is
refused. `COMMANDS` is asked before NVFlare looks at a command: an argument is a job's id, a party's name, or one word
of a short list, and none leads out of the job's own folder. The rights in each kit's ``local/authorization.json`` can
be made from the same table (`rights`): with them NVFlare decides *whose* job or site it is, at the server and at each
site. What a site does of a command is in `flare_armour.guard.orders`.
Fixed in NVFlare when: a session is bound to its connection's certificate, and a command's arguments are checked where
commands are registered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from nvflare.fuel.hci.proto import InternalCommands, MetaStatusValue, make_meta
from nvflare.fuel.hci.server.constants import ConnProps

from flare_armour.log_limits import DROPS, PERSON
from flare_armour.patch import Patch

Role = Literal["project_admin", "org_admin", "lead", "member"]
ROLES: tuple[Role, ...] = get_args(Role)

ANY, OWN_JOBS, JOBS_OF_ORG, SITES_OF_ORG = "any", "n:submitter", "o:submitter", "o:site"
"""Whose jobs or sites, in NVFlare's words: all; the person's own; those that the organisation has submitted; sites (and
the server) of the person's organisation."""

# Arguments are joined by line breaks before they are compared, so that none can pass for two; in the patterns below a
# blank is such a break.
_JOB = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_SITE = r"(?!_admin_|(?:server|all)(?:\s|$))[A-Za-z0-9_-][A-Za-z0-9_.~-]{0,99}"
_PARTIES = rf"(?:server|all|client(?: {_SITE})*)"
_LEVEL = r"(?i:info|warning|error|critical)"
"""Levels that people need; no file and no mode."""
_NAME = r"\w[\w.()+@,=~ -]{0,199}".replace(" ", r"\x20")
"""Of a folder, without a way to it."""
_TOKEN = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}"
"""With which a job that is submitted twice is taken once."""


@dataclass(frozen=True)
class Command:
    """Who may give a command, and what its arguments may be."""

    roles: Mapping[str, str]
    """Role → whose jobs or sites."""
    usage: str = ""
    """The arguments, for people."""
    pattern: str = ""
    """What all arguments together have to match."""
    before_login: bool = False

    def takes(self, arguments: Sequence[str]) -> bool:
        """Whether the arguments are as they should be."""
        if any(not argument or "\n" in argument for argument in arguments):
            return False
        return re.fullmatch(self.pattern.replace(" ", "\n"), "\n".join(arguments)) is not None


LOOK: Mapping[str, str] = dict.fromkeys(ROLES, ANY)
JOBS: Mapping[str, str] = {"project_admin": ANY, "org_admin": JOBS_OF_ORG, "lead": OWN_JOBS}
SUBMIT: Mapping[str, str] = {"project_admin": ANY, "lead": ANY}
CLONE: Mapping[str, str] = {"project_admin": ANY, "lead": OWN_JOBS}
MACHINES: Mapping[str, str] = {"project_admin": ANY, "org_admin": SITES_OF_ORG, "lead": SITES_OF_ORG}
STOP: Mapping[str, str] = {"project_admin": ANY, "org_admin": SITES_OF_ORG}
OWNER: Mapping[str, str] = {"project_admin": ANY}
NOBODY: Mapping[str, str] = {}

_OF_JOB = ("JOB", _JOB)
_OF_JOB_AT = ("JOB server|all|client [SITE …]", f"{_JOB} {_PARTIES}")
_AT = ("server|all|client [SITE …]", _PARTIES)
_SITES = ("SITE …", rf"{_SITE}(?: {_SITE})*")
_WISH = rf"(?:-[dur]|-n {_NAME}|-m \d{{1,6}}|--submit-token {_TOKEN}|[0-9A-Fa-f-]{{1,36}})"
_WISHES = rf"(?:{_WISH}(?: {_WISH})*)?"
_LOG = rf"{_JOB}(?: (?:server|all|@ALL|{_SITE}))?(?: log\.(?:txt|json))?"

COMMANDS: Mapping[str, Command] = {
    # What a console says of itself.
    "_cert_login": Command(LOOK, "PERSON", r"\S{1,200}", before_login=True),
    "_check_session": Command(LOOK, before_login=True),
    "_logout": Command(LOOK),
    "_commands": Command(LOOK, "[COMMAND]", r"(?:\w[\w.]{0,99})?"),
    # Looking.
    "check_status": Command(LOOK, *_AT),
    "show_scopes": Command(LOOK, *_AT),
    "show_stats": Command(LOOK, *_OF_JOB_AT),
    "show_errors": Command(LOOK, *_OF_JOB_AT),
    "list_jobs": Command(LOOK, "[-d] [-u] [-r] [-n NAME] [-m NUMBER] [--submit-token TOKEN] [JOB]", _WISHES),
    "get_job_meta": Command(LOOK, *_OF_JOB),
    # Jobs.
    "submit_job": Command(SUBMIT, "FOLDER [--submit-token TOKEN]", rf"{_NAME}(?: --submit-token {_TOKEN})?"),
    "clone_job": Command(CLONE, *_OF_JOB),
    "abort_job": Command(JOBS, *_OF_JOB),
    "delete_job": Command(JOBS, *_OF_JOB),
    "download_job": Command(JOBS, *_OF_JOB),
    "get_job_log": Command(JOBS, "JOB [SITE|server|all] [log.txt|log.json]", _LOG),
    "reset_errors": Command(JOBS, *_OF_JOB_AT),
    "configure_job_log": Command(JOBS, "JOB server LEVEL", rf"{_JOB} server {_LEVEL}"),
    # Machines.
    "sys_info": Command(MACHINES, *_AT),
    "report_resources": Command(MACHINES, *_AT),
    "report_version": Command(MACHINES, *_AT),
    "shutdown": Command(STOP, *_AT),
    "restart": Command(STOP, *_AT),
    # Who takes part, which is one decision for all.
    "disable_client": Command(OWNER, *_SITES),
    "enable_client": Command(OWNER, *_SITES),
    "remove_client": Command(OWNER, *_SITES),
    "admin_check_status": Command(OWNER, *_AT),
    "list_sessions": Command(OWNER),
    "configure_site_log": Command(OWNER, "server LEVEL", f"server {_LEVEL}"),
    # Not for anybody: they read files, or change what others rely on, or no federation of ours needs them.
    **dict.fromkeys(
        (
            *("list_job", "download_job_components", "delete_workspace", "app_command", "report_env", "dead"),
            *("register_study", "add_study_site", "remove_study_site", "remove_study", "list_studies", "show_study"),
            *("add_study_user", "remove_study_user"),
            *("pwd", "ls", "cat", "head", "tail", "grep"),
            *("cells", "route", "peers", "conns", "url_use", "speed", "stress", "bulk", "change_root", "msg_stats"),
            *("list_pools", "show_pool", "show_comm_config", "show_config_vars", "process_info", "stop_cell"),
            "stop_net",
        ),
        Command(NOBODY),
    ),
}  # fmt: skip
"""Name → who may give it, and with which arguments."""


@dataclass(frozen=True)
class Refusal:
    """Why a command is not done, and whether that is for the role, the arguments, or a mistyped id of a job."""

    reason: str
    kind: Literal["role", "arguments", "job"]


def refusal(name: str, arguments: Sequence[str], *, role: str | None) -> Refusal | None:
    """Why the server doesn't do a command, or None if it does.

    Args:
        name: of the command, without the name of its module.
        arguments: what follows it.
        role: of the person's certificate; None before there is a session.
    """
    command = COMMANDS.get(name)
    if command is None or not command.roles:
        return Refusal(f"no console of this federation has {name!r}", "role")
    if not (command.before_login if role is None else role in command.roles):
        return Refusal(f"the role {role or 'of nobody'} may not give {name}", "role")
    if command.takes(arguments):
        return None
    job = arguments[0] if arguments and command.pattern.startswith(_JOB) else ""
    if re.fullmatch(r"[\w-]+", job) and not re.fullmatch(_JOB, job):
        return Refusal(f"{job[:40]!r} is no id of a job", "job")
    return Refusal(f"the arguments of {name} are not as they may be: {name} {command.usage}".strip(), "arguments")


def rights(role: str) -> dict[str, str]:
    """The commands of a role → whose jobs or sites, as ``authorization.json`` has them; internal ones ask for none."""
    of_role = {name: command.roles.get(role) for name, command in COMMANDS.items()}
    return {name: whose for name, whose in of_role.items() if whose is not None and not name.startswith("_")}


LOGIN = "nvflare.fuel.hci.server.login:LoginModule"
STATUS = {
    "role": MetaStatusValue.NOT_AUTHORIZED,
    "arguments": MetaStatusValue.SYNTAX_ERROR,
    "job": MetaStatusValue.INVALID_JOB_ID,
}
"""What a console hears beside the sentence, by the kind of refusal."""
PATCH = Patch(
    name="sessions",
    kind="protects",
    without="one coordinator could speak with another's rights",
    sources={  # where the message is kept for it, and whose session a login makes
        f"{LOGIN}.handle_cert_login": "61f9244302fb",
        "nvflare.fuel.hci.server.hci:AdminServer._process_admin_request": "cc23671aa44a",
    },
)


@PATCH.replaces(f"{LOGIN}.pre_command", "cfd169f9e8fc")
def _pre_command(original: Callable[..., bool], self: Any, conn: Any, args: list[str]) -> bool:
    request = conn.get_prop(ConnProps.REQUEST)
    # A job is uploaded in another way, without such a message; it is signed with the person's key.
    person = None if request is None else request.get_header(PERSON, "")
    if person is not None and args[0] == InternalCommands.CERT_LOGIN and args[1:2] != [person]:
        conn.append_string("REJECT: this connection has another person's certificate")
        return False
    if not original(self, conn, args):
        return False
    session = conn.get_prop(ConnProps.SESSION)
    if person is not None and session is not None and session.user_name != person:
        conn.append_error("this session is another person's")
        return False
    name = conn.get_prop(ConnProps.CMD_ENTRY).name  # a command may be given with its module's name before its own
    refused = refusal(name, args[1:], role=None if session is None else session.user_role)
    if refused is None:
        return True
    if refused.kind != "job":  # anybody mistypes one
        DROPS.add(person or (session.user_name if session else "a console"), f"console/{name}", refused.reason)
    conn.append_error(refused.reason, meta=make_meta(STATUS[refused.kind], refused.reason))
    return False
