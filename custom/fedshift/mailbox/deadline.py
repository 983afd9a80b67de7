"""When a round ends although not every site has answered: ``--until 3d`` after it was opened, or at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fedshift.schema.errors import ConfigError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)")
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Until:
    """The end of rounds: so long after each was opened, or one moment."""

    after: timedelta | None = None
    at: datetime | None = None

    @classmethod
    def parse(cls, text: str) -> Until:
        """Read ``90min``, ``12h``, ``3d``, or a date with or without a time, which is local time unless it says more.

        Raises:
            ConfigError: it is neither.
        """
        match = _DURATION.fullmatch(text.strip())
        if match is not None:
            return cls(after=timedelta(seconds=float(match[1]) * _SECONDS[match[2]]))
        try:
            return cls(at=datetime.fromisoformat(text.strip()).astimezone(UTC))
        except ValueError:
            raise ConfigError(
                "invalid-value",
                f"--until {text!r} is no time: write 90min, 12h, 3d, or a date such as 2026-12-01T18:00",
            ) from None

    def end(self, opened: datetime) -> datetime | None:
        """When a round ends that was opened then; None if never: a moment ends the rounds that were open before it."""
        if self.after is not None:
            return opened + self.after
        return self.at if self.at is not None and self.at > opened else None
