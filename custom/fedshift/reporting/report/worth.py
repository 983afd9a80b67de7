"""Is it worth it for us? Each site's page: the federated model against the one that the site trained alone.

What a site gives the others is added where the sites were left out in turn (``fedshift leave-one-out``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from fedshift.reporting import figures
from fedshift.reporting.figures import Figure
from fedshift.reporting.p_values import p_equals, p_text
from fedshift.reporting.report import contributions
from fedshift.reporting.report.runs import Run, evaluation, personal_evaluation
from fedshift.reporting.report.section import (
    Block,
    Cell,
    Column,
    Facts,
    Figures,
    Finding,
    Findings,
    Row,
    Section,
    Table,
    Text,
    Tone,
)
from fedshift.reporting.report.wording import Metric, counted, listed, metric, short
from fedshift.schema.errors import ConfigError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.paired import FEWEST_FOR_NEEDED, FEWEST_FOR_TEST, OWN_FILE, LocalComparison
from fedshift.schema.protocol_results import LeaveOneOut
from fedshift.schema.results import JobRecord
from fedshift.schema.strict import first_fault
from fedshift.tasks.evaluation.spread import bootstrap_interval

MAX_LINES = 200
"""With more cases, only the distribution of their differences is drawn."""
TESTS = {"wilcoxon": "Wilcoxon's signed-rank test", "mcnemar": "McNemar's exact test"}
VERDICTS = {"better": "better", "worse": "worse", "open": "undecided"}
_TONES: dict[str, Tone] = {"better": "good", "worse": "caution", "open": "result"}
ALONE, FEDERATED = "trained alone", "federated"


def site_sections(run: Run, site: str, left_out: Sequence[LeaveOneOut] = ()) -> list[Section]:
    """The page of one site: the answer to its question first, then what the answer rests on."""
    made = [_question(run, site)]
    gift = next((found for record in left_out if (found := _gift(run, record, site)) is not None), None)
    if gift is not None:
        made.append(gift)
    return [*made, *contributions.of_site(run, site)]


def with_own_cases(run: Run, site: str, path: Path) -> Run:
    """The run with a site's own file in place of the comparison that left the site.

    Raises:
        ConfigError: the file cannot be read, or is of another run.
    """
    try:
        own = LocalComparison.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name the site's {OWN_FILE} with --own") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not a site's {OWN_FILE} ({first_fault(error)})") from None
    final = run.results.final
    told = None if final is None else final.against_local.get(site)
    if (
        final is None
        or told is None
        or any(getattr(told, name) != getattr(own, name) for name in ("score", "n", "federated", "local", "round"))
    ):
        raise ConfigError(f"{path} is not of site {site} in this run: its scores differ from those in {run.source}")
    final = final.model_copy(update={"against_local": {**final.against_local, site: own}})
    return replace(run, results=run.results.model_copy(update={"final": final}))


def has_pages(run: Run, left_out: Sequence[LeaveOneOut]) -> bool:
    """Whether there is anything to say on each site."""
    return run.results.final is not None and (
        run.results.job.local or any(_matches(run, record) for record in left_out)
    )


def all_sites(run: Run) -> Section | None:
    """One row per site; None if no site compared its models."""
    final = run.results.final
    if final is None or not final.against_local:
        return None
    rows: list[Row] = []
    for site, told in final.against_local.items():
        of = metric(told.score)
        rows.append(
            [
                site,
                f"{told.n:,}{_of_subjects(told)}",
                of.number(told.local),
                of.number(told.federated),
                Cell(of.difference(told.difference), of.points_interval(told.interval)),
                p_text(told.p),
                Cell(VERDICTS[told.verdict], strong=told.verdict != "open"),
                "–" if told.needed is None else f"{told.needed:,}{'' if told.subjects is None else ' subjects'}",
            ]
        )
    columns = [
        Column("Site", numeric=False),
        Column("Test cases"),
        Column("Trained alone", detail="each site's own model"),
        Column("Federated", detail="best model"),
        Column("Difference", detail="95 % interval"),
        Column("p"),
        Column("Verdict", detail="federated is", numeric=False),
        Column("Cases that would tell"),
    ]
    of = metric(next(iter(final.against_local.values())).score)
    return Section(
        "against-local",
        "Federated against trained alone",
        "Beside the federation every site trained a model on its own data alone, with the same network, the same "
        "number of steps and the same rule of selection. Both are compared on the same test cases of the site. Each "
        "site has a page of its own below.",
        [Table(columns, rows, caption=f"Test {of.heading}"), Text(_limits(run))],
    )


def finding(run: Run) -> Finding | None:
    """One sentence for the summary of the run."""
    final = run.results.final
    if final is None or not run.results.job.local:
        return None
    by: dict[str, list[str]] = {}
    for site, told in final.against_local.items():
        by.setdefault(told.verdict, []).append(site)
    if not by:
        return Finding("caution", "No site compared the federated model with one that it trained alone.")
    told_of = [f"{VERDICTS[verdict]} at {listed(by[verdict])}" for verdict in VERDICTS if verdict in by]
    return Finding("result", f"The federated model against those that the sites trained alone: {'; '.join(told_of)}.")


def answer(site: str, told: LocalComparison) -> str:
    """The careful sentence: better, worse, or undecided; and how many cases would tell."""
    of = metric(told.score)
    difference, cases = told.difference, f"{counted(told.n, 'test case')}{_of_subjects(told)}"
    size = (
        f"{of.points(abs(difference))} points {'higher' if difference > 0 else 'lower'}" if difference else "the same"
    )
    bounds = ""
    if told.interval is not None:
        low, high = (of.points(bound) for bound in told.interval)
        bounds = f"95 % interval {low} to {high} points"
    facts = ", ".join(part for part in (bounds, f"p {p_equals(told.p)}" if told.p is not None else "") if part)
    numbers = (
        f"{size} ({of.with_unit(told.federated)} against {of.with_unit(told.local)}{'; ' if facts else ''}{facts})"
    )
    if told.verdict == "better":
        return (
            f"The federated model is better for {site} than the one that it trained alone: on the same {cases} its "
            f"{of.word} is {numbers}."
        )
    if told.verdict == "worse":
        return (
            f"The federated model is worse for {site} than the one that it trained alone: on the same {cases} its "
            f"{of.word} is {numbers}."
        )
    few = "" if told.independent >= FEWEST_FOR_TEST else f", fewer than the {FEWEST_FOR_TEST} that a test needs,"
    return (
        f"From {cases}{few} it cannot be told whether the federated model is better or worse for {site} than the "
        f"one that it trained alone: its {of.word} is {numbers}{_would_tell(told)}."
    )


def _would_tell(told: LocalComparison) -> str:
    units = _units(told)
    if told.needed is not None:
        return f"; about {told.needed:,} {units} would tell a difference of this size"
    if told.independent < FEWEST_FOR_NEEDED:
        return f"; from fewer than {FEWEST_FOR_NEEDED} {units} it cannot be estimated how many would tell"
    return f"; no number of {units} is expected to tell so small a difference"


def _units(told: LocalComparison) -> str:
    """What the test and the number needed count."""
    return "cases" if told.subjects is None else "subjects"


def _of_subjects(told: LocalComparison) -> str:
    return "" if told.subjects is None else f" of {counted(told.subjects, 'subject')}"


def _question(run: Run, site: str) -> Section:
    final = run.results.final
    assert final is not None
    told = final.against_local.get(site)
    blocks: list[Block] = []
    if told is None:
        blocks.append(Findings([Finding("caution", _unknown(run, site))]))
    else:
        found = [Finding(_TONES[told.verdict], answer(site, told))]
        found += [Finding("caution", sentence) for sentence in _cautions(run, site)]
        blocks.append(Findings(found))
        drawn = _figures(told, site)
        blocks += [Figures(drawn)] if drawn else []
        blocks += [_numbers(told), Text(_compared(run, site, told)), Text(_limits(run))]
    return Section("worth", f"Is the federation worth it for {site}?", "", blocks)


def _cautions(run: Run, site: str) -> Iterator[str]:
    data = run.results.data[site]
    if run.results.is_phantom:
        yield "The data are simulated: this says nothing about scans of patients."
    if data.simulated:
        yield f"At {site} {data.simulated} are simulated, on real scans: this is about a shift that was made up."
    if data.split_rule == "slice-legacy":
        yield (
            "Split slice-legacy: slices of one patient are in training and in test, so both scores are higher than "
            "on new patients."
        )


def _unknown(run: Run, site: str) -> str:
    start = f"It is not known whether the federation is worth it for {site}: "
    if not run.results.job.local:
        return start + "the run was without models that sites train alone (fedshift job … --with-local)."
    if site in run.results.job.held_out:
        return start + "it was held out and trained no model, neither with the others nor alone."
    return (
        start + "it sent no comparison. It has no test cases, or it took part in no round, or its policy puts noise on "
        "the network (its log has the reason)."
    )


def _figures(told: LocalComparison, site: str) -> list[Figure]:
    of = metric(told.score)
    drawn = []
    with figures.style():
        if told.cases is not None and told.test != "mcnemar" and len(told.cases) <= MAX_LINES:
            drawn.append(_lines(told, of, site))
        if told.interval is not None:
            drawn.append(_differences(told, of, site))
    return drawn


def _lines(told: LocalComparison, of: Metric, site: str) -> Figure:
    """Each case as two points joined by a line."""
    drawn, (axes,) = figures.drawing(height=300)
    assert told.cases is not None
    names = (
        f"federated higher ({sum(a > b for a, b in told.cases)})",
        f"not higher ({sum(a <= b for a, b in told.cases)})",
    )
    for federated, local in told.cases:
        series = 0 if federated > local else 1
        axes.plot(
            [0, 1],
            [of.factor * local, of.factor * federated],
            color=figures.colour(series),
            marker=figures.marker(series),
            linestyle=figures.dashes(series),
            linewidth=1.2,
            markersize=5,
        )
    means = [of.factor * told.local, of.factor * told.federated]
    axes.plot([0, 1], means, color=figures.INK, linewidth=3, marker="_", markersize=16, markeredgewidth=3, zorder=5)
    axes.set_xticks([0, 1], [ALONE, FEDERATED])
    axes.set_xlim(-0.25, 1.25)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel(of.heading)
    description = (
        f"{of.title} of each test case of {short(site)}, {ALONE} and {FEDERATED}: {names[0]}, {names[1]}; means "
        f"{of.with_unit(told.local)} and {of.with_unit(told.federated)}"
    )
    title = f"{of.title}, case by case; thick line: mean"
    return figures.figure(drawn, "pairs", title=title, description=description, legend=figures.legend(names))


def _differences(told: LocalComparison, of: Metric, site: str) -> Figure:
    """The mean difference with its interval, above the differences of cases or their quantiles."""
    drawn, (axes,) = figures.drawing(height=150)
    assert told.interval is not None
    axes.axvline(0, color=figures.INK, linewidth=1)
    low, high = (of.factor * bound for bound in told.interval)
    axes.plot([low, high], [0, 0], color=figures.colour(0), linewidth=5, solid_capstyle="butt")
    axes.plot([of.factor * told.difference], [0], color=figures.INK, marker="D", markersize=7, zorder=4)
    below = "quantiles (5 to 95 %)"
    if told.cases is not None and told.test != "mcnemar" and len(told.cases) <= MAX_LINES:
        values = np.array([of.factor * (a - b) for a, b in told.cases])
        offset = 1 + 0.12 * np.sin(2.4 * np.arange(len(values)))
        for series, chosen in enumerate((values > 0, values <= 0)):
            colour, marker = figures.colour(series), figures.marker(series)
            axes.scatter(values[chosen], offset[chosen], s=20, linewidths=0, color=colour, marker=marker)
        below = "single cases"
    elif told.quantiles is not None:
        five, q1, middle, q3, last = (of.factor * value for value in told.quantiles)
        axes.plot([five, last], [1, 1], color=figures.INK, linewidth=1.2)
        axes.barh(1, q3 - q1, left=q1, height=0.4, color=figures.GRID, edgecolor=figures.INK, linewidth=1.1)
        axes.plot([middle, middle], [0.8, 1.2], color=figures.INK, linewidth=2.4)
    axes.set_yticks([0, 1], ["mean, 95 %", below])
    axes.set_ylim(1.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"federated minus alone, points of {of.word}")
    description = (
        f"Difference of {of.title} at {short(site)}, federated minus alone: mean {of.difference(told.difference)} "
        f"points, 95 % interval {of.points_interval(told.interval)}"
    )
    title = "Difference; right of 0 the federated model is better"
    return figures.figure(drawn, "differences", title=title, description=description)


def _numbers(told: LocalComparison) -> Facts:
    of = metric(told.score)
    bounds = of.points_interval(told.interval)
    facts = [
        ("Test cases", f"{told.n:,}{_of_subjects(told)}"),
        (f"{of.heading}, federated", of.number(told.federated)),
        (f"{of.heading}, trained alone", of.number(told.local)),
        ("Difference, points", f"{of.difference(told.difference)} {bounds}".rstrip()),
    ]
    if told.std is not None:
        facts.append(("Standard deviation of the differences", of.number(told.std)))
    if told.test is not None:
        facts.append((f"p, {TESTS[told.test]}", p_text(told.p)))
    if told.cases is not None:
        ahead, behind = sum(a > b for a, b in told.cases), sum(a < b for a, b in told.cases)
        pictures = told.test == "mcnemar"
        facts += [
            ("Federated right, alone wrong" if pictures else "Cases with federated higher", f"{ahead:,}"),
            ("Federated wrong, alone right" if pictures else "Cases with federated lower", f"{behind:,}"),
            ("Cases without difference", f"{told.n - ahead - behind:,}"),
        ]
    if told.needed is not None:
        facts.append((f"{_units(told).capitalize()} that would tell this difference", f"about {told.needed:,}"))
    return Facts(facts)


def _compared(run: Run, site: str, told: LocalComparison) -> str:
    final = run.results.final
    assert final is not None
    best = f"the best aggregated model (round {final.best.round})"
    if final.fine_tuned and site in final.personal:
        best += f", as {site} fine-tuned it"
    elif site in final.personal:
        best += f" with {site}'s own parts"
    withheld = "" if told.cases is not None else " The site's policy withholds the scores of single cases."
    return (
        f"Compared are {best}, and the model that {site} trained beside the federation on its own data alone: the same "
        f"network and initial weights, the same batches and number of steps, without the job's methods; its best round "
        f"by its own validation cases is {told.round}.{withheld}"
    )


def _limits(run: Run) -> str:
    return (
        "A verdict other than 'undecided' needs p below 0.05 and a 95 % bootstrap interval of the mean "
        f"difference without 0; below {FEWEST_FOR_TEST} cases there is no test, and scans of one subject count as one. "
        "The number of cases that would tell is the normal approximation for paired samples (80 % power, 5 % level; "
        "Connor's formula for right and wrong), as rough as the cases are few. All this covers other cases of the same "
        "site, not another seed (this is seed "
        f"{run.results.job.seed}), and is not corrected for the number of sites."
    )


def _gift(run: Run, record: LeaveOneOut, site: str) -> Section | None:
    """What the other sites' scores lose without this site; None if it was not left out of the same job."""
    turn = record.sites.get(site)
    if turn is None or not turn.others or not _matches(run, record):
        return None
    name = run.results.job.metric
    of = metric(name)
    rows: list[Row] = []
    pairs: list[tuple[float, float]] = []
    for other, without in turn.others.items():
        whole = _as_used(run, other)
        if whole is None or name not in whole.scores or name not in without.scores:
            continue
        a, b = whole.scores[name], without.scores[name]
        pairs.append((a, b))
        rows.append(
            [other, of.number(a), of.number(b), Cell(of.difference(a - b), _gain_interval(of, name, whole, without))]
        )
    if not pairs:
        return None
    mean, rest = fmean(a for a, _ in pairs), fmean(b for _, b in pairs)
    gain = mean - rest
    size = f"{of.points(abs(gain))} points {'higher' if gain > 0 else 'lower'} with {site} than without"
    sentence = (
        f"At the other {counted(len(pairs), 'site')} the mean test {of.word} is {size if gain else 'the same'} "
        f"({of.with_unit(mean)} against {of.with_unit(rest)}). These are two trainings with one seed, so a small "
        "difference may be chance."
    )
    columns = [
        Column("At", numeric=False),
        Column(f"With {short(site, 16)}"),
        Column(f"Without {short(site, 16)}"),
        Column("Difference", detail="95 % interval over cases"),
    ]
    foot: Row = [
        Cell("mean", strong=True),
        *(Cell(of.number(v), strong=True) for v in (mean, rest)),
        of.difference(gain),
    ]
    return Section(
        "gives",
        f"What {site} gives the others",
        "",
        [
            Findings([Finding("result", sentence)]),
            Table(columns, rows, [foot], caption=f"Test {of.heading}, best model"),
        ],
    )


def _gain_interval(of: Metric, name: str, whole: Evaluation, without: Evaluation) -> str:
    cases = [told.distributions[name].cases if name in told.distributions else None for told in (whole, without)]
    a, b = cases
    if a is None or b is None or len(a) != len(b):
        return ""
    if (
        whole.distributions[name].subjects is not None
    ):  # cases of one subject are alike, and whose they are stayed there
        return ""
    return of.points_interval(bootstrap_interval(np.array(a) - np.array(b), seed=0))


def _as_used(run: Run, site: str) -> Evaluation | None:
    final = run.results.final
    assert final is not None
    return personal_evaluation(run.results, site) or evaluation(final.best, site, "test")


def _matches(run: Run, record: LeaveOneOut) -> bool:
    """Whether the sites were left out of the run's job, on the same data; False if one does not tell its settings."""

    def compared(job: JobRecord) -> dict[str, object]:
        return job.model_dump(exclude={"name", "held_out", "local", "settings"})

    same_data = all(run.results.data.get(site) == turn.data for site, turn in record.sites.items())
    same_settings = bool(run.settings) and run.settings == record.job.settings
    same_job = same_settings and compared(run.results.job) == compared(record.job)
    return same_data and same_job and not run.results.job.held_out
