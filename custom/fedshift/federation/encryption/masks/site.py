"""Masks at a site: its key, its masked updates, and the one answer that it gives to unmask a round's sum."""

from __future__ import annotations

import hashlib
import logging
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from fedshift.federation.encryption.masks.primitives import (
    NONCE,
    PRIME,
    SHARE_BYTES,
    Identity,
    Pair,
    SiteKey,
    add_stream,
    draw,
    encode,
    largest,
    new_private_key,
    public_key,
    split,
)
from fedshift.federation.encryption.masks.protocol import (
    HASH_BYTES,
    HASHES,
    KEY,
    KEYS,
    MASKS,
    OPENED,
    SHARES,
    VECTOR,
    Question,
    as_array,
    digest_of,
    hash_of,
    sealed_bytes,
    threshold,
)
from fedshift.federation.encryption.vector import VectorLayout
from fedshift.federation.refusals import ENCRYPTION
from fedshift.schema.errors import ConfigError, DataError, PolicyError
from fedshift.schema.files import write_private
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays, Broadcast, Update
from fedshift.schema.strict import Strict

log = logging.getLogger("fedshift")

FILE_NAME = "masks.json"
COEFFICIENT_BYTES = 48
"""So many random bytes are as good as uniform modulo the prime of 33."""


class Masked(Strict):
    """A round's message that a masked update answers, and the public keys in it, which have been checked."""

    round: int
    digest: str
    keys: dict[str, str]


class Secrets(Strict):
    """What a site keeps of a job. ``unmasked``: round -> hash of the question that was answered."""

    private: str
    secret: str
    masked: Masked | None = None
    unmasked: dict[int, str] = {}


