"""This machine as a DICOM node that takes images (C-STORE) and says that it is there (C-ECHO)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.pacs.addresses import THIS_MACHINE
from fedshift.pacs.dimse.association import READ, set_times
from fedshift.pacs.dimse.carrier import USUAL, need_pynetdicom
from fedshift.pacs.dimse.node import Node, check_title, server_context
from fedshift.pacs.received import Received, header_of
from fedshift.schema.errors import ConfigError

VERIFICATION = "1.2.840.10008.1.1"
SUCCESS, OUT_OF_RESOURCES, MISMATCH, NOT_UNDERSTOOD = 0x0000, 0xA700, 0xA900, 0xC000
"""Status of an answer to an image (PS3.4, B.2.3)."""
log = logging.getLogger("fedshift")


@dataclass(frozen=True)
class Listening:
    """Where to listen, and to whom: the AE titles in ``accepted``.

    AE titles are no proof of who it is: with a certificate (`Node`) everybody who sends must have one too.
    """

    node: Node
    host: str
    port: int
    accepted: Sequence[str]

    def __post_init__(self) -> None:
        for title in self.accepted:
            check_title(title)


@contextmanager
def listening(
    where: Listening, received: Received, *, ca_file: Path | None = None, allow_unencrypted: bool = False
) -> Iterator[None]:
    """Take images until the block ends. Each is on disk before it is acknowledged.

    Raises:
        ConfigError: the port is taken, others would send unencrypted, or a certificate cannot be used.
    """
    need_pynetdicom("listening for images")
    from pynetdicom import AE, AllStoragePresentationContexts, evt

    node = where.node
    if node.certificate is None and where.host not in THIS_MACHINE and not allow_unencrypted:
        raise ConfigError(
            "pacs-unencrypted",
            "images of patients would come over the network unencrypted: name a --certificate, by which others send "
            "encrypted, or, in a network that is closed to others, --allow-unencrypted",
        )
    tls = None if node.certificate is None else server_context(node, ca_file)
    ours = AE(node.title)
    set_times(ours)
    ours.require_called_aet, ours.require_calling_aet = True, list(where.accepted)
    ours.add_supported_context(VERIFICATION)
    for sop_class in {*USUAL, *(str(each.abstract_syntax) for each in AllStoragePresentationContexts)}:
        ours.add_supported_context(sop_class, list(READ))
    handlers: Any = [(evt.EVT_C_STORE, _take, [received])]
    try:
        ours.start_server((where.host, where.port), block=False, evt_handlers=handlers, ssl_context=tls)
    except OSError as error:
        raise ConfigError(
            "port-taken",
            f"this machine cannot listen at {where.host}:{where.port} ({error.strerror}): name another port with "
            "--listen, or end who uses it",
        ) from None
    try:
        yield
    finally:
        ours.shutdown()


def _take(event: Any, received: Received) -> int:
    """Write an image that was sent; the status of the answer."""
    content = event.encoded_dataset()
    try:
        header = header_of(content)
        identity = (str(header.SOPInstanceUID), str(header.SOPClassUID))
        if identity != (event.request.AffectedSOPInstanceUID, event.request.AffectedSOPClassUID):
            return _refused(event, MISMATCH, "it is another than it was said to be")
        received.add(header, content)
    except OSError as error:
        return _refused(event, OUT_OF_RESOURCES, f"it cannot be written: {error.strerror}")
    except (ValueError, KeyError, AttributeError):
        return _refused(event, NOT_UNDERSTOOD, "it is no DICOM, or names no study and series")
    return SUCCESS


def _refused(event: Any, status: int, why: str) -> int:
    log.warning("an image that %s has sent is refused: %s", event.assoc.requestor.ae_title, why)
    return status
