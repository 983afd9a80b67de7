"""Passes clients' answers, as FLARE delivers them, to the `Coordinator`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable

from fedshift.federation.encryption.kit_keys import SERVER_KEYS, read_keys, server_checker
from fedshift.federation.encryption.server import EncryptedCoordinator
from fedshift.federation.ledger_heads import LedgerHeads
from fedshift.federation.server.coordinator import Callbacks, Coordinator
from fedshift.federation.server.update_check import Rejected
from fedshift.flare import codec
from fedshift.flare.export import hosts
from fedshift.methods import method_set
from fedshift.schema.errors import DiskFull
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Answer, Failure, Scores, Update
from fedshift.schema.results import Rejection

log = logging.getLogger("fedshift")


class FedshiftAggregator(FLComponent):
    """Holds the job's coordinator. The workflow makes one call at a time.

    It is no FLARE ``Aggregator``: rounds are closed by the coordinator, when the workflow takes the next request.
    """

    coordinator: Coordinator

    def begin(
        self,
        job: JobSpec,
        folder: Path,
        *,
        on_progress: Callable[[Coordinator], None],
        on_reject: Callable[[Rejection, int], None] = lambda rejection, round_: None,
        startup: Path | None = None,
        run: str = "",
        ledgers: LedgerHeads | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make the coordinator, with the initial model or with what an interrupted run left in ``folder``.

        ``on_progress``, ``on_reject`` and ``stopped`` are as in `Callbacks`. ``startup`` is the kit's folder, for the
        server's keys or what checks the sites'; ``run`` is the number that FLARE has given the job, for which sites
        sign their keys; without ``ledgers``, as in simulations, nothing of the sites' ledgers is kept.
        """
        method_set.require_federation(job)
        self._on_progress, self._in_message, self._ledgers = on_progress, False, ledgers
        self._hosts = hosts(job)
        callbacks = Callbacks(on_progress=self._note, on_reject=on_reject, stopped=stopped)
        kind, startup = job.federation.encryption, startup or folder
        if kind is None:
            self.coordinator = Coordinator(job, folder, **callbacks)
        elif kind == "masks":
            from fedshift.federation.encryption.masks.server import MaskedCoordinator

            self.coordinator = MaskedCoordinator(job, folder, run=run, checker=server_checker(startup), **callbacks)
        else:
            self.coordinator = EncryptedCoordinator(job, folder, keys=read_keys(startup, SERVER_KEYS), **callbacks)
        self.coordinator.resume()

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Pass on a client's answer. A fault in it is recorded under the site's name.

        The workflow has put the client's name, as FLARE authenticated it, into the peer's properties.

        Raises:
            DiskFull, OSError: the answer can't be stored on this machine.
        """
        client = shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, "")
        self._in_message = True
        try:
            return self._accept(client, shareable)
        except (DiskFull, OSError):
            raise
        except Exception as error:  # a malformed answer must not end the job
            log.exception("the answer of %s cannot be read", client)
            return self._reject(client, "answer", f"cannot be read ({type(error).__name__})")
        finally:
            self._in_message = False
            self._on_progress(self.coordinator)

    def refuse(self, client: str, key: str, reason: str) -> None:
        """Reject all sites of a client whose answer did not get as far as `accept`."""
        self._reject(client, key, reason)
        self._on_progress(self.coordinator)

    def take_out(self, client: str, key: str, reason: str) -> None:
        """Leave out all sites of a client that are asked in the open round, with the answers that they have given."""
        for site in self._asked(client):
            self.coordinator.take_out(site, key, reason)
        self._on_progress(self.coordinator)

    def _note(self, coordinator: Coordinator) -> None:
        """Show progress, but only once for a message with the answers of many sites."""
        if not self._in_message:
            self._on_progress(coordinator)

    def _accept(self, client: str, shareable: Shareable) -> bool:
        task = shareable.get_header(ReservedHeaderKey.TASK_NAME, "task")
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return self._reject(client, task, f"FLARE reports {code}; the site's log has the details")
        try:
            answers = codec.decode_answers(shareable)
        except codec.WireError as fault:
            return self._reject(client, fault.key, fault.reason)
        asked, answered = self._asked(client), [answer.content.site for answer in answers]
        others = [site for site in answered if site not in asked]
        if others or not answered or len(answered) < len(asked):
            return self._reject(client, "site", f"the client answered for {', '.join(others or answered) or 'no site'}")
        return all([self._take(answer, task) for answer in answers])

    def _asked(self, client: str) -> tuple[str, ...]:
        """The client's sites that take part in the open round; it may answer for no others."""
        invited = self.coordinator.invited
        return tuple(site for site in self._hosts.get(client, ()) if site in invited)

    def _reject(self, client: str, key: str, reason: str) -> bool:
        """Reject all sites that the client was asked to answer for."""
        for site in self._asked(client) or (client,):
            self.coordinator.reject(site, key, reason)
        return False

    def _take(self, answer: Answer, task: str) -> bool:
        content = answer.content
        if answer.ledger is not None and self._ledgers is not None:  # it has left, whatever becomes of the answer
            self._ledgers.keep(content.site, answer.ledger)
        try:
            if isinstance(content, Failure):
                raise Rejected(task, content.reason)
            if answer.info is not None:
                self.coordinator.register(answer.info)
            if not isinstance(content, Scores if task == codec.VALIDATE else Update):
                raise Rejected(task, f"was answered with {type(content).__name__}")
        except ValueError:
            self.coordinator.reject(content.site, "info", "does not describe a site's data")
            return False
        except Rejected as fault:
            self.coordinator.reject(content.site, fault.key, fault.reason)
            return False
        return self.coordinator.take(content)
