"""Whose commands the server does: those of the person whose certificate the console's connection has."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.f3.message import Message
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.proto import InternalCommands
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.hci.server.login import LoginModule
from nvflare.fuel.hci.server.sess import Session, SessionManager

from flare_armour import patch
from flare_armour.guard import console
from flare_armour.log_limits import PERSON

JOB = "3f509f41-3a7e-406e-88f6-69672abb2e34"
OWNER, OTHER = "lead@hub.org", "other@hub.org"


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoginModule]:
    """With one session, of `OWNER`; its token is any."""
    monkeypatch.setattr(LoginModule, "pre_command", LoginModule.pre_command)
    monkeypatch.setattr(patch, "IN_PLACE", set())
    console.PATCH.enforce()
    manager = SessionManager(cell=None)
    manager.get_session = lambda token, asserter: Session("1", OWNER, "hub", "lead", "_admin_x")
    yield LoginModule(manager)
    manager.shutdown()


def given(login: LoginModule, *command: str, person: str | None) -> tuple[bool, str]:
    """Whether a command that comes over this person's connection is done, and what the console is told."""
    conn = Connection(props={ConnProps.HCI_SERVER: SimpleNamespace(get_id_asserter=lambda: None)})
    conn.request = {"data": [{"type": "token", "data": "any"}]}
    headers: dict[str, Any] = {} if person is None else {PERSON: person}
    conn.set_prop(ConnProps.REQUEST, Message(headers, b""))
    conn.set_prop(ConnProps.CMD_ENTRY, SimpleNamespace(name=command[0]))
    done = login.pre_command(conn, list(command))
    return done, str(conn.close())


def test_a_session_is_used_over_its_owners_connection_only(login: LoginModule) -> None:
    assert given(login, "abort_job", JOB, person=OWNER)[0]
    for person in (OTHER, "", None):
        done, said = given(login, "abort_job", JOB, person=person)
        assert not done and "another person's" in said


def test_nobody_logs_in_as_another(login: LoginModule) -> None:
    assert given(login, InternalCommands.CERT_LOGIN, OWNER, person=OWNER)[0]
    for person in (OTHER, "", None):
        done, said = given(login, InternalCommands.CERT_LOGIN, OWNER, person=person)
        assert not done and "REJECT" in said
    assert not given(login, InternalCommands.CERT_LOGIN, person=OWNER)[0]
