"""Whether a certificate is valid now, by this machine's clock."""

from __future__ import annotations

from datetime import datetime


def out_of_time(name: str, start: datetime, end: datetime, *, now: datetime) -> str | None:
    """Why the certificate of ``name``, valid from ``start`` to ``end``, is of no use; None if it is valid ``now``."""
    valid = f"of {name}, valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}"
    if now < start:
        return f"{valid}: not yet (it is {now:%Y-%m-%d %H:%M} UTC), set this machine's clock"
    if now > end:
        return f"{valid}: it has expired, ask the project's owner for a new kit"
    return None
