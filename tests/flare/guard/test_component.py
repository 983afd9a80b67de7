"""The guard is there before a process can hear anything, and a process without it does not start."""

from __future__ import annotations

import logging

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.core_cell import CoreCell

from fedshift.flare.guard import commands, component, gate, sessions
from fedshift.flare.patches import patch
from fedshift.flare.patches.job_restart import ServerJobLauncher, SiteJobLauncher
from fedshift.flare.patches.patch import NotAsExpectedError


@pytest.fixture(autouse=True)
def nothing_done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the guard would do to this process is only noted."""
    done: list[str] = []
    monkeypatch.setattr(component, "_installed", [])
    monkeypatch.setattr(CoreCell, "ALL_CELLS", {})
    monkeypatch.setattr(patch, "IN_PLACE", set())
    monkeypatch.setattr(gate, "apply", lambda: done.append("gate"))
    monkeypatch.setattr(commands, "apply", lambda: done.append("commands"))
    monkeypatch.setattr(sessions, "apply", lambda: done.append("sessions"))
    monkeypatch.setattr(component.patches, "install", lambda *modules: done.append("patches"))
    return done


def test_it_is_installed_once(nothing_done: list[str]) -> None:
    for _ in range(2):
        component.Guard()
    assert nothing_done == ["gate", "commands", "sessions", "patches", "patches"]


def test_it_must_come_before_the_first_connection(monkeypatch: pytest.MonkeyPatch, nothing_done: list[str]) -> None:
    monkeypatch.setattr(CoreCell, "ALL_CELLS", {"HK": object()})
    with pytest.raises(RuntimeError, match="before the first connection"):
        component.Guard()
    assert not nothing_done


def test_a_process_that_cannot_have_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def other() -> None:
        raise NotAsExpectedError("NVFlare is another")

    for part in (gate, commands, sessions):
        monkeypatch.setattr(part, "apply", other)
        with pytest.raises(NotAsExpectedError):
            component.Guard()


@pytest.mark.parametrize("launcher", [SiteJobLauncher, ServerJobLauncher])
def test_a_kit_from_before_the_guard_does_not_start(
    launcher: type[SiteJobLauncher | ServerJobLauncher], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotAsExpectedError, match="run 'fedshift site init' with --force"):
        launcher()
    monkeypatch.setattr(patch, "IN_PLACE", {"gate"})
    launcher()


@pytest.mark.parametrize("root", [True, False])
def test_a_party_that_runs_as_root_is_warned(
    root: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(component, "is_root", lambda: root)
    with caplog.at_level(logging.WARNING, logger="fedshift"):
        component.Guard().handle_event(EventType.SYSTEM_START, FLContext())
    assert ["runs as root" in text for text in caplog.messages] == [True] * root
