"""The image-free guess in a comparison: a row of its own, and the least that rows must be above to be ranked."""

from __future__ import annotations

from statistics import fmean

from fedshift_bench.cell_record import IMAGE_FREE, CellRecord
from fedshift_bench.columns import Block, summary
from fedshift_bench.measures import measure
from fedshift_bench.record import Comparison


def guess_row(comparison: Comparison, block: Block) -> CellRecord | None:
    """The guess as a cell of the block, with its scores as those of the model that is shown; None without one."""
    for cell in comparison.of(block.labels):
        guess = cell.scores.get(IMAGE_FREE, {})
        if any(comparison.metric in metrics for sites in guess.values() for metrics in sites.values()):
            return cell.model_copy(update={"scores": {comparison.model: guess}})
    return None


def below_guess(comparison: Comparison, block: Block) -> str:
    """Why the rows of a block are not ranked: half of them or more end no better than the guess. Empty if they are."""
    row, shown = guess_row(comparison, block), measure(comparison.metric)
    guess = None if row is None else summary(comparison, row, "average")
    if guess is None or shown.better is None:
        return ""
    first, *_ = comparison.axes
    averages = []
    for label in comparison.axes[first]:
        cells = [cell for cell in comparison.of({first: label, **block.labels}) if cell.state == "done"]
        values = [value for cell in cells if (value := summary(comparison, cell, "average")) is not None]
        averages += [fmean(values)] if values else []
    sign = 1 if shown.better == "higher" else -1
    n_below = sum(sign * (average - guess) <= 0 for average in averages)
    if not averages or 2 * n_below < len(averages):
        return ""
    at = f" at {block.key}" if block.key else ""
    return (
        f"Rows are not ranked{at}: {n_below} of {len(averages)} end no better than the image-free guess "
        f"({shown.text(guess)}), which looks at no image."
    )
