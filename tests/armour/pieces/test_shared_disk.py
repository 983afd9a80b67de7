"""In FLARE's simulator the other end maps the file itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedshift.flare import codec
from fedshift.schema.messages import Answer, Failure
from flare_armour.pieces.array_files import KEY, file_of
from flare_armour.pieces.shared_disk import SharedDisk

from .messages import answer, read_answer, same, task, weights


def test_a_task_and_its_answers_cross_the_disk_bit_for_bit_and_leave_nothing(tmp_path: Path) -> None:
    server, message = SharedDisk(tmp_path / "server"), task()
    server.open(message, ("HK", "UCL"), place="round 1")
    assert file_of(message) is not None
    for name in ("HK", "UCL"):
        site, received, sent = SharedDisk(tmp_path / name), type(message)(message), answer()
        received.update(task())  # a copy of its own
        server.open(received, (name,), place="round 1")
        site.fetch(received, "the model")
        received_weights = codec.decode_task(received).weights
        assert same(received_weights, weights())
        received_weights["z.weight"][:] = 0  # changes no file
        site.send(sent, "the update")
        assert KEY in sent
        server.restore(name, sent)
        assert same(read_answer(sent).weights, weights())
        site.end()
    server.close()
    assert not list(tmp_path.rglob("pieces"))


def test_small_messages_and_those_that_cannot_be_written_go_in_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pieces" / "answer").mkdir(parents=True)
    full, small = answer(), codec.encode_answers([Answer(Failure("HK", 1, "no data"))])
    disk = SharedDisk(tmp_path)
    for message in (full, small):
        disk.send(message, "the update")
        disk.restore("HK", message)
        assert KEY not in message
    assert len(caplog.records) == 1 and same(read_answer(full).weights, weights())
