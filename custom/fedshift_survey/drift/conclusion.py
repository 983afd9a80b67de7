"""What changed, since when, and which scans to look at, in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from fedshift.schema.names import printable
from fedshift_survey.drift.compare import FALSE_ALARMS, NOTHING, NOUNS, Compared

CHANCE = 0.01
"""A month, or a run of months, has changed if chance makes so many flagged scans less likely than this."""
FEWEST_FLAGGED = 2
MOST_NAMED = 3
"""Aspects, and scans, that the sentence names."""


@dataclass(frozen=True)
class Month:
    """The scans of a month, as compared."""

    name: str
    scans: Sequence[Compared]

    @property
    def read(self) -> list[Compared]:
        """Those without an error."""
        return [scan for scan in self.scans if scan.error is None]

    @property
    def flagged(self) -> list[Compared]:
        """Those that differ, the farthest first."""
        return sorted((scan for scan in self.read if scan.differs), key=_far)

    @property
    def chance(self) -> float:
        """How likely so many flagged scans, or more, are if nothing has changed."""
        return _chance(len(self.flagged), len(self.read))

    @property
    def changed(self) -> bool:
        """Whether more scans are flagged than chance explains."""
        return _beyond_chance(len(self.flagged), len(self.read))

    @property
    def tells(self) -> bool:
        """Whether it has enough scans to have changed, if all of them were flagged."""
        return _beyond_chance(len(self.read), len(self.read))

    @property
    def aspects(self) -> list[str]:
        """In what its flagged scans differ, the most frequent first."""
        return [key for key, _ in Counter(key for scan in self.flagged for key in scan.differs).most_common()]


def since(months: Sequence[Month]) -> list[Month]:
    """The run of changed months that ends with the last one; empty if there is none. ``months`` in the order of time.

    Months without enough flagged scans of their own change together: see `_latest`. Where runs follow each other, they
    are one run, also if scans that are too few to tell lie between them.
    """
    months = [month for month in months if month.read]
    start = end = _latest(months)
    if start == len(months):
        return []
    while end:
        latest = _latest(months[:end])
        if latest < end:
            start = end = latest
        elif _together(months[end - 1 : start]).tells:
            break
        else:
            end -= 1
    return months[start:]


def sentence(months: Sequence[Month]) -> str:
    """What changed, since when, and which scans to look at; ``months`` in the order of time."""
    months = [month for month in months if month.read]
    if not months:
        return "None of the scans could be read, so nothing can be said of them."
    run, every = since(months), _together(months)
    before = [month for month in months[: len(months) - len(run)] if month.changed]
    if run:
        together = _together(run)
        return (
            f"{_when(run, months)} the scans differ from those that the model was trained on in {_in_what(together)}: "
            f"{_flagged(together)}{_ended(run)}, where about {_expected(together)} would be by chance; "
            f"{_earlier(before)}look first at {_named(together.flagged)}."
        )
    if before:
        together, later = _together(before), _together(months[months.index(before[-1]) + 1 :])
        return (
            f"The scans of {_listed([month.name for month in before])} differ from those that the model was trained "
            f"on in {_in_what(together)}{_later(later)}; look first at {_named(together.flagged)}."
        )
    if not every.flagged:
        return f"No change: none of {len(every.read)} scans differs from those that the model was trained on."
    return (
        f"No change beyond chance: {_flagged(every, 'scans ')}, where about {_expected(every)} would be by chance; "
        f"look at {_named(every.flagged)}."
    )


def _latest(months: Sequence[Month]) -> int:
    """Where the latest run of changed months begins; the number of months if the last has not changed.

    That is the last month, if it has changed by itself. Otherwise the months after the last that has are taken
    together, from each of them up to the last, and the run is the one that chance explains least, corrected for the
    number of starts (Bonferroni).
    """
    first = next((number for number in range(len(months), 0, -1) if months[number - 1].changed), 0)
    if first == len(months):
        return max(first - 1, 0)
    runs = {start: _together(months[start:]) for start in range(first, len(months))}
    best = min(runs, key=lambda start: runs[start].chance)
    changed = _beyond_chance(len(runs[best].flagged), len(runs[best].read), starts=len(runs))
    return best if changed else len(months)


@cache
def _chance(flagged: int, scans: int) -> float:
    from scipy.stats import binom

    return float(binom.sf(flagged - 1, scans, FALSE_ALARMS))


def _beyond_chance(flagged: int, scans: int, *, starts: int = 1) -> bool:
    return flagged >= FEWEST_FLAGGED and _chance(flagged, scans) * starts < CHANCE


def _together(months: Sequence[Month]) -> Month:
    return Month("", [scan for month in months for scan in month.scans])


def _when(run: Sequence[Month], months: Sequence[Month]) -> str:
    return f"In {run[0].name}" if len(months) == 1 else f"Since {run[0].name}"


def _flagged(month: Month, noun: str = "") -> str:
    flagged = len(month.flagged)
    return f"{flagged} of {len(month.read)} {noun}{'is' if flagged == 1 else 'are'} flagged"


def _expected(month: Month) -> str:
    return f"{FALSE_ALARMS * len(month.read):.2g}"


def _ended(run: Sequence[Month]) -> str:
    """Where the last months of a run have no flagged scan, which one has."""
    last = [month for month in run if month.flagged][-1]
    return "" if last is run[-1] else f" (the last in {last.name})"


def _earlier(changed: Sequence[Month]) -> str:
    return f"those of {_listed([month.name for month in changed])} differ too; " if changed else ""


def _later(later: Month) -> str:
    """What is known of the scans after the last month that has changed."""
    if not later.tells:
        return f"; later: {len(later.flagged)} of {len(later.read)} flagged, too few to tell"
    return f"; of later ones {_flagged(later)}, which may be chance" if later.flagged else ", and later ones do not"


def _far(scan: Compared) -> tuple[bool, float]:
    return NOTHING not in scan.differs, -scan.distance


def _in_what(month: Month) -> str:
    return _listed([NOUNS[key] for key in month.aspects[:MOST_NAMED]])


def _named(scans: Sequence[Compared]) -> str:
    return _listed([printable(scan.image.name) for scan in scans[:MOST_NAMED]])


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
