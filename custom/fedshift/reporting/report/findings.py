"""The summary: what was run, what came out, and what to be careful about, in plain sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

from fedshift.reporting.report.runs import Run, distribution, evaluation
from fedshift.reporting.report.section import Finding, Findings, Section, Tone
from fedshift.reporting.report.wording import counted, listed, metric, ordered
from fedshift.schema.results import FROM_SCRATCH, TRAINED_BEFORE, FinalScores, RoundRecord

ORDER: tuple[Tone, ...] = ("result", "caution", "good", "note")
FEW_CASES = 10
FEWEST_FREEDOM = 5
FALL = 0.05
"""From best to last model, of a score between 0 and 1."""
UNEVEN = 0.1
"""Between the best and the worst site."""
POORLY_CALIBRATED = 0.1
ENOUGH_TO_CALIBRATE = 200
"""Samples; of fewer the calibration error is large by chance."""
_KINDS = {
    "phantom": "simulated scans (the phantom: no patients)",
    "patients": "scans of patients",
    "images": "pictures of public data sets",
}


def summary(run: Run) -> Section:
    """Of one run."""
    found = [Finding("result", sentence) for sentence in _what_was_run(run)]
    found += _result(run)
    found += _cautions(run)
    found.sort(key=lambda finding: ORDER.index(finding.tone))
    return Section(
        "summary",
        "Summary",
        "Read this first; the sections below hold the numbers that each sentence is made from.",
        [Findings(found)],
    )


def of_many_models(run: Run, sentence: str) -> Section:
    """What to be careful about where a run's own scores are not what is reported; ``sentence`` says what is."""
    plain = replace(run, results=run.results.model_copy(update={"final": None}))
    found = [Finding("result", sentence), *_cautions(plain)]
    found.sort(key=lambda finding: ORDER.index(finding.tone))
    return Section("summary", "Summary", "Read this first; the tables below hold the numbers.", [Findings(found)])


def mean_with_interval(scores: FinalScores, sites: list[str], name: str) -> tuple[float, tuple[float, float] | None]:
    """The mean over sites of a test score, and its 95 % interval if every site tells how its cases spread.

    The interval is ± t √(Σ s² / n) / K over K sites with n cases of deviation s each, t being Student's with Σ (n - 1)
    degrees of freedom, at least `FEWEST_FREEDOM`: it is about other cases at the same sites, not about other sites.
    """
    mean = fmean(scores.sites[site]["test"][name] for site in sites)
    spreads = [distribution(scores, site, "test", name) for site in sites]
    known = [(told.std, told.n) for told in spreads if told is not None and told.std is not None]
    freedom = sum(n - 1 for _, n in known)
    if len(known) < len(sites) or freedom < FEWEST_FREEDOM:
        return mean, None
    from scipy import stats

    half = float(stats.t.ppf(0.975, freedom)) * math.sqrt(sum(std**2 / n for std, n in known)) / len(sites)
    top = 1.0 if metric(name).unit == "%" else math.inf
    return mean, (max(mean - half, 0.0), min(mean + half, top))


def tested(scores: FinalScores, sites: list[str], name: str) -> list[str]:
    """Sites that have a finite test score."""
    return [s for s in sites if math.isfinite(scores.sites.get(s, {}).get("test", {}).get(name, math.nan))]


def _what_was_run(run: Run) -> Iterator[str]:
    job, data = run.results.job, run.results.data
    kinds = sorted({_KINDS[record.kind] for record in data.values()})
    held_out = f"; {listed(job.held_out)} held out" if job.held_out else ""
    where = f"{counted(len(run.trained), 'site')} ({listed(run.trained)}){held_out}" if data else "no site yet"
    on = f", on {' and '.join(kinds)}" if kinds else ""
    yield (
        f"{run.methods} trained the task {job.task} (protocol {job.protocol}) for "
        f"{counted(len(run.results.rounds), 'round')} at {where}{on}."
    )


