"""Every command that NVFlare's server registers, and every role: what is done of it, and with which arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import nvflare
import pytest
from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.fuel.f3.message import Message
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.proto import InternalCommands
from nvflare.fuel.hci.server.authz import AuthzFilter
from nvflare.fuel.hci.server.builtin import new_command_register_with_builtin_module
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.hci.server.login import LoginModule
from nvflare.fuel.hci.server.reg import ServerCommandRegister
from nvflare.fuel.hci.server.sess import Session, SessionManager
from nvflare.fuel.sec.authz import AuthorizationService, AuthzContext, Person
from nvflare.private.fed.server.server_cmd_modules import ServerCommandModules
from nvflare.security.security import FLAuthorizer

from armour.conftest import Enforce, Lower
from flare_armour.guard import console
from flare_armour.guard.console import ANY, COMMANDS, JOBS_OF_ORG, OWN_JOBS, ROLES, SITES_OF_ORG, Role, refusal

NVFLARE = Path(nvflare.__file__).parent
JOB = "3f509f41-3a7e-406e-88f6-69672abb2e34"
PERSON = "person@hub.org"

RIGHT: dict[str, tuple[str, ...]] = {
    "_cert_login": (PERSON,),
    "_check_session": ("",),
    "_logout": ("",),
    "_commands": ("", "check_status"),
    "check_status": ("server", "client", "client A", "client A B.x-1", "all"),
    "show_scopes": ("server", "client A"),
    "show_stats": (f"{JOB} server", f"{JOB} client A", f"{JOB} all"),
    "show_errors": (f"{JOB} server", f"{JOB} client A B"),
    "list_jobs": ("", "-d", f"-r -u -m 5 {JOB}", "-n fedavg --submit-token a.b:c-1", "3f50"),
    "get_job_meta": (JOB,),
    "submit_job": ("six_at_work", "fedavg --submit-token x1"),
    "clone_job": (JOB,),
    "abort_job": (JOB,),
    "delete_job": (JOB,),
    "download_job": (JOB,),
    "get_job_log": (JOB, f"{JOB} server", f"{JOB} all", f"{JOB} @ALL", f"{JOB} A", f"{JOB} A log.json"),
    "reset_errors": (f"{JOB} all",),
    "configure_job_log": (f"{JOB} server INFO", f"{JOB} server warning"),
    "sys_info": ("server", "client A"),
    "report_resources": ("all",),
    "report_version": ("all", "client A"),
    "shutdown": ("server", "client A", "all"),
    "restart": ("server", "client", "all"),
    "disable_client": ("A", "A B"),
    "enable_client": ("A",),
    "remove_client": ("A",),
    "admin_check_status": ("server",),
    "list_sessions": ("",),
    "configure_site_log": ("server ERROR",),
}
"""Command -> arguments that it may have."""
PATHS = (
    "other/job",
    ".",
    "a/b",
    "a\\b",
    "~/x",
    "x\ny",
    "",
    "{}",
    "x.json/..",
)
"""What leads, or might lead, to a file. A plain name does not: it is a site's, or a job's folder in an archive."""


def registered() -> set[str]:
    """The names of all commands in the source of NVFlare's server, however they are registered."""
    constants = {**vars(AdminCommandNames), **vars(InternalCommands)}
    commands = set[str]()
    for path in NVFLARE.rglob("*.py"):
        if "client" in path.relative_to(NVFLARE).parts[:3] or path.relative_to(NVFLARE).parts[0] in ("app_opt", "edge"):
            continue
        text = path.read_text(encoding="utf-8")
        if "CommandSpec(" not in text:
            continue
        tree = ast.parse(text)
        names = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "CommandSpec":
                (name,) = (keyword.value for keyword in node.keywords if keyword.arg == "name")
                name = names.get(name.id, name) if isinstance(name, ast.Name) else name
                if isinstance(name, ast.Constant):
                    commands.add(str(name.value))
                elif isinstance(name, ast.Attribute):
                    commands.add(str(constants[name.attr]))
                elif path.parts[-1] != "reg.py":
                    raise AssertionError(f"{path}: a command whose name is not read: {ast.dump(name)}")
    return commands


