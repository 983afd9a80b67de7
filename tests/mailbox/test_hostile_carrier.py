"""Whatever the carrier does, a letter is read once, in its place and as it was written, or it is not read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from errors import raises
from kits import SERVER

from fedshift.mailbox import letter as letters
from fedshift.mailbox import pieces
from fedshift.mailbox.identity import Keys
from fedshift.mailbox.pieces import NotWholeError
from fedshift.mailbox.thread import TwoWritersError

from .conftest import TEXT, Pair, copy


def test_letters_are_read_once_in_their_order(pair: Pair) -> None:
    pair.coordinator.write(b"one")
    assert pair.site.read() == b"one"
    assert pair.site.read() is None and not pair.site.notes
    pair.site.write(b"an answer")
    assert pair.coordinator.read() == b"an answer"
    pair.coordinator.write(b"two", round_=2)
    assert pair.site.read() == b"two"


def test_what_is_acknowledged_is_deleted_and_what_is_not_stays(pair: Pair) -> None:
    pair.coordinator.write()
    pair.site.read()
    assert len(pair.files(f"{SERVER}/*.piece")) == 1
    pair.site.write()
    pair.coordinator.read()
    assert not pair.files(f"{SERVER}/*.piece") and not pair.files(f"{SERVER}/*.letter")
    assert not list((pair.coordinator.folder / "outbox").iterdir())
    assert len(pair.files("HK/*.letter")) == 1, "the coordinator has not said yet that it is not needed"


def test_nobody_else_can_read_what_is_in_the_shared_folder(pair: Pair) -> None:
    pair.coordinator.write()
    assert not any(TEXT in path.read_bytes() for path in pair.files("*/*"))


def test_replayed_letters_are_not_read_again(pair: Pair, tmp_path: Path) -> None:
    pair.coordinator.write(b"one")
    yesterday = copy(pair.mail, tmp_path / "yesterday")
    pair.site.read()
    pair.site.write()
    pair.coordinator.read()
    for path in yesterday.glob(f"{SERVER}/*"):
        shutil.copy(path, pair.mail / SERVER)
    assert pair.site.read() is None
    pair.coordinator.write(b"two", round_=2)
    assert pair.site.read() == b"two"
    assert not any((pair.mail / SERVER / path.name).exists() for path in yesterday.glob(f"{SERVER}/*.piece"))


def test_a_shared_folder_of_yesterday_is_brought_up_to_date_by_its_writers(pair: Pair, tmp_path: Path) -> None:
    yesterday = copy(pair.mail, tmp_path / "yesterday")
    pair.coordinator.write(b"one")
    copy(yesterday, pair.mail)
    assert pair.site.read() is None
    thread = pair.coordinator.look()
    pieces_before = thread.chains.unacknowledged
    from fedshift.mailbox.thread import place_all

    place_all([thread], thread.mail, pair.coordinator.folder)
    assert pieces_before and pair.site.read() == b"one"


def test_letters_that_come_in_another_order_wait_for_each_other(pair: Pair, tmp_path: Path) -> None:
    pair.coordinator.write(b"one")
    first = pair.files(f"{SERVER}/HK.000001.letter")[0]
    pair.coordinator.write(b"two", round_=2)
    first.rename(tmp_path / "late")
    assert pair.site.read() is None and "letter 1" in pair.site.notes[0]
    (tmp_path / "late").rename(first)
    thread = pair.site.look()
    assert (letter := thread.next(run="ab" * 16)) is not None and letter.header.sequence == 1


def test_two_letters_that_were_exchanged_are_not_read(pair: Pair) -> None:
    pair.coordinator.write(b"one")
    pair.coordinator.write(b"two", round_=2)
    one, two = pair.files(f"{SERVER}/*.letter")
    a, b = one.read_bytes(), two.read_bytes()
    one.write_bytes(b)
    two.write_bytes(a)
    assert pair.site.read() is None and "holds letter 2" in pair.site.notes[0]


def test_a_letter_to_another_is_not_read(pair: Pair) -> None:
    """Nor could its message be opened."""
    pair.coordinator.write()
    (letter,) = pair.files(f"{SERVER}/*.letter")
    line = letter.read_bytes()
    letter.write_bytes(line.replace(b'"receiver":"HK"', b'"receiver":"UCL"'))
    assert pair.site.read() is None and "has not written it" in pair.site.notes[0]


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_truncated_letter_is_waited_for(pair: Pair, kept: int) -> None:
    pair.coordinator.write()
    (letter,) = pair.files(f"{SERVER}/*.letter")
    whole = letter.read_bytes()
    letter.write_bytes(whole[:kept])
    assert pair.site.read() is None and "not whole" in pair.site.notes[0]
    letter.write_bytes(whole)
    assert pair.site.read() == TEXT


@pytest.mark.parametrize("damage", ["short", "long", "changed", "gone", "exchanged"])
def test_a_piece_that_is_not_as_it_was_written_is_waited_for(
    pair: Pair, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer's next step puts it back."""
    monkeypatch.setattr(pieces, "PIECE", 64)
    content = bytes(range(256)) * 2
    pair.coordinator.write(content)
    first, second, *_ = pair.files(f"{SERVER}/*.piece")
    whole, other = first.read_bytes(), second.read_bytes()
    changed = {"short": whole[:-1], "long": whole + b"\0", "changed": b"\0" + whole[1:], "exchanged": other}
    first.unlink() if damage == "gone" else first.write_bytes(changed[damage])
    with pytest.raises(NotWholeError, match=first.name):
        pair.site.read()
    thread = pair.coordinator.look()
    from fedshift.mailbox.thread import place_all

    place_all([thread], thread.mail, pair.coordinator.folder)
    assert first.read_bytes() == whole
    assert pair.site.read() == content


