"""The scans of a folder by month."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from fedshift.data.scan_folders import scans_in, visible
from fedshift.schema.errors import ConfigError, DataError

_DATED = re.compile(r"(\d{4})-?(\d{2})(?:-?(\d{2}))?(?!\d)")
"""How the name of a month's folder begins: ``2026-03``, ``2026-03-15 CT`` or ``202603``."""
FIRST_YEAR = 1990
"""A name that begins with an earlier year, or one after the next, is a patient's number and no date."""


def scans_by_month(folder: Path, inside: Callable[[Sequence[Path]], list[Path]] = scans_in) -> dict[str, list[Path]]:
    """Month (``2026-03``) -> its scans, in the order of time; none for a month whose folder is still empty.

    Scans in a sub-folder whose name begins with a month are of that month. All others are of the month in which the
    file, or the folder of a DICOM series, was last changed (UTC). ``inside``: finds the scans, or pictures, in folders.
    """
    if not folder.is_dir():
        raise ConfigError(
            "not-a-folder", f"{folder} is no folder: name one with scans, or with a sub-folder for each month"
        )
    months: dict[str, list[Path]] = {}
    dated = {
        entry: month
        for entry in sorted(folder.iterdir())
        if entry.is_dir() and (month := _month(entry.name, until=datetime.now(UTC).year + 1)) is not None
    }
    for entry, month in dated.items():
        months.setdefault(month, []).extend([] if _is_empty(entry) else inside([entry]))
    try:
        others = [scan for scan in inside([folder]) if not dated.keys() & {scan, *scan.parents}]
    except DataError:
        if not any(months.values()):
            raise
        others = []
    for scan in others:
        month = datetime.fromtimestamp(scan.stat().st_mtime, UTC).strftime("%Y-%m")
        months.setdefault(month, []).append(scan)
    return dict(sorted(months.items()))


def _is_empty(folder: Path) -> bool:
    """Whether there is no file in a folder or below it, hidden ones left aside."""
    return all(entry.is_dir() and _is_empty(entry) for entry in visible(folder))


def _month(name: str, *, until: int) -> str | None:
    """The month that a name begins with; None if it begins with no date of the years from `FIRST_YEAR` to ``until``."""
    match = _DATED.match(name)
    if match is None:
        return None
    year, month, day = (int(part or 1) for part in match.groups())
    try:
        date(year, month, day)
    except ValueError:
        return None
    return f"{year}-{month:02}" if FIRST_YEAR <= year <= until else None
