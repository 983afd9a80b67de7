"""What stands above and below a comparison's tables: claims of a paper, what the numbers are, tests, and tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean, stdev
from typing import Any, Literal

from fedshift.data.splits import FOLDS
from fedshift.reporting.known_scores import GUESS_NOTE, needs_voxel_size
from fedshift.reporting.p_values import exact_p
from fedshift.schema.results import FROM_SCRATCH
from fedshift_bench.columns import Block, averages, below_guess, blocks, guess_cell, measure, summary
from fedshift_bench.record import CellRecord, Comparison
from fedshift_bench.significance import ALPHA, CONFIDENCE, FEWEST, Paired, holm, paired_test, paired_tests, printed_p
from fedshift_bench.spec import Tuning
from fedshift_bench.templates import lines, render

Outcome = Literal["confirmed", "refuted", "undecided"]
OUTCOMES: tuple[Outcome, ...] = ("confirmed", "refuted", "undecided")
TOO_FEW = f"a test needs {FEWEST} seeds"


@dataclass(frozen=True)
class Conclusion:
    """Whether ``higher`` is above ``lower``: the figures as text, and ``why`` a claim is undecided.

    ``p`` is that of its test and ``p_holm`` is corrected for all claims of the comparison; None without a test.
    """

    higher: str
    lower: str
    block: str
    outcome: Outcome
    figures: str = ""
    why: str = ""
    p: float | None = None
    p_holm: float | None = None

    def __str__(self) -> str:
        block = f" at {self.block}" if self.block else ""
        return f"{self.higher} above {self.lower}{block}{f' ({self.figures})' if self.figures else ''}"


def claims_of(comparison: Comparison) -> list[tuple[Block, str, str]]:
    """The claimed orders, (block, higher, lower): the spec's, or of the tested rows as their published averages are."""
    if comparison.claims:
        return [(block, higher, lower) for block in blocks(comparison) for higher, lower in comparison.claims]
    return [
        (block, *((row, against) if printed[row] > printed[against] else (against, row)))
        for block in blocks(comparison)
        for printed in (_printed(comparison, block),)
        for row, against in comparison.tests
        if row in printed and against in printed and printed[row] != printed[against]
    ]


def _printed(comparison: Comparison, block: Block) -> dict[str, float]:
    """The published average over sites of each row: as printed, or of the block's sites if all of them are."""
    values = {(value.row, value.column): float(value.value) for value in comparison.published if value.value}
    choices = ([block.name("average")], [block.key], [block.name(site) for site in block.main or block.held_out])
    means = {}
    for row in comparison.rows:
        columns = next((names for names in choices if all((row, name) in values for name in names)), None)
        if columns is not None:
            means[row] = fmean(values[row, name] for name in columns)
    return means


def conclusions(comparison: Comparison) -> list[Conclusion]:
    """Each claimed order by its paired test: p below `ALPHA` in the claimed direction confirms it.

    The p that decides is corrected for the number of claims (Holm), of which those without a test count as p = 1: a run
    that failed was tried too. Of a cross-validation, the p over folds has to be below `ALPHA` too, and where there are
    scores of single cases, that over cases. Rows that are no better than the image-free guess decide nothing.
    """
    claims = claims_of(comparison)
    tests = [paired_test(comparison, *claim) for claim in claims]
    corrected = holm([1.0 if test is None or test.largest_p is None else test.largest_p for test in tests])
    return [_conclude(comparison, *each) for each in zip(claims, tests, corrected, strict=True)]


def _conclude(
    comparison: Comparison, claim: tuple[Block, str, str], test: Paired | None, p_holm: float | None
) -> Conclusion:
    block, higher, lower = claim
    if test is None:
        return Conclusion(higher, lower, block.key, "undecided", why="without runs of both")
    figures, p = measure(comparison.metric).difference(test.difference), test.largest_p
    if p is None or p_holm is None:
        why = TOO_FEW if test.n < FEWEST else "differences that allow no test"
        return Conclusion(higher, lower, block.key, "undecided", figures, why)
    figures = f"{figures}, p = {exact_p(p)}{_pairs_of_largest_p(test)}, Holm {exact_p(p_holm)}"
    outcome: Outcome = "confirmed" if test.difference > 0 else "refuted"
    why = "no difference found" if p_holm >= ALPHA else ""
    why = "rows end no better than the image-free guess" if below_guess(comparison, block) else why
    return Conclusion(higher, lower, block.key, "undecided" if why else outcome, figures, why, p, p_holm)


