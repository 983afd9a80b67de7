"""Arrays leave a message for a file and come back as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from nvflare.apis.shareable import Shareable
from nvflare.app_common.decomposers import numpy_decomposers
from nvflare.fuel.utils import fobs

from fedshift.flare import codec
from fedshift.schema.messages import Answer, Failure
from flare_armour.pieces.array_files import KEY, NotInFileError, file_of, put_back, take_out

from .messages import answer, read_answer, same, task, update, weights


def test_arrays_come_back_bit_for_bit_and_the_message_is_small(tmp_path: Path) -> None:
    message = answer()
    file = take_out(message, tmp_path / "file")
    assert file is not None and file.size == (tmp_path / "file").stat().st_size
    numpy_decomposers.register()
    sent = fobs.dumps(message)
    assert len(sent) < 10_000
    received = fobs.loads(sent)
    put_back(received, tmp_path / "file", writable=False)
    (tmp_path / "file").unlink()
    update_read = read_answer(received)
    assert same(update_read.weights, weights())
    assert same(update_read.arrays["scaffold"], update().arrays["scaffold"])
    assert not update_read.weights["z.weight"].flags.writeable


def test_a_site_may_write_to_what_it_received_and_the_file_stays(tmp_path: Path) -> None:
    message = task()
    take_out(message, tmp_path / "file")
    before = (tmp_path / "file").read_bytes()
    put_back(message, tmp_path / "file", writable=True)
    received = codec.decode_task(message).weights
    assert same(received, weights())
    received["z.weight"][:] = 0
    assert (tmp_path / "file").read_bytes() == before


def test_the_same_message_gives_the_same_file(tmp_path: Path) -> None:
    assert take_out(answer(), tmp_path / "one") == take_out(answer(), tmp_path / "two")
    assert take_out(answer(1), tmp_path / "three") != take_out(answer(), tmp_path / "two")


def test_a_small_message_goes_as_it_is(tmp_path: Path) -> None:
    message = codec.encode_answers([Answer(Failure("HK", 1, "no data"))])
    assert take_out(message, tmp_path / "file") is None
    assert take_out(Shareable(), tmp_path / "file") is None
    assert file_of(message) is None and not list(tmp_path.iterdir())


def test_a_message_whose_arrays_have_not_come_is_no_answer_and_no_task(tmp_path: Path) -> None:
    message, other = answer(), task()
    take_out(message, tmp_path / "file")
    take_out(other, tmp_path / "file")
    for decode, sent in ((codec.decode_answers, message), (codec.decode_task, other)):
        with pytest.raises(codec.WireError, match="arrays: "):
            decode(sent)


@pytest.mark.parametrize(
    "told", [None, 5, {}, {"sha256": "../../etc/passwd", "size": 9}, {"sha256": "a" * 64, "size": 0}]
)
def test_what_names_no_file_is_refused(told: object, tmp_path: Path) -> None:
    message = answer()
    take_out(message, tmp_path / "file")
    message[KEY] = told
    if told is None:
        assert file_of(message) is None
    else:
        with pytest.raises(NotInFileError, match="in which file"):
            file_of(message)


def place(position: int, value: object) -> object:
    """The first place with one of its four parts changed."""

    def change(places: list[list[object]]) -> None:
        places[0][position] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (place(0, ["HK", "weights", "other"]), "no place"),
        (place(0, ["HK", 5]), "no name"),
        (place(1, "|O"), "not of numbers"),
        (place(1, "<U4"), "not of numbers"),
        (place(1, "float33"), "no type"),
        (place(2, [-1, -4]), "no shape"),
        (place(2, [True]), "no shape"),
        (place(2, [2**40]), "not in the file"),
        (place(2, [0]), "not in the file"),
        (place(2, [1] * 33), "not in the file"),
        (place(3, -64), "not in the file"),
        (place(3, 64 * 2**40), "not in the file"),
        (place(3, 3), "not in the file"),
        (place(3, "0"), "is none"),
        (lambda places: places.append(places[0]), "two arrays for a place"),
        (lambda places: places.append([[]]), "is none"),
    ],
)
def test_no_place_leads_out_of_the_file_or_the_message(change: object, reason: str, tmp_path: Path) -> None:
    message = answer()
    take_out(message, tmp_path / "file")
    change(message[KEY]["places"])  # type: ignore[operator]
    with pytest.raises(NotInFileError, match=reason):
        put_back(message, tmp_path / "file", writable=False)
    with pytest.raises(codec.WireError):
        codec.decode_answers(message)


def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    message = answer()
    take_out(message, tmp_path / "file")
    with (tmp_path / "file").open("ab") as file:
        file.write(b"more")
    with pytest.raises(NotInFileError, match="bytes, not"):
        put_back(message, tmp_path / "file", writable=False)


def test_an_array_that_is_not_in_one_piece_of_memory_is_sent_as_it_reads(tmp_path: Path) -> None:
    turned = np.asfortranarray(weights()["z.weight"])
    message = codec.encode_answers([Answer(codec.Update("HK", 1, 8, 2, weights={"w": turned[::-1]}))])
    take_out(message, tmp_path / "file")
    put_back(message, tmp_path / "file", writable=False)
    assert same(read_answer(message).weights, {"w": np.ascontiguousarray(turned[::-1])})
