"""How long a kit's certificate is valid, and from when on its end is told of. NVFlare is not needed for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from cryptography.x509 import Certificate, load_pem_x509_certificate
from cryptography.x509.oid import NameOID

NOTICE = 30
"""Days before a certificate's end from which on it is told of: time enough to have a new one signed."""
CERTIFICATES = ("client.crt", "server.crt")
"""Of a party, in a kit's folder ``startup``; each kit has one of them."""


@dataclass(frozen=True)
class Validity:
    """Whose a certificate is, and from when until when it counts."""

    name: str
    since: datetime
    until: datetime

    @classmethod
    def from_certificate(cls, certificate: Certificate) -> Self:
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        name = str(names[0].value) if names else "nobody"
        return cls(name, certificate.not_valid_before_utc, certificate.not_valid_after_utc)

    def __str__(self) -> str:
        return f"of {self.name}, valid from {self.since:%Y-%m-%d} to {self.until:%Y-%m-%d}"

    def fault(self, now: datetime) -> str | None:
        """Why it is of no use ``now``; None if it is valid."""
        if now < self.since:
            return f"{self}: not yet (it is {now:%Y-%m-%d %H:%M} UTC), set this machine's clock"
        if now > self.until:
            return f"{self}: it has expired, ask the project's owner for a new kit"
        return None

    def notice(self, now: datetime) -> str | None:
        """A sentence if it ends soon, or has ended; None otherwise."""
        days = self.days(now)
        if days > NOTICE:
            return None
        return self.fault(now) or f"{self}, {days} days left: have a new one signed before it ends"

    def days(self, now: datetime) -> int:
        """Whole days that are left."""
        return (self.until - now).days


def expiry_notice(kit: Path) -> str | None:
    """What to say of the certificate in a kit's folder; None if it lasts, or if the folder is no kit."""
    for name in CERTIFICATES:
        path = kit / "startup" / name
        if path.is_file():
            try:
                validity = Validity.from_certificate(load_pem_x509_certificate(path.read_bytes()))
            except (OSError, ValueError) as error:
                return f"{path} cannot be read ({error}): unpack the kit again"
            notice = validity.notice(datetime.now(UTC))
            return None if notice is None else f"the certificate in {kit} is {notice}"
    return None
