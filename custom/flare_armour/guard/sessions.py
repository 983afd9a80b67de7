"""A console's session is of the person whose certificate its connection has, and gives the commands of the table.

NVFlare 2.9: a console's session is not bound to its owner's connection, and few arguments of commands are checked.
Cost: a coordinator may give orders with another's rights.
Instead: the gate writes down whose certificate a console's connection has, and a login or a token of somebody else is
refused. And `console_commands` is asked before NVFlare looks at a command.
Fixed in NVFlare when: a session is bound to its connection's certificate, and a command's arguments are checked where
commands are registered.
"""

from __future__ import annotations

from typing import Any

from nvflare.fuel.hci.proto import InternalCommands, MetaStatusValue, make_meta
from nvflare.fuel.hci.server.constants import ConnProps

from flare_armour.console_commands import refusal
from flare_armour.guard.gate import DROPS
from flare_armour.patches.patch import Patch, find
from flare_armour.patches.refusals import PERSON

LOGIN = "nvflare.fuel.hci.server.login:LoginModule"
STATUS = {
    "role": MetaStatusValue.NOT_AUTHORIZED,
    "arguments": MetaStatusValue.SYNTAX_ERROR,
    "job": MetaStatusValue.INVALID_JOB_ID,
}
"""What a console is told beside the sentence, by the kind of refusal."""
PATCH = Patch(
    name="sessions",
    without="one coordinator could speak with another's rights",
    replaces={
        f"{LOGIN}.pre_command": "cfd169f9e8fc",
        # Not replaced: where the message is kept for it, and whose session a login makes.
        f"{LOGIN}.handle_cert_login": "61f9244302fb",
        "nvflare.fuel.hci.server.hci:AdminServer._process_admin_request": "cc23671aa44a",
    },
)


def apply() -> None:
    """Have the server look at the person before each command.

    Raises:
        NotAsExpectedError: NVFlare is another than this was written for.
    """
    PATCH.demand()
    login = find(LOGIN)
    original = login.pre_command

    def pre_command(self: Any, conn: Any, args: list[str]) -> bool:
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

    login.pre_command = pre_command
    PATCH.put_in_place()
