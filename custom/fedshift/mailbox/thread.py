"""The correspondence with one other party: two chains of letters, one in each direction.

What was written stays in the party's outbox until the other says that it will not be needed again, and is put back into
the shared folder if it vanishes there or was changed. A letter is read if it is the next of its chain. That the other
knows of a later letter of this party than the party itself shows that the party's folder was restored or copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedshift.federation.encryption.kit_keys import ProjectRoot
from fedshift.mailbox.identity import LONGEST_CARD, Card, Keys
from fedshift.mailbox.letter import (
    FIRST,
    JOB,
    Content,
    Header,
    Letter,
    LetterError,
    OtherVersionError,
    Task,
    read,
    write,
)
from fedshift.mailbox.mail_folder import MailFolder, letter_name
from fedshift.mailbox.party import Party
from fedshift.mailbox.pieces import Body, Sealed
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_private
from fedshift.schema.strict import Strict

CARDS, OUTBOX = "cards", "outbox"
RESTORED = (
    "was restored from a backup, or a copy of it has gone on. Go on with the newest copy, or make a new folder with "
    "'fedshift mailbox init' and have the other side run 'fedshift mailbox readmit'"
)


class TwoWritersError(ConfigError):
    """Another party has written two letters of one number."""


class RestoredError(ConfigError):
    """This party's folder is older than what it has written, or there are two of it."""


class OtherRunError(ConfigError):
    """A letter belongs to another run."""


class Sent(Strict):
    """A letter that has not been acknowledged; ``body``: whether its pieces are still needed."""

    sequence: int
    text: str
    body: bool = True


class Chains(Strict):
    """What is known of a correspondence.

    Attributes:
        sent: number of the last letter that was written, and its hash.
        read: number of the last letter that was read, and its hash.
        consumed: up to which number letters of the other are not needed again.
        unacknowledged: letters that the other may still need.
    """

    sent: int = 0
    sent_hash: str = FIRST
    read: int = 0
    read_hash: str = FIRST
    consumed: int = 0
    unacknowledged: tuple[Sent, ...] = ()


