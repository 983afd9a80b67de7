"""A site's account of what left it with noise, over all jobs and surveys: a file in its kit.

One line of JSON a release, appended and on disk before the release leaves. Each line holds the SHA-256 of the line
before it, so a line that was changed, removed or put in between is found; a second small file holds the number of lines
and the hash of the last, so that lines cut off at the end are found too. Whoever changes both files consistently, or
puts both back from a backup, is not found by the files alone: every answer takes the last hash to the server, which
keeps it and sends it back with the next task (`Ledger.require`), and it is in the log of every job.

A process that is killed while it writes leaves an incomplete last line. Its release has not left, so the next one
writes over it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO, Literal

from fedshift.federation.site.privacy.accounting import Mechanism, composed_epsilon
from fedshift.schema.errors import ConfigError, DataError, PolicyError
from fedshift.schema.files import sync_folder, write_private
from fedshift.schema.policy import LEDGER_FILE, LedgerHead, PrivacyBudget
from fedshift.schema.strict import Strict

log = logging.getLogger("fedshift")

HEAD_FILE = "privacy_ledger.head"
BEGINNING = "0" * 64
"""In place of a hash before the first line."""
TOLERANCE = 1e-9
"""Relative: what float64 may add to a sum that is the budget exactly."""

Quantity = Literal["image statistics", "feature statistics", "network", "survey", "mean scores"]


class Release(Strict):
    """What left, under which noise.

    Attributes:
        date: UTC, ISO 8601.
        job: the job's or survey's name.
        run: tells apart runs of jobs of one name; from the site's secret of the run.
        round: of the job; 0 for its statistics round, and for a survey.
        dataset: whose cases it is about.
        what: the part of the answer.
        mechanism: ``gaussian``, or ``sampled gaussian`` for steps on cases that were drawn by chance (DP-SGD).
        sensitivity: by how much, at most, one case changes what is released (L2 norm).
        unit: of ``sensitivity`` and ``deviation``.
        deviation: of the noise on each number.
        multiplier: ``deviation`` / ``sensitivity``.
        sampling_rate: probability that a case takes part in a step.
        steps: with noise of their own.
        epsilon, delta: the guarantee of this release alone.
        question: HMAC of what was asked. The same part of the same answer is recorded once, and has one noise.
    """

    date: str
    job: str
    run: str
    round: int
    dataset: str
    what: Quantity
    mechanism: Literal["gaussian", "sampled gaussian"]
    sensitivity: float
    unit: str
    deviation: float
    multiplier: float
    sampling_rate: float = 1.0
    steps: int = 1
    epsilon: float
    delta: float
    question: str

    @property
    def parameters(self) -> Mechanism:
        """For the sum over releases."""
        return Mechanism(self.multiplier, self.sampling_rate, self.steps)


class _Line(Strict):
    number: int
    previous: str
    release: Release
    hash: str


@dataclass(frozen=True)
class Break:
    """The first line at which the chain does not hold, from 1, and why."""

    number: int
    reason: str


@dataclass(frozen=True)
class Account:
    """What a ledger holds; releases after a break are not read."""

    releases: tuple[Release, ...] = ()
    hashes: tuple[str, ...] = (BEGINNING,)
    """`BEGINNING`, then one for each release."""
    broken: Break | None = None
    size: int = 0
    """Bytes of complete lines."""

    @property
    def last(self) -> str:
        """The hash of the last line."""
        return self.hashes[-1]

    @property
    def head(self) -> LedgerHead | None:
        """Where it ends; None if nothing has left, or the chain is broken."""
        if self.broken is not None or not self.releases:
            return None
        return LedgerHead(number=len(self.releases), hash=self.hashes[-1])

    def epsilon(self, delta: float, *, planned: Iterable[Mechanism] = (), without: str | None = None) -> float:
        """ε at ``delta`` of all releases and of ``planned`` ones, without those of the run ``without``."""
        counted = [release.parameters for release in self.releases if release.run != without]
        return composed_epsilon([*counted, *planned], delta)


class Ledger:
    """The ledger in one folder. Processes of several jobs may use it at the same time."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is made at the first release."""
        self.path = folder / LEDGER_FILE
        self._head = folder / HEAD_FILE

    def read(self) -> Account:
        """All releases, and where the chain is broken if it is."""
        with self._locked() as file:
            return self._account(b"" if file is None else file.read())

    def trusted(self) -> Account:
        """All releases; DataError if the chain is broken."""
        return self._unbroken(self.read())

    def require(self, head: LedgerHead, *, site: str) -> None:
        """Before a task: whether the ledger holds what the server has seen of it.

        Raises:
            PolicyError: it is behind, or another one.
        """
        account = self.read()
        n = len(account.releases)
        if n >= head.number and account.hashes[head.number] == head.hash:
            return
        if n >= head.number:
            what = f"its release {head.number} is not the one that the server has seen"
        else:
            holding = f"{n} are here" if self.path.is_file() else f"there is no {LEDGER_FILE} here"
            what = f"the server has seen {head.number} releases, and {holding}"
        raise PolicyError(
            "ledger-replaced",
            f"site {site}: its privacy ledger is not the one that the server knows: {what}, so what was spent since is "
            "not in it, and nothing is computed: put the newest copy of local/ back, or see 'After a site was "
            "restored' in the runbook",
        )

    def check(
        self, budget: PrivacyBudget, planned: Iterable[Mechanism], *, site: str, job: str, run: str | None
    ) -> None:
        """Before a job: whether all of it fits into what other runs have left of the budget.

        Raises:
            PolicyError: it does not.
            DataError: the chain is broken.
        """
        account = self.trusted()
        total = account.epsilon(budget.delta, planned=planned, without=run)
        if total > budget.epsilon * (1 + TOLERANCE):
            spent = account.epsilon(budget.delta, without=run)
            raise PolicyError(
                "budget-spent",
                f"site {site}: job {job} would take epsilon to {total:.4g} at delta {budget.delta:g}, of which other "
                f"jobs have spent {spent:.4g}, past the {budget.epsilon:.4g} of its policy (privacy.budget): "
                "shorten the job, or ask the site for more noise or a larger budget",
            )

    def record(self, release: Release, *, budget: PrivacyBudget | None, site: str) -> str:
        """Put a release on disk; it may leave afterwards. Returns the hash of the last line.

        Raises:
            PolicyError: with it, all jobs together would be past the budget; or the same has left with other noise.
            DataError: the chain is broken, or the file cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked(create=True) as file:
                assert file is not None
                return self._append(file, release, budget, site)
        except OSError as error:
            raise DataError(
                "no-space",
                f"{self.path} cannot be written ({error.strerror}), and nothing leaves that is not in it: make room "
                "there; the site then takes part again",
            ) from None

    def _append(self, file: BinaryIO, release: Release, budget: PrivacyBudget | None, site: str) -> str:
        account = self._unbroken(self._account(file.read()))
        same = [r for r in account.releases if (r.question, r.what) == (release.question, release.what)]
        if any((r.parameters, r.deviation) != (release.parameters, release.deviation) for r in same):
            raise PolicyError(
                "answered-before",
                f"site {site}, round {release.round}: its ledger holds this answer with other noise, and a second one "
                "would lay bare what noise hides: the site takes part again in the next round",
            )
        if same:
            return account.hashes[-1]
        if budget is not None:
            total = account.epsilon(budget.delta, planned=[release.parameters])
            if total > budget.epsilon * (1 + TOLERANCE):
                raise PolicyError(
                    "budget-spent",
                    f"site {site}, round {release.round}: the answer would take epsilon of all jobs to {total:.4g} at "
                    f"delta {budget.delta:g}, past the {budget.epsilon:.4g} of its policy (privacy.budget): end the "
                    "site's other jobs first, or leave it out",
                )
        number = len(account.releases) + 1
        content = {"number": number, "previous": account.hashes[-1], "release": release.model_dump()}
        digest = _hash(content)
        if file.seek(0, SEEK_END) > account.size:
            log.warning("site %s: %s ended in an incomplete line, whose release has not left", site, self.path)
            file.truncate(account.size)
        file.seek(account.size)
        file.write(_text({**content, "hash": digest}) + b"\n")
        file.flush()
        os.fsync(file.fileno())
        if number == 1:
            sync_folder(self.path.parent)
        write_private(self._head, _text({"number": number, "hash": digest}) + b"\n")
        return digest

    def _account(self, content: bytes) -> Account:
        whole = content[: content.rfind(b"\n") + 1]
        releases: list[Release] = []
        hashes = [BEGINNING]
        broken: Break | None = None
        for number, text in enumerate(whole.splitlines(), start=1):
            line = _line(text, number, hashes[-1])
            if isinstance(line, str):
                broken = Break(number, line)
                break
            releases.append(line.release)
            hashes.append(line.hash)
        return Account(tuple(releases), tuple(hashes), broken or self._cut_off(hashes), len(whole))

    def _cut_off(self, hashes: list[str]) -> Break | None:
        """Compare with the head, which is written after the line: it may be one behind, and never ahead."""
        if not self._head.is_file():
            if len(hashes) <= 2:  # killed between the first line and the first head
                return None
            return Break(len(hashes) - 1, f"{self._head.name} is missing, so lines may have been cut off after it")
        try:
            head = LedgerHead.parse(json.loads(self._head.read_bytes()), where=self._head.name)
        except (ValueError, ConfigError):
            return Break(len(hashes) - 1, f"{self._head.name} is damaged, so lines may have been cut off after it")
        if head.number >= len(hashes):
            return Break(len(hashes), f"{head.number} releases were recorded, and {len(hashes) - 1} are here")
        if hashes[head.number] != head.hash:
            return Break(head.number, f"the hash is not that of {self._head.name}")
        return None

    def _unbroken(self, account: Account) -> Account:
        if account.broken is not None:
            raise DataError(
                "ledger-broken",
                f"{self.path}: the chain is broken at release {account.broken.number} ({account.broken.reason}), so "
                "nobody can tell what was spent and nothing leaves with noise: restore it and "
                f"{self._head.name} from a copy, or move both away to begin anew, knowing that what was spent is lost",
            )
        return account

    @contextmanager
    def _locked(self, *, create: bool = False) -> Iterator[BinaryIO | None]:
        """The file at its beginning, alone with ``create``; None if there is none."""
        if not create and not self.path.is_file():
            yield None
            return
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        with os.fdopen(os.open(self.path, flags, 0o600), "r+b" if create else "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX if create else fcntl.LOCK_SH)
            yield file


def now() -> str:
    """The date of a release."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _line(text: bytes, number: int, previous: str) -> _Line | str:
    """A line of the chain, or what is wrong with it."""
    try:
        line = _Line.parse(json.loads(text), where="the line")
    except (ValueError, ConfigError):
        return "it cannot be read"
    if line.previous != previous:
        return "it does not follow the one before it"
    if line.number != number:
        return f"it says that it is release {line.number}"
    if line.hash != _hash({"number": number, "previous": previous, "release": line.release.model_dump()}):
        return "it was changed after it was written"
    return line


def _text(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _hash(content: Any) -> str:
    return hashlib.sha256(_text(content)).hexdigest()
