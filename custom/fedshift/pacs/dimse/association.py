"""Associations with a PACS (PS3.8): opened, or a sentence that says why not."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedshift.data.dicom_pixels import DECODED, RUN_LENGTHS
from fedshift.pacs.archive import ANSWER, REJECTED, UNREACHABLE, NoAnswer
from fedshift.pacs.dimse.node import Node, Peer

if TYPE_CHECKING:
    from pynetdicom import AE
    from pynetdicom.association import Association

SECONDS_TO_CONNECT, SECONDS_TO_ANSWER = 15, 120
ATTEMPTS_MORE, SECONDS_BETWEEN = 3, 0.5
"""Of a PACS that is busy, or says that it will take an association later."""
PLAIN = ("1.2.840.10008.1.2.1", "1.2.840.10008.1.2", "1.2.840.10008.1.2.2", "1.2.840.10008.1.2.1.99")
"""Transfer syntaxes without compressed pixels: explicit VR, implicit VR, big endian, deflated."""
READ = (*PLAIN, RUN_LENGTHS, *DECODED)
"""Transfer syntaxes whose pixels are read: no others are taken."""
TEMPORARILY = 2
"""The result of a rejection after which it may be asked again."""
_REASONS = {
    (1, 2): "it does not speak DICOM as of today (application context)",
    (1, 3): "it does not know our AE title {ours}: have it entered there, with this machine's address, or name one "
    "that it knows with --ae-title",
    (1, 7): "its AE title is not {theirs}: see its settings",
    (3, 1): "it is busy: repeat this later",
    (3, 2): "it has as many associations as it allows: repeat this later",
}
"""Source and reason of a rejection (PS3.8, table 9-21)."""


class NoContext(NoAnswer):
    """A PACS that does not do what it is asked for."""


@dataclass(frozen=True)
class Line:
    """The way to a PACS."""

    peer: Peer
    ours: Node
    tls: ssl.SSLContext | None

    @contextmanager
    def associated(
        self,
        contexts: Sequence[tuple[str, Sequence[str]]],
        *,
        without: str,
        received: Sequence[str] = (),
        on_store: Callable[[Any], int] | None = None,
    ) -> Iterator[Association]:
        """An association that is released, or aborted if anything fails.

        Args:
            contexts: SOP classes, each with transfer syntaxes of which the PACS chooses one. It must do the first.
            without: what is said where it does not.
            received: SOP classes of objects that it may send to us in it (C-GET).
            on_store: called with each such object (pynetdicom's event); gives the status of the answer.

        Raises:
            NoContext: the PACS does not do the first of these.
            NoAnswer: there is no association.
        """
        from pynetdicom import AE, build_role, evt

        caller = AE(self.ours.title)
        set_times(caller)
        for sop_class, syntaxes in contexts:
            caller.add_requested_context(sop_class, list(syntaxes))
        roles = [build_role(sop_class, scp_role=True) for sop_class in received]
        handlers: list[Any] = [(evt.EVT_CONN_OPEN, _send_at_once)]
        handlers += [] if on_store is None else [(evt.EVT_C_STORE, on_store)]
        association = self._opened(caller, ext_neg=roles, evt_handlers=handlers)
        try:
            if not any(each.abstract_syntax == contexts[0][0] for each in association.accepted_contexts):
                raise NoContext(ANSWER, without)
            if not association.is_established:
                raise NoAnswer(UNREACHABLE, "it ended the association at once: see its log")
            yield association
        except BaseException:
            association.abort()
            raise
        if association.is_established:
            association.release()

    def _opened(self, caller: Any, **how: Any) -> Association:
        title, host, port = self.peer.title, self.peer.host, self.peer.port
        tls = None if self.tls is None else (self.tls, host)
        for attempt in range(ATTEMPTS_MORE + 1):
            try:
                association: Association = caller.associate(host, port, ae_title=title, tls_args=tls, **how)
            except OSError as error:  # the name of the machine
                raise NoAnswer(UNREACHABLE, _why_not_there(error)) from None
            if (
                association.is_established or association.rejected_contexts
            ):  # of which pynetdicom ends one without any context
                return association
            if not association.is_rejected:
                raise NoAnswer(UNREACHABLE, self._why_closed())
            answer: Any = association.acceptor.primitive
            if answer.result != TEMPORARILY:
                break
            if attempt < ATTEMPTS_MORE:
                time.sleep(SECONDS_BETWEEN * 2**attempt)
        known = _REASONS.get((answer.result_source, answer.diagnostic), f"it gave no reason ({answer.reason_str})")
        reason = known.format(ours=self.ours.title, theirs=title)
        code = UNREACHABLE if answer.result == TEMPORARILY else REJECTED
        raise NoAnswer(code, f"it rejected the association: {reason}")

    def _why_closed(self) -> str:
        """Of an association that came to nothing: connect once more, to see what is in the way."""
        try:
            with socket.create_connection((self.peer.host, self.peer.port), SECONDS_TO_CONNECT) as plain:
                if self.tls is not None:
                    with self.tls.wrap_socket(plain, server_hostname=self.peer.host):
                        pass
        except OSError as error:
            return _why_not_there(error)
        message = "it closed the line before an association was made: see whether this port speaks DICOM, and "
        return message + ("whether it asks for a --certificate" if self.tls else "without TLS")


def _send_at_once(event: Any) -> None:
    """A request is two short messages, of which the second would wait until the first is acknowledged."""
    event.assoc.dul.socket.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def set_times(node: AE) -> None:
    """Have nothing of a node's waited for without end."""
    node.connection_timeout = node.acse_timeout = SECONDS_TO_CONNECT
    node.dimse_timeout = node.network_timeout = SECONDS_TO_ANSWER


def silence() -> None:
    """Keep pynetdicom's log to itself: its lines hold queries, which may name patients."""
    logging.getLogger("pynetdicom").setLevel(logging.CRITICAL)


def named(sop_class: str) -> str:
    """A SOP class or transfer syntax in words."""
    from pydicom.uid import UID

    return str(UID(sop_class).name)


def _why_not_there(error: OSError) -> str:
    """Why there was no line, and what to do."""
    known: dict[type[OSError], str] = {
        ssl.SSLCertVerificationError: "its certificate cannot be verified: name the one of your authority with "
        "--ca-file, and the PACS as its certificate does",
        ssl.SSLError: "TLS failed: see whether this port speaks TLS, and whether it asks for a --certificate",
        socket.gaierror: "there is no machine of this name: see the address",
        TimeoutError: "it did not answer in time: see the address, and firewalls on the way",
        ConnectionRefusedError: "nothing listens there: see machine and port, and whether it runs",
    }
    return next(
        (reason for kind, reason in known.items() if isinstance(error, kind)),
        "the line failed: see the address, repeat this",
    )
