"""The summary of a report in sentences: what was run, the result, and cautions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

from fedshift.reporting import without_structure
from fedshift.reporting.known_scores import needs_voxel_size
from fedshift.reporting.report import worth
from fedshift.reporting.report.runs import Run, distribution, evaluation, guess_mean
from fedshift.reporting.report.section import Finding, Findings, Section, Tone
from fedshift.reporting.report.wording import counted, listed, metric, ordered, printed
from fedshift.reporting.table import departure_notes
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.results import FROM_SCRATCH, TRAINED_BEFORE, FinalScores, RoundRecord

ORDER: tuple[Tone, ...] = ("result", "caution", "good", "note")
MIN_CASES = 10
"""Sites with fewer test cases get a caution."""
MIN_DEGREES_OF_FREEDOM = 5
"""Degrees of freedom needed for the interval of a mean over sites."""
MAX_SCORE_DROP = 0.05
"""A larger drop of the test score (0 to 1) from the best to the last model gets a caution."""
MAX_SITE_GAP = 0.1
"""A larger difference between the best and the worst site gets a note."""
MAX_ECE = 0.1
"""A larger expected calibration error gets a caution."""
MIN_CALIBRATION_SAMPLES = 200
"""With fewer samples the calibration error may be large by chance."""
KINDS = {
    "phantom": "simulated scans (the phantom: no patients)",
    "patients": "scans of patients",
    "images": "images of public data sets",
}


def summary(run: Run) -> Section:
    """The summary of one run."""
    found = [Finding("result", sentence) for sentence in _what_was_run(run)]
    found += _result(run)
    compared = worth.finding(run)
    found += [] if compared is None else [compared]
    found += _cautions(run)
    found.sort(key=lambda finding: ORDER.index(finding.tone))
    return Section(
        "summary",
        "Summary",
        "Read this first; the sections below contain the underlying numbers.",
        [Findings(found)],
    )


def multi_model_summary(run: Run, sentence: str) -> Section:
    """The summary of a record with several models: ``sentence`` is the result, followed by the run's cautions."""
    plain = replace(run, results=run.results.model_copy(update={"final": None}))
    found = [Finding("result", sentence), *_cautions(plain)]
    found.sort(key=lambda finding: ORDER.index(finding.tone))
    return Section("summary", "Summary", "Read this first; the tables below contain the numbers.", [Findings(found)])


def mean_with_interval(scores: FinalScores, sites: list[str], name: str) -> tuple[float, tuple[float, float] | None]:
    """The mean test score over sites, and its 95 % interval if every site reports its standard deviation over cases.

    The interval is ± t √(Σ s² / n) / K for K sites, each with n cases of standard deviation s. t is Student's with the
    degrees of freedom of Welch (1947) and Satterthwaite (1946), as the sites' variances are not pooled::

        (Σ s² / n)² / Σ (s² / n)² / (n - 1)

    They must be at least `MIN_DEGREES_OF_FREEDOM`. Without any spread over cases there is no interval, and none if some
    subjects have several cases: these are alike, so that s² / n is too small. It covers other cases at the same sites,
    not other sites.
    """
    mean = fmean(scores.sites[site]["test"][name] for site in sites)
    spreads = [distribution(scores, site, "test", name) for site in sites]
    known = [
        (s.std**2 / s.n, s.n) for s in spreads if s is not None and s.std is not None and s.n > 1 and s.subjects is None
    ]
    variance = sum(of_site for of_site, _ in known)
    if len(known) < len(sites) or variance == 0:
        return mean, None
    # By shares of the variance: squares of very small ones would be 0.
    degrees_of_freedom = 1 / sum((of_site / variance) ** 2 / (n - 1) for of_site, n in known)
    if degrees_of_freedom < MIN_DEGREES_OF_FREEDOM:
        return mean, None
    from scipy import stats

    half = float(stats.t.ppf(0.975, degrees_of_freedom)) * math.sqrt(variance) / len(sites)
    upper_limit = 1.0 if metric(name).unit == "%" else math.inf
    return mean, (max(mean - half, 0.0), min(mean + half, upper_limit))


def tested(scores: FinalScores, sites: list[str], name: str) -> list[str]:
    """The sites with a finite test score."""
    return [s for s in sites if math.isfinite(scores.sites.get(s, {}).get("test", {}).get(name, math.nan))]


