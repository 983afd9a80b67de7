"""The summary of a report: what was run, the result, and cautions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import fmean

from fedshift.reporting import false_positives
from fedshift.reporting.known_scores import OF_CLASSES, needs_voxel_size
from fedshift.reporting.report.runs import Run, distribution, evaluation, guess_mean
from fedshift.reporting.report.section import Finding, Findings, Section, Tone, finding
from fedshift.reporting.report.wording import metric, ordered, printed
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
VERDICTS = {"better": "better", "worse": "worse", "open": "undecided"}
"""What the comparison of a site's models says of the federated one."""
KINDS = {
    "phantom": "simulated scans (the phantom: no patients)",
    "patients": "scans of patients",
    "images": "labelled images",
}


def summary(run: Run) -> Section:
    """The summary of one run."""
    return _section([_what_was_run(run), *_result(run), *_against_local(run), *_cautions(run)], "sections")


def multi_model_summary(run: Run, result: Finding) -> Section:
    """The summary of a record with several models: the result, followed by the run's cautions."""
    plain = replace(run, results=run.results.model_copy(update={"final": None}))
    return _section([result, *_cautions(plain)], "tables")


def _section(findings: Iterable[Finding], below: str) -> Section:
    has = "contain the underlying numbers" if below == "sections" else "contain the numbers"
    sorted_by_tone = sorted(findings, key=lambda sentence: ORDER.index(sentence.tone))
    return Section("summary", "Summary", f"Read this first; the {below} below {has}.", [Findings(sorted_by_tone)])


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
    variances = [
        (s.std**2 / s.n, s.n) for s in spreads if s is not None and s.std is not None and s.n > 1 and s.subjects is None
    ]
    variance = sum(of_site for of_site, _ in variances)
    if len(variances) < len(sites) or variance == 0:
        return mean, None
    # By shares of the variance: squares of very small ones would be 0.
    degrees_of_freedom = 1 / sum((of_site / variance) ** 2 / (n - 1) for of_site, n in variances)
    if degrees_of_freedom < MIN_DEGREES_OF_FREEDOM:
        return mean, None
    from scipy import stats

    half = float(stats.t.ppf(0.975, degrees_of_freedom)) * math.sqrt(variance) / len(sites)
    upper_limit = 1.0 if metric(name).unit == "%" else math.inf
    return mean, (max(mean - half, 0.0), min(mean + half, upper_limit))


def tested(scores: FinalScores, sites: list[str], name: str) -> list[str]:
    """The sites with a finite test score."""
    return [s for s in sites if math.isfinite(scores.sites.get(s, {}).get("test", {}).get(name, math.nan))]


def _what_was_run(run: Run) -> Finding:
    job, data = run.results.job, run.results.data
    return finding(
        "result",
        "what_was_run",
        methods=run.methods,
        job=job,
        rounds=len(run.results.rounds),
        trained=run.trained,
        kinds=sorted({KINDS[record.kind] for record in data.values()}),
    )


def _result(run: Run) -> Iterator[Finding]:
    final, job = run.results.final, run.results.job
    if final is None:
        yield finding("caution", "unfinished", done=len(run.results.rounds), rounds=job.rounds)
        return
    best, m = final.best, metric(job.metric)
    by_site = {site: best.sites[site]["test"][job.metric] for site in tested(best, run.trained, job.metric)}
    if not by_site:
        yield finding("caution", "no_test_score")
    else:
        sites = list(by_site)
        mean, bounds = mean_with_interval(best, sites, job.metric)
        low, high = (extreme(by_site.items(), key=lambda scored: scored[1]) for extreme in (min, max))
        facts = {"mean": mean, "bounds": bounds, "low": low, "high": high, "best": best.round}
        yield finding("result", "mean_test", m=m, sites=len(sites), **facts)
        guess = guess_mean(run, sites, "test", job.metric)
        if guess is not None and mean <= guess:
            yield finding("caution", "no_better_than_guess", m=m, guess=guess)
        if high[1] - low[1] > MAX_SITE_GAP:
            yield finding("note", "sites_differ", m=m, gap=high[1] - low[1])
    for site in job.held_out:
        score = best.held_out.get(site, {}).get("all", {}).get(job.metric)
        if score is not None:
            trained = TRAINED_BEFORE if job.trained_before([site]) else "never trained"
            yield finding("result", "held_out_score", m=m, site=site, trained=trained, score=score, cases=run.counted)


def _against_local(run: Run) -> Iterator[Finding]:
    final = run.results.final
    if final is None or not run.results.job.local:
        return
    by_verdict = {
        name: [site for site, result in final.against_local.items() if result.verdict == verdict]
        for verdict, name in VERDICTS.items()
    }
    verdicts = [(name, sites) for name, sites in by_verdict.items() if sites]
    if verdicts:
        yield finding("result", "benefit_of_all", verdicts=verdicts)
    else:
        yield finding("caution", "no_comparison")


def _cautions(run: Run) -> Iterator[Finding]:
    yield from _data_cautions(run)
    yield from _training_cautions(run)
    yield from _model_cautions(run)
    yield from _fault_cautions(run)


