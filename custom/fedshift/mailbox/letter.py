"""The envelope of a message: one line of JSON that says what belongs to what, and a line with its signature.

A letter names the run, the job, the request and its round, its number in the correspondence of two parties, and the
letter before it by its SHA-256. So one that is replayed, left out, put in another place or made by another run does not
fit, and two letters of one number, as a copied or restored folder would write, are seen to differ. It also says which
letters of the other direction its writer has read, and which will not be needed again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedshift.mailbox.identity import Card, Keys
from fedshift.mailbox.pieces import Body, Sealed
from fedshift.schema.names import Name
from fedshift.schema.strict import Strict, first_fault

VERSION = 1
LONGEST = 4 * 1024 * 1024
"""Bytes of a letter's file: its pieces are a line of 100 bytes each."""
FIRST = "0" * 64
"""What the first letter names in place of one before it."""
SIGNED = b"fedshift mailbox letter\0"
Task = Literal["job", "statistics", "train", "unmask", "validate", "end"]
"""What the coordinator asks. The first and the last letter of a run have no answer."""
JOB: Task = "job"
STATISTICS: Task = "statistics"
TRAIN: Task = "train"
UNMASK: Task = "unmask"
VALIDATE: Task = "validate"
END: Task = "end"

_HASH = Field(pattern="^[0-9a-f]{64}$")


class Header(Strict):
    """What a letter is.

    Attributes:
        version: of this protocol.
        project: whose kits the parties have.
        run: drawn by the coordinator when it was set up.
        job: SHA-256 of the job.
        task: what the coordinator asks, or what is answered.
        request: number of the request in the run; 0 is the job.
        round: of the request's message.
        sender: who writes.
        receiver: who reads.
        reader_key: the key on the card of the receiver that the letter is for: a folder that was made anew has another.
        sequence: number of the letter among those of this sender to this receiver, from 1.
        previous: hash of the letter before it; `FIRST` in the first.
        answers: hash of the letter that this one answers; empty in a request.
        read: number of the newest letter of the other direction that the sender has read, and
        read_hash: its hash; `FIRST` if there was none.
        acknowledged: up to which number letters of the other direction, and their pieces, may be deleted.
    """

    version: int
    project: str = Field(max_length=256)
    run: str = Field(pattern="^[0-9a-f]{32}$")
    job: str = _HASH
    task: Task
    request: int = Field(ge=0)
    round: int = Field(ge=0)
    sender: Name
    receiver: Name
    reader_key: str = _HASH
    sequence: int = Field(ge=1)
    previous: str = _HASH
    answers: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    read: int = Field(ge=0)
    read_hash: str = _HASH
    acknowledged: int = Field(ge=0)

    @property
    def about_body(self) -> bytes:
        """What the bytes of a message belong to; a request's are the same for all who read it."""
        parts = (self.project, self.run, self.job, self.task, self.request, self.round, self.sender, self.answers)
        return "\0".join(map(str, parts)).encode()


class Wrapped(Strict):
    """The body's key, encrypted for the reader (`Card.wrap`)."""

    public: str = Field(pattern="^[0-9a-f]{64}$")
    key: str = Field(pattern="^[0-9a-f]{96}$")


class Content(Strict):
    """The signed line."""

    header: Header
    body: Body | None = None
    wrapped: Wrapped | None = None


@dataclass(frozen=True)
class Letter:
    """A letter whose signature has been checked, or that was written here."""

    content: Content
    text: str

    @property
    def header(self) -> Header:
        return self.content.header

    @property
    def hash(self) -> str:
        """SHA-256 of the signed line."""
        return hash_of(self.text)

    def content_key(self, keys: Keys) -> bytes:
        """The body's key.

        Raises:
            ValueError: it is for another party or letter.
        """
        wrapped = self.content.wrapped
        if wrapped is None:
            raise ValueError("has no key")
        return keys.unwrap(wrapped.public, wrapped.key, about_key(self.header, self.content.body))


class LetterError(ValueError):
    """A file that is no letter of its sender; the reason continues "the letter X …"."""


class OtherVersionError(LetterError):
    """A letter of the sender that this version of fedshift cannot read."""


def write(header: Header, sealed: Sealed | None, keys: Keys, reader: Card) -> Letter:
    """Make a letter, with its body's key wrapped for the reader alone."""
    body = wrapped = None
    if sealed is not None:
        body = sealed.body
        public, key = reader.wrap(bytes.fromhex(sealed.key), about_key(header, body))
        wrapped = Wrapped(public=public, key=key)
    content = Content(header=header, body=body, wrapped=wrapped)
    line = content.model_dump_json(exclude_defaults=True)
    return Letter(content, f"{line}\n{keys.sign(SIGNED + line.encode()).hex()}\n")


def read(text: bytes, sender: Card) -> Letter:
    """Check a letter's signature, then read it.

    Raises:
        OtherVersionError: its sender has written it with a version of the protocol that is not this one.
        LetterError: it is not whole, or not of this sender.
    """
    line, _, signature = text.partition(b"\n")
    try:
        signed = sender.verify(SIGNED + line, bytes.fromhex(signature.decode("ascii").strip()))
    except ValueError:
        signed = False
    if not signed or not text.endswith(b"\n"):
        raise LetterError(f"is not whole yet, or {sender.name} has not written it")
    try:
        version = _Versioned.model_validate_json(line).header.version
        if version != VERSION:
            raise OtherVersionError(
                f"is of version {version} of the mailbox, and this fedshift reads {VERSION}: install one version at "
                "all parties"
            )
        return Letter(Content.model_validate_json(line), text.decode("ascii"))
    except (ValidationError, UnicodeDecodeError) as error:
        raise OtherVersionError(
            f"is not as this fedshift writes it ({first_fault(error)}): install one version at all parties"
        ) from None


def hash_of(text: str) -> str:
    """SHA-256 of the signed line of a letter's text."""
    return hashlib.sha256(text.partition("\n")[0].encode()).hexdigest()


def about_key(header: Header, body: Body | None) -> bytes:
    """What a wrapped key is authenticated with: the whole header, and the body that it opens."""
    return f"{header.model_dump_json()}\0{'' if body is None else body.model_dump_json()}".encode()


class _VersionOnly(BaseModel):
    model_config = ConfigDict(extra="ignore")
    version: int


class _Versioned(BaseModel):
    model_config = ConfigDict(extra="ignore")
    header: _VersionOnly