@dataclass
class Thread:
    """The correspondence of a party with another.

    Attributes:
        card: the other's; None as long as it has not come.
        notes: what a person should know, of the last look.
    """

    folder: Path
    party: Party
    keys: Keys
    mail: MailFolder
    other: str
    chains: Chains
    card: Card | None = None
    notes: list[str] = field(default_factory=list)

    # --- who the other is -------------------------------------------------------------------------

    def find_card(self, root: ProjectRoot) -> None:
        """The other's card: the one that was seen first, or else the one in its folder, if it is good."""
        path = self.folder / CARDS / f"{self.other}.json"
        came, project = self.mail.card(self.other), self.party.project
        if path.is_file():
            try:
                self.card = Card.read(path.read_bytes(), project=project, name=self.other, root=root)
            except ValueError as error:
                raise ConfigError(
                    "wrong-card", f"{path}: the card of {self.other} {error}: restore or delete it"
                ) from None
            if came is not None and came.strip() != path.read_bytes().strip():
                self.notes.append(self._other_card(came, root))
            return
        if came is None:
            return
        try:
            self.card = Card.read(came[:LONGEST_CARD], project=project, name=self.other, root=root)
        except ValueError as error:
            self.notes.append(f"the card of {self.other} {error}")
            return
        write_private(path, came)

    def _other_card(self, came: bytes, root: ProjectRoot) -> str:
        try:
            Card.read(came[:LONGEST_CARD], project=self.party.project, name=self.other, root=root)
        except ValueError as error:
            return f"the card of {self.other} in the shared folder {error}; the one that was seen first counts"
        return (
            f"{self.other} has another card than before, so its folder was made anew, or somebody has its kit: the "
            f"first one counts; ask {self.other}, and if it was made anew, run 'fedshift mailbox readmit' here"
        )

    # --- writing ----------------------------------------------------------------------------------

    def write(
        self, task: Task, *, run: str, job: str, request: int, round_: int, sealed: Sealed | None, answers: str = ""
    ) -> Letter:
        """Write the next letter. It is in the shared folder once `place` was called, after the state is on disk."""
        assert self.card is not None
        chains = self.chains
        header = Header(
            version=1,
            project=self.party.project,
            run=run,
            job=job,
            task=task,
            request=request,
            round=round_,
            sender=self.party.name,
            receiver=self.other,
            reader_key=self.card.opens,
            sequence=chains.sent + 1,
            previous=chains.sent_hash,
            answers=answers,
            read=chains.read,
            read_hash=chains.read_hash,
            acknowledged=chains.consumed,
        )
        letter = write(header, sealed, self.keys, self.card)
        former = tuple(
            earlier.model_copy(update={"body": earlier.body and self._keeps(earlier)})
            for earlier in chains.unacknowledged
        )
        sent = Sent(sequence=header.sequence, text=letter.text)
        changes = {"sent": header.sequence, "sent_hash": letter.hash, "unacknowledged": (*former, sent)}
        self.chains = chains.model_copy(update=changes)
        return letter

    def _keeps(self, sent: Sent) -> bool:
        """Whether the pieces of a letter are needed after a later one: those of a request are not."""
        return self.party.role == "site" or _content(sent).header.task == JOB

    def files(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Files that must be in the shared folder, pieces before their letter: name, and what puts it there."""
        outbox = self.folder / OUTBOX
        for sent in self.chains.unacknowledged:
            body = _content(sent).body
            if sent.body and body is not None:
                for name, piece in body.files():
                    yield name, lambda name=name, piece=piece: self.mail.place_copy(outbox / name, piece.sha256)  # type: ignore[misc]
            name = letter_name(self.other, sent.sequence)
            yield name, lambda name=name, sent=sent: self.mail.place(name, sent.text.encode())  # type: ignore[misc]

    # --- reading ----------------------------------------------------------------------------------

    def next(self, *, run: str) -> Letter | None:
        """The next letter of the other, if it is there and whole; ``run`` is empty if it is not known yet.

        Raises:
            TwoWritersError, RestoredError, OtherRunError: the chains do not fit.
            ConfigError: another version of the protocol.
        """
        if self.card is None:
            return None
        letters, expected = self.mail.letters(self.other, self.party.name), self.chains.read + 1
        self._compare_last(letters)
        if expected not in letters:
            self._look_ahead(letters, expected)
            return None
        letter = self._read(letters[expected])
        if letter is None:
            return None
        header = letter.header
        if run and header.run != run:
            raise OtherRunError(
                "mailbox-other-run",
                f"letter {expected} of {self.other} is of run {header.run}, and this folder takes part in run {run}: "
                f"two coordinators use {self.mail.root}, or one has begun anew; end one of them, and for a new run "
                "make new folders with 'fedshift mailbox init'",
            )
        if header.previous != self.chains.read_hash:
            raise self._two_writers(expected)
        self._compare_known(header)
        return letter

    def accept(self, letter: Letter) -> None:
        """The letter has been read: the next one follows it."""
        header = letter.header
        unacknowledged = tuple(sent for sent in self.chains.unacknowledged if sent.sequence > header.acknowledged)
        changes = {"read": header.sequence, "read_hash": letter.hash, "unacknowledged": unacknowledged}
        self.chains = self.chains.model_copy(update=changes)

    def _read(self, name: str) -> Letter | None:
        """A letter that is what its name says; None if it is not, or not yet."""
        content = self.mail.read(self.other, name)
        assert self.card is not None
        try:
            letter = read(content or b"", self.card)
        except OtherVersionError as error:
            raise ConfigError("other-version", f"the letter {self.other}/{name} {error}") from None
        except LetterError as error:
            self.notes.append(f"the letter {self.other}/{name} {error}: it is waited for")
            return None
        header = letter.header
        is_its = (header.project, header.sender, header.receiver) == (self.party.project, self.other, self.party.name)
        if not is_its or letter_name(header.receiver, header.sequence) != name:
            self.notes.append(
                f"the file {self.other}/{name} holds letter {header.sequence} of {header.sender} to {header.receiver}: "
                "somebody has put it in this place; it is not read"
            )
            return None
        if header.reader_key != self.keys.card.opens:
            self.notes.append(
                f"the letter {self.other}/{name} is to another folder of {self.party.name}: if this one takes its "
                f"place, {self.other} has to run 'fedshift mailbox readmit'"
            )
            return None
        return letter

    def _compare_last(self, letters: dict[int, str]) -> None:
        """See that the letter that was read last is still the same; it is gone once it was acknowledged."""
        last = self.chains.read
        if last in letters:
            letter = self._read(letters[last])
            if letter is not None and letter.hash != self.chains.read_hash:
                raise self._two_writers(last)

    def _look_ahead(self, letters: dict[int, str], expected: int) -> None:
        """The next letter is not there, and perhaps later ones are."""
        later = max((number for number in letters if number > expected), default=0)
        letter = self._read(letters[later]) if later else None
        if letter is not None:
            self._compare_known(letter.header)
            self.notes.append(
                f"letter {expected} of {self.other} has not come, though letter {later} has: it is waited for"
            )

    def _compare_known(self, header: Header) -> None:
        """Compare what the other has read of this party with what the party has written."""
        sent, same = self.chains.sent, header.read_hash == self.chains.sent_hash
        if header.read > sent or (header.read == sent and not same) or header.acknowledged > sent:
            raise RestoredError(
                "mailbox-restored",
                f"{self.other} has read letter {header.read} of {self.party.name}, and this folder has written {sent}, "
                f"or another one: {self.folder} {RESTORED}",
            )

    def require_newest(self, letters: dict[int, str]) -> None:
        """See that the party's own folder holds no later letter of this party than it knows of.

        ``letters``: the party's to the other in the shared folder, number -> name.

        Raises:
            RestoredError: it does.
        """
        for number in sorted(letters):
            known = next((sent.text for sent in self.chains.unacknowledged if sent.sequence == number), None)
            if number <= self.chains.sent and known is None:
                continue  # acknowledged, and put back by the carrier
            text = self.mail.read(self.party.name, letters[number]) or b""
            if known is not None and text == known.encode():
                continue
            try:
                header = read(text, self.keys.card).header
            except OtherVersionError:
                pass
            except LetterError:
                continue  # damaged: it is written again
            else:
                of_now = self.card is None or header.reader_key == self.card.opens
                if (header.receiver, header.sequence) != (self.other, number) or not of_now:
                    continue  # in another's place, or to a folder that the other has no more
            raise RestoredError(
                "mailbox-restored",
                f"{self.mail.own_folder} holds letter {number} to {self.other}, which {self.party.name} has signed and "
                f"which this folder has not written: {self.folder} {RESTORED}",
            )

    def _two_writers(self, number: int) -> TwoWritersError:
        return TwoWritersError(
            "mailbox-two-writers",
            f"{self.other} has written two letters {number} to {self.party.name}: its folder was restored from a "
            "backup, or two copies of it are in use. Nothing more of it is read; ask it which is the right one",
        )


def _content(sent: Sent) -> Content:
    return Content.model_validate_json(sent.text.partition("\n")[0])


def place_all(threads: list[Thread], mail: MailFolder, folder: Path, *, bodies: Sequence[Body] = ()) -> None:
    """Put into the shared folder what the others may still need; delete what nobody needs, there and in the outbox.

    ``bodies``: of messages that stay in the outbox, for letters that are still to be written.
    """
    shared = set()
    for thread in threads:
        for name, place in thread.files():
            if name not in shared:
                place()
                shared.add(name)
    mail.remove_all_but(shared)
    kept, outbox = shared | {name for body in bodies for name, _ in body.files()}, folder / OUTBOX
    for path in outbox.iterdir() if outbox.is_dir() else ():
        if path.name not in kept:
            path.unlink(missing_ok=True)
