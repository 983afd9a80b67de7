"""A clock that is set ends nothing: NVFlare's modules reckon with seconds since their process began."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest import mock

import pytest
from nvflare.apis.client import Client
from nvflare.private.fed.server.fed_server import BaseServer

from armour.conftest import Lower
from flare_armour.patches import clock as steady_clock
from flare_armour.patches.clock import MODULES, Clock

HOURS = 3 * 3600.0


def test_the_clock_goes_on_whatever_the_time_of_day_does() -> None:
    day, passed = 1e9, 50.0
    clock = Clock(of_day=lambda: day, monotonic=lambda: passed)
    assert clock.time() == 1e9
    for jump in (HOURS, -HOURS, 1e9):
        before, day, passed = clock.time(), day + jump, passed + 2
        assert clock.time() - before == 2
    assert clock.sleep is time.sleep and clock.monotonic is time.monotonic and clock.strftime is time.strftime


@pytest.fixture
def steady(lower: Lower) -> None:
    """The patch, for one test."""
    for name in MODULES:
        lower(importlib.import_module(name), time=time)
    steady_clock.apply()


def left_after(jump: float, silent: float = 0.0) -> int:
    """Sites that the server has left of three after its clock has jumped and they were silent for so long."""
    sites = {name: Client(name, name) for name in "ABC"}
    for client in sites.values():
        client.last_connect_time -= silent
    server = SimpleNamespace(
        heart_beat_timeout=600,
        logger=logging.getLogger("test"),
        client_manager=SimpleNamespace(get_clients=lambda: sites),
        logout_client=sites.pop,
    )
    of_day = time.time
    with mock.patch("time.time", lambda: of_day() + jump):
        BaseServer.remove_dead_clients(server)
    return len(sites)


@pytest.mark.usefixtures("steady")
def test_no_site_is_dead_because_a_clock_was_set_and_a_silent_one_still_is() -> None:
    assert left_after(HOURS) == 3
    assert left_after(-HOURS) == 3
    assert left_after(-HOURS, silent=601) == 0


def test_every_process_of_a_federation_has_the_modules_when_the_patch_is_applied() -> None:
    """What is imported later would keep the time of day."""
    for entry in ("client.worker_process", "server.runner_process", "client.client_train", "server.server_train"):
        code = (
            f"import sys, nvflare.private.fed.app.{entry}\n"
            "from flare_armour.patches import clock\n"
            "assert not set(clock.MODULES) - set(sys.modules)\n"
            "clock.PATCH.install()\n"
            "kinds = {type(sys.modules[name].time) for name in clock.MODULES}\n"
            "assert kinds == {clock.Clock}, kinds\n"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
        assert result.returncode == 0, result.stderr