def test_every_command_that_nvflare_registers_is_in_the_table_and_no_other() -> None:
    modules = {spec.name for module in ServerCommandModules.cmd_modules for spec in module.get_spec().cmd_specs}
    assert modules <= registered() and len(registered()) > 60, "NVFlare registers in another way: look at this test"
    assert registered() == set(COMMANDS)


@pytest.mark.parametrize("role", [*ROLES, "", "another"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_role_gives_the_commands_of_its_own_with_the_arguments_of_the_table(name: str, role: str) -> None:
    allowed = role in COMMANDS[name].roles
    assert allowed or name not in ("_logout", "list_jobs") or role not in ROLES
    assert set(RIGHT) == {name for name, command in COMMANDS.items() if command.roles}
    for line in RIGHT.get(name, ("", JOB)):
        message = refusal(name, line.split(), role=role)
        assert (message is None) is allowed, (line, message)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_no_argument_leads_to_a_file(name: str) -> None:
    """In place of each argument, and after the last one."""
    for line in RIGHT[name]:
        arguments = line.split()
        for path in PATHS:
            for tried in (
                *([*arguments[:n], path, *arguments[n + 1 :]] for n in range(len(arguments))),
                [*arguments, path],
            ):
                if name == "_cert_login" and len(tried) == 1 and "\n" not in path and path:
                    continue  # compared with the connection's certificate
                assert refusal(name, tried, role="project_admin"), tried


@pytest.mark.parametrize("job", [JOB.upper(), JOB.replace("-", ""), f"{JOB}/..", "*", f"{JOB} ", "job"])
@pytest.mark.parametrize("name", sorted(name for name, lines in RIGHT.items() if JOB in lines[0]))
def test_a_job_is_named_by_its_id_as_its_folder_is(name: str, job: str) -> None:
    rest = RIGHT[name][0].split()[1:]
    assert refusal(name, [JOB, *rest], role="project_admin") is None
    assert refusal(name, [job, *rest], role="project_admin")
    message = refusal(name, ["nope", *rest], role="project_admin")
    assert message is not None and message.kind == "job" and "'nope'" in message.reason


@pytest.mark.parametrize("level", ["debug", "reload", "full", "10", "0", "log_config.json", '{"version": 1}', ""])
@pytest.mark.parametrize("name", ["configure_job_log", "configure_site_log"])
def test_a_log_is_set_to_a_level_and_to_nothing_else(name: str, level: str) -> None:
    where = [JOB, "server"] if name == "configure_job_log" else ["server"]
    assert refusal(name, [*where, level], role="project_admin")
    assert refusal(name, [*where[:-1], "client", "A", "INFO"], role="project_admin"), "a site does not do it"


@pytest.mark.parametrize("name", ["disable_client", "enable_client", "remove_client"])
def test_a_site_is_no_console_and_not_the_server(name: str) -> None:
    for site in ("server", "all", "_admin_3f509f41", "server A", "A server"):
        assert refusal(name, site.split(), role="project_admin"), site
    assert refusal(name, ["server_of_A", "serverless", "all_of_us"], role="project_admin") is None


def test_before_the_login_there_is_the_login() -> None:
    assert {name for name, lines in RIGHT.items() if refusal(name, lines[0].split(), role=None) is None} == {
        "_cert_login",
        "_check_session",
    }


def test_whose_jobs_and_sites_they_are_is_decided_by_nvflare_with_the_rights_of_the_table() -> None:
    """The party's organisation is A."""
    policy = {"format_version": "1.0", "permissions": {role: console.rights(role) for role in ROLES}}
    authorizer = FLAuthorizer("a", policy)
    for name, command in COMMANDS.items():
        for role in ROLES:
            whose = command.roles.get(role)
            for org, submitter, where in [
                ("a", Person(PERSON, "a", role), {ANY, OWN_JOBS, JOBS_OF_ORG, SITES_OF_ORG}),
                ("a", Person("other", "a", role), {ANY, JOBS_OF_ORG, SITES_OF_ORG}),
                ("b", Person("other", "a", role), {ANY}),
                ("b", Person(PERSON, "b", role), {ANY, OWN_JOBS, JOBS_OF_ORG}),
            ]:
                may, _ = authorizer.authorize(AuthzContext(name, Person(PERSON, org, role), submitter))
                assert may is (whose in where and not name.startswith("_")), (name, role, org, submitter.name)


def test_what_concerns_sites_of_others_is_the_project_admins() -> None:
    """NVFlare asks about these at the server, whose organisation is one of all."""
    for name in ("disable_client", "enable_client", "remove_client", "configure_site_log", "list_sessions"):
        assert set(COMMANDS[name].roles) == {"project_admin"}


# --- NVFlare's own server asks the table -----------------------------------------------------------------------


class Server:
    """NVFlare's register of commands with its filters; a command that is done is noted, with what it was given."""

    def __init__(self) -> None:
        self.done: list[tuple[str, ...]] = []
        self.role: Role = "lead"
        manager = SessionManager(cell=None)
        manager.get_session = lambda token, asserter: Session("1", PERSON, "hub", self.role, "_admin_x")
        self.manager = manager
        register: ServerCommandRegister = new_command_register_with_builtin_module(app_ctx=SimpleNamespace())
        for module in (LoginModule(manager), manager, *ServerCommandModules.cmd_modules):
            register.register_module(module)
        register.add_filter(LoginModule(manager))
        register.add_filter(AuthzFilter())
        register.finalize()
        for scope in register.scopes.values():
            for entry in scope.entries.values():
                entry.authz_func = None
                entry.handler = lambda conn, args: self.done.append(tuple(args))
        self.register = register

    def asked(self, line: str, *, person: str | None = PERSON) -> str:
        """What a console is answered whose connection has this person's certificate; the session is `PERSON`'s."""
        conn = Connection(props={ConnProps.HCI_SERVER: SimpleNamespace(get_id_asserter=lambda: None)})
        conn.request = {"data": [{"type": "token", "data": "any"}]}
        conn.set_prop(ConnProps.REQUEST, Message({} if person is None else {console.PERSON: person}, b""))
        self.register.process_command(conn, line)
        return str(conn.close())


@pytest.fixture
def server(enforce: Enforce, lower: Lower) -> Iterator[Server]:
    lower(AuthorizationService, the_authorizer=None)
    enforce(console.PATCH)
    running = Server()
    yield running
    running.manager.shutdown()


@pytest.mark.parametrize("prefix", ["", "job_mgmt."])
def test_the_job_log_of_something_that_is_no_party_is_not_given(
    prefix: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    assert "Error" not in server.asked(f"{prefix}get_job_log {JOB} HK") and len(server.done) == 1
    for site in ("HK,UCL", '"x y"'):
        assert "arguments of get_job_log" in server.asked(f"{prefix}get_job_log {JOB} {site}")
    assert len(server.done) == 1
    assert f" {PERSON} (console/get_job_log): " in caplog.text


def test_an_id_of_a_job_that_is_mistyped_is_told_to_the_person_and_not_logged(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    answer = server.asked("get_job_meta nope")
    assert "'nope'" in answer and "invalid_job_id" in answer
    assert not server.done and not caplog.messages


@pytest.mark.parametrize("role", ROLES)
def test_the_server_does_what_the_table_says(role: Role, server: Server) -> None:
    server.role = role
    names = {name for scope in server.register.scopes.values() for name in scope.entries}
    assert names > {"submit_job", "list_sessions", "_commands", "register_study"}
    for name in sorted(names - {"_cert_login"}):
        server.done.clear()
        server.asked(f"{name} {RIGHT.get(name, ('',))[0]}".strip())
        assert bool(server.done) is (role in COMMANDS[name].roles), name


def test_the_usage_of_a_command_names_what_its_pattern_takes() -> None:
    for name, command in COMMANDS.items():
        assert bool(command.usage) is bool(command.pattern), name
        words = set(re.findall(r"[A-Z]{3,}", command.usage))
        assert words <= {"JOB", "SITE", "PERSON", "COMMAND", "NAME", "NUMBER", "TOKEN", "FOLDER", "LEVEL"}, name


@pytest.mark.parametrize(
    ("line", "said"), [(f"abort_job {JOB}", "another person's"), (f"_cert_login {PERSON}", "REJECT")]
)
def test_a_session_and_a_login_are_their_owners(line: str, said: str, server: Server) -> None:
    for person in ("other@hub.org", "", None):
        assert said in server.asked(line, person=person) and not server.done
    server.asked(line)
    assert len(server.done) == 1
    assert "REJECT" in server.asked("_cert_login")