def _what_was_run(run: Run) -> Iterator[str]:
    job, data = run.results.job, run.results.data
    kinds = sorted({KINDS[record.kind] for record in data.values()})
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
            f"The run did not finish: it has {len(results.rounds)} of {results.job.rounds} rounds and no final scores.",
        )
        return
    best, of = results.final.best, metric(results.job.metric)
    sites = tested(best, run.trained, results.job.metric)
    if not sites:
        yield Finding("caution", "No training site has a test score.")
    else:
        mean, bounds = mean_with_interval(best, sites, results.job.metric)
        between = "" if bounds is None else f" (95 % interval {of.number(bounds[0])} to {of.with_unit(bounds[1])})"
        by_site = {site: best.sites[site]["test"][results.job.metric] for site in sites}
        low, high = min(by_site, key=by_site.__getitem__), max(by_site, key=by_site.__getitem__)
        span = (
            ""
            if len(sites) < 2
            else f", from {of.with_unit(by_site[low])} at {low} to {of.with_unit(by_site[high])} at {high}"
        )
        yield Finding(
            "result",
            f"Mean test {of.word} over {counted(len(sites), 'site')}: {of.with_unit(mean)}{between}{span}; "
            f"best model of round {best.round}.",
        )
        guess = guess_mean(run, sites, "test", results.job.metric)
        if guess is not None and mean <= guess:
            yield Finding(
                "caution",
                f"The model is no better than a guess that looks at no image ({of.with_unit(guess)}): train it longer, "
                "and compare no methods by this score.",
            )
        if by_site[high] - by_site[low] > MAX_SITE_GAP:
            yield Finding(
                "note",
                f"The sites differ by {of.number(by_site[high] - by_site[low])} percentage points of {of.word}: look "
                "at each site, not only at the mean.",
            )
    for site in results.job.held_out:
        score = best.held_out.get(site, {}).get("all", {}).get(results.job.metric)
        if score is not None:
            trained = TRAINED_BEFORE if results.job.trained_before([site]) else "never trained"
            yield Finding(
                "result", f"At {site}, which {trained}, it reaches {of.with_unit(score)} on all its {run.counted}."
            )


def _cautions(run: Run) -> Iterator[Finding]:
    yield from _data_cautions(run)
    yield from _training_cautions(run)
    yield from _model_cautions(run)
    yield from _fault_cautions(run)


def _data_cautions(run: Run) -> Iterator[Finding]:
    results = run.results
    if results.is_phantom:
        yield Finding("caution", "The data are simulated: the scores say nothing about scans of patients.")
    for what, sites in results.simulated_sites.items():
        yield Finding(
            "caution",
            f"{listed(sites)}: {what} are simulated, on real scans, so the scores are about a shift that was made up.",
        )
    unknown = sites_without_voxel_sizes(run)
    if unknown and (names := scores_of_voxel_size(run)):
        yield Finding(
            "caution",
            f"Scans at {listed(unknown)} have no voxel size in their headers (1 x 1 x 1 mm is a placeholder): "
            f"do not trust {listed(names)} there, which assume the placeholder, nor compare them with other sites.",
        )
    if printed(results.job.metric):
        yield Finding(
            "caution",
            "The Dice given here is the papers', over single slices with the background and usually higher than Dice: "
            "compare it with papers' tables only.",
        )
    legacy = [site for site, record in results.data.items() if record.split_rule == "slice-legacy"]
    if legacy:
        yield Finding(
            "caution",
            "Split slice-legacy: slices of one patient are in training and in test, as in the papers. Test scores are "
            "therefore higher than on new patients.",
        )
    few = []
    if results.final is not None:
        known = tested(results.final.best, run.trained, results.job.metric)
        without = [site for site in run.trained if site not in known]
        if known and without:
            yield Finding("caution", f"No test score at {listed(without)}: the mean is over the other sites.")
        for site in run.trained:
            spread = distribution(results.final.best, site, "test", results.job.metric)
            if spread is not None and spread.n < MIN_CASES:
                few.append(f"{site} ({spread.n})")
    if few:
        yield Finding(
            "caution",
            f"Fewer than {MIN_CASES} test cases at {listed(few)}: a single case can change these scores a lot.",
        )
    without = [site for site, record in results.data.items() if not record.n.get("val") and site in run.trained]
    if without:
        yield Finding(
            "note",
            f"No validation {run.counted} at {listed(without)}: the best round was selected without them.",
        )


