"""The terminal table of a run, made from its results only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median

from rich.markup import escape
from rich.table import Table

from fedshift.reporting import false_positives
from fedshift.reporting.known_scores import OF_CLASSES
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import BY_CLOCK
from fedshift.schema.manifest import Split
from fedshift.schema.results import TRAINED_BEFORE, DataRecord, FinalScores, JobRecord, Results

SPLITS: tuple[Split, ...] = ("train", "val", "test")
MAX_ROWS = 20
"""With more sites than this, a table has summary rows instead of one row per site."""
PHANTOM_NOTE = "The data are the phantom: simulated scans, no patients."


def scores_table(results: Results) -> Table:
    """One row per site: numbers of cases, the best model's validation and test score, the last model's test score.

    With more than `MAX_ROWS` sites the rows are the worst, median and best value of each column. If sites fine-tune
    the best model, a further column has the test scores of their own models. Below the training sites come their mean
    and the held-out sites, evaluated on all their cases. Scores are in percent, with the 95 % interval over cases in
    brackets.

    Raises:
        ConfigError: the run did not finish.
    """
    if results.final is None:
        raise ConfigError(
            "run-unfinished",
            f"job {results.job.name} has no final scores because the run did not finish: resume it with --resume",
        )
    final, metric = results.final, results.job.metric
    best, last = final.best, final.last
    methods = " + ".join(method.name for method in results.job.methods)
    table = Table(
        title=escape(title_of(f"{methods} on {results.job.task}, {metric} in percent", phantom=results.is_phantom)),
        caption=escape("\n".join(_notes(results))),
        title_justify="left",
        caption_justify="left",
    )
    shown = ((best, "val", "validation"), (best, "test", "test"), (last, "test", "test"))
    table.add_column("site")
    table.add_column(f"{counting(results.data.values())}\ntrain/val/test", justify="right")
    for scores, _, heading in shown:
        which = "last" if scores is last else "best"
        table.add_column(f"{heading}\n{which} model (round {scores.round})", justify="right")
    if final.fine_tuned:
        table.add_column(f"test\nsites' own models (from round {best.round})", justify="right")
    columns: list[list[float]] = [[] for _ in range(len(shown) + final.fine_tuned)]
    trained = {site: record for site, record in results.data.items() if site not in results.job.held_out}
    for site, record in trained.items():
        values = [_score(scores, site, split, metric) for scores, split, _ in shown]
        if final.fine_tuned:
            values.append(final.personal.get(site, {}).get(metric))
        for column, value in zip(columns, values, strict=True):
            if value is not None and math.isfinite(value):
                column.append(value)
        if len(trained) <= MAX_ROWS:
            cells = [_percent(value) for value in values]
            cells[1] += _interval(best, site, metric)
            table.add_row(site, _counts(record), *cells)
    if len(trained) > MAX_ROWS:
        sums = (str(sum(counts(record).get(split, 0) for record in trained.values())) for split in SPLITS)
        table.add_row(f"{len(trained)} sites", "/".join(sums))
        for name, statistic in (("worst", min), ("median", median), ("best", max)):
            table.add_row(name, "", *(_percent(statistic(column) if column else None) for column in columns))
    table.add_section()
    table.add_row("mean", "", *(_mean(column, len(trained)) for column in columns))
    if results.job.held_out:
        table.add_section()
        table.add_row("held out:")
    for site in results.job.held_out:
        values = [scores.held_out.get(site, {}).get("all", {}).get(metric) for scores in (best, last)]
        of_splits = _counts(results.data[site]) if site in results.data else ""
        table.add_row(site, of_splits, "", *map(_percent, values))
    return table


def _mean(values: Sequence[float], n_sites: int) -> str:
    """The mean over the sites that have a value, and how many these are if not all."""
    some = f" ({len(values)} of {n_sites})" if 0 < len(values) < n_sites else ""
    return _percent(fmean(values) if values else None) + some


def title_of(title: str, *, phantom: bool) -> str:
    """The title, marked if the data are simulated."""
    return f"PHANTOM, no patients: {title}" if phantom else title


def departure_notes(job: JobRecord) -> list[str]:
    """What the job's protocol has and the job has not, and whether its rounds end by the clock."""
    clock = [] if job.minutes is None else [f"{BY_CLOCK[0].upper()}{BY_CLOCK[1:]}."]
    return [*(f"Not the protocol: {departure}." for departure in job.departures), *clock]


def lineage_notes(job: JobRecord, sites: Sequence[str]) -> list[str]:
    """A warning about sites that this run does not train but that trained its starting weights."""
    before = job.trained_before(sites)
    return [f"{site_names(before)} {TRAINED_BEFORE}: not new to this model."] if before else []