def _result(run: Run) -> Iterator[Finding]:
    results = run.results
    if results.final is None:
        yield Finding(
            "caution",
            f"The run did not end: {len(results.rounds)} of {results.job.rounds} rounds are there and no final scores.",
        )
        return
    best, of = results.final.best, metric(results.job.metric)
    sites = tested(best, run.trained, results.job.metric)
    if not sites:
        yield Finding("caution", "No site that trained has a test score.")
    else:
        mean, bounds = mean_with_interval(best, sites, results.job.metric)
        between = "" if bounds is None else f" (95 % interval {of.number(bounds[0])} to {of.said(bounds[1])})"
        by_site = {site: best.sites[site]["test"][results.job.metric] for site in sites}
        low, high = min(by_site, key=by_site.__getitem__), max(by_site, key=by_site.__getitem__)
        span = (
            "" if len(sites) < 2 else f", from {of.said(by_site[low])} at {low} to {of.said(by_site[high])} at {high}"
        )
        yield Finding(
            "result",
            f"Mean test {of.word} over {counted(len(sites), 'site')}: {of.said(mean)}{between}{span}; "
            f"the model is that of round {best.round}.",
        )
        if by_site[high] - by_site[low] > UNEVEN:
            yield Finding(
                "note",
                f"The sites differ by {of.number(by_site[high] - by_site[low])} percentage points of {of.word}: the "
                "mean "
                "speaks for none of them, so look at each.",
            )
    for site in results.job.held_out:
        score = best.held_out.get(site, {}).get("all", {}).get(results.job.metric)
        if score is not None:
            trained = TRAINED_BEFORE if results.job.trained_before([site]) else "never trained"
            yield Finding("result", f"At {site}, which {trained}, it reaches {of.said(score)} on all samples.")


def _cautions(run: Run) -> Iterator[Finding]:
    yield from _data_cautions(run)
    yield from _training_cautions(run)
    yield from _model_cautions(run)
    yield from _fault_cautions(run)


def _data_cautions(run: Run) -> Iterator[Finding]:
    results = run.results
    if results.is_phantom:
        yield Finding(
            "caution", "The data are simulated: nothing here says how well the model does on patients' scans."
        )
    unknown = sites_without_voxel_sizes(run)
    if unknown and (names := mm_scores(run)):
        yield Finding(
            "caution",
            f"Scans at {listed(unknown)} have no voxel size in their headers (1 x 1 x 1 mm as a placeholder): "
            f"{listed(names)} there are in voxels of unknown size, not in mm, so do not compare them with other sites.",
        )
    legacy = [site for site, record in results.data.items() if record.split_rule == "slice-legacy"]
    if legacy:
        yield Finding(
            "caution",
            "Split slice-legacy: slices of one patient are in training and in test, as in the papers, so the test "
            "scores are too high for new patients.",
        )
    few = []
    if results.final is not None:
        for site in run.trained:
            told = distribution(results.final.best, site, "test", results.job.metric)
            if told is not None and told.n < FEW_CASES:
                few.append(f"{site} ({told.n})")
    if few:
        yield Finding(
            "caution",
            f"Fewer than {FEW_CASES} test cases at {listed(few)}: one case more or less can move these scores a lot.",
        )
    without = [site for site, record in results.data.items() if not record.n.get("val") and site in run.trained]
    if without:
        yield Finding("note", f"No validation samples at {listed(without)}: the best round was chosen without them.")