def _training_cautions(run: Run) -> Iterator[Finding]:
    results = run.results
    yield Finding(
        "note", f"One seed ({results.job.seed}): scores vary with the seed, so compare methods over several seeds."
    )
    for note in departure_notes(results.job):
        yield Finding("caution", note)
    if results.job.initial_weights == FROM_SCRATCH:
        yield Finding("note", "The network was trained from scratch, without pretrained weights.")
    final = results.final
    if final is None:
        return
    of, name = metric(results.job.metric), results.job.metric
    if final.best.round == results.job.rounds and results.job.rounds > 1:
        yield Finding(
            "note",
            f"The best round is the last ({final.best.round}): training may not have converged, and more rounds may "
            "give a better model.",
        )
    best_sites, last_sites = (tested(scores, run.trained, name) for scores in (final.best, final.last))
    shared = [site for site in best_sites if site in last_sites]
    if shared and final.best.round != final.last.round:
        best, last = (fmean(scores.sites[s]["test"][name] for s in shared) for scores in (final.best, final.last))
        if best - last > MAX_SCORE_DROP:
            yield Finding(
                "caution",
                f"From round {final.best.round} to the last the mean test {of.word} fell from {of.with_unit(best)} to "
                f"{of.with_unit(last)}: training was unstable, and the result depends on the selected round.",
            )
    if final.newcomers:
        yield Finding("note", f"Sites that had not trained by the best round: {listed(final.newcomers)}.")
    not_new = results.job.trained_before([*results.job.held_out, *final.newcomers])
    if not_new:
        yield Finding("caution", f"{listed(not_new)} {TRAINED_BEFORE}: scores there are not scores at a new site.")
    if final.personal:
        own = (
            "Sites fine-tuned the best model; the scores of these personal models are in their own column."
            if final.fine_tuned
            else "Every site is evaluated with its own personal layers, which are not in the model file."
        )
        yield Finding("note", own)


def _model_cautions(run: Run) -> Iterator[Finding]:
    final = run.results.final
    if final is None:
        return
    evaluations = {
        site: result for site in run.results.data if (result := evaluation(final.best, site, "test")) is not None
    }
    empty = {site: of.empty for site, of in evaluations.items() if of.empty and of.one_sided is None}
    if empty:
        total = sum(empty.values())
        yield Finding(
            "caution",
            f"The model predicted no foreground in {counted(total, 'test volume')} ({listed(list(empty))}); surface "
            "distances count as the diagonal of the volume there.",
        )
    yield from _one_sided(evaluations)
    for site, result in evaluations.items():
        for said in without_structure.said_of(result):
            yield Finding("note", f"{site}, test part: {said}. Dice and distances are over the other cases.")
    uncalibrated = [
        f"{site} ({metric('accuracy').with_unit(result.calibration.ece)})"
        for site, result in evaluations.items()
        if result.calibration is not None
        and result.calibration.ece > MAX_ECE
        and sum(result.calibration.counts) >= MIN_CALIBRATION_SAMPLES
    ]
    if uncalibrated:
        yield Finding(
            "caution",
            f"The model's probabilities are off by more than {100 * MAX_ECE:.0f} % on average (ECE) at "
            f"{listed(uncalibrated)}: do not read them as the probability of being correct.",
        )


def _one_sided(evaluations: dict[str, Evaluation]) -> Iterator[Finding]:
    """Of each class in how many test volumes one mask only has it."""
    names = dict.fromkeys(name for of in evaluations.values() for name in of.one_sided or {})
    for name in names:
        at = {site: of.one_sided[name] for site, of in evaluations.items() if of.one_sided and name in of.one_sided}
        where = listed([f"{site} ({told.missed} missed, {told.invented} invented)" for site, told in at.items()])
        yield Finding(
            "caution",
            f"{name}: {counted(sum(told.cases for told in at.values()), 'test volume')} with the class in one mask "
            f"only, at {where}; HD95 and ASD count as the volume's diagonal where it is missed.",
        )


def _fault_cautions(run: Run) -> Iterator[Finding]:
    records = all_records(run)
    rejected = sorted({fault.site for record in records for fault in record.rejected})
    absent = sorted({site for record in records for site in record.absent})
    if rejected:
        n = sum(len(record.rejected) for record in records)
        yield Finding("caution", f"Rejected answers of {listed(rejected)}: {n}. The reasons are under Faults.")
    if absent:
        n = sum(len(record.absent) for record in records)
        yield Finding("caution", f"Sites were absent {counted(n, 'time')} in total: {listed(absent)}.")
    if run.results.rounds and not rejected and not absent:
        yield Finding("good", "Every site answered in every round in which it was asked, and no answer was rejected.")


def sites_without_voxel_sizes(run: Run) -> list[str]:
    """The sites with unknown voxel sizes, where some scores mean nothing (`scores_of_voxel_size`)."""
    return [site for site, record in run.results.data.items() if record.unknown_spacing]


def scores_of_voxel_size(run: Run) -> list[str]:
    """Titles of the run's scores that mean something only where the voxel size is known."""
    final = run.results.final
    if final is None:
        return []
    names = {
        name
        for sites in (final.best.sites, final.best.held_out)
        for parts in sites.values()
        for scores in parts.values()
        for name in scores
    }
    return [metric(name).title for name in ordered(names) if needs_voxel_size(name)]


def all_records(run: Run) -> list[RoundRecord]:
    """The records of the statistics round, the training rounds and the evaluations, in order."""
    results = run.results
    return [*([results.statistics] if results.statistics else []), *results.rounds, *results.evaluations]
