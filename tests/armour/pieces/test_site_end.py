"""Both ends together: what is lost on the way, who restarts, and what the server no longer wants."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from armour.conftest import Lower
from fedshift.flare import codec
from flare_armour.pieces import site_end
from flare_armour.pieces.array_files import NotInFileError, file_of
from flare_armour.pieces.server_end import ServerEnd
from flare_armour.pieces.site_end import GivenUpError
from flare_armour.pieces.wire import FETCH, SEND, Reply

from .messages import Line, answer, ends, read_answer, same, site, task, weights


def test_an_answer_arrives_bit_for_bit(tmp_path: Path) -> None:
    server, line = ends(tmp_path)
    message = answer()
    site(tmp_path, line).send(message, "the update")
    server.restore("HK", message)
    assert same(read_answer(message).weights, weights())
    assert not list((tmp_path / "HK" / "pieces").iterdir()), "the site's copy is gone"


def test_a_task_arrives_bit_for_bit_and_is_not_fetched_twice(tmp_path: Path) -> None:
    message, again = task(), task()
    _, line = ends(tmp_path, task=message)
    again.update(message)
    site(tmp_path, line).fetch(message, "the model")
    assert same(codec.decode_task(message).weights, weights())
    asked = len(line.asked)
    message = task()
    server = ServerEnd(tmp_path / "server", largest=1)  # it was started again and sends the same task
    server.open(message, ("HK",), place="round 1")
    line.server = server
    site(tmp_path, line).fetch(message, "the model")
    assert same(codec.decode_task(message).weights, weights())
    assert len(line.asked) == asked


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_what_has_arrived_is_not_sent_again(lost: str, tmp_path: Path) -> None:
    server, line = ends(tmp_path)
    line.lose = lambda number, topic: lost if number in (5, 6, 9) else ""
    message = answer()
    site(tmp_path, line).send(message, "the update")
    file = file_of(message)
    assert file is not None
    again = line.sent - file.size
    assert 0 < again <= 3 * max(len(ask.piece) for ask in line.asked) if lost == "request" else again == 0
    server.restore("HK", message)
    assert same(read_answer(message).weights, weights())


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_what_has_been_fetched_is_not_fetched_again(lost: str, tmp_path: Path) -> None:
    message = task()
    _, line = ends(tmp_path, task=message)
    line.lose = lambda number, topic: lost if number in (4, 5) else ""
    site(tmp_path, line).fetch(message, "the model")
    assert same(codec.decode_task(message).weights, weights())
    offsets = [ask.offset for ask in line.asked]
    assert offsets == sorted(offsets) and len(offsets) - len(set(offsets)) == 2


def test_a_site_that_is_started_again_goes_on_with_its_answer(tmp_path: Path) -> None:
    server, line = ends(tmp_path)
    stop = False

    def cut(number: int, topic: str) -> str:
        nonlocal stop
        stop = number == 6
        return ""

    line.lose = cut
    with pytest.raises(GivenUpError, match="ended"):
        site(tmp_path, line, stopped=lambda: stop).send(answer(), "the update")
    first = line.sent
    line.lose = lambda number, topic: ""
    message = answer()
    site(tmp_path, line).send(message, "the update")
    file = file_of(message)
    assert file is not None and line.sent == file.size and 0 < first < file.size
    server.restore("HK", message)
    assert same(read_answer(message).weights, weights())


def test_a_server_that_is_started_again_goes_on_with_the_answer(tmp_path: Path) -> None:
    _, line = ends(tmp_path)

    def restart(number: int, topic: str) -> str:
        if number == 6:
            line.server, _ = ends(tmp_path)
        return ""

    line.lose = restart
    message = answer()
    site(tmp_path, line).send(message, "the update")
    file = file_of(message)
    assert file is not None and line.sent == file.size
    last, _ = ends(tmp_path)  # once more, after all of it has come
    last.restore("HK", message)
    assert same(read_answer(message).weights, weights())


def test_a_server_that_lost_what_it_had_is_sent_all_of_it(tmp_path: Path) -> None:
    server, line = ends(tmp_path)

    def lose(number: int, topic: str) -> str:
        if number == 6:
            server.close()
            server.open(answer_free(), ("HK",), place="round 1")
        return ""

    line.lose = lose
    message = answer()
    site(tmp_path, line).send(message, "the update")
    server.restore("HK", message)
    assert same(read_answer(message).weights, weights())


def answer_free() -> codec.Shareable:
    """A task without arrays."""
    return codec.Shareable()


def test_pieces_grow_on_a_quick_line_and_shrink_on_a_slow_one(tmp_path: Path, lower: Lower) -> None:
    _, line = ends(tmp_path)
    lower(site_end, LEAST=1000)
    moment = 0.0

    def slow(number: int, topic: str) -> str:
        nonlocal moment
        moment += 5.0 if 9 <= number < 15 else 0.1
        return ""

    lower(time, monotonic=lambda: moment)
    line.lose = slow
    site(tmp_path, line, clients=1).send(answer(), "the update")
    sizes = [len(ask.piece) for ask in line.asked]
    assert sizes[1:5] == [2000, 4000, 8000, 16000]
    assert sizes[8] == max(sizes[:15]) == 256_000 and sizes[9:12] == [128_000, 64_000, 32_000]


def test_a_round_that_is_over_is_not_sent_to(tmp_path: Path) -> None:
    server, line = ends(tmp_path)
    line.lose = lambda number, topic: server.close() or "" if number == 4 else ""  # type: ignore[func-returns-value]
    with pytest.raises(GivenUpError, match="server"):
        site(tmp_path, line).send(answer(), "the update")
    message = task()
    server.open(message, ("HK",), place="round 2")
    line.lose = lambda number, topic: server.close() or "" if number == 8 else ""  # type: ignore[func-returns-value]
    with pytest.raises(GivenUpError, match="server"):
        site(tmp_path, line).fetch(message, "the model")


def test_no_more_is_fetched_than_a_task_can_have(tmp_path: Path) -> None:
    message = task()
    _, line = ends(tmp_path, task=message)
    with pytest.raises(NotInFileError, match="allowed are 1000"):
        site(tmp_path, line, largest=1000).fetch(message, "the model")
    assert not line.asked


def test_a_server_that_gives_something_else_is_given_up(tmp_path: Path) -> None:
    message = task()
    take, line = ends(tmp_path, task=message)
    del take

    def other(topic: str, told: dict[str, object]) -> object:
        assert topic == FETCH
        return Reply(piece=bytes(int(str(told["length"])))).encode()

    with pytest.raises(GivenUpError, match="came 3 times"):
        site(tmp_path, other).fetch(message, "the model")  # type: ignore[arg-type]
    with pytest.raises(codec.WireError):
        codec.decode_task(message)
    del line


def test_an_answer_that_never_arrives_as_it_was_sent_is_given_up(tmp_path: Path) -> None:
    def loses(topic: str, told: dict[str, object]) -> object:
        assert topic == SEND
        return Reply(held=0 if told["offset"] else 1000).encode()

    with pytest.raises(GivenUpError, match="sent 3 times"):
        site(tmp_path, loses).send(answer(), "the update")  # type: ignore[arg-type]


def test_without_room_at_the_site_the_answer_goes_in_one(tmp_path: Path) -> None:
    _, line = ends(tmp_path)
    (tmp_path / "HK" / "pieces" / "answer").mkdir(parents=True)  # no file can be written there
    message = answer()
    site(tmp_path, line).send(message, "the update")
    assert not line.asked and same(read_answer(message).weights, weights())


def test_a_site_leaves_nothing_when_the_job_ends(tmp_path: Path) -> None:
    message = task()
    _, line = ends(tmp_path, task=message)
    end = site(tmp_path, line)
    end.fetch(message, "the model")
    end.end()
    assert not list((tmp_path / "HK").iterdir())
    assert same(codec.decode_task(message).weights, weights()), "what is in use stays"


def test_two_sites_send_at_the_same_time(tmp_path: Path) -> None:
    server, line = ends(tmp_path, clients=("HK", "UCL"))
    one, other = answer(1), answer(2)
    site(tmp_path, line).send(one, "the update")
    site(tmp_path / "UCL", Line(server, "UCL")).send(other, "the update")
    server.restore("UCL", other)
    server.restore("HK", one)
    assert same(read_answer(one).weights, weights(1)) and same(read_answer(other).weights, weights(2))