class SiteMasks:
    """Masks what a site sends; see `fedshift.federation.encryption.masks`.

    Attributes:
        least: the fewest sites in a sum with this site's update.
    """

    def __init__(
        self, job: JobSpec, site: str, *, folder: Path, run: str, identity: Identity | None, least: int
    ) -> None:
        """Make the site's keys in ``folder``, or go on with those that it has made for this run.

        Args:
            job: the resolved job.
            site: the site.
            folder: where the site keeps its state of the job.
            run: names the run; keys of one are of no use in another.
            identity: signs and checks keys; None in simulations, where nobody does.
            least: the fewest sites in a sum, by the site's policy. A job may ask for more, and not for fewer.

        Raises:
            ConfigError: the job cannot be masked, or the site's file is damaged.
            PolicyError: the job has fewer sites than the site's policy wants in a sum.
        """
        self._job, self._site, self._run, self._identity = job, site, run, identity
        self.least = max(least, job.federation.min_sites)
        self._require(len(job.task.sites), f"job {job.name} has")
        self._layout = VectorLayout(job, received=False)
        self._path = folder / FILE_NAME
        self._secrets = self._load()
        self._private, self._alone = bytes.fromhex(self._secrets.private), Pair(bytes.fromhex(self._secrets.secret))
        self._public = public_key(self._private)
        self._opened: Masked | None = None

    # --- messages ---------------------------------------------------------------------------------

    def open(self, broadcast: Broadcast) -> Broadcast:
        """Take the sites' keys out of a round's message and check them.

        Raises:
            ConfigError: a key is not that of the site that is named.
            PolicyError: these are the keys of fewer sites than the site's policy wants in a sum.
        """
        self._opened = None  # an update is masked for this message, and never for one before it
        if MASKS not in broadcast.arrays:
            return broadcast
        if 1 <= broadcast.round <= self._job.task.schedule.rounds:
            keys = self._checked(broadcast.arrays[MASKS])
            if keys.get(self._site) == self._public:  # else no update is sent, only the site's key
                self._require(len(keys), f"round {broadcast.round} has keys of")
            texts = {site: key.hex() for site, key in keys.items()}
            self._opened = Masked(round=broadcast.round, digest=digest_of(broadcast).hex(), keys=texts)
        return replace(broadcast, arrays={name: part for name, part in broadcast.arrays.items() if name != MASKS})

    def seal(self, update: Update, broadcast: Broadcast) -> Update:
        """Mask the answer to ``broadcast``. If the server does not have the site's key, the key is the answer.

        Raises:
            DataError: a number that is too large.
            ConfigError: the message had no keys.
        """
        if update.round == 0:
            return replace(update, arrays={**update.arrays, MASKS: {KEY: self._key()}})
        opened = self._opened
        if opened is None or opened.round != update.round:
            raise ConfigError(
                "no-keys", f"{ENCRYPTION}: the server's message of round {update.round} has no keys of sites"
            )
        if opened.keys.get(self._site) != self._public.hex():
            log.warning(
                "site %s, round %d: the server does not have its key yet: it sends the key, and takes part from the "
                "next round on",
                *(self._site, update.round),
            )
            return replace(update, weights={}, arrays={MASKS: {KEY: self._key()}})
        vector = self._vector(update, broadcast)
        shares, hashes = self._mask(vector, opened)
        self._save(masked=opened)
        clear = {key: value for key, value in update.weights.items() if key in self._layout.clear}
        return replace(
            update,
            weights={**clear, VECTOR: vector.view(np.int64)},
            arrays={MASKS: {SHARES: shares, HASHES: hashes}},
        )

    def unmask(self, broadcast: Broadcast) -> Update:
        """Answer the server's question for the shares that unmask the sum of the last round.

        Raises:
            PolicyError: the question is not one that the site may answer.
        """
        try:
            answer = self._answered(broadcast)
        except ValueError as error:
            raise PolicyError(
                "unmask-refused",
                f"site {self._site}, round {broadcast.round}: the server's question to unmask a sum {error}: it gets "
                "no answer",
            ) from None
        return Update(self._site, broadcast.round, n_samples=0, n_steps=0, arrays={MASKS: {OPENED: answer}})

    def _require(self, n: int, what: str) -> None:
        """Refuse sums over fewer sites than the site's policy, or the job, wants. ``what`` comes before the number."""
        if n < self.least:
            raise PolicyError(
                "too-few-sites",
                f"site {self._site}: {what} {n} sites, and its update goes into a sum over {self.least} or more only "
                "(privacy.min_sites_in_sum, or federation.min_sites of the job): add sites, or ask the site",
            )

    # --- keys -------------------------------------------------------------------------------------

    def _key(self) -> np.ndarray:
        key = SiteKey.make(self._site, self._public, run=self._run, identity=self._identity)
        return as_array(key.model_dump_json().encode())

    def _checked(self, arrays: Arrays) -> dict[str, bytes]:
        """The sites' public keys, in the job's order."""
        keys = {}
        for site in self._job.task.sites:
            content = arrays.get(f"{KEYS}{site}")
            if content is None:
                continue
            try:
                key = SiteKey.read(content.tobytes())
                key.verify(site, run=self._run, checker=self._identity)
            except ValueError as error:
                raise ConfigError(
                    "wrong-key",
                    f"{ENCRYPTION}: the key of site {site} that the server has sent {error}: do not go on with this "
                    "server before you know why",
                ) from None
            keys[site] = bytes.fromhex(key.public)
        return keys

    # --- an update --------------------------------------------------------------------------------

    def _vector(self, update: Update, broadcast: Broadcast) -> np.ndarray:
        """What is to be summed, in steps, as uint64."""
        limit = largest(len(self._job.task.sites))
        parts = []
        for segment, row in self._layout.rows(update, broadcast):
            if not (np.abs(row) <= limit).all():  # NaN is not, either
                raise DataError(
                    "too-large",
                    f"site {update.site}, round {update.round}: {segment.label} holds numbers that cannot be summed "
                    f"with masks (NaN, or beyond {limit:.1g}, multiplied by its samples): lower optimizer.lr, or take "
                    "fedavg.weights=uniform",
                )
            parts.append(encode(row))
        return np.concatenate(parts).view(np.uint64)

    def _mask(self, vector: np.ndarray, opened: Masked) -> tuple[np.ndarray, np.ndarray]:
        """Add the masks to a vector in place. Returns the encrypted shares of their seeds, and the hashes."""
        sites = list(opened.keys)
        n, position = len(sites), sites.index(self._site)
        pairs = {site: self._pair(key, site) for site, key in opened.keys.items()}
        content = hashlib.sha256(vector.data).hexdigest()
        about = (self._run, str(opened.round), opened.digest)
        seeds = []
        for number, site in enumerate(sites):
            if number == position:
                seeds.append(self._alone.seed("own mask", *about, content))
            else:
                names = (self._site, site) if position < number else (site, self._site)
                seeds.append(pairs[site].seed("pair mask", *about, *names))
            add_stream(vector, seeds[-1], subtract=number < position)
        t = threshold(n)
        by_receiver = [bytearray() for _ in sites]
        hashes = np.zeros((n, n + 1, HASH_BYTES), np.uint8)
        for number, seed in enumerate(seeds):
            drawn = draw(self._alone.seed("coefficients", *about, content, str(number)), t - 1, COEFFICIENT_BYTES)
            for receiver, share in enumerate(split(seed, [value % PRIME for value in drawn], range(1, n + 1))):
                by_receiver[receiver] += share
                hashes[number, receiver] = as_array(hash_of(share, number, receiver))
            hashes[number, n] = as_array(hash_of(seed, number))
        sealed = np.zeros((n, sealed_bytes(n)), np.uint8)
        for receiver, site in enumerate(sites):
            nonce = self._alone.seed("nonce", *about, content, site)[:NONCE]
            shares = bytes(by_receiver[receiver])
            sealed[receiver] = as_array(pairs[site].encrypt(shares, nonce, "shares", *about, self._site, site))
        return sealed, hashes

    def _pair(self, public: str, site: str) -> Pair:
        if site == self._site:
            return self._alone
        try:
            return Pair.agreed(self._private, bytes.fromhex(public))
        except ValueError as error:
            raise ConfigError("wrong-key", f"{ENCRYPTION}: the key of site {site} {error}") from None

    # --- unmasking --------------------------------------------------------------------------------

    def _answered(self, broadcast: Broadcast) -> np.ndarray:
        masked = self._secrets.masked
        if masked is None or masked.round != broadcast.round:
            raise ValueError("is not of the round of its last masked update")
        sites = list(masked.keys)
        n, position = len(sites), sites.index(self._site)
        question = Question.read(broadcast, n)
        if question.digest.hex() != masked.digest:
            raise ValueError("is about another message than the one that its update answers")
        members, fewest = question.members, max(threshold(n), self.least)
        if len(members) < fewest:
            raise ValueError(f"is for a sum over {len(members)} sites, and {fewest} are the fewest")
        if position not in members:
            raise ValueError("is for a sum without this site")
        about = (self._run, str(masked.round), masked.digest)
        dropped = [number for number in range(n) if number not in members]
        rows = []
        for member, sealed in zip(members, question.sealed[:, position], strict=True):
            site = sites[member]
            try:
                pair = self._pair(masked.keys[site], site)
                content = pair.decrypt(sealed.tobytes(), "shares", *about, site, self._site)
            except ValueError as error:
                raise ValueError(f"has a share of site {site} that {error}") from None
            shares = as_array(content).reshape(n, SHARE_BYTES)
            rows.append(shares[[member, *dropped]])
        self._answer_once(masked.round, _hash_of(question, position))
        return np.stack(rows)

    def _answer_once(self, round_: int, question: str) -> None:
        """Note on disk what is about to be answered; refuse a second answer to another question."""
        known = self._secrets.unmasked.get(round_)
        if known is None:
            self._save(unmasked={**self._secrets.unmasked, round_: question})
        elif known != question:
            raise ValueError(
                "is a second one of this round: two sums of one round over different sites would tell them apart"
            )

    # --- the file ---------------------------------------------------------------------------------

    def _load(self) -> Secrets:
        if not self._path.is_file():
            drawn = Secrets(private=new_private_key().hex(), secret=secrets.token_hex(32))
            self._write(drawn)
            return drawn
        try:
            return Secrets.model_validate_json(self._path.read_text(encoding="utf-8"))
        except (ValidationError, UnicodeDecodeError):
            raise ConfigError(
                "file-damaged",
                f"{self._path} is damaged: delete it, and site {self._site} takes part with a new key from the next "
                "round on",
            ) from None

    def _save(self, **changes: object) -> None:
        self._secrets = self._secrets.model_copy(update=changes)
        self._write(self._secrets)

    def _write(self, content: Secrets) -> None:
        """On disk before it is acted on, and readable by nobody else."""
        write_private(self._path, content.model_dump_json().encode())


def _hash_of(question: Question, site: int) -> str:
    """Of all that the answer depends on."""
    digest = hashlib.sha256(question.digest + np.array(question.members, np.int64).tobytes())
    digest.update(np.ascontiguousarray(question.sealed[:, site]).tobytes())
    return digest.hexdigest()
