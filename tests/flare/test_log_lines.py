"""What another party has sent cannot forge an entry of the log, nor reach the terminal as more than text."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest

from fedshift.flare.kit_files import log_config
from fedshift.flare.log_lines import MOST, OneEntry

ENTRY = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) ")
FORGED = "x\n2026-11-23 12:00:00,000 INFO    fedshift: finished\r\x1b[2J\x1b]0;title\x07\u202e\u2028\x85\udcff"


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger with the format of our kits, and what it has written."""
    written, made = io.StringIO(), logging.Logger("fedshift")
    handler = logging.StreamHandler(written)
    line = log_config()["formatters"]["line"]
    assert line["()"] == f"{OneEntry.__module__}.OneEntry"
    handler.setFormatter(OneEntry(fmt=line["fmt"]))
    made.addHandler(handler)
    yield made, written


def test_a_message_is_one_entry_whatever_it_holds(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, written = log
    logger.error("site HK is left out: %s", FORGED)
    text = written.getvalue()
    lines = text.rstrip("\n").split("\n")
    assert len([line for line in lines if ENTRY.match(line)]) == 1 and len(lines) == 2
    assert all(character.isprintable() or character == "\n" for character in text)
    assert r"\r\x1b[2J\x1b]0;title\x07\u202e\u2028\x85\udcff" in text, "nothing is hidden"
    text.encode("utf-8")


def test_the_text_of_an_exception_is_no_entry_either(log: tuple[logging.Logger, io.StringIO]) -> None:
    """A message that cannot be read is logged with its traceback, which ends with what was in the message."""
    logger, written = log
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("the answer of HK cannot be read")
    lines = written.getvalue().rstrip("\n").split("\n")
    assert [bool(ENTRY.match(line)) for line in lines] == [True] + [False] * (len(lines) - 1)
    assert any("Traceback (most recent call last)" in line for line in lines) and "\x1b" not in written.getvalue()


def test_an_entry_has_a_bound_and_an_ordinary_one_stays_as_it_is(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, written = log
    logger.warning("größe %s", "y" * 10**6)
    assert len(written.getvalue()) < MOST + 100 and "more characters)" in written.getvalue()
    written.truncate(0)
    logger.warning("round %d done – β", 1)
    assert written.getvalue().endswith(" fedshift: round 1 done – β\n")
