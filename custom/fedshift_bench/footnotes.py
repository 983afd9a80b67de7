"""What stands below a comparison's tables: what the numbers are, the tests, and how rows were tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from fedshift.data.splits import FOLDS
from fedshift.reporting.known_scores import GUESS_NOTE, needs_voxel_size
from fedshift.schema.results import FROM_SCRATCH
from fedshift_bench.columns import below_guess, blocks, guess_cell, measure, summary
from fedshift_bench.record import CellRecord, Comparison
from fedshift_bench.significance import CONFIDENCE, FEWEST, paired_tests, printed_p
from fedshift_bench.spec import Tuning
from fedshift_bench.templates import lines


def notes(comparison: Comparison) -> list[str]:
    """Notes that every output must contain: data, weights, versions, faults, missing cells."""
    done = comparison.done
    data = [(cell, site, record) for cell in done for site, record in cell.data.items()]
    lost = sorted({site for _, site, record in data if record.unknown_spacing})
    selects = comparison.model != "last" and comparison.spec.get("run") != "cross_site"
    selected_by = sorted({cell.selected_by for cell in done} - {"", comparison.metric}) if selects else []
    # Further axes may be data sets that share names of sites; rows of one column share their data.
    manifests: dict[tuple[str, str], set[str]] = {}
    for cell, site, record in data:
        manifests.setdefault((" ".join(list(cell.labels.values())[1:]), site), set()).add(record.manifest_sha256)
    return lines(
        "notes.j2",
        done=done,
        kinds=sorted({record.kind for _, _, record in data}),
        weights=sorted({cell.initial_weights for cell in done}),
        from_scratch=FROM_SCRATCH,
        metric=comparison.metric,
        selected_by=selected_by,
        all_rows={cell.row for cell in done},
        departures=_rows_by(done, lambda cell: cell.departures),
        by_the_clock=any(cell.minutes is not None for cell in done),
        unknown_spacing=lost if needs_voxel_size(comparison.metric) else [],
        versions=_rows_by(done, lambda cell: [f"{cell.version} (source {cell.source})"]),
        devices=sorted({cell.device for cell in done}),
        precisions=_rows_by(done, lambda cell: [cell.precision] if cell.precision else []),
        other_preparations=any(len(sums) > 1 for sums in manifests.values()),
        n_missing=len(comparison.cells) - len(done),
        n_cells=len(comparison.cells),
    )


def _rows_by(cells: Iterable[CellRecord], values: Callable[[CellRecord], Sequence[str]]) -> dict[str, list[str]]:
    """The rows of the cells that have a value, for each value."""
    rows: dict[str, dict[str, None]] = {}
    for cell in cells:
        for value in values(cell):
            rows.setdefault(value, {})[cell.row] = None
    return {value: list(labels) for value, labels in rows.items()}


def footnotes(comparison: Comparison) -> list[str]:
    """All lines below the tables."""
    all_blocks, tests = blocks(comparison), paired_tests(comparison)
    return lines(
        "footnotes.j2",
        comparison=comparison,
        measure=measure(comparison.metric),
        all_folds=FOLDS,
        guess_note=GUESS_NOTE if any(guess_cell(comparison, block) for block in all_blocks) else "",
        below_guess=[why for block in all_blocks if (why := below_guess(comparison, block))],
        tests=tests,
        printed=[printed_p(test, comparison) for test in tests],
        fewest=FEWEST,
        confidence=CONFIDENCE,
        notes=notes(comparison),
        tuned=list(_tuned(comparison)) if isinstance(comparison.tuning, Tuning) else [],
    )


@dataclass(frozen=True)
class _TunedRow:
    """The chosen setting of a row, and the averages over sites of each of its settings that has one."""

    name: str
    chosen: int | None
    draws: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    means: list[float] = field(default_factory=list)
    failed: int = 0
    lacking: int = 0

    @property
    def std(self) -> float:
        return stdev(self.means)


def _tuned(comparison: Comparison) -> Iterator[_TunedRow]:
    for block in blocks(comparison):
        for row in comparison.rows:
            labels = {comparison.row_axis: row, **block.labels}
            draws, chosen = comparison.draws(labels), comparison.chosen_draw(labels)
            name = f"{row}{f' ({block.key})' if block.key else ''}"
            if chosen is None:
                if all(cell.state != "missing" for cells in draws.values() for cell in cells):
                    yield _TunedRow(name, None)
                continue
            averages = [[summary(comparison, cell, "average") for cell in cells] for cells in draws.values()]
            known = [[value for value in values if value is not None] for values in averages]
            done = [cells for cells in draws.values() if all(cell.is_done for cell in cells)]
            yield _TunedRow(
                name,
                chosen,
                len(draws),
                draws[chosen][0].drawn,
                means=[fmean(values) for values in known if values],
                failed=sum(any(cell.state == "failed" for cell in cells) for cells in draws.values()),
                lacking=sum(any(cell.validation is None for cell in cells) for cells in done),
            )