def _training_cautions(run: Run) -> Iterator[Finding]:
    results = run.results
    yield Finding(
        "note", f"One seed ({results.job.seed}): another may give other scores; compare methods over several seeds."
    )
    if results.job.initial_weights == FROM_SCRATCH:
        yield Finding("note", "The network was trained from scratch, without weights from elsewhere.")
    final = results.final
    if final is None:
        return
    of, name = metric(results.job.metric), results.job.metric
    if final.best.round == results.job.rounds and results.job.rounds > 1:
        yield Finding(
            "note",
            f"The best round is the last ({final.best.round}): training may not have been over, and more rounds may "
            "give a better model.",
        )
    best_sites, last_sites = (tested(scores, run.trained, name) for scores in (final.best, final.last))
    shared = [site for site in best_sites if site in last_sites]
    if shared and final.best.round != final.last.round:
        best, last = (fmean(scores.sites[s]["test"][name] for s in shared) for scores in (final.best, final.last))
        if best - last > FALL:
            yield Finding(
                "caution",
                f"From round {final.best.round} to the last the mean test {of.word} fell from {of.said(best)} to "
                f"{of.said(last)}: training was not stable, and the result depends on the round that was chosen.",
            )
    if final.newcomers:
        yield Finding("note", f"Had not trained by the best round: {listed(final.newcomers)}.")
    not_new = results.job.trained_before([*results.job.held_out, *final.newcomers])
    if not_new:
        yield Finding("caution", f"{listed(not_new)} {TRAINED_BEFORE}: scores there are not those of a new site.")
    if final.personal:
        own = (
            "Sites fine-tuned the best model for themselves; these models are in a column of their own."
            if final.fine_tuned
            else "Every site is scored with parts of its own, which the model file does not hold."
        )
        yield Finding("note", own)


def _model_cautions(run: Run) -> Iterator[Finding]:
    final = run.results.final
    if final is None:
        return
    found = {site: told for site in run.results.data if (told := evaluation(final.best, site, "test")) is not None}
    empty = {site: told.empty for site, told in found.items() if told.empty}
    if empty:
        total = sum(empty.values())
        yield Finding(
            "caution",
            f"The model found nothing in {counted(total, 'test volume')} ({listed(list(empty))}); distances between "
            "surfaces cannot be told there.",
        )
    off = [
        f"{site} ({metric('accuracy').said(told.calibration.ece)})"
        for site, told in found.items()
        if told.calibration is not None
        and told.calibration.ece > POORLY_CALIBRATED
        and sum(told.calibration.counts) >= ENOUGH_TO_CALIBRATE
    ]
    if off:
        yield Finding(
            "caution",
            f"The model's probabilities are off by more than {100 * POORLY_CALIBRATED:.0f} % on average (ECE) at "
            f"{listed(off)}: do not read them as chances of being right.",
        )


def _fault_cautions(run: Run) -> Iterator[Finding]:
    records = all_records(run)
    rejected = sorted({fault.site for record in records for fault in record.rejected})
    absent = sorted({site for record in records for site in record.absent})
    if rejected:
        n = sum(len(record.rejected) for record in records)
        yield Finding(
            "caution", f"{counted(n, 'answer')} of {listed(rejected)} were left out; the faults are listed below."
        )
    if absent:
        n = sum(len(record.absent) for record in records)
        yield Finding("caution", f"Sites were absent {counted(n, 'time')} in all: {listed(absent)}.")
    if run.results.rounds and not rejected and not absent:
        yield Finding("good", "Every site answered in every round it was asked, and no answer was refused.")


def sites_without_voxel_sizes(run: Run) -> list[str]:
    """Sites where distances in mm mean nothing."""
    return [site for site, record in run.results.data.items() if record.unknown_spacing]


def mm_scores(run: Run) -> list[str]:
    """Titles of the scores in mm that the run has."""
    final = run.results.final
    found = (
        set()
        if final is None
        else {
            name
            for sites in (final.best.sites, final.best.held_out)
            for parts in sites.values()
            for scores in parts.values()
            for name in scores
        }
    )
    return [metric(name).title for name in ordered(found) if metric(name).unit == "mm"]


def all_records(run: Run) -> list[RoundRecord]:
    """Statistics, rounds and evaluations, in order."""
    results = run.results
    return [*([results.statistics] if results.statistics else []), *results.rounds, *results.evaluations]
