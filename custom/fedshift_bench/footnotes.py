"""What stands below a comparison's tables: what the numbers are, the tests, and how rows were tuned."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from fedshift.data.splits import FOLDS
from fedshift.reporting.differences import points
from fedshift.reporting.known_scores import GUESS_NOTE
from fedshift.reporting.p_values import exact_p
from fedshift_bench.columns import blocks, summary
from fedshift_bench.guess import below_guess, guess_row
from fedshift_bench.measures import Measure, measure
from fedshift_bench.record import Comparison
from fedshift_bench.significance import CONFIDENCE, FEWEST, Paired, paired_tests, printed_p
from fedshift_bench.spec import Pairs

PAIRS: dict[Pairs, str] = {
    "seeds": "a pair is a seed: the averages over sites of the two rows.",
    "sites_and_seeds": "a pair is a site and a seed. Those of one seed share their models and are not independent, so "
    "p tends to be too small and the interval too narrow.",
    "sites_and_folds": "a pair is a site's test part of one fold, averaged over seeds; by Wilcoxon's signed-rank test. "
    "Those of one fold share their model, and folds share training cases, so p tends to be too small; p over folds and "
    "the interval are of a paired t-test whose pairs are the folds' averages over sites.",
}
"""What a pair of a test is, as a footnote says it."""
SMALLEST = (
    "The smallest detectable difference is the true one that the t-test finds (p < 0.05) in four of five repetitions."
)
OVER_CASES = (
    "p over cases is of Wilcoxon's signed-rank test, a pair being a case and each score the mean over seeds: it says "
    "whether other patients at these sites would show the same of these models."
)


def footnotes(comparison: Comparison) -> list[str]:
    """The notes below the tables."""
    seeds = len(comparison.seeds)
    lines = [f"One seed ({comparison.seeds[0]})."]
    if seeds > 1:
        seed_list = ", ".join(map(str, comparison.seeds))
        lines = [
            f"Mean ± sample standard deviation (n - 1) over {seeds} seeds ({seed_list}); averages over sites are "
            "computed for each seed first."
        ]
    if comparison.folds:
        lines.append(_cross_validation(comparison.folds))
    if comparison.average == "samples":
        lines.append("Averages over sites weigh each site by the samples that it is scored on.")
    if comparison.published:
        lines.append("In brackets: the values published in the paper.")
    if any(guess_row(comparison, block) for block in blocks(comparison)):
        lines.append(GUESS_NOTE)
    lines += [why for block in blocks(comparison) if (why := below_guess(comparison, block))]
    tests = paired_tests(comparison)
    lines += [test_line(test, comparison) for test in tests]
    if comparison.tests:
        lines.append(f"Tests are paired and two-sided; {PAIRS[comparison.pairs]}")
    if any(test.smallest is not None for test in tests):
        lines.append(SMALLEST)
    if any(test.over_cases is not None for test in tests):
        lines.append(OVER_CASES)
    lines += comparison.notes
    if comparison.differences:
        lines.append(f"Differences from the paper: {' '.join(comparison.differences.split())}")
    return lines + tuning_lines(comparison)


def _cross_validation(folds: Sequence[int]) -> str:
    if len(folds) == FOLDS:
        return f"Cross-validation over {FOLDS} folds: a site's score is over all its cases, each tested once."
    named = ", ".join(map(str, folds))
    return f"Cross-validation, of {FOLDS} folds only {named}: a site's score is over the test cases of these."


def tuning_lines(comparison: Comparison) -> list[str]:
    """What was tuned: a remark, or the budget of every row, its chosen setting and the spread over its settings."""
    tuning, shown = comparison.tuning, measure(comparison.metric)
    if isinstance(tuning, str):
        return [f"Tuning: {' '.join(tuning.split())}"] if tuning else []
    runs = tuning.draws * len(comparison.seeds) * max(len(comparison.folds), 1)
    lines = [
        f"Tuning: {tuning.draws} settings for every row, its own and others drawn by seed {tuning.seed}, {runs} cells "
        "in all; shown is the one with the highest mean validation score. Test scores choose nothing."
    ]
    lines += [" ".join(tuning.remark.split())] if tuning.remark else []
    first, *_ = comparison.axes
    for block in blocks(comparison):
        for row in comparison.axes[first]:
            labels = {first: row, **block.labels}
            draws, chosen = comparison.draws(labels), comparison.chosen_draw(labels)
            name = f"{row}{f' ({block.key})' if block.key else ''}"
            if chosen is None:
                if all(cell.state != "missing" for cells in draws.values() for cell in cells):
                    lines.append(f"{name}: no setting is chosen: each failed or lacks a site's validation score.")
                continue
            means = {
                draw: fmean(values)
                for draw, cells in draws.items()
                if (values := [v for cell in cells if (v := summary(comparison, cell, "average")) is not None])
            }
            options = ", ".join(f"{key}={value}" for key, value in draws[chosen][0].drawn.items()) or "its own"
            text = f"{name}: setting {chosen + 1} of {len(draws)} ({options})"
            if len(means) > 1:
                text += (
                    f"; averages over settings {shown.text(min(means.values()))} to {shown.text(max(means.values()))}"
                )
                text += f", standard deviation {shown.text(stdev(means.values()))}"
            failed = sum(any(cell.state == "failed" for cell in cells) for cells in draws.values())
            done = [cells for cells in draws.values() if all(cell.state == "done" for cell in cells)]
            lacking = sum(any(cell.validation is None for cell in cells) for cells in done)
            text += f"; {failed} failed" if failed else ""
            lines.append(f"{text}{f'; {lacking} without the validation score of a site' if lacking else ''}.")
    return lines


def test_line(test: Paired, comparison: Comparison) -> str:
    """A test as a sentence."""
    shown = measure(comparison.metric)
    block = f" ({test.block})" if test.block else ""
    difference = shown.difference(test.difference)
    if test.over_pairs is not None:
        statistics = f"t = {test.over_pairs.t:.2f}, p = {exact_p(test.over_pairs.p)}{over_cases(test)}"
        statistics += interval_text(test, shown)
    elif test.p is not None:
        statistics = f"p = {exact_p(test.p)}{over_folds(test)}{over_cases(test)}{interval_text(test, shown)}"
    elif test.n < FEWEST:
        statistics = "too few pairs for a test"
    elif test.folds:  # a signed-rank test, to which equal pairs tell nothing
        statistics = f"fewer than {FEWEST} pairs differ, so there is no test"
    else:
        statistics = "all differences are equal, so there is no test"
    printed = printed_p(test, comparison)
    some = 0 < len(test.folds) < len(comparison.folds)
    ended = f", of folds {', '.join(map(str, test.folds))} only" if some else ""
    details = f"n = {test.n}{ended}" + (f"; in the paper p = {printed}" if printed else "")
    return f"{test.row} against {test.against}{block}: {difference}, {statistics} ({details})."


def over_folds(test: Paired) -> str:
    """``, over 5 folds p = 0.0540``; empty without such a test."""
    return "" if test.over_folds is None else f", over {len(test.folds)} folds p = {exact_p(test.over_folds.p)}"


def over_cases(test: Paired) -> str:
    """``, over 31 cases p = 0.0540``; empty without such a test."""
    if test.over_cases is None or test.over_cases.p is None:
        return ""
    return f", over {test.over_cases.n} cases p = {exact_p(test.over_cases.p)}"


def interval_text(test: Paired, of: Measure) -> str:
    """``, 95 % interval −1.0 to +1.3, smallest detectable difference 1.6``: by the t-test; or empty."""
    if test.interval is None or test.smallest is None:
        return ""
    low, high = map(of.difference, test.interval)
    seen = f"smallest detectable difference {points(of.scaled(test.smallest), decimals=of.decimals)}"
    return f", {100 * CONFIDENCE:.0f} % interval {low} to {high}, {seen}"
