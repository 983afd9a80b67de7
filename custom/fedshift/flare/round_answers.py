"""The open round: who has answered, who is disabled, and when it ends although not every site has answered.

Answers come in FLARE's own threads: too early, too late, twice or never.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.fqcn import FQCN

from fedshift.federation.server.coordinator import Coordinator
from flare_armour.disabled_sites import Disabling

log = logging.getLogger("fedshift")

MOST_UNUSABLE = 1000
"""Messages that were no answers, of which those who sent them are remembered until the next look."""
DISABLED = "disabled"
"""What ``results.json`` names in place of a part of the answer of a disabled site."""
NONE: Mapping[str, float] = MappingProxyType({})


# --- when a round ends ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundDeadline:
    """A job's rule for the end of a round. Times are seconds since the round was opened.

    A round ends when every client has answered, or at ``timeout``. It ends earlier if ``min_sites`` answers were
    usable and the other clients have had as long again as those took, plus ``grace``. Clients that did not answer in
    the last round get the task but are not waited for, so that a dead client delays one round and not all. ``awaited``
    clients do other work than the rest, such as scoring all images of a held-out site: they have until ``timeout``.

    Where models travel in pieces (`flare_armour.pieces`), all this is counted from the latest piece of a client that
    is waited for, as that of a slow line is no dead one; but pieces put the end off by no more than ``transfer``.
    """

    clients: frozenset[str]
    min_sites: int
    timeout: float
    grace: float
    awaited: frozenset[str] = frozenset()
    transfer: float = 0.0

    def deadline(
        self,
        *,
        answered: Set[str],
        usable: int,
        quorum_after: float | None,
        silent_before: Set[str],
        moved: Mapping[str, float] = NONE,
    ) -> float:
        """When the round ends if no further answer arrives; 0 if it is over already.

        Args:
            answered: clients that have answered, usably or not.
            usable: how many sites' answers were usable.
            quorum_after: when the number of usable answers reached ``min_sites``.
            silent_before: clients that did not answer in the last round.
            moved: when the latest piece of a client came in or went out.
        """
        missing = self.clients - answered
        if not missing:
            return 0.0
        last = max((when for client, when in moved.items() if client in missing), default=0.0)
        latest = self.timeout + min(last, self.transfer)
        if usable < self.min_sites or quorum_after is None:
            return latest
        silent = silent_before - moved.keys()
        if (missing & self.awaited) - silent:
            return latest
        if missing <= silent:
            return 0.0
        put_off = min(max(last - quorum_after, 0.0), self.transfer)
        return min(2 * quorum_after + put_off + self.grace, latest)


# --- who has answered -----------------------------------------------------------------------------------


class Aggregator(Protocol):
    """What takes the answers: `fedshift.flare.aggregator.FedshiftAggregator`."""

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool: ...

    def refuse(self, client: str, key: str, reason: str) -> None: ...

    def take_out(self, client: str, key: str, reason: str) -> None: ...


class RoundAnswers:
    """One answer of each client that is asked, as long as the round is open.

    Attributes:
        changed: held while something here changes, and notified of each answer; hold it to read several things at once.
        asked: clients that got the task of this round.
        answered: those of them that have answered, usably or not.
        silent: clients that did not answer when they were asked last.
        fault: an error that is no client's fault, such as a full disk, and ends the job.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.asked: frozenset[str] = frozenset()
        self.answered: set[str] = set()
        self.silent: set[str] = set()
        self.fault: Exception | None = None
        self._aggregator: Aggregator | None = None
        self._gone: set[str] = set()
        self._left_out: set[str] = set()
        self._unusable: deque[tuple[str, str]] = deque(maxlen=MOST_UNUSABLE)

    def open(self, asked: frozenset[str], aggregator: Aggregator) -> None:
        """A round begins: from now on the aggregator takes the answers of these clients."""
        with self.changed:
            self._aggregator, self.asked, self.answered = aggregator, asked, set()
            self._unusable.clear()
            self._left_out.clear()

    def close(self) -> None:
        """The round is over: answers are stale from now on."""
        with self.changed:
            self._aggregator = None

    @property
    def is_open(self) -> bool:
        return self._aggregator is not None

    def receive(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Take a client's answer; FLARE calls this in a separate thread."""
        name = client_task.client.name
        with self.changed:
            if self._aggregator is None:
                self.stale(name, client_task.task.name)
                return
            if name in self.answered:  # with what could not be decoded
                return
            # The sender named in the answer is set by the client itself; this name was authenticated by FLARE.
            client_task.result.set_peer_props({ReservedKey.IDENTITY_NAME: name})
            try:
                self._aggregator.accept(client_task.result, fl_ctx)
            except Exception as error:
                self.fault = error
            self.answered.add(name)
            self.changed.notify_all()
        client_task.result = None  # FLARE would keep it in memory until the round ends

    def stale(self, client: str, task: str) -> None:
        """A client has answered after the end of its round."""
        with self.changed:
            log.warning("site %s answered a %s task after its round had ended: left out as stale", client, task)
            self.silent.discard(client)  # slow, not dead: worth waiting for again

    def repeated(self, client: str) -> None:
        """A client sends an answer. A second one to the open round, which FLARE drops, is logged."""
        if self.is_open and client in self.answered:
            log.warning("site %s answered the open round more than once: only its first answer counts", client)

    def unusable(self, sender: str, fault: str) -> None:
        """A message of this cell, by its full name, never became an answer. Returns at once."""
        self._unusable.append((sender, fault))

    def leave_out_unusable(self) -> None:
        """Leave out the clients that were reported to `unusable`, unless they have answered or were not asked."""
        with self.changed:
            while self._unusable:
                sender, fault = self._unusable.popleft()
                name = FQCN.split(sender)[0]
                if self._aggregator is not None and name in self.asked - self.answered:
                    self._aggregator.refuse(name, "answer", fault)
                    self.answered.add(name)

    def leave_out(self, client: str, key: str, reason: str) -> None:
        """Leave a client out of the open round, once, whether it has answered or not: it may not take part."""
        with self.changed:
            if self._aggregator is not None and client not in self._left_out:
                self._left_out.add(client)
                self._aggregator.take_out(client, key, reason)
                self.answered.add(client)
                self.changed.notify_all()

    def note_silent(self, moved: Set[str]) -> frozenset[str]:
        """After a round: who has not answered. It is not waited for again, unless it ``moved`` a part of a model."""
        silent = self.asked - self.answered
        self.silent = (self.silent - self.asked) | (silent - moved)  # slow, not dead
        return silent

    def gone(self, client: str) -> None:
        """A client runs its part of the job no more."""
        self._gone.add(client)

    def back(self, client: str) -> None:
        """It does again."""
        self._gone.discard(client)

    def why_stopped(self, min_sites: int, place: str) -> str:
        """FLARE stops a job that too few clients run; all else comes from outside. ``place``: ``round 3``."""
        gone = sorted(self.asked & self._gone)
        if gone and len(self.asked) - len(gone) < min_sites:
            return (
                f"the run was stopped during {place}: too few sites run their part of the job, {', '.join(gone)} do "
                "not, and the logs there have the reason"
            )
        waiting = ", ".join(sorted(self.asked - self.answered))
        return f"the run was stopped from outside during {place}, before {waiting} answered"


# --- who is disabled ------------------------------------------------------------------------------------


class DisabledClients:
    """Who the project's admin has disabled (`flare_armour.disabled_sites`), and since which round of this job.

    ``disabled`` gives the clients that are disabled now.
    """

    def __init__(
        self, coordinator: Coordinator, answers: RoundAnswers, disabled: Callable[[], Mapping[str, Disabling]]
    ) -> None:
        self._coordinator, self._answers, self._disabled = coordinator, answers, disabled
        self._rounds: dict[tuple[str, Disabling], int] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._disabled())

    def leave_out(self) -> None:
        """Leave those that are disabled now out of the open round: with the answer that they have given to it, too."""
        for client, disabling in self._disabled().items():
            self._answers.leave_out(client, DISABLED, f"{disabling} (round {self._since(client, disabling)})")

    def _since(self, client: str, disabling: Disabling) -> int:
        """The round that was open when this was first seen, also by an earlier process of the job."""
        if (client, disabling) not in self._rounds:
            results = self._coordinator.results
            records = [*([results.statistics] if results.statistics else []), *results.rounds]
            rounds = (
                record.round
                for record in records
                for fault in record.rejected
                if fault.key == DISABLED and str(disabling) in fault.reason
            )
            self._rounds[client, disabling] = next(rounds, self._coordinator.round)
        return self._rounds[client, disabling]
