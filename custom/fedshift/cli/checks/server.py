"""The way to a federation's server: its name, a proxy, its port and certificate, and what its clock says."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cryptography.x509 import load_der_x509_certificate

from fedshift.cli.checks.remark import Level, Remark
from fedshift.federation.certificate_dates import Validity
from fedshift.flare.kit import CERTIFICATE, holder

if TYPE_CHECKING:
    from fedshift.flare.kit import Kit

PATIENCE = 3.0
"""Seconds for the server to answer."""
LISTEN = 1.0
"""Seconds in which a server answers once it has shown its certificate."""
REFUSAL = 0.5
"""Seconds in which it refuses this party's, which with TLS 1.3 comes after the handshake."""
OUT_OF_TIME = {9: "is not valid yet", 10: "has expired"}
"""OpenSSL's codes for a certificate whose time has not come or is over."""
APART = 60
"""Seconds between two clocks that are worth a warning."""
PROXIES = {"grpc": (("grpc_proxy", "https_proxy", "http_proxy"), ("no_grpc_proxy", "no_proxy"))}
"""Scheme of a kit → environment variables that name a proxy, and hosts without one; the other schemes know none."""
ANY_PROXY = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "grpc_proxy")
LONGEST_NAME = 64
"""Of a certificate; NVFlare cuts the server's there."""


