"""A message's bytes encrypted in pieces, as files of the party's own folder, and opened again.

Each message has a key of its own, drawn at random, and each piece of it a number in its nonce, the last one marked: the
STREAM construction (Hoang, Reyhanitabar, Rogaway, Vizár, CRYPTO 2015) with AES-256-GCM. So pieces cannot be left out,
added or exchanged, within a message or between two. What the message is about is authenticated with every piece. The
letter that comes with them has the SHA-256 of each piece's file, so a partial file is known before it is decrypted.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import Field, model_validator

from fedshift.schema.files import sync_folder
from fedshift.schema.strict import Strict

PIECE = 64 * 1024 * 1024
"""Bytes of a message in a piece."""
TAG = 16
"""Bytes that encryption adds to a piece."""
MOST_PIECES = 9999
ID = r"^[0-9a-f]{32}$"

Buffers = list[memoryview]
"""Bytes of a message in their order."""


class Piece(Strict):
    """A piece's file."""

    bytes: int = Field(ge=TAG, le=PIECE + TAG)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Body(Strict):
    """The encrypted bytes of a message: a random name, how many bytes there are in clear, and the files."""

    name: str = Field(pattern=ID)
    bytes: int = Field(ge=1)
    pieces: tuple[Piece, ...] = Field(min_length=1, max_length=MOST_PIECES)

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        """All pieces but the last are full, so what is to be read and allocated is known before anything is."""
        sizes = [piece.bytes - TAG for piece in self.pieces]
        if sum(sizes) != self.bytes or any(size != PIECE for size in sizes[:-1]):
            raise ValueError("has pieces that do not add up")
        return self

    def files(self) -> Iterator[tuple[str, Piece]]:
        """Name and piece of each file."""
        for number, piece in enumerate(self.pieces, 1):
            yield piece_name(self.name, number, len(self.pieces)), piece


class Sealed(Strict):
    """A body, and its key, which only its writer keeps until the message is no longer needed."""

    body: Body
    key: str = Field(pattern="^[0-9a-f]{64}$")


def piece_name(name: str, number: int, total: int) -> str:
    return f"{name}.{number:04d}-of-{total:04d}.piece"


def seal(buffers: Buffers, folder: Path, about: bytes) -> Sealed:
    """Encrypt a message into files of a folder; they are on disk when this returns.

    ``about``: what the message belongs to; whoever opens it has to say the same.

    Raises:
        OSError: they cannot be written; nothing is left behind.
    """
    name, key = secrets.token_hex(16), AESGCM.generate_key(256)
    total = sum(buffer.nbytes for buffer in buffers)
    count = -(-total // PIECE)
    cipher, pieces, paths = AESGCM(key), list[Piece](), list[Path]()
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        for number, content in enumerate(_cut(buffers), 1):
            encrypted = cipher.encrypt(_nonce(number, number == count), content, _about(about, name))
            paths.append(folder / piece_name(name, number, count))
            with paths[-1].open("wb") as file:
                file.write(encrypted)
                file.flush()
                os.fsync(file.fileno())
            pieces.append(Piece(bytes=len(encrypted), sha256=hashlib.sha256(encrypted).hexdigest()))
    except OSError:
        for path in paths:
            path.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    return Sealed(body=Body(name=name, bytes=total, pieces=tuple(pieces)), key=key.hex())


def _cut(buffers: Buffers) -> Iterator[bytes | bytearray]:
    """The bytes of a message in pieces."""
    piece = bytearray()
    for buffer in buffers:
        while buffer.nbytes:
            part = buffer[: PIECE - len(piece)]
            piece += part
            buffer = buffer[part.nbytes :]
            if len(piece) == PIECE:
                yield piece
                piece = bytearray()
    if piece:
        yield piece


def is_whole(body: Body, folder: Path) -> bool:
    """Whether the files of a body are all there, as long as they should be; nothing is read."""
    try:
        return all((folder / name).stat().st_size == piece.bytes for name, piece in body.files())
    except OSError:
        return False


def open_body(body: Body, key: bytes, about: bytes, *, mail: Path, scratch: Path) -> memoryview:
    """The bytes of a message, in memory that may be written to.

    More than a piece is decrypted into a file of the folder ``scratch`` that has no name, and mapped from there.

    Raises:
        NotWholeError: a file is not, or not yet, as its writer has written it.
        ValueError: the files are, and were not encrypted with this key for this message.
    """
    if len(body.pieces) == 1:
        content = bytearray(next(_decrypted(body, key, about, mail)))
        return memoryview(content)
    scratch.mkdir(mode=0o700, exist_ok=True)
    path = scratch / f"{body.name}.open"
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "w+b") as file:
        path.unlink()
        for part in _decrypted(body, key, about, mail):
            file.write(part)
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), body.bytes, access=mmap.ACCESS_COPY))


class NotWholeError(Exception):
    """A file is not as its writer has written it: it may still be on its way, or was damaged."""


def _decrypted(body: Body, key: bytes, about: bytes, mail: Path) -> Iterator[bytes]:
    cipher = AESGCM(key)
    for number, (name, piece) in enumerate(body.files(), 1):
        try:
            with (mail / name).open("rb") as file:
                content = file.read(piece.bytes + 1)
        except OSError as error:
            raise NotWholeError(f"{mail.name}/{name} cannot be read ({error.strerror})") from None
        if len(content) != piece.bytes or hashlib.sha256(content).hexdigest() != piece.sha256:
            raise NotWholeError(f"{mail.name}/{name} is not, or not yet, as {mail.name} has written it")
        try:
            yield cipher.decrypt(_nonce(number, number == len(body.pieces)), content, _about(about, body.name))
        except InvalidTag:
            raise ValueError("was encrypted for another message") from None


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def _about(about: bytes, name: str) -> bytes:
    return b"fedshift mailbox body 1\0" + name.encode() + b"\0" + about
