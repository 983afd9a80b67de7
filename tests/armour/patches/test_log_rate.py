"""NVFlare's log under a flood."""

from __future__ import annotations

import logging

import pytest

from flare_armour import patches
from flare_armour.patches import log_rate
from flare_armour.patches.log_rate import LOGGERS, MOST, PERIOD, LogRate

patches.install()


def test_a_line_of_code_logs_so_often_and_says_what_was_left_out() -> None:
    now = [0.0]
    rate, passed = LogRate(lambda: now[0]), list[str]()

    def log(line: int, text: str = "%s came too late") -> None:
        record = logging.LogRecord("x", logging.ERROR, "x.py", line, text, ("a piece",), None)
        if rate.filter(record):
            passed.append(record.getMessage())

    for _ in range(3 * MOST):
        log(1)
    log(2)
    assert len(passed) == MOST + 1
    now[0] = PERIOD
    log(1)
    assert passed[-1] == f"a piece came too late ({2 * MOST} like this were left out)"
    log(1)
    assert passed[-1] == "a piece came too late"


@pytest.mark.parametrize("name", LOGGERS)
def test_it_is_before_every_logger_that_a_message_can_reach(name: str) -> None:
    assert sum(isinstance(one, LogRate) for one in logging.getLogger(name).filters) == 1


def test_the_loggers_are_nvflare_s() -> None:
    from nvflare.fuel.f3.cellnet.cell import Adapter, Cell
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.sfm import conn_manager
    from nvflare.fuel.f3.streaming import blob_streamer, byte_receiver, byte_streamer, stream_types

    modules = {m.log.name for m in (conn_manager, blob_streamer, byte_receiver, byte_streamer, stream_types)}
    classes = {f"{kind.__module__}.{kind.__qualname__}" for kind in (Adapter, Cell, CoreCell)}
    assert modules | classes == set(log_rate.LOGGERS)