@pytest.mark.parametrize("change", ["exchanged", "left out", "key"])
def test_a_letter_that_its_writer_has_made_wrongly_is_refused(
    pair: Pair, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The letter is signed and its hashes fit, and yet the pieces are not those of this message in this order."""
    monkeypatch.setattr(pieces, "PIECE", 64)
    seal = pieces.seal([memoryview(bytes(128))], pair.coordinator.folder / "outbox", b"1")
    one, two = seal.body.pieces
    files = [pair.coordinator.folder / "outbox" / name for name, _ in seal.body.files()]
    body, key = seal.body, bytes.fromhex(seal.key)
    if change == "exchanged":
        files[0].rename(files[0].with_suffix(".x"))
        files[1].rename(files[0])
        files[0].with_suffix(".x").rename(files[1])
        body = body.model_copy(update={"pieces": (two, one)})
    elif change == "left out":
        files[0].rename(files[0].with_name(pieces.piece_name(body.name, 1, 1)))
        body = body.model_copy(update={"pieces": (one,), "bytes": 64})
    else:
        key = bytes(32)
    with pytest.raises(ValueError, match="another message"):
        pieces.open_body(body, key, b"1", mail=files[0].parent, scratch=pair.kits / "scratch")


def test_duplicates_and_conflict_copies_are_named_and_not_read(pair: Pair) -> None:
    pair.coordinator.write()
    (letter,) = pair.files(f"{SERVER}/*.letter")
    for name in (
        "HK.000001 (conflicted copy 2026-11-29 101010).letter",  # Nextcloud
        "HK.000001 (anna's conflicted copy 2026-11-29).letter",  # Dropbox
        "HK.000001-DESKTOP-7Q.letter",  # OneDrive
        "HK.000001 (1).letter",  # Google Drive
        "HK.000001.sync-conflict-20261129-101010-ABCDEFG.letter",  # Syncthing
        "HK.000001 (SFConflict anna@example.org 2026-11-29).letter",  # Seafile
        "HK.000001 2.letter",  # iCloud
    ):
        shutil.copy(letter, letter.with_name(name))
        thread = pair.site.look()
        assert len(thread.notes) == 1 and "conflict copies" in thread.notes[0] and name in thread.notes[0]
        letter.with_name(name).unlink()
    shutil.copy(letter, letter.with_name("HK.000002.letter"))
    assert pair.site.read() == TEXT
    assert pair.site.read() is None and "holds letter 1" in pair.site.notes[0]


def test_foreign_files_are_named_and_left_alone(pair: Pair) -> None:
    foreign = [pair.mail / "HK" / name for name in ("holiday.jpg", "letter\x1b[31m.txt")]
    for path in foreign:
        path.write_bytes(b"x")
    for name in (".HK.partial", "~lock", "x.crdownload", "Thumbs.db"):
        (pair.mail / "HK" / name).write_bytes(b"x")
    (note,) = pair.coordinator.look().notes
    assert "holiday.jpg" in note and "\x1b" not in note and "partial" not in note
    pair.site.write()
    pair.coordinator.read()
    assert all(path.exists() for path in foreign)


def test_a_letter_that_a_stranger_signs_is_not_read(pair: Pair) -> None:
    """With a card of the stranger's own in the place of the known one."""
    pair.coordinator.write()
    own = Keys.load(pair.site.folder)
    (path,) = pair.files(f"{SERVER}/*.letter")
    line = path.read_bytes().partition(b"\n")[0]
    path.write_bytes(line + b"\n" + own.sign(letters.SIGNED + line).hex().encode() + b"\n")
    (pair.mail / SERVER / "card.json").write_bytes((pair.mail / "HK" / "card.json").read_bytes())
    assert pair.site.read() is None
    assert any("card" in note for note in pair.site.notes) and any("not written it" in note for note in pair.site.notes)


def test_a_card_counts_only_with_the_certificate_of_its_party(pair: Pair) -> None:
    (pair.site.folder / "cards" / f"{SERVER}.json").unlink()
    card, shown = json.loads((pair.mail / "HK" / "card.json").read_text()), pair.mail / SERVER / "card.json"
    good = shown.read_text()
    for changes in ({"name": SERVER}, {"name": SERVER, "certificate": json.loads(good)["certificate"]}, {"card": 2}):
        shown.write_text(json.dumps({**card, **changes}))
        thread = pair.site.look()
        assert thread.card is None and len(thread.notes) == 1
    shown.write_text(good)
    assert pair.site.look().card is not None


def test_another_version_is_refused_with_a_sentence(pair: Pair) -> None:
    pair.coordinator.write()
    (path,) = pair.files(f"{SERVER}/*.letter")
    keys = Keys.load(pair.coordinator.folder)
    line = path.read_bytes().partition(b"\n")[0].replace(b'"version":1', b'"version":2')
    path.write_bytes(line + b"\n" + keys.sign(letters.SIGNED + line).hex().encode() + b"\n")
    with raises("other-version", naming="version 2"):
        pair.site.read()


# --- folders that were copied or restored -------------------------------------------------------------------


def test_a_party_whose_folder_was_restored_stops(pair: Pair, tmp_path: Path) -> None:
    """It finds what it has written itself, and the others know more of it than it does."""
    yesterday, chains = copy(pair.coordinator.folder, tmp_path / "yesterday"), pair.coordinator.chains
    pair.coordinator.write(b"one")
    pair.site.read()
    pair.site.write()
    copy(yesterday, pair.coordinator.folder)
    pair.coordinator.chains = chains
    with raises("mailbox-restored", naming="letter 1"):
        pair.coordinator.look()
    for path in pair.files(f"{SERVER}/*.letter"):
        path.unlink()  # and the carrier has lost it
    with raises("mailbox-restored", naming="read letter 1"):
        pair.coordinator.read()


def test_two_copies_of_a_folder_are_seen_by_the_reader(pair: Pair, tmp_path: Path) -> None:
    """Each writes into a carrier of its own, as two machines that are not synchronised yet."""
    other = copy(pair.coordinator.folder, tmp_path / "copy")
    empty = copy(pair.mail, tmp_path / "carrier")
    pair.coordinator.write(b"one")
    assert pair.site.read() == b"one"
    copied = Pair(type(pair.coordinator)(other, "HK"), pair.site, pair.mail, pair.kits)
    shutil.rmtree(pair.mail / SERVER)
    shutil.copytree(empty / SERVER, pair.mail / SERVER)
    copied.coordinator.write(b"another")
    with pytest.raises(TwoWritersError, match="two letters 1"):
        pair.site.read()


def test_two_folders_of_one_kit_are_refused(pair: Pair, tmp_path: Path) -> None:
    from fedshift.mailbox.party import make_party

    from .hospitals import PROJECT

    make_party(tmp_path / "again", project=PROJECT, kit=tmp_path / "HK_kit", mail=pair.mail, run="", job=None)
    with raises("mailbox-two-folders", naming="card"):
        type(pair.site)(tmp_path / "again", SERVER).look()


def test_a_letter_of_another_run_is_refused(pair: Pair) -> None:
    pair.coordinator.write(run="ef" * 16)
    with raises("mailbox-other-run", naming=("ab" * 16, "ef" * 16)):
        pair.site.read()


# --- sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"bytes": 10**15},
        {"bytes": 0},
        {"pieces": []},
        {"pieces": [{"bytes": 2**40, "sha256": "0" * 64}], "bytes": 2**40 - 16},
        {"name": "../../etc/passwd"},
    ],
)
def test_sizes_that_make_no_sense_are_refused_before_anything_is_read(body: dict[str, object]) -> None:
    good = {"name": "0" * 32, "bytes": 1, "pieces": [{"bytes": 17, "sha256": "0" * 64}]}
    assert pieces.Body.model_validate(good)
    with pytest.raises(ValueError, match=re.compile("pieces|bytes|name")):
        pieces.Body.model_validate(good | body)
