"""Who has answered the open round. Answers come in FLARE's own threads: too early, too late, twice or never."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Set
from typing import Protocol

from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.fqcn import FQCN

log = logging.getLogger("fedshift")

MOST_UNUSABLE = 1000
"""Messages that were no answers, of which those who sent them are remembered until the next look."""


class Aggregator(Protocol):
    """What takes the answers: `fedshift.flare.aggregator.FedshiftAggregator`."""

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Take a client's answer."""

    def refuse(self, client: str, key: str, reason: str) -> None:
        """Leave a client out of the round."""

    def take_out(self, client: str, key: str, reason: str) -> None:
        """Leave a client out of the round, with the answer that it has given."""


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
        """No round is open."""
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
        """Whether answers are taken."""
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
