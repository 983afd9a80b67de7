"""Addresses of DICOM nodes: of a PACS, ``dimse://PACS@pacs.example:104``, and of this one."""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fedshift.pacs.addresses import THIS_MACHINE
from fedshift.schema.errors import ConfigError

SECONDS_OF_HANDSHAKE = 15
_TITLE = re.compile(r"(?=.*\S)[\x20-\x5b\x5d-\x7e]{1,16}")
"""An AE title (PS3.5, 6.2): up to 16 characters without a backslash, and not of spaces alone."""


@dataclass(frozen=True)
class Node:
    """What this machine is to others: its AE title, and its certificate where they ask for one.

    ``receive_port``: where it listens for images that a PACS sends at our request (C-MOVE); None to have them in the
    association that asks for them (C-GET).
    """

    title: str = "FEDSHIFT"
    certificate: Path | None = None
    key: Path | None = None
    receive_port: int | None = None

    def __post_init__(self) -> None:
        check_title(self.title)


def check_title(title: str) -> None:
    """Refuse what is no AE title (`ConfigError`)."""
    if not _TITLE.fullmatch(title):
        raise ConfigError("ae-title", f"{title!r} is no AE title: up to 16 letters, digits and the like")


@dataclass(frozen=True)
class Peer:
    """A PACS as a DICOM node."""

    title: str
    host: str
    port: int
    encrypted: bool

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'dimse+tls' if self.encrypted else 'dimse'}://{self.title}@{host}:{self.port}"


def peer_at(address: str, *, allow_unencrypted: bool = False) -> Peer:
    """The node that an address names.

    Raises:
        ConfigError: it names none, or one of another machine without encryption.
    """
    try:
        parts = urlsplit(address)
        host, port, password = parts.hostname, parts.port, parts.password
        title = unquote(parts.username or "")
    except ValueError:
        host = port = password = None
        title = ""
    if not host or not port or not _TITLE.fullmatch(title) or password is not None:
        raise ConfigError(
            "pacs-address", "a PACS asked by DIMSE has an AE title, a machine and a port: dimse://PACS@pacs.example:104"
        )
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError("pacs-address", f"the address of {title} has more than a machine and a port: leave it out")
    encrypted = parts.scheme == "dimse+tls"
    if not encrypted and host not in THIS_MACHINE and not allow_unencrypted:
        raise ConfigError(
            "pacs-unencrypted",
            f"images of patients would go to and from {host} unencrypted: use dimse+tls, or, in a network that is "
            "closed to others, --allow-unencrypted",
        )
    return Peer(title.strip(), host, port, encrypted)


def client_context(node: Node, ca_file: Path | None) -> ssl.SSLContext:
    """TLS towards a PACS, whose certificate is verified, with ours if there is one.

    Raises:
        ConfigError: a file is missing or holds something else.
    """
    context = _trusting(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ca_file)
    if node.certificate is not None:
        _add_certificate(context, node)
    return context


def server_context(node: Node, ca_file: Path | None) -> ssl.SSLContext:
    """TLS of those who send to us, whose certificates are verified too (PS3.15, B.9: both sides have one).

    Raises:
        ConfigError: we have no certificate, or a file is missing or holds something else.
    """
    if node.certificate is None:
        raise ConfigError(
            "certificate-missing", "others can send encrypted only if this machine has a certificate: --certificate"
        )
    context = _trusting(_ImpatientContext(ssl.PROTOCOL_TLS_SERVER), ca_file)
    context.verify_mode = ssl.CERT_REQUIRED
    _add_certificate(context, node)
    return context


class _ImpatientContext(ssl.SSLContext):
    """Whoever connects and says nothing is not waited for without end, as pynetdicom would, and let nobody else in."""

    def wrap_socket(self, sock: socket.socket, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        sock.settimeout(SECONDS_OF_HANDSHAKE)
        wrapped = super().wrap_socket(sock, *args, **kwargs)
        wrapped.settimeout(None)
        return wrapped


def _trusting(context: ssl.SSLContext, ca_file: Path | None) -> ssl.SSLContext:
    """A context that trusts the authority of a file alone, or those of this machine where none is named."""
    if ca_file is None:
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(ca_file)
    except OSError:  # also ssl's own
        message = f"{ca_file} does not exist or holds no certificate: name that of your authority (.pem)"
        raise ConfigError("file-missing", message) from None
    return context


def _add_certificate(context: ssl.SSLContext, node: Node) -> None:
    assert node.certificate is not None
    for file in (node.certificate, node.key):
        if file is not None and not file.is_file():
            raise ConfigError("file-missing", f"{file} does not exist: name a certificate (.pem) and its key")
    try:
        context.load_cert_chain(node.certificate, node.key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError):
        raise ConfigError(
            "certificate-unreadable",
            f"{node.certificate} is no certificate with the key that belongs to it, unencrypted and in PEM: name the "
            "file of the key with --certificate-key if it is another",
        ) from None


def _no_password() -> str:
    """In place of asking for one at the terminal, where a service has none."""
    raise ValueError
