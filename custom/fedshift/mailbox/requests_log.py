"""The coordinator's requests since its last closed round: what a step needs to go on where the last one ended.

`Coordinator.resume` goes back to the last closed round, and `Coordinator.requests` begins after it. What was asked
since then, and which answers were taken, is here; answers themselves stay in the shared folder until their round is
closed. A later step takes the same answers in the same order and comes to the same state.
"""

from __future__ import annotations

from fedshift.mailbox.letter import UNMASK, VALIDATE, Task
from fedshift.mailbox.pieces import Body, Sealed
from fedshift.mailbox.thread import Chains
from fedshift.schema.strict import Strict


class Answered(Strict):
    """An answer that was taken: whose, and its letter."""

    site: str
    text: str


class Asked(Strict):
    """A request.

    Attributes:
        number: of the request in the run, from 1.
        task: what was asked.
        round: of its message.
        sites: whom it is for.
        opened: when, ISO 8601.
        sealed: the message; its key is needed as long as a site may still get it.
        letters: site -> hash of the letter that asked it.
        answers: those that were taken, in their order.
        left_out: site -> key and reason of those that may not take part.
        closed: whether the coordinator has gone on, so that no further answer counts.
    """

    number: int
    task: Task
    round: int
    sites: tuple[str, ...]
    opened: str
    sealed: Sealed
    letters: dict[str, str] = {}
    answers: tuple[Answered, ...] = ()
    left_out: dict[str, tuple[str, str]] = {}
    closed: bool = False

    def without(self, site: str) -> Asked:
        """The request as if the site had not got it; what counted when it was closed stays."""
        letters = {name: text for name, text in self.letters.items() if name != site}
        answers = tuple(answer for answer in self.answers if self.closed or answer.site != site)
        return self.model_copy(update={"letters": letters, "answers": answers})


class CoordinatorState(Strict):
    """What the coordinator keeps between two steps.

    Attributes:
        job_sealed: the job, encrypted once for all sites; set with the first step.
        number: of the newest request.
        asked: the requests since the last closed round; the last one is open.
        ended: whether the run has ended.
        line: the state in one line, as the last step has told it.
        chains: the correspondence with each site.
    """

    job_sealed: Sealed | None = None
    number: int = 0
    asked: tuple[Asked, ...] = ()
    ended: bool = False
    line: str = ""
    chains: dict[str, Chains] = {}

    @property
    def open(self) -> Asked | None:
        """The newest request."""
        return self.asked[-1] if self.asked else None

    @property
    def bodies(self) -> list[Body]:
        """Messages that may still be sent: the job's, and that of the open request."""
        sealed = [self.job_sealed, None if self.open is None else self.open.sealed]
        return [] if self.ended else [each.body for each in sealed if each is not None]

    def with_open(self, **changes: object) -> CoordinatorState:
        """The state with something changed of the newest request."""
        newest = self.asked[-1].model_copy(update=changes)
        return self.model_copy(update={"asked": (*self.asked[:-1], newest)})

    def with_new(self, asked: Asked) -> CoordinatorState:
        """The state with a new request, and without those that a step will not have to repeat.

        The coordinator's own state is saved when a round is closed, and not between the two requests of a round with
        masks, nor between the evaluations of the last model and the best.
        """
        former = self.open
        repeats = former is not None and (asked.task == UNMASK or (asked.task == VALIDATE and former.task == VALIDATE))
        return self.model_copy(update={"number": asked.number, "asked": (*(self.asked if repeats else ()), asked)})
