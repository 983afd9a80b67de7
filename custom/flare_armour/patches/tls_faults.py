"""A connection that fails because of a certificate is said in the log.

NVFlare 2.9: a server whose TLS library refuses a site's certificate, because it has expired, is not valid yet, or is of
another project, logs nothing, and neither does the site.
Cost: two clocks that differ by hours look like a network that is down.
Instead: the sockets of its TLS contexts say what OpenSSL says of the other end's certificate, with this machine's time,
at most once a minute for each reason. OpenSSL does not tell whose certificate it was; a site's own is told by
``fedshift site check``.
Fixed in NVFlare when: a server logs why a handshake failed.
"""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime
from typing import Any

from nvflare.fuel.f3.drivers import net_utils

from flare_armour.once_a_minute import OnceAMinute
from flare_armour.patches.patch import Patch

log = logging.getLogger("fedshift")

PATCH = Patch(
    name="tls_faults",
    without="nobody is told why a certificate was refused",
    calls={"nvflare.fuel.f3.drivers.net_utils:get_ssl_context": "params, ssl_server"},
)


class Telling(ssl.SSLObject):
    """Of a context whose failed handshakes are logged."""

    def do_handshake(self) -> None:
        """Agree with the other end, and say why not."""
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            whose = "whoever connected" if self.server_side else "the server"
            if _TOLD.due((whose, error.verify_message)) is not None:
                log.error(
                    "a connection was refused because of the certificate of %s: %s; the clock of this machine says %s: "
                    "compare the clocks, and run 'fedshift site check' at both ends",
                    whose,
                    error.verify_message,
                    f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
                )
            raise


_TOLD = OnceAMinute()


def apply() -> None:
    """Have NVFlare's TLS contexts make such sockets."""
    original = net_utils.get_ssl_context

    def get_ssl_context(params: dict[str, Any], ssl_server: bool) -> ssl.SSLContext | None:
        context: ssl.SSLContext | None = original(params, ssl_server)
        if context is not None:
            context.sslobject_class = Telling
        return context

    net_utils.get_ssl_context = get_ssl_context
