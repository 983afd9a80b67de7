"""What a party sends does not fill the log, and a connection that fails because of a certificate is said in it.

NVFlare 2.9: what is logged of messages that cannot be taken has no limit. A server whose TLS library refuses a site's
certificate, because it has expired, is not valid yet, or is of another project, logs nothing, and neither does the
site.
Cost: one site fills the disk of the server with log files, and hides in them what else has happened. Two clocks that
differ by hours look like a network that is down.
Instead: each line of NVFlare's code that a message can reach logs `MOST` times in `PERIOD` seconds; how often it was
left out is said afterwards. The sockets of NVFlare's TLS contexts say what OpenSSL says of the other end's certificate,
with this machine's time, at most once a minute for each reason. OpenSSL does not say whose certificate it was.
Fixed in NVFlare when: its log has a limit for each place, and a server logs why a handshake failed.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from flare_armour.log_limits import OnceAMinute
from flare_armour.patch import Patch

log = logging.getLogger("flare_armour")

MOST = 100
"""Entries of one line of code in `PERIOD`."""
PERIOD = 60.0
"""Seconds."""
F3 = "nvflare.fuel.f3"
LOGGERS = (
    f"{F3}.sfm.conn_manager",
    f"{F3}.cellnet.core_cell.CoreCell",
    f"{F3}.cellnet.cell.Adapter",
    f"{F3}.cellnet.cell.Cell",
    f"{F3}.streaming.byte_receiver",
    f"{F3}.streaming.byte_streamer",
    f"{F3}.streaming.blob_streamer",
    f"{F3}.streaming.stream_types",
)
"""Of the modules that look at what comes in."""


@dataclass
class _Place:
    began: float
    entries: int = 0


class LogRate(logging.Filter):
    """Leaves out entries of a line of code that has logged too often."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[tuple[str, int], _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log it; the first of a new period says how many were left out in the one before."""
        with self._lock:
            now = self._clock()
            place = self._places.setdefault((record.pathname, record.lineno), _Place(now))
            left_out = 0
            if now - place.began >= PERIOD:
                left_out = max(place.entries - MOST, 0)
                place.began, place.entries = now, 0
            place.entries += 1
            if place.entries > MOST:
                return False
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} like this were left out)", ()
        return True


def limit_rate() -> None:
    """Put one filter before all of them."""
    rate = LogRate()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(rate)


LOG_RATE = Patch(
    name="log_rate",
    kind="protects",
    also=limit_rate,
    without="one site can fill the disk with the server's log",
    calls={"nvflare.fuel.utils.log_utils:get_obj_logger": "obj"},
)
TLS_FAULTS = Patch(name="tls_faults", kind="correct", without="nobody is told why a certificate was refused")
CERTIFICATES = OnceAMinute()


class LoggedSocket(ssl.SSLObject):
    """Of a context whose failed handshakes are logged."""

    def do_handshake(self) -> None:
        """Agree with the other end, and say why not."""
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            whose = "whoever connected" if self.server_side else "the server"
            if CERTIFICATES.due((whose, error.verify_message)) is not None:
                log.error(
                    "a connection was refused because of the certificate of %s: %s; the clock of this machine says %s: "
                    "compare the clocks, and the dates of the certificates at both ends",
                    whose,
                    error.verify_message,
                    f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
                )
            raise


@TLS_FAULTS.replaces("nvflare.fuel.f3.drivers.net_utils:get_ssl_context", "3b8cca38801b")
def _log_certificates(original: Callable[..., Any], params: dict[str, Any], ssl_server: bool) -> ssl.SSLContext | None:
    context: ssl.SSLContext | None = original(params, ssl_server)
    if context is not None:
        context.sslobject_class = LoggedSocket
    return context