def site_names(sites: Sequence[str]) -> str:
    """The sites' names, or their number if there are more than `MAX_ROWS`."""
    return ", ".join(sites) if len(sites) <= MAX_ROWS else f"{len(sites)} sites, {sites[0]} to {sites[-1]}"


def _counts(record: DataRecord) -> str:
    return "/".join(str(counts(record).get(split, 0)) for split in SPLITS)


def counts(record: DataRecord) -> Mapping[str, int]:
    """Cases of each split; samples if the record has no cases."""
    return {str(split): n for split, n in (record.cases or record.n).items()}


def counting(data: Iterable[DataRecord]) -> str:
    """What `counts` counts at these sites."""
    records = list(data)
    return scored_on(records) if all(record.cases for record in records) else "samples"


def scored_on(data: Iterable[DataRecord]) -> str:
    """What is scored one by one at these sites."""
    return "pictures" if all(record.kind == "images" for record in data) else "cases"


def _notes(results: Results) -> list[str]:
    final, notes = results.final, [f"Initial weights: {results.job.initial_weights}."]
    metric, started = results.job.metric, results.statistics
    assert final is not None
    start = [site.val[metric] for site in started.sites.values() if metric in site.val] if started else []
    if start:
        notes.append(f"Mean validation score of the initial weights: {_percent(fmean(start))} %.")
    if len(results.rounds) < results.job.rounds:
        notes.append(f"The run ended early, after round {len(results.rounds)} of {results.job.rounds}.")
    notes += _without_part(results)
    notes += [f"Simulated {what}: {site_names(sites)}." for what, sites in results.simulated_sites.items()]
    notes += departure_notes(results.job)
    if final.personal and not final.fine_tuned:
        notes.append("Every site is evaluated with its own personal model.")
    for site, parts in list(final.best.evaluations.items())[:MAX_ROWS]:
        if "test" in parts:
            notes += [
                f"{site}: {sentence}; Dice is over the others." for sentence in false_positives.sentences(parts["test"])
            ]
    for site, comparison in list(final.against_local.items())[:MAX_ROWS]:
        verdict = "undecided" if comparison.verdict == "open" else comparison.verdict
        notes.append(
            f"{site}: {comparison.score} {_percent(comparison.federated)} federated, "
            f"{_percent(comparison.local)} trained alone, on the same "
            f"{comparison.n} test case{'' if comparison.n == 1 else 's'}: {verdict}."
        )
    notes += _averages(results)
    if results.job.held_out:
        notes.append(f"Held-out sites did not train: their score is over all their {scored_on(results.data.values())}.")
    if final.newcomers:
        notes.append(f"Sites that had not trained by the best round: {site_names(final.newcomers)}.")
    notes += lineage_notes(results.job, [*results.job.held_out, *final.newcomers])
    return [*notes, *([PHANTOM_NOTE] if results.is_phantom else [])]


def _averages(results: Results) -> Iterator[str]:
    """That scores of sites which are averages over classes are over other classes at each."""
    evaluations = {} if results.final is None else results.final.best.evaluations
    classes = {site: parts["test"].classes for site, parts in evaluations.items() if "test" in parts}
    scored = [
        f"{site} {sum(bool(class_scores.scores) for class_scores in by_class.values())} of {len(by_class)}"
        for site, by_class in classes.items()
        if by_class
    ]
    if results.job.metric in OF_CLASSES and len(scored) > 1:
        yield (
            f"At a site {results.job.metric} is an average over the classes of which it has cases with and without "
            f"({', '.join(scored[:MAX_ROWS])}): do not rank sites by it."
        )


def _without_part(results: Results) -> Iterator[str]:
    """The sites that trained in none of the rounds in which they were asked, and why."""
    trained: set[str] = set()
    silent: dict[str, str] = {}
    for record in results.rounds:
        trained |= {site for site, site_round in record.sites.items() if site_round.steps and site not in record.absent}
        silent |= {site: silent.get(site, "no accepted answer in time") for site in record.absent}
        silent |= {fault.site: f"{fault.key}: {fault.reason}" for fault in record.rejected}
    for site in [site for site in silent if site not in trained][:MAX_ROWS]:
        yield f"{site} took no part: {silent[site]}."


def _score(scores: FinalScores, site: str, split: str, metric: str) -> float | None:
    return scores.sites.get(site, {}).get(split, {}).get(metric)


def _interval(scores: FinalScores, site: str, metric: str) -> str:
    evaluation = scores.evaluations.get(site, {}).get("test")
    distribution = None if evaluation is None else evaluation.distributions.get(metric)
    if distribution is None or distribution.interval is None:
        return ""
    low, high = distribution.interval
    return f" ({100 * low:.0f} to {100 * high:.0f})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
