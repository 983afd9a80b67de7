"""Gaussian noise from a secret of the site, and a record of what was answered: both in the site's state folder.

The server knows the job's seed and would subtract noise that came from it. Noise here comes from 32 random bytes that
never leave the site. It depends on the question too, so that a task that is repeated gets the same bytes, and there is
no second draw to average with the first. What the noise hides would be laid bare by a second answer that differs from
the first in anything but the noise, or in the noise's scale. So another question in the same round gets no answer, nor
does the same one where the site would answer differently by now (its state was damaged; a GPU adds up in another
order), or with other noise (its policy was changed).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from pathlib import Path

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedshift.schema.errors import DataError, PolicyError
from fedshift.schema.files import write_private
from fedshift.schema.messages import Broadcast, Update

SECRET, ANSWERED = "noise.secret", "answered.json"
LENGTH = 32
"""Bytes of the secret."""
OTHER_SETTINGS = "was answered before with other noise (the policy as changed holds from the next round on)"


def uniform(key: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers above 0 and at most 1, float64, that nobody without ``key`` can tell from others (SHAKE-256)."""
    count = int(np.prod(shape, dtype=int))
    words = np.frombuffer(hashlib.shake_256(key).digest(8 * count), "<u8").reshape(shape)
    values: np.ndarray = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return values


def gaussian(key: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers, float64, that nobody without ``key`` can tell from others (SHAKE-256, Box-Muller)."""
    count = int(np.prod(shape, dtype=int))
    pairs = (count + 1) // 2
    drawn = uniform(key, (2, pairs))
    radius, angle = np.sqrt(-2 * np.log(drawn[0])), 2 * np.pi * drawn[1]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)


def fingerprint(message: Broadcast | Update, key: bytes) -> str:
    """HMAC-SHA-256 of a message's round, weights and arrays, packed or not."""
    digest = hmac.new(key, str(message.round).encode(), "sha256")
    parts = {
        "weights": message.weights,
        "packed codes": {name: packed.codes for name, packed in message.packed.items()},
        "packed scales": {name: packed.scale for name, packed in message.packed.items() if packed.scale is not None},
        **{f"arrays of {name}": part for name, part in message.arrays.items()},
    }
    for part, arrays in sorted(parts.items()):
        for name, array in sorted(arrays.items()):
            value = np.asarray(array)
            digest.update(json.dumps([part, name, str(value.dtype), value.shape]).encode())
            digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


_RECORD = TypeAdapter(dict[str, dict[str, str]], config=ConfigDict(strict=True))
"""What was asked and answered, by round."""


class NoiseSource:
    """One site's noise in one job."""

    def __init__(self, folder: Path, site: str) -> None:
        """``folder`` holds the secret; both are made when first needed."""
        self._folder, self._site = folder, site

    def claim(self, broadcast: Broadcast) -> str:
        """Before an answer: the question's fingerprint, if it is the round's first or that one again.

        Raises:
            PolicyError: the round was answered already, when something else was asked.
            DataError: the secret or the record is damaged.
        """
        if not (self._folder / SECRET).is_file() and not self._answered():
            write_private(self._folder / ANSWERED, b"{}")  # first, so that a secret without a record has lost it
            write_private(self._folder / SECRET, secrets.token_bytes(LENGTH))
        asked = fingerprint(broadcast, self._secret())
        self._note(broadcast.round, "asked", asked, "was answered before for another model")
        return asked

    def require_same(self, round_: int, settings: str) -> None:
        """Before an answer: the round was not answered with noise of other settings.

        Raises:
            PolicyError: it was. The same draw at two scales gives away what it is added to.
        """
        noted = self._answered().get(str(round_), {}).get("settings")
        if noted is not None and noted != self._hash(settings):
            raise self._refusal(round_, OTHER_SETTINGS)

    def settle(self, update: Update, settings: str) -> None:
        """Before noise of these settings is put on an answer: both are the round's first, or those again.

        Raises:
            PolicyError: another answer was given in the round, or one with other noise.
        """
        self._note(update.round, "settings", self._hash(settings), OTHER_SETTINGS)
        self._note(
            update.round, "answered", fingerprint(update, self._secret()), "was answered before with other numbers"
        )

    def _note(self, round_: int, what: str, value: str, otherwise: str) -> None:
        record = self._answered()
        if record.setdefault(str(round_), {}).setdefault(what, value) != value:
            raise self._refusal(round_, otherwise)
        write_private(self._folder / ANSWERED, json.dumps(record).encode())

    def _refusal(self, round_: int, otherwise: str) -> PolicyError:
        return PolicyError(
            "answered-before",
            f"site {self._site}, round {round_}: {otherwise}, and a second answer would lay bare what noise hides: the "
            "site takes part again in the next round",
        )

    def _hash(self, settings: str) -> str:
        return hmac.new(self._secret(), f"settings {settings}".encode(), "sha256").hexdigest()

    def draw(self, asked: str, array: str, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal noise for one array of the answer to ``asked``."""
        return gaussian(self._key(asked, array), shape)

    def chances(self, asked: str, purpose: str, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers between 0 and 1 for one purpose of the answer to ``asked``."""
        return uniform(self._key(asked, purpose), shape)

    def run(self) -> str | None:
        """What the ledger calls this run of the job; None before its first question."""
        if not (self._folder / SECRET).is_file():
            return None
        return hmac.new(self._secret(), b"run", "sha256").hexdigest()[:16]

    def _key(self, asked: str, purpose: str) -> bytes:
        return hmac.digest(self._secret(), json.dumps([asked, purpose]).encode(), "sha256")

    def _answered(self) -> dict[str, dict[str, str]]:
        path = self._folder / ANSWERED
        if not path.is_file():
            if (self._folder / SECRET).is_file():
                raise _damaged(path, "is missing")
            return {}
        try:
            return _RECORD.validate_json(path.read_bytes())
        except ValidationError as error:
            raise _damaged(path, f"cannot be read ({error.errors()[0]['msg']})") from None

    def _secret(self) -> bytes:
        path = self._folder / SECRET
        content = path.read_bytes() if path.is_file() else b""
        if len(content) != LENGTH:
            raise DataError(
                "file-damaged",
                f"{path} holds {len(content)} bytes, not {LENGTH}, so that noise cannot be repeated: leave the site "
                "out of this job",
            )
        return content


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(
        "file-damaged",
        f"{path} {reason}, so that nobody can tell which rounds were answered: leave the site out of this job",
    )
