"""The console's commands: who may give each one, and what its arguments may be. What is not in the table is refused.

NVFlare 2.9 asks a right of some commands only, and checks few arguments. Here an argument is a job's id, a party's
name, or one word of a short list, and none leads out of the job's own folder.

Three places are made from the table or ask it: the guard of the server's console (`flare_armour.guard.sessions`),
which looks at every command before NVFlare does; the rights in each kit's ``local/authorization.json``
(`fedshift.flare.kit`), with which NVFlare decides *whose* job or site it is, at the server and at each site; and the
page docs/guard.md. What a site does of it is in `flare_armour.guard.commands`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

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
    # Not for anybody: fedshift has no use for them, or they read files or change what others rely on.
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
