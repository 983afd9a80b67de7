"""The near end of a connection, as a server has it, without a far end."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers.connector_info import Mode

OUTSIDE = {"scheme": "http", "secure": True}
WITHIN = {"scheme": "tcp", "secure": False}


class Wire(Connection):  # type: ignore[misc]
    """A connection that another end with this certificate has made."""

    def __init__(self, person: str, params: dict[str, Any], mode: Mode = Mode.PASSIVE) -> None:
        connector: Any = SimpleNamespace(params=params, mode=mode, total_conns=0, curr_conns=0)
        super().__init__(connector)
        self.person, self.closed = person, False

    def get_conn_properties(self) -> dict[str, Any]:
        return {"peer_cn": self.person}

    def close(self) -> None:
        self.closed = True

    def send_frame(self, frame: Any) -> None:
        """Nobody listens."""


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
