"""What the server takes from whom."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message

from armour.conftest import Lower
from fedshift.flare import codec
from flare_armour.pieces.array_files import FileOf, NotInFileError, file_of, take_out
from flare_armour.pieces.server_end import ServerEnd
from flare_armour.pieces.wire import FETCH, SEND, Ask, Reply

from .messages import answer, ends, same, site, task, weights

FILE = FileOf("a" * 64, 1000)
CLOSED = Reply(closed=True)


def sends(server: ServerEnd, client: str, file: FileOf = FILE, offset: int = 0, piece: bytes = b"x" * 10) -> Reply:
    return server.answer(client, SEND, Ask(file, offset, piece).encode())


def test_only_clients_that_are_asked_and_have_not_answered_are_taken_from(tmp_path: Path) -> None:
    server, line = ends(tmp_path)
    assert sends(server, "HK") == Reply(held=10)
    for stranger in ("UCL", "", "..", ".task"):
        assert sends(server, stranger) == CLOSED
    message = answer()
    site(tmp_path, line).send(message, "the update")
    server.restore("HK", message)
    assert sends(server, "HK") == CLOSED, "it has answered"
    server.close()
    assert sends(server, "HK") == CLOSED, "no round is open"
    assert not list((tmp_path / "server").iterdir()), "nothing of a site is left"


@pytest.mark.parametrize(
    "told",
    [
        None,
        b"bytes",
        {},
        {"sha256": "../../../etc/passwd", "size": 10, "offset": 0, "piece": b"x"},
        {"sha256": "A" * 64, "size": 10, "offset": 0, "piece": b"x"},
        {"sha256": "a" * 64, "size": -1, "offset": 0, "piece": b"x"},
        {"sha256": "a" * 64, "size": 10.0, "offset": 0, "piece": b"x"},
        {"sha256": "a" * 64, "size": 10, "offset": 11, "piece": b"x"},
        {"sha256": "a" * 64, "size": 10, "offset": True, "piece": b"x"},
        {"sha256": "a" * 64, "size": 10, "offset": 0, "piece": "x"},
        {"sha256": "a" * 64, "size": 2**40, "offset": 0, "piece": bytes((4 << 20) + 1)},
        {"sha256": "a" * 64, "size": 10, "offset": 0, "length": 2**30},
    ],
)
def test_what_is_no_request_is_answered_nothing(told: Any, tmp_path: Path) -> None:
    server, _ = ends(tmp_path)
    assert server.answer("HK", SEND, told) == CLOSED == server.answer("HK", FETCH, told)
    assert not list(tmp_path.rglob("*"))


def test_an_answer_larger_than_the_job_allows_is_refused_before_anything_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = ServerEnd(tmp_path, largest=999)
    server.open(Shareable(), ("HK",), place="round 1")
    with caplog.at_level(logging.WARNING, "flare_armour"):
        assert [sends(server, "HK") for _ in range(3)] == [CLOSED] * 3
    (text,) = caplog.messages
    assert " HK " in text and " 1000 " in text and text.endswith(" 999")
    assert not list(tmp_path.rglob("*"))


def test_a_site_has_one_file_at_the_server(tmp_path: Path) -> None:
    server, _ = ends(tmp_path)
    for number in range(5):
        assert sends(server, "HK", FileOf(f"{number:064x}", 1000)).held == 10
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_a_file_with_another_digest_has_to_come_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server, _ = ends(tmp_path)
    with caplog.at_level(logging.WARNING, "flare_armour"):
        assert [sends(server, "HK", piece=b"x" * 1000) for _ in range(3)] == [Reply(held=0)] * 3
    (record,) = caplog.records
    assert "HK's update of round 1" in record.message


def test_an_answer_whose_arrays_have_not_come_is_not_restored(tmp_path: Path) -> None:
    server, line = ends(tmp_path)
    message = answer()
    file = take_out(message, tmp_path / "file")
    assert file is not None
    for length in (0, 1):
        if length:
            line.server.answer("HK", SEND, Ask(file, 0, b"x").encode())
        with pytest.raises(NotInFileError, match="not come whole"):
            server.restore("HK", message)
    small = Shareable()
    server.restore("HK", small)
    assert not small.get("fedshift_arrays")


def test_the_task_of_the_open_round_is_handed_out_and_no_other_file(tmp_path: Path) -> None:
    message = task()
    server, _ = ends(tmp_path, task=message)
    file = file_of(message)
    assert file is not None
    assert server.answer("UCL", FETCH, Ask(file, 0, length=10).encode()) == CLOSED
    assert server.answer("HK", FETCH, Ask(FILE, 0, length=10).encode()) == CLOSED
    assert len(server.answer("HK", FETCH, Ask(file, 64, length=10).encode()).piece) == 10
    server.open(Shareable(), ("HK",), place="round 2")
    assert server.answer("HK", FETCH, Ask(file, 0, length=10).encode()) == CLOSED


def test_only_what_is_new_is_progress(tmp_path: Path, lower: Lower) -> None:
    message = task()
    server, _ = ends(tmp_path, task=message)
    file = file_of(message)
    assert file is not None
    moment = 0.0
    lower(time, monotonic=lambda: moment)

    def after(seconds: float, reply: Reply) -> dict[str, float]:
        assert not reply.closed
        nonlocal moment
        moment += seconds
        return server.moved()

    assert after(1, sends(server, "HK")) == {"HK": 0.0}
    assert after(1, sends(server, "HK")) == {"HK": 0.0}, "repeated"
    assert after(1, sends(server, "HK", offset=10)) == {"HK": 2.0}
    for offset, expected in ((0, 2.0), (10, 4.0), (10, 4.0), (20, 6.0)):
        reply = server.answer("HK", FETCH, Ask(file, offset, length=10).encode())
        assert after(1, reply) == {"HK": expected}
    assert server.moved(since=5.0) == {"HK": 1.0}, "counted from the opening of the round"
    server.open(Shareable(), ("HK",), place="round 2")
    assert not server.moved()


def test_a_request_counts_for_the_cell_that_it_comes_from(tmp_path: Path) -> None:
    """The guard has compared that with the certificate; what a message says beside it is not looked at."""
    callbacks: dict[str, Any] = {}
    server, _ = ends(tmp_path)
    server.register(SimpleNamespace(register_request_cb=lambda channel, topic, cb: callbacks.update({topic: cb})))
    told = Ask(FILE, 0, b"x").encode() | {"client": "HK"}
    for origin, closed in (("UCL.job", True), ("HK.job", False), ("", True)):
        reply = callbacks[SEND](Message({MessageHeaderKey.ORIGIN: origin}, told))
        assert reply.payload["closed"] is closed


def test_without_room_at_the_server_the_task_goes_in_one(tmp_path: Path) -> None:
    (tmp_path / "server" / "pieces" / ".task").mkdir(parents=True)  # no file can be written there
    message = task()
    ends(tmp_path, task=message)
    assert file_of(message) is None and same(codec.decode_task(message).weights, weights())
