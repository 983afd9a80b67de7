"""A job that asks every connected site one question, once, such as a survey or a validation.

The server's part ends when all have answered or their time is over. A site answers with checked data, as JSON, or with
one sentence that says why it does not.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from pydantic import BaseModel

from fedshift.federation.ledger_heads import LedgerHeads, SiteLedger
from fedshift.flare import codec
from fedshift.flare.context import client_is_simulated, local_folder, run_folder, server_is_simulated
from fedshift.schema.errors import ConfigError, FedshiftError, PolicyError
from fedshift.schema.messages import Broadcast
from flare_armour.patches import require_protection
from flare_armour.patches.simulator import use_in_bare_simulator
from flare_armour.protected import allow_usual

log = logging.getLogger("fedshift")


class Question(Protocol):
    """What a job asks, and what becomes of the answers.

    Attributes:
        about: what the log says of it, as ``survey of prostate``.
        sites: who is asked.
        timeout: seconds for all to answer.
    """

    about: str
    sites: tuple[str, ...]
    timeout: float

    def take(self, site: str, answer: Shareable) -> None:
        """Keep a site's answer; `codec.WireError` if it is none."""

    def refuse(self, site: str, reason: str) -> object:
        """Note why a site gave no usable answer."""

    def finish(self, folder: Path) -> None:
        """Write the record."""


class QuestionWorkflow(Controller):
    """The server's controller. A subclass says what is asked (`begin`)."""

    task: ClassVar[str]
    """FLARE's name of the question."""
    _question: Question
    _ledgers: LedgerHeads | None = None

    @abstractmethod
    def begin(self, fl_ctx: FLContext) -> Question:
        """The question, before anybody is asked; FedshiftError if it cannot be."""

    def failed(self, reason: str) -> None:
        """The job has ended without a record."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """In FLARE's simulator, replace its way to start workers before there are any."""
        if server_is_simulated(fl_ctx):
            use_in_bare_simulator(("fedshift.flare.executor",))

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left open."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Ask. An error ends the job with one sentence in the log."""
        reason = f"the {self.task} was stopped from outside"
        try:
            if self._run(abort_signal, fl_ctx):
                return
            self.failed(reason)
        except FedshiftError as error:
            log.error("%s", error)
            self.failed(str(error))
            self.system_panic(str(error), fl_ctx)
        except Exception as error:
            log.exception("the %s failed", self.task)
            reason = f"{type(error).__name__} at the server (its log has the details)"
            self.failed(reason)
            self.system_panic(reason, fl_ctx)

    def process_result_of_unknown_task(
        self, client: object, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """FLARE calls this for an answer that came too late."""
        log.warning("site %s answered after the %s had ended", getattr(client, "name", "?"), self.task)

    def _run(self, abort_signal: Signal, fl_ctx: FLContext) -> bool:
        """Whether the record was written; False if the job was aborted."""
        if not server_is_simulated(fl_ctx):
            require_protection()
            allow_usual()
        question = self._question = self.begin(fl_ctx)
        connected = {client.name for client in self._engine.get_clients()}
        asked = [site for site in question.sites if site in connected]
        log.info("%s: asking %s", question.about, ", ".join(asked) or "nobody")
        self._ledgers = None if server_is_simulated(fl_ctx) else LedgerHeads(local_folder(fl_ctx))
        known = {} if self._ledgers is None else self._ledgers.known(asked)
        broadcast = Broadcast(round=0, best_round=0, weights={}, sites=tuple(asked), ledgers=known)
        task = Task(
            self.task,
            data=codec.encode_task(broadcast),
            timeout=round(question.timeout),
            result_received_cb=self._receive,
        )
        if asked:
            self.broadcast_and_wait(task, fl_ctx, targets=asked, min_responses=len(asked), abort_signal=abort_signal)
        if abort_signal.triggered:
            return False
        question.finish(run_folder(fl_ctx))
        return True

    def _receive(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Take a site's answer. FLARE calls this in a separate thread; the client's name was authenticated by FLARE."""
        site, result = client_task.client.name, client_task.result
        code = result.get_return_code()
        if code != ReturnCode.OK:
            self._question.refuse(site, f"FLARE reports {code}; the site's log has the details")
            return
        try:
            ledger = codec.told_ledger(result)
            if ledger is not None and self._ledgers is not None:
                self._ledgers.keep(site, ledger)
            self._question.take(site, result)
        except codec.WireError as fault:
            self._question.refuse(site, fault.reason)
        except Exception as error:  # a malformed answer must not end the job
            log.exception("the answer of %s cannot be read", site)
            self._question.refuse(site, f"its answer cannot be read ({type(error).__name__})")


class QuestionExecutor(Executor):
    """Answers the question for the client's site. A subclass says what (`tell`)."""

    task: ClassVar[str]
    part: ClassVar[str]
    """What the answer is called in the message."""

    @abstractmethod
    def tell(self, name: str, fl_ctx: FLContext, *, stop: Callable[[], bool]) -> BaseModel:
        """The site's answer; FedshiftError if there is none. ``stop`` says whether the job was ended from outside."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Before the task comes, limit what comes."""
        if event_type == EventType.START_RUN and not client_is_simulated(fl_ctx):
            allow_usual()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer. What goes wrong is answered with a sentence; its details stay in the site's log."""
        simulated, name = client_is_simulated(fl_ctx), fl_ctx.get_identity_name()
        if not simulated:
            require_protection()
        try:
            if task_name != self.task:
                raise ConfigError(
                    "other-version", f"there is no task {task_name!r}: install the server's version of fedshift here"
                )
            ledger = SiteLedger(name, None if simulated else local_folder(fl_ctx))
            ledger.require(codec.decode_task(shareable))
            answer = self.tell(name, fl_ctx, stop=lambda: bool(abort_signal.triggered))
            return codec.encode_told(self.part, answer, ledger=ledger.head())
        except PolicyError as error:
            log.error("site %s: %s", name, error)
            return codec.encode_told(self.part, str(error))
        except FedshiftError as error:
            log.error("site %s: %s", name, error)
            # The sentence may name files and folders, which must not leave a hospital.
            reason = str(error) if simulated else f"{type(error).__name__} (the site's log says more)"
            return codec.encode_told(self.part, reason)
        except Exception as error:
            log.exception("site %s: the %s failed", name, self.task)
            return codec.encode_told(self.part, f"{type(error).__name__} (the site's log has the details)")
