"""What is said of cases whose masks rightly have none of a class: they have no Dice, but false positives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedshift.schema.evaluation import Evaluation
from fedshift.schema.protocol_results import FALSE_POSITIVES

UNITS = dict(zip(FALSE_POSITIVES, ("ml", "mm²", "pixels"), strict=True))
"""Of volumes, and of pictures with and without a pixel size: the score -> its unit."""


def without(counts: Mapping[str, int]) -> int:
    """How many cases have none of some class, of the number of cases of each score."""
    return max((counts.get(score, 0) for score in UNITS), default=0)


def sentences(evaluation: Evaluation) -> Iterator[str]:
    """``tumour: 3 cases without it, false positives in 1 of them, 0.40 ml on average``, of each such class.

    With a single class its name is left out where no mask has it alone, as the scores do not name it.
    """
    for key, spread in evaluation.distributions.items():
        score, _, name = key.partition(" ")
        several = any(other.startswith(f"{score} ") for other in evaluation.distributions)
        if score not in UNITS or (several and not name):
            continue
        apart = evaluation.one_sided or {}
        name = name or next(iter(apart), "")
        invented = apart[name].invented if name in apart else 0
        cases = f"{spread.n} case{'' if spread.n == 1 else 's'} without"
        which = f"{name}: {cases} it" if name else f"{cases} the structure"
        yield f"{which}, false positives in {invented} of them, {spread.mean:.2f} {UNITS[score]} on average"
