"""The `Coordinator` of a run in this process, and the sequence of its requests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from fedshift.federation.ledger_heads import LedgerHeads
from fedshift.federation.message_limits import MessageLimits
from fedshift.federation.server.coordinator import Callbacks, Coordinator, Request
from fedshift.federation.server.update_check import Rejected
from fedshift.mailbox.content import ContentError, decode_answer
from fedshift.mailbox.letter import VALIDATE, Task
from fedshift.mailbox.party import Party, now
from fedshift.methods import method_set
from fedshift.reporting.events import Events
from fedshift.reporting.progress import ProgressFile
from fedshift.reporting.trackers import make_trackers
from fedshift.schema.components import admit
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Failure, Scores, Update
from fedshift.schema.policy import LedgerHead

log = logging.getLogger("fedshift")


class LiveRun:
    """A coordinator that goes on after its last closed round.

    Attributes:
        coordinator: as everywhere.
        limits: of the sizes of messages.
    """

    def __init__(self, job: JobSpec, folder: Path, party: Party) -> None:
        """``folder`` is that of results, models and progress."""
        admit(job.packages, where="the coordinator")
        method_set.require_federation(job)
        self.limits = MessageLimits.from_job(job)
        self._progress, self._heads = ProgressFile(folder), LedgerHeads(party.local)
        self.coordinator = _coordinator(job, folder, party, on_progress=self._show)
        self.coordinator.resume()
        self._requests: Iterator[Request] = self.coordinator.requests()
        self._left_out: set[tuple[int, str]] = set()

    def next(self) -> Request | None:
        """Close the open round, if there is one, and open the next; None at the end of the run.

        Raises:
            QuorumError: the open round had too few usable answers. This object is then of no more use.
        """
        return next(self._requests, None)

    def opened_at(self, opened: datetime) -> None:
        """The open round was opened then, by an earlier process."""
        self.coordinator.record.opened_before((now() - opened).total_seconds())

    def known_ledgers(self, sites: tuple[str, ...]) -> dict[str, LedgerHead]:
        """What is known of the sites' privacy ledgers, which goes with every request."""
        return self._heads.known(sites)

    def take(self, site: str, task: Task, content: memoryview) -> None:
        """Take a site's answer. A fault in it is recorded under the site's name.

        Raises:
            DiskFull, OSError: the answer can't be stored on this machine.
        """
        coordinator = self.coordinator
        try:
            answer = decode_answer(content)
            answered = answer.content
            if answered.site != site:
                raise Rejected("site", f"the site answered for {answered.site}")
            if answer.ledger is not None:  # it has left, whatever becomes of the answer
                self._heads.keep(site, answer.ledger)
            if isinstance(answered, Failure):
                raise Rejected(task, answered.reason)
            if answer.info is not None:
                coordinator.register(answer.info)
            if not isinstance(answered, Scores if task == VALIDATE else Update):
                raise Rejected(task, f"was answered with {type(answered).__name__}")
        except ContentError as error:
            coordinator.reject(site, "answer", f"the message {error}")
        except ValueError:
            coordinator.reject(site, "info", "does not describe a site's data")
        except Rejected as fault:
            coordinator.reject(site, fault.key, fault.reason)
        else:
            coordinator.take(answered)

    def leave_out(self, number: int, site: str, key: str, reason: str) -> None:
        """Leave a site out of the open request of this number, once, with what it has answered."""
        if (number, site) not in self._left_out:
            self._left_out.add((number, site))
            self.coordinator.take_out(site, key, reason)

    def since_round(self, key: str, reason: str) -> int:
        """The round in whose record a site was first left out for this reason; else the open one."""
        results = self.coordinator.results
        records = [*([results.statistics] if results.statistics else []), *results.rounds]
        rounds = (r.round for r in records for fault in r.rejected if fault.key == key and reason in fault.reason)
        return next(rounds, self.coordinator.round)

    def fail(self, reason: str) -> None:
        """Write why the run cannot go on."""
        self.coordinator.results.write(self.coordinator.folder)
        self._progress.fail(reason)

    def finish(self) -> None:
        """Write the curves of the whole run; a run of many processes writes them once."""
        job, folder = self.coordinator.job, self.coordinator.folder
        self.coordinator.discard_waiting()
        events = Events(folder, trackers=make_trackers(job.federation.tracking, job=job.name, folder=folder))
        events.update(self.coordinator.results)
        events.close()

    def _show(self, coordinator: Coordinator) -> None:
        self._progress.update(coordinator)


def _coordinator(job: JobSpec, folder: Path, party: Party, *, on_progress: object) -> Coordinator:
    """The coordinator of a job, with the keys of the server's kit where the job encrypts."""
    callbacks: Callbacks = {"on_progress": on_progress}  # type: ignore[typeddict-item]
    if job.federation.encryption == "masks":
        from fedshift.federation.encryption.masks.server import MaskedCoordinator

        return MaskedCoordinator(job, folder, run=party.run, checker=party.root(), **callbacks)
    if job.federation.encryption == "ckks":
        from fedshift.federation.encryption.kit_keys import SERVER_KEYS, read_keys
        from fedshift.federation.encryption.server import EncryptedCoordinator

        return EncryptedCoordinator(job, folder, keys=read_keys(party.startup, SERVER_KEYS), **callbacks)
    return Coordinator(job, folder, **callbacks)