def about_name(kit: Kit) -> Iterator[Remark]:
    """Whether the server's name can be resolved on this machine."""
    try:
        addresses = socket.getaddrinfo(kit.host, kit.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        text = (
            f"{kit.host} is not known here ({error.strerror}): compare it with what the coordinator says, ask for an "
            "entry in the name server, or add it to this machine's hosts file"
        )
        yield Remark("error", "name", text)
        return
    yield Remark("ok", "name", f"{kit.host} is {', '.join(sorted({str(entry[4][0]) for entry in addresses}))}")


def about_proxy(kit: Kit, environ: Mapping[str, str] = os.environ) -> Iterator[Remark]:
    """Whether a proxy of the environment stands between this machine and the server."""
    used, exempt = PROXIES.get(kit.scheme, ((), ()))
    named = next((name for name in used if environ.get(name)), None)
    where = f"{kit.host}:{kit.port}"
    if named is not None:
        bypassed = next((environ[name] for name in exempt if environ.get(name)), "")
        # gRPC compares ends of names.
        if any(kit.host.endswith(end.strip()) for end in bypassed.split(",") if end.strip()):
            yield Remark("ok", "proxy", f"${named} is set, and {kit.host} is exempt from it")
            return
        text = (
            f"${named} sends the way to {where} through {_without_password(environ[named])}, which must pass on TLS "
            f"as it is; the line on the server goes there directly: set no_proxy={kit.host} for the kit's process "
            "unless that is meant"
        )
        yield Remark("warning", "proxy", text)
        return
    variable = next((name for name in ANY_PROXY if environ.get(name)), None)
    if variable is None:
        yield Remark("ok", "proxy", "the environment names none")
        return
    text = f"${variable} is set, and FLARE does not use it with scheme {kit.scheme}: {where} must be reachable directly"
    yield Remark("note", "proxy", text)


def _without_password(address: str) -> str:
    parts = urlsplit(address if "//" in address else f"//{address}")
    with suppress(ValueError):
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    return "an address that cannot be read"


@dataclass(frozen=True)
class Answer:
    """What a server has answered: ``date`` is its clock's, None if it has told none."""

    remarks: tuple[Remark, ...]
    date: datetime | None = None


def ask_server(kit: Kit) -> Answer:
    """Connect as the kit's party would, look at the certificate that is shown, and ask for nothing."""
    where, startup = f"{kit.host}:{kit.port}", kit.folder / "startup"
    stem = CERTIFICATE[kit.role]
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ours.check_hostname = False  # kits name the server as it was provisioned, addresses may differ
    try:
        ours.load_verify_locations(startup / "rootCA.pem")
        ours.load_cert_chain(startup / f"{stem}.crt", startup / f"{stem}.key")
    except OSError as error:  # OpenSSL's errors, too
        return _answer("error", f"the certificates and the key in {startup} cannot be used ({error})")
    try:
        with (
            socket.create_connection((kit.host, kit.port), timeout=PATIENCE) as connection,
            ours.wrap_socket(connection) as secured,
        ):
            shown = secured.getpeercert(binary_form=True)
            head = _head(secured, kit)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in OUT_OF_TIME:
            text = f"the certificate of {where} {OUT_OF_TIME[error.verify_code]} by this machine's clock"
            return _answer("error", f"{text}: see to the clocks of both, or ask the project's owner")
        return _answer("error", f"{where} is no server of project {kit.project} ({error.verify_message})")
    except ssl.SSLError as error:
        if "ALERT" in str(error.reason):
            text = f"{where} refuses this kit's certificate ({error.reason}): see to both clocks, and to the line above"
            return _answer("error", text)
        return _answer("warning", f"{where} does not speak TLS as FLARE's server does ({error.reason})")
    except TimeoutError:
        text = f"{where} does not answer within {PATIENCE:g} s: it may not run yet, or a firewall drops what goes there"
        return _answer("warning", f"{text}, which the coordinator and the network's people can tell")
    except OSError as error:
        return _answer("note", f"{where} does not answer ({error.strerror or error}): it may not run yet")
    return Answer(tuple(_about_certificate(kit, where, shown)), _date(head))


def _answer(level: Level, text: str) -> Answer:
    return Answer((Remark(level, "server", text),))


def _head(secured: ssl.SSLSocket, kit: Kit) -> bytes:
    """The beginning of what the server says to a question that asks for nothing; empty if it waits for more."""
    try:
        secured.settimeout(REFUSAL)
        with suppress(TimeoutError):
            return secured.recv(4096)
        if kit.scheme != "http":
            return b""
        secured.settimeout(LISTEN)
        secured.sendall(f"GET / HTTP/1.1\r\nHost: {kit.host}\r\nConnection: close\r\n\r\n".encode("ascii", "replace"))
        return secured.recv(4096)
    except (TimeoutError, ConnectionError, ssl.SSLEOFError):  # it waits for more, or has hung up
        return b""


def _about_certificate(kit: Kit, where: str, shown: bytes | None) -> Iterator[Remark]:
    if shown is None:
        yield Remark("ok", "server", f"{where} answers")
        return
    validity = Validity.from_certificate(load_der_x509_certificate(shown))
    if validity.name != kit.server[:LONGEST_NAME]:
        text = f"{where} shows the certificate of {validity.name}, and the kit's server is {kit.server}"
        yield Remark("error", "server", f"{text}: ask the coordinator what listens there")
        return
    soon = validity.notice(datetime.now(UTC))
    if soon is not None:
        yield Remark(
            "warning", "server", f"{where} answers, and its certificate ends soon: {soon}; tell the coordinator"
        )
        return
    yield Remark("ok", "server", f"{where} answers, with a certificate until {validity.until:%Y-%m-%d}")


def _date(head: bytes) -> datetime | None:
    """The header ``Date`` of an HTTP answer."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"date":
            with suppress(ValueError, TypeError):
                date = parsedate_to_datetime(value.decode("ascii", "replace").strip())
                return date if date.tzinfo else date.replace(tzinfo=UTC)
    return None


def about_clock(kit: Kit, date: datetime | None) -> Iterator[Remark]:
    """This machine's clock beside the server's, or within the time of the certificate where no better is to be had."""
    now = datetime.now(UTC)
    if date is None:
        if kit.certificate.since <= now <= kit.certificate.until:
            text = f"{now:%Y-%m-%d %H:%M} UTC, within the certificate's time; the server has not told its own"
            yield Remark("note", "clock", text)
        return
    apart = (now - date).total_seconds()
    if abs(apart) > APART:
        text = (
            f"this machine is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} the server: set the clock of "
            "whichever is wrong, as with 'timedatectl set-ntp true'"
        )
        yield Remark("warning", "clock", text)
        return
    yield Remark("ok", "clock", f"{now:%Y-%m-%d %H:%M} UTC, as the server's")


# --- at the server ------------------------------------------------------------------------------------------


def about_port(kit: Kit) -> Iterator[Remark]:
    """Whether the server's kit can listen."""
    try:
        socket.create_server(("", kit.port)).close()
    except OSError as error:
        text = f"{kit.port} cannot be used ({os.strerror(error.errno) if error.errno else error})"
        if error.errno != errno.EADDRINUSE:
            yield Remark("note", "port", text)
            return
        process = _own_server(kit)
        if process:
            yield Remark("note", "port", f"{text}: this kit's server runs already (process {process})")
            return
        text += ", and not because this kit's server runs: end what listens there, perhaps the server of another kit"
        yield Remark("error", "port", text)
        return
    yield Remark("ok", "port", f"{kit.port} is free")


def _own_server(kit: Kit) -> str | None:
    """The process of the server that was started from this kit, in whatever way; None if there is none."""
    process = holder(kit.folder)
    if process is not None:
        return process
    try:  # of a server that was started before servers locked their store
        number = (kit.folder / "pid.fl").read_text(encoding="utf-8").strip()
        os.kill(int(number), 0)
    except PermissionError:
        return number
    except (OSError, ValueError):
        return None
    return number
