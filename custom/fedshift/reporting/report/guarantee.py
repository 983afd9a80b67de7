"""What the best model promises at each site, and what came of it on test cases (``evaluation.guarantee``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import (
    Block,
    Cell,
    Column,
    Finding,
    Findings,
    Row,
    Section,
    Table,
    finding,
    paragraph,
)
from fedshift.schema.guarantee import Guarantee, Level, Outcome, Promise

NEWCOMER, THIS_HOSPITAL = "a new hospital", "this hospital"


def of_run(run: Run) -> Section | None:
    """Every site of a run, and new hospitals; None without a guarantee."""
    final = run.results.final
    return None if final is None or final.guarantee is None else section(final.guarantee)


def of_site(run: Run, site: str) -> list[Section]:
    """One site of a run; empty if nothing is promised to its patients or was tested on them."""
    final = run.results.final
    guarantee = None if final is None else final.guarantee
    if guarantee is None:
        return []
    kept = {"sites": _alone(guarantee.sites, site), "left_out": _alone(guarantee.left_out, site)}
    return [section(guarantee.model_copy(update={**kept, "newcomer": {}}))] if any(kept.values()) else []


def _alone(sites: Mapping[str, dict[str, Promise]], site: str) -> dict[str, dict[str, Promise]]:
    return {site: sites[site]} if site in sites else {}


def section(guarantee: Guarantee) -> Section:
    """A row for each site and structure or class; a sentence if no site has sent a curve."""
    if guarantee.is_empty:
        nothing = finding("caution", "guarantee_nothing", percent=f"{100 * guarantee.alpha:g}")
        return Section("guarantee", "What is guaranteed", paragraph("guarantee_about"), [Findings([nothing])])
    rows = list(_rows(guarantee))
    classes = not any(promise.inner for _, _, promise in rows)
    sides = ("In the set",) if classes else ("Outer outline", "Inner outline")
    columns = [Column("Site", numeric=False), Column("Class" if classes else "Structure", numeric=False)]
    columns.append(Column("Subjects", detail="sites, of a new hospital"))
    for side in sides:
        share = "something else" if side == "Inner outline" else "missed"
        columns += [
            Column(side, detail="from a probability of"),
            Column(f"{share.capitalize()}, %", detail="of test cases"),
        ]
    cells: list[Row] = [
        [who, name, str(promise.n), *(_level(promise.outer)), *([] if classes else _level(promise.inner))]
        for who, name, promise in rows
    ]
    blocks: list[Block] = [Findings(list(_findings(guarantee))), Table(columns, cells)]
    how = paragraph("guarantee_how", percent=f"{100 * guarantee.alpha:g}", classes=classes)
    return Section("guarantee", "What is guaranteed", how, blocks)


def _rows(guarantee: Guarantee) -> Iterator[tuple[str, str, Promise]]:
    whose = {**guarantee.sites, NEWCOMER: guarantee.newcomer, THIS_HOSPITAL: guarantee.calibrated}
    whose |= {f"{site} (held out)": promises for site, promises in guarantee.left_out.items()}
    for who, promises in whose.items():
        for name, promise in promises.items():
            yield who, name, promise


def _level(level: Level | None) -> tuple[Cell, Cell]:
    if level is None:
        return Cell("-"), Cell("-")
    if level.level is None:
        more = f"{level.needed} more labelled cases" if level.needed else "errs too much"
        return Cell("not covered", more), Cell("-")
    unlike = f"at most {100 * level.at_most:.0f} % if unlike the others" if level.others and level.at_most else ""
    return Cell(f"{level.level:.3f}", unlike), _tested(level.tested)


def _tested(tested: Outcome | None) -> Cell:
    if tested is None:
        return Cell("-")
    ends = "" if tested.interval is None else f"{100 * tested.interval[0]:.1f} to {100 * tested.interval[1]:.1f}; "
    return Cell(f"{100 * tested.mean:.1f}", f"{ends}n = {tested.n}")


def _findings(guarantee: Guarantee) -> Iterator[Finding]:
    tested = [
        (who, name, level)
        for who, name, promise in _rows(guarantee)
        for level in (promise.outer, promise.inner)
        if level is not None and level.tested is not None
    ]
    beyond = [
        f"{who} ({name})"
        for who, name, level in tested
        if level.tested is not None and level.tested.interval is not None and level.tested.interval[0] > guarantee.alpha
    ]
    if tested:
        means = [level.tested.mean for _, _, level in tested if level.tested is not None]
        kept = sum(mean <= guarantee.alpha for mean in means)
        yield finding("result", "guarantee_tested", kept=kept, of=len(means), percent=f"{100 * guarantee.alpha:g}")
    if beyond:
        yield finding("caution", "guarantee_beyond", who=list(dict.fromkeys(beyond)))
    if guarantee.calibrated:
        yield finding("note", "guarantee_own")
    elif guarantee.sites:
        yield finding("note", "guarantee_selected")
    if guarantee.sites and not guarantee.newcomer:
        yield finding("note", "guarantee_no_newcomer")
