"""What a site has of the federation, on its page: the federated model against the one that the site trained alone.

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
from fedshift.reporting.report import contributions, guarantee
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
    finding,
    paragraph,
)
from fedshift.reporting.report.summary import VERDICTS
from fedshift.reporting.report.wording import Metric, counted, metric, short
from fedshift.schema.errors import ConfigError
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.paired import COMPARISON_FILE, FEWEST_FOR_NEEDED, FEWEST_FOR_TEST, LocalComparison
from fedshift.schema.protocol_results import LeaveOneOut
from fedshift.schema.results import JobRecord
from fedshift.schema.strict import first_fault
from fedshift.tasks.evaluation.spread import bootstrap_interval

MAX_LINES = 200
"""With more cases, only the distribution of their differences is drawn."""
TESTS = {"wilcoxon": "Wilcoxon's signed-rank test", "mcnemar": "McNemar's exact test"}
_TONES: dict[str, Tone] = {"better": "good", "worse": "caution", "open": "result"}
ALONE, FEDERATED = "trained alone", "federated"


def site_sections(run: Run, site: str, left_out: Sequence[LeaveOneOut] = ()) -> list[Section]:
    """The page of one site: the answer to its question first, then what the answer rests on."""
    sections = [_question(run, site)]
    gift = next(filter(None, (_gift(run, record, site) for record in left_out)), None)
    if gift is not None:
        sections.append(gift)
    return [*sections, *contributions.of_site(run, site), *guarantee.of_site(run, site)]


def with_own_cases(run: Run, site: str, path: Path) -> Run:
    """The run with a site's own file in place of the comparison that left the site.

    Raises:
        ConfigError: the file cannot be read, or is of another run.
    """
    try:
        own_cases = LocalComparison.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            "file-unreadable", f"{path} cannot be read ({error.strerror}): name the site's {COMPARISON_FILE} with --own"
        ) from None
    except ValueError as error:
        raise ConfigError(
            "not-a-comparison", f"{path} is not a site's {COMPARISON_FILE} ({first_fault(error)})"
        ) from None
    final = run.results.final
    result = None if final is None else final.against_local.get(site)
    if (
        final is None
        or result is None
        or any(
            getattr(result, name) != getattr(own_cases, name) for name in ("score", "n", "federated", "local", "round")
        )
    ):
        raise ConfigError(
            "other-run", f"{path} is not of site {site} in this run: its scores differ from those in {run.source}"
        )
    final = final.model_copy(update={"against_local": {**final.against_local, site: own_cases}})
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
    for site, result in final.against_local.items():
        m = metric(result.score)
        rows.append(
            [
                site,
                f"{result.n:,}{_of_subjects(result)}",
                m.number(result.local),
                m.number(result.federated),
                Cell(m.difference(result.difference), m.points_interval(result.interval)),
                p_text(result.p),
                Cell(VERDICTS[result.verdict], strong=result.verdict != "open"),
                "–" if result.needed is None else f"{result.needed:,}{'' if result.subjects is None else ' subjects'}",
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
    m = metric(next(iter(final.against_local.values())).score)
    return Section(
        "against-local",
        "Federated against trained alone",
        paragraph("all_sites_how"),
        [Table(columns, rows, caption=f"Test {m.heading}"), _limits(run)],
    )


def answer(site: str, result: LocalComparison) -> Finding:
    """Whether it is better, worse, or undecided; and how many cases would tell."""
    return finding(
        _TONES[result.verdict],
        "benefit",
        m=metric(result.score),
        site=site,
        result=result,
        cases=f"{counted(result.n, 'test case')}{_of_subjects(result)}",
        units=_units(result),
        few=result.independent < FEWEST_FOR_TEST,
        fewest=FEWEST_FOR_TEST,
        fewest_for_needed=FEWEST_FOR_NEEDED,
        p=None if result.p is None else p_equals(result.p),
    )


def _units(result: LocalComparison) -> str:
    """What the test and the number needed count."""
    return "cases" if result.subjects is None else "subjects"


def _of_subjects(result: LocalComparison) -> str:
    return "" if result.subjects is None else f" of {counted(result.subjects, 'subject')}"


def _question(run: Run, site: str) -> Section:
    final, job = run.results.final, run.results.job
    assert final is not None
    result = final.against_local.get(site)
    blocks: list[Block] = []
    if result is None:
        why = {"local": job.local, "held_out": site in job.held_out}
        blocks.append(Findings([finding("caution", "benefit_unknown", site=site, **why)]))
    else:
        blocks.append(Findings([answer(site, result), *_cautions(run, site)]))
        drawn = _figures(result, site)
        blocks += [Figures(drawn)] if drawn else []
        compared = paragraph(
            "models_compared",
            site=site,
            best=final.best.round,
            alone=result.round,
            fine_tuned=final.fine_tuned and site in final.personal,
            personal=site in final.personal,
            withheld=result.cases is None,
        )
        blocks += [_numbers(result), compared, _limits(run)]
    return Section("worth", f"Is the federation worth it for {site}?", "", blocks)


def _cautions(run: Run, site: str) -> Iterator[Finding]:
    data = run.results.data[site]
    if run.results.is_phantom:
        yield finding("caution", "benefit_of_phantom")
    if data.simulated:
        yield finding("caution", "benefit_of_simulated_shift", site=site, what=data.simulated)
    if data.split_rule == "slice-legacy":
        yield finding("caution", "benefit_of_slices")


def _figures(result: LocalComparison, site: str) -> list[Figure]:
    m = metric(result.score)
    drawn = []
    if result.cases is not None and result.test != "mcnemar" and len(result.cases) <= MAX_LINES:
        drawn.append(_lines(result, m, site))
    if result.interval is not None:
        drawn.append(_differences(result, m, site))
    return drawn


def _lines(result: LocalComparison, m: Metric, site: str) -> Figure:
    """Each case as two points joined by a line."""
    with figures.drawing(height=300) as (drawn, (axes,)):
        assert result.cases is not None
        names = (
            f"federated higher ({sum(a > b for a, b in result.cases)})",
            f"not higher ({sum(a <= b for a, b in result.cases)})",
        )
        for federated, local in result.cases:
            series = 0 if federated > local else 1
            axes.plot(
                [0, 1],
                [m.factor * local, m.factor * federated],
                color=figures.colour(series),
                marker=figures.marker(series),
                linestyle=figures.dashes(series),
                linewidth=1.2,
                markersize=5,
            )
        means = [m.factor * result.local, m.factor * result.federated]
        axes.plot([0, 1], means, color=figures.INK, linewidth=3, marker="_", markersize=16, markeredgewidth=3, zorder=5)
        axes.set_xticks([0, 1], [ALONE, FEDERATED])
        axes.set_xlim(-0.25, 1.25)
        axes.grid(visible=False, axis="x")
        axes.set_ylabel(m.heading)
        description = (
            f"{m.title} of each test case of {short(site)}, {ALONE} and {FEDERATED}: {names[0]}, {names[1]}; means "
            f"{m.with_unit(result.local)} and {m.with_unit(result.federated)}"
        )
        title = f"{m.title}, case by case; thick line: mean"
        return figures.figure(drawn, "pairs", title=title, description=description, legend=figures.legend(names))


def _differences(result: LocalComparison, m: Metric, site: str) -> Figure:
    """The mean difference with its interval, above the differences of cases or their quantiles."""
    with figures.drawing(height=150) as (drawn, (axes,)):
        assert result.interval is not None
        axes.axvline(0, color=figures.INK, linewidth=1)
        low, high = (m.factor * bound for bound in result.interval)
        axes.plot([low, high], [0, 0], color=figures.colour(0), linewidth=5, solid_capstyle="butt")
        axes.plot([m.factor * result.difference], [0], color=figures.INK, marker="D", markersize=7, zorder=4)
        below = "quantiles (5 to 95 %)"
        if result.cases is not None and result.test != "mcnemar" and len(result.cases) <= MAX_LINES:
            values = np.array([m.factor * (a - b) for a, b in result.cases])
            offset = 1 + 0.12 * np.sin(2.4 * np.arange(len(values)))
            for series, chosen in enumerate((values > 0, values <= 0)):
                colour, marker = figures.colour(series), figures.marker(series)
                axes.scatter(values[chosen], offset[chosen], s=20, linewidths=0, color=colour, marker=marker)
            below = "single cases"
        elif result.quantiles is not None:
            five, q1, middle, q3, last = (m.factor * value for value in result.quantiles)
            axes.plot([five, last], [1, 1], color=figures.INK, linewidth=1.2)
            axes.barh(1, q3 - q1, left=q1, height=0.4, color=figures.GRID, edgecolor=figures.INK, linewidth=1.1)
            axes.plot([middle, middle], [0.8, 1.2], color=figures.INK, linewidth=2.4)
        axes.set_yticks([0, 1], ["mean, 95 %", below])
        axes.set_ylim(1.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"federated minus alone, points of {m.word}")
        description = (
            f"Difference of {m.title} at {short(site)}, federated minus alone: mean {m.difference(result.difference)} "
            f"points, 95 % interval {m.points_interval(result.interval)}"
        )
        title = "Difference; right of 0 the federated model is better"
        return figures.figure(drawn, "differences", title=title, description=description)


def _numbers(result: LocalComparison) -> Facts:
    m = metric(result.score)
    bounds = m.points_interval(result.interval)
    facts = [
        ("Test cases", f"{result.n:,}{_of_subjects(result)}"),
        (f"{m.heading}, federated", m.number(result.federated)),
        (f"{m.heading}, trained alone", m.number(result.local)),
        ("Difference, points", f"{m.difference(result.difference)} {bounds}".rstrip()),
    ]
    if result.std is not None:
        facts.append(("Standard deviation of the differences", m.number(result.std)))
    if result.test is not None:
        facts.append((f"p, {TESTS[result.test]}", p_text(result.p)))
    if result.cases is not None:
        ahead, behind = sum(a > b for a, b in result.cases), sum(a < b for a, b in result.cases)
        pictures = result.test == "mcnemar"
        facts += [
            ("Federated right, alone wrong" if pictures else "Cases with federated higher", f"{ahead:,}"),
            ("Federated wrong, alone right" if pictures else "Cases with federated lower", f"{behind:,}"),
            ("Cases without difference", f"{result.n - ahead - behind:,}"),
        ]
    if result.needed is not None:
        facts.append((f"{_units(result).capitalize()} that would tell this difference", f"about {result.needed:,}"))
    return Facts(facts)


def _limits(run: Run) -> Text:
    return paragraph("benefit_limits", fewest=FEWEST_FOR_TEST, seed=run.results.job.seed)


def _gift(run: Run, record: LeaveOneOut, site: str) -> Section | None:
    """What the other sites' scores lose without this site; None if it was not left out of the same job."""
    turn = record.sites.get(site)
    if turn is None or not turn.others or not _matches(run, record):
        return None
    name = run.results.job.metric
    m = metric(name)
    rows: list[Row] = []
    pairs: list[tuple[float, float]] = []
    for other, without in turn.others.items():
        whole = _as_used(run, other)
        if whole is None or name not in whole.scores or name not in without.scores:
            continue
        a, b = whole.scores[name], without.scores[name]
        pairs.append((a, b))
        rows.append(
            [other, m.number(a), m.number(b), Cell(m.difference(a - b), _gain_interval(m, name, whole, without))]
        )
    if not pairs:
        return None
    mean, rest = fmean(a for a, _ in pairs), fmean(b for _, b in pairs)
    sentence = finding("result", "gift", m=m, site=site, others=len(pairs), mean=mean, without=rest)
    columns = [
        Column("At", numeric=False),
        Column(f"With {short(site, 16)}"),
        Column(f"Without {short(site, 16)}"),
        Column("Difference", detail="95 % interval over cases"),
    ]
    foot: Row = [
        Cell("mean", strong=True),
        *(Cell(m.number(v), strong=True) for v in (mean, rest)),
        m.difference(mean - rest),
    ]
    return Section(
        "gives",
        f"What {site} gives the others",
        "",
        [
            Findings([sentence]),
            Table(columns, rows, [foot], caption=f"Test {m.heading}, best model"),
        ],
    )


def _gain_interval(m: Metric, name: str, whole: Evaluation, without: Evaluation) -> str:
    cases = [result.distributions[name].cases if name in result.distributions else None for result in (whole, without)]
    a, b = cases
    if a is None or b is None or len(a) != len(b):
        return ""
    if (
        whole.distributions[name].subjects is not None
    ):  # cases of one subject are alike, and whose they are stayed there
        return ""
    return m.points_interval(bootstrap_interval(np.array(a) - np.array(b), seed=0))


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