def _pairs_of_largest_p(test: Paired) -> str:
    """What the pairs of the largest p are, where it is not that of the test itself."""
    p = test.largest_p
    if p == test.p:
        return ""
    if test.over_folds is not None and p == test.over_folds.p:
        return f" over {len(test.folds)} folds"
    assert test.over_cases is not None
    return f" over {test.over_cases.n} cases"


def pairs_in_order(comparison: Comparison) -> tuple[int, int]:
    """How many pairs of rows are ordered as their published averages are, and how many pairs there are."""
    same = pairs = 0
    for block in blocks(comparison):
        both = [
            (printed, fmean(values))
            for row, printed in _printed(comparison, block).items()
            if (values := averages(comparison, row, block))
        ]
        for (printed, ours), (other_printed, other_ours) in combinations(both, 2):
            if printed != other_printed:
                pairs += 1
                same += (printed > other_printed) == (ours > other_ours) and ours != other_ours
    return same, pairs


def claims_sentence(comparison: Comparison) -> str:
    """One sentence on every claimed order, or on that of all published averages; empty if the paper claims none."""
    claims = conclusions(comparison)
    same, pairs = (0, 0) if claims else pairs_in_order(comparison)
    firsts = list(dict.fromkeys((claim.outcome, claim.why) for claim in claims))
    order = sorted(firsts, key=lambda key: OUTCOMES.index(key[0]))
    groups = [(*key, [str(claim) for claim in claims if (claim.outcome, claim.why) == key]) for key in order]
    why = TOO_FEW if len(comparison.seeds) < FEWEST else "no test was asked for"
    return render("claims.j2", alpha=ALPHA, claims=claims, groups=groups, why=why, same=same, pairs=pairs).strip()


def notes(comparison: Comparison) -> list[str]:
    """Notes that every output must contain: data, weights, versions, faults, missing cells."""
    finished = comparison.finished
    data = [(cell, site, record) for cell in finished for site, record in cell.data.items()]
    lost = sorted({site for _, site, record in data if record.unknown_spacing})
    selects = comparison.model != "last" and comparison.spec.get("run") != "cross_site"
    selected_by = sorted({cell.selected_by for cell in finished} - {"", comparison.metric}) if selects else []
    # Further axes may be data sets that share names of sites; rows of one column share their data.
    manifests: dict[tuple[str, str], set[str]] = {}
    for cell, site, record in data:
        manifests.setdefault((" ".join(list(cell.labels.values())[1:]), site), set()).add(record.manifest_sha256)
    return lines(
        "notes.j2",
        finished=finished,
        kinds=sorted({record.kind for _, _, record in data}),
        weights=sorted({cell.initial_weights for cell in finished}),
        from_scratch=FROM_SCRATCH,
        metric=comparison.metric,
        selected_by=selected_by,
        all_rows={cell.row for cell in finished},
        departures=_rows_by(finished, lambda cell: cell.departures),
        by_the_clock=any(cell.minutes is not None for cell in finished),
        unknown_spacing=lost if needs_voxel_size(comparison.metric) else [],
        versions=_rows_by(finished, lambda cell: [f"{cell.version} (source {cell.source})"]),
        devices=sorted({cell.device for cell in finished}),
        precisions=_rows_by(finished, lambda cell: [cell.precision] if cell.precision else []),
        other_preparations=any(len(sums) > 1 for sums in manifests.values()),
        n_missing=len(comparison.cells) - len(finished),
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
            finished = [cells for cells in draws.values() if all(cell.is_done for cell in cells)]
            yield _TunedRow(
                name,
                chosen,
                len(draws),
                draws[chosen][0].drawn,
                means=[fmean(values) for values in known if values],
                failed=sum(any(cell.state == "failed" for cell in cells) for cells in draws.values()),
                lacking=sum(any(cell.validation is None for cell in cells) for cells in finished),
            )
