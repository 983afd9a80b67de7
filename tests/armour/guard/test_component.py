"""The guard is there before a process can hear anything, and a process without it does not start."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.fuel.f3.cellnet.core_cell import CoreCell

from armour.conftest import Lower
from fedshift.flare.guard import Guard
from flare_armour import locks, patch
from flare_armour.disabled_sites import DISABLED, FILE
from flare_armour.guard import component
from flare_armour.patch import ArmourError, NotAsExpectedError, Patch
from flare_armour.restart import ServerJobLauncher, SiteJobLauncher


@pytest.fixture(autouse=True)
def done(lower: Lower) -> list[str]:
    """What the guard would do to this process is only noted."""
    done: list[str] = []
    lower(CoreCell, ALL_CELLS={})
    lower(patch, IN_PLACE=set())

    def enforce(part: Patch) -> None:
        if not part.in_place:
            patch.IN_PLACE.add(part.name)
            done.append(part.name)

    lower(Patch, enforce=enforce)
    lower(component.patches, install=lambda *modules: done.append("patches"))
    return done


def test_it_is_installed_once_and_before_the_first_connection(lower: Lower, done: list[str]) -> None:
    lower(CoreCell, ALL_CELLS={"HK": object()})
    with pytest.raises(ArmourError, match=r"resources\.json"):
        Guard()
    assert not done
    lower(CoreCell, ALL_CELLS={})
    Guard()
    lower(CoreCell, ALL_CELLS={"HK": object()})
    Guard()
    assert done == ["gate", "orders", "sessions", "disabling", "patches", "patches"]


def test_a_process_that_cannot_have_it_does_not_start(lower: Lower) -> None:
    def other(part: Patch) -> None:
        raise NotAsExpectedError("NVFlare is another")

    lower(Patch, enforce=other)
    with pytest.raises(NotAsExpectedError):
        Guard()


@pytest.mark.parametrize("launcher", [SiteJobLauncher, ServerJobLauncher])
def test_a_kit_from_before_the_guard_does_not_start(
    launcher: type[SiteJobLauncher | ServerJobLauncher], lower: Lower
) -> None:
    with pytest.raises(NotAsExpectedError, match=r"resources\.json"):
        launcher()
    lower(patch, IN_PLACE={"gate"})
    launcher()


@pytest.mark.parametrize("root", [True, False])
def test_a_party_that_runs_as_root_is_warned(root: bool, lower: Lower, caplog: pytest.LogCaptureFixture) -> None:
    lower(os, geteuid=lambda: 1 - root)
    with caplog.at_level(logging.WARNING, logger="flare_armour"):
        Guard().handle_event(EventType.SYSTEM_START, FLContext())
    assert ["runs as root" in text for text in caplog.messages] == [True] * root


# --- before anybody can register -------------------------------------------------------------------------------


@pytest.fixture
def begins(kits_of: Callable[[str], Path], tmp_path: Path, lower: Lower) -> Iterator[Callable[[str], Guard]]:
    """Start the process between jobs of a party, as far as the guard has to do with it."""
    lower(locks, KIT_PATIENCE=0.0)

    def begin(name: str) -> Guard:
        folder = tmp_path / name
        if not folder.exists():
            shutil.copytree(kits_of("prostate") / name, folder)
        context, guard = FLContext(), Guard()
        context.set_prop(FLContextKey.WORKSPACE_OBJECT, Workspace(str(folder), name), private=True)
        guard.handle_event(EventType.SYSTEM_BOOTSTRAP, context)
        return guard

    yield begin
    DISABLED.use(None)


def test_a_second_process_of_a_sites_kit_does_not_go_on(begins: Callable[[str], Guard], tmp_path: Path) -> None:
    first = begins("HK")
    with pytest.raises(UnsafeComponentError, match=re.escape(str(tmp_path / "HK"))):
        begins("HK")
    assert first._lock is not None
    first._lock.close()
    begins("HK")
    assert begins("localhost")._lock is None, "a server locks its store"


def test_a_server_whose_list_of_disabled_sites_is_damaged_does_not_go_on(
    begins: Callable[[str], Guard], tmp_path: Path
) -> None:
    begins("localhost")
    DISABLED.add(["HK"], by="project@coordination.example")
    DISABLED.use(None)
    begins("localhost")
    assert set(DISABLED.all()) == {"HK"}
    (tmp_path / "localhost" / FILE).write_text("{", encoding="utf-8")
    with pytest.raises(UnsafeComponentError, match=FILE):
        begins("localhost")