def _data_cautions(run: Run) -> Iterator[Finding]:
    results, data, final = run.results, run.results.data, run.results.final
    if results.is_phantom:
        yield finding("caution", "simulated_data")
    for what, sites in results.simulated_sites.items():
        yield finding("caution", "simulated_shift", sites=sites, what=what)
    unknown = sites_without_voxel_sizes(run)
    if unknown and (names := scores_of_voxel_size(run)):
        yield finding("caution", "no_voxel_size", sites=unknown, scores=names)
    if printed(results.job.metric):
        yield finding("caution", "papers_dice")
    if any(record.split_rule == "slice-legacy" for record in data.values()):
        yield finding("caution", "slice_legacy")
    if final is not None:
        tested_sites = tested(final.best, run.trained, results.job.metric)
        if tested_sites and (without := [site for site in run.trained if site not in tested_sites]):
            yield finding("caution", "sites_without_test", sites=without)
        spreads = {site: distribution(final.best, site, "test", results.job.metric) for site in run.trained}
        few = [f"{site} ({s.n})" for site, s in spreads.items() if s is not None and s.n < MIN_CASES]
        if few:
            yield finding("caution", "few_cases", least=MIN_CASES, sites=few)
    if without := [site for site, record in data.items() if not record.n.get("val") and site in run.trained]:
        yield finding("note", "sites_without_validation", sites=without, cases=run.counted)


def _training_cautions(run: Run) -> Iterator[Finding]:
    job, final = run.results.job, run.results.final
    yield finding("note", "seed_only", seed=job.seed)
    for note in departure_notes(job):
        yield finding("caution", "departure", note=note)
    if job.initial_weights == FROM_SCRATCH:
        yield finding("note", "from_scratch")
    if final is None:
        return
    if final.best.round == job.rounds and job.rounds > 1:
        yield finding("note", "best_is_last", round=final.best.round)
    at_last = tested(final.last, run.trained, job.metric)
    shared = [site for site in tested(final.best, run.trained, job.metric) if site in at_last]
    if shared and final.best.round != final.last.round:
        best, last = (fmean(scores.sites[s]["test"][job.metric] for s in shared) for scores in (final.best, final.last))
        if best - last > MAX_SCORE_DROP:
            yield finding("caution", "unstable", m=metric(job.metric), round=final.best.round, best=best, last=last)
    if final.newcomers:
        yield finding("note", "newcomers", sites=final.newcomers)
    if not_new := job.trained_before([*job.held_out, *final.newcomers]):
        yield finding("caution", "trained_before", sites=not_new, trained=TRAINED_BEFORE)
    if final.personal:
        yield finding("note", "personal_models", fine_tuned=final.fine_tuned)


def _model_cautions(run: Run) -> Iterator[Finding]:
    final = run.results.final
    if final is None:
        return
    at_sites = {site: result for site in run.results.data if (result := evaluation(final.best, site, "test"))}
    empty = {site: result.empty for site, result in at_sites.items() if result.empty and result.one_sided is None}
    if empty:
        yield finding("caution", "no_foreground", volumes=sum(empty.values()), sites=list(empty))
    yield from _classes_in_one_mask(at_sites)
    for site, result in at_sites.items():
        for sentence in false_positives.sentences(result):
            yield finding("note", "cases_without", site=site, sentence=sentence)
    if run.results.job.metric in OF_CLASSES and len(run.trained) > 1:
        selected = [metric(run.results.job.metric).word]
        yield finding("note", "classes_average", scores=selected, sites=scored_classes(run))
    uncalibrated = [
        f"{site} ({metric('accuracy').with_unit(c.ece)})"
        for site, result in at_sites.items()
        if (c := result.calibration) is not None and c.ece > MAX_ECE and sum(c.counts) >= MIN_CALIBRATION_SAMPLES
    ]
    if uncalibrated:
        yield finding("caution", "uncalibrated", percent=f"{100 * MAX_ECE:.0f}", sites=uncalibrated)


def scored_classes(run: Run) -> list[str]:
    """At each site, how many classes have a score."""
    assert run.results.final is not None
    phrases = []
    for site in run.trained:
        result = evaluation(run.results.final.best, site, "test")
        if result is not None and result.classes:
            scored = sum(bool(class_scores.scores) for class_scores in result.classes.values())
            phrases.append(f"{site} {scored} of {len(result.classes)}")
    return phrases


def _classes_in_one_mask(at_sites: dict[str, Evaluation]) -> Iterator[Finding]:
    """Of each class in how many test volumes one mask only has it."""
    for name in dict.fromkeys(name for result in at_sites.values() for name in result.one_sided or {}):
        sides_at = {site: (result.one_sided or {}).get(name) for site, result in at_sites.items()}
        at = {site: sides for site, sides in sides_at.items() if sides is not None}
        where = [f"{site} ({sides.missed} missed, {sides.invented} invented)" for site, sides in at.items()]
        volumes = sum(sides.cases for sides in at.values())
        yield finding("caution", "class_in_one_mask", name=name, volumes=volumes, sites=where)


def _fault_cautions(run: Run) -> Iterator[Finding]:
    records = all_records(run)
    rejected = [fault.site for record in records for fault in record.rejected]
    absent = [site for record in records for site in record.absent]
    if rejected:
        yield finding("caution", "answers_rejected", sites=sorted(set(rejected)), answers=len(rejected))
    if absent:
        yield finding("caution", "sites_absent", sites=sorted(set(absent)), times=len(absent))
    if run.results.rounds and not rejected and not absent:
        yield finding("good", "all_answered")


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
