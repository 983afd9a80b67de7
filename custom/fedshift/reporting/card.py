"""A model card: what a model was trained on, what it is for and where it ends, from its file and its run's results.

Nothing is typed by hand. The card is one record, written as JSON and shown as a page with the parts of a report.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedshift.data.shift import ASPECTS, ShiftMap, shift_map
from fedshift.data.tallies import of_pictures, row_of_site, worded
from fedshift.federation.model_files import Header, header_of, read_model_file
from fedshift.inference.plausible import expected_of
from fedshift.reporting.report import guarantee, scores, setup, summary
from fedshift.reporting.report.runs import Run, is_of, model_file, read
from fedshift.reporting.report.section import (
    Block,
    Cell,
    Chapter,
    Column,
    Facts,
    Finding,
    Findings,
    Row,
    Section,
    Table,
    Text,
    Tone,
    finding,
)
from fedshift.reporting.report.wording import listed, say, size
from fedshift.schema.errors import ConfigError
from fedshift.schema.fingerprint import Fingerprint
from fedshift.schema.results import FILE_NAME, Results

RESEARCH = "Research use only. This is not a medical device, and nothing here is for diagnosis or treatment."
PHANTOM = "Trained on the phantom: simulated scans, no patients. It is of no use on scans of patients."
HIDDEN = {
    "ckks": "the server added updates that it could not read (CKKS)",
    "masks": "the server saw only the sum of the updates (pairwise masks)",
}
KINDS = {"phantom": "simulated scans", "patients": "scans of patients", "images": "labelled images"}


@dataclass(frozen=True)
class Described:
    """What a card is made of: a model file and, if they are there, the results of its run."""

    path: Path
    sha256: str
    parameters: int
    header: Header
    run: Run | None

    @property
    def is_phantom(self) -> bool:
        """Whether it was trained on simulated scans."""
        return self.header.kind == "phantom"

    @property
    def fingerprints(self) -> list[Fingerprint]:
        """What sites told of their scans."""
        return [reference.fingerprint for reference in self.header.references.values()]

    @property
    def results(self) -> Results | None:
        """Those of its run."""
        return None if self.run is None else self.run.results


def describe(path: Path, results: Path | None = None) -> Described:
    """Read a model file and the results of its run; by default the ``results.json`` beside it, if there is one.

    Raises:
        ConfigError: one of them cannot be read, or the results are of another run.
    """
    content = read_model_file(path)
    header = header_of(content, where=str(path))
    if results is None and (path.parent / FILE_NAME).is_file():
        results = path.parent / FILE_NAME
    run = None if results is None else _run_of(path, header, results)
    return Described(
        path=path,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        parameters=sum(value.numel() for value in content["weights"].values()),
        header=header,
        run=run,
    )


def _run_of(path: Path, header: Header, results: Path) -> Run:
    run = read(results)
    if not isinstance(run, Run):
        raise ConfigError(
            "several-runs", f"{results} is not the record of one run: name the folder of the run of {path}"
        )
    job = header.job
    same = run.results.job.name == job.name and is_of(run.results.job, job)
    final = run.results.final
    rounds = {final.best.round, final.last.round} if final is not None else {header.round}
    if not same or header.round not in rounds:
        raise ConfigError(
            "other-run",
            f"{run.source} is of another run than {path} (job {job.name}, seed {job.seed}, round {header.round}): name "
            "the results of the same run",
        )
    return replace(run, model=None if header.encrypted else model_file(path))


# --- the record --------------------------------------------------------------------------------------------------


def record(described: Described) -> dict[str, Any]:
    """The card as plain values (schema 1)."""
    header, results = described.header, described.results
    job, task = header.job, header.job.task
    final = None if results is None else results.final
    return {
        "schema": 1,
        "research_use_only": RESEARCH,
        "phantom": described.is_phantom,
        "model": {
            "file": described.path.name,
            "sha256": described.sha256,
            "bytes": described.path.stat().st_size,
            "numbers": described.parameters,
            "round": header.round,
            "fedshift": header.fedshift,
        },
        "trained": {
            "task": task.name,
            "kind": task.kind,
            "protocol": task.protocol,
            "classes": list(task.structures if task.regions else task.classes),
            "methods": job.methods,
            "network": task.network.model_dump(mode="json"),
            "preparation": header.preparation,
            "rounds": task.schedule.rounds,
            "seed": job.seed,
            "initial_weights": header.initial_weights,
            "lineage": {dataset: list(sites) for dataset, sites in header.lineage.items()},
        },
        "adaptation": None if header.adaptation is None else header.adaptation.model_dump(mode="json"),
        "guarantee": None if header.guarantee is None else header.guarantee.model_dump(mode="json"),
        "data": {
            "kind": header.kind,
            "sites": list(header.sites),
            "held_out": list(task.held_out),
            "cases": cases_of(described),
            "samples": {} if results is None else {s: site_data.model_dump() for s, site_data in results.data.items()},
        },
        "intended_use": list(intended_use(described)),
        "limits": [finding.sentence.text for finding in limits(described)],
        "scores": {} if final is None else final.best.model_dump(mode="json"),
        "validation_scores": header.scores,
        "shift": _shift_record(described),
        "privacy": dict(privacy(described)),
        "versions": {} if results is None else results.versions,
    }


def _shift_record(described: Described) -> dict[str, Any]:
    shift = between_sites(described)
    return (
        {}
        if shift is None
        else {
            aspect.key: [
                {"sites": list(pair), "distance": value, "unit": aspect.unit}
                for pair in shift.pairs
                if (value := shift.between(aspect, *pair)) is not None
            ]
            for aspect in ASPECTS
        }
    )


def intended_use(described: Described) -> Iterator[str]:
    """What the model is for, in sentences."""
    header = described.header
    task = header.job.task
    yield RESEARCH
    yield say("use", task=task, sequences=header.preparation.get("sequences"), expected=None)
    expected = expected_of(task.structures[0]) if task.kind == "segmentation" else None
    if expected is not None:
        limits_of = {"view": expected.field_of_view, "distance": expected.slice_distance}
        yield say("expected_scans", modality=expected.modality, **limits_of)
    yield "A reader must look at every result before it is used for anything."


def limits(described: Described) -> Iterator[Finding]:
    """Where it ends: what follows from its data, its methods and its scores."""
    header, run = described.header, described.run
    if described.is_phantom:
        yield Finding("caution", Text(PHANTOM))
    yield finding("caution", "card_sites", sites=header.sites, held_out=header.job.task.held_out)
    if header.adaptation is not None:
        yield finding("caution", "card_adapted", adaptation=header.adaptation)
    if header.personal:
        yield finding("caution", "card_personal", arrays=len(header.personal))
    if run is None:
        yield finding("caution", "card_without_results")
        return
    if run.results.final is not None and run.results.final.best.round != header.round:
        yield finding("caution", "card_other_round", best=run.results.final.best.round, round=header.round)
    yield from (caution for caution in _of_run(run, "caution") if caution.sentence.text != PHANTOM)


def _of_run(run: Run, tone: Tone) -> Iterator[Finding]:
    """What the summary of the run has in this tone."""
    for block in summary.summary(run).blocks:
        if isinstance(block, Findings):
            yield from (sentence for sentence in block.findings if sentence.tone == tone)


def between_sites(described: Described) -> ShiftMap | None:
    """How far the training sites are from each other; None if fewer than two have told of their scans."""
    fingerprints = described.fingerprints
    return shift_map(fingerprints) if len(fingerprints) > 1 else None


def privacy(described: Described) -> Iterator[tuple[str, str]]:
    """What the job did for privacy; what a site's own policy did is known at the site alone."""
    federation = described.header.job.federation
    yield "Encryption", HIDDEN.get(federation.encryption or "", "none")
    yield "Weights sent as", federation.weights_as
    yield "Robust rule", federation.robust.rule if federation.robust else "none"
    yield "Fewest sites in a round", str(federation.min_sites)
    yield "Site names", f"{listed(described.header.sites)} are in the model file"
    yield (
        "Sums of scans",
        f"of {listed(list(described.header.references))}, in the model file, for 'fedshift drift'"
        if described.header.references
        else "none in the model file",
    )
    final = None if described.results is None else described.results.final
    if final is not None:
        alone = [
            site
            for site, parts in final.best.evaluations.items()
            if any(spread.cases for evaluation in parts.values() for spread in evaluation.distributions.values())
        ]
        yield "Scores of single cases", f"told by {listed(alone)}, without ids" if alone else "told by no site"
    yield "Sites' policies", "noise and refusals of a site's own policy stay there, and are not known here"


# --- the page ----------------------------------------------------------------------------------------------------


def chapter(described: Described) -> Chapter:
    """The card as a chapter of a report."""
    run = described.run
    sections = [
        _summary(described),
        Section("use", "Intended use", "What it is for.", [Text(text) for text in intended_use(described)]),
        Section("limits", "Limits", "Where it ends, as far as the records tell.", [Findings(list(limits(described)))]),
        _data(described),
    ]
    if run is not None:
        sections += [section for section in (scores.per_site(run),) if section is not None]
    if described.header.guarantee is not None:
        sections.append(guarantee.section(described.header.guarantee))
    sections.append(_shift(described))
    sections.append(
        Section(
            "privacy",
            "Privacy",
            "What left the sites, array by array, is on the page 'What leaves a site' of the documentation.",
            [Facts(list(privacy(described)))],
        )
    )
    if run is not None:
        sections.append(setup.what_was_run(run))
    sections.append(_file(described))
    header = described.header
    return Chapter(
        "card",
        "Model card",
        sections,
        f"Model card: {' + '.join(header.job.methods)} on {header.job.task.name}",
        described.is_phantom,
    )


def _summary(described: Described) -> Section:
    run, header = described.run, described.header
    if run is None:
        facts = {"methods": " + ".join(header.job.methods), "task": header.job.task, "round": header.round}
        findings = [finding("result", "card_trained", sites=header.sites, kind=KINDS[header.kind], **facts)]
        findings += [
            finding("result", "card_validation", name=name.removeprefix("val_"), value=value)
            for name, value in header.scores.items()
        ]
    else:
        findings = list(_of_run(run, "result"))
    findings.append(finding("result", "card_amount", **_amount(described)))
    return Section("summary", "What it is", "In short; the sections below have the numbers.", [Findings(findings)])


def cases_of(described: Described) -> dict[str, dict[str, int]]:
    """Cases of each site's splits: as the sites tell in the model file, else as the results have them."""
    data = {} if described.results is None else described.results.data
    recorded = {site: site_data.cases for site, site_data in data.items() if site_data.cases}
    reported = {fingerprint.site: fingerprint.cases for fingerprint in described.fingerprints}
    return {site: {str(split): n for split, n in cases.items()} for site, cases in {**recorded, **reported}.items()}


def _amount(described: Described) -> dict[str, int | None]:
    """On how much it was trained."""
    header, results = described.header, described.results
    counts, n = cases_of(described), len(header.sites)
    cases = sum(counts[site].get("train", 0) for site in header.sites if site in counts)
    if cases and counts.keys() >= set(header.sites):
        return {"sites": n, "cases": cases, "samples": None}
    if results is None or not results.data:
        return {"sites": n, "cases": None, "samples": None}
    samples = sum(results.data[site].n.get("train", 0) for site in header.sites if site in results.data)
    return {"sites": n, "cases": None, "samples": samples}


def _data(described: Described) -> Section:
    blocks: list[Block] = []
    fingerprints = described.fingerprints
    if fingerprints:
        columns = [
            Column("Site", numeric=False),
            *(Column(split, detail="cases") for split in setup.SPLITS),
            Column(worded("Voxels", pictures=of_pictures(fingerprints)), detail="median"),
            Column("mm", detail="median"),
            Column("Outlined", numeric=False, detail="median size"),
        ]
        rows: list[Row] = [
            [
                fingerprint.site,
                *(f"{fingerprint.cases.get(split, 0):,}" for split in setup.SPLITS),
                *row_of_site(fingerprint),
            ]
            for fingerprint in fingerprints
        ]
        totals = [f"{sum(fingerprint.cases.get(split, 0) for fingerprint in fingerprints):,}" for split in setup.SPLITS]
        blocks.append(Table(columns, rows, [["all sites", *totals, "", "", ""]], caption="Cases, as the sites tell"))
    of_run = None if described.run is None else setup.data(described.run)
    if of_run is not None and described.results is not None:
        counted_in = all(site_data.cases for site_data in described.results.data.values())
        caption = "Cases, and the samples that they give" if counted_in else "Samples, as the network sees them"
        blocks += [replace(block, caption=caption) if isinstance(block, Table) else block for block in of_run.blocks]
    if not blocks:
        blocks.append(Text(f"Kind: {KINDS[described.header.kind]}. Nothing else is told in the model file."))
    how = "A case is a scan, or a picture; samples are slices of scans, or whole ones."
    return Section("data", "Data", how, blocks)


def _shift(described: Described) -> Section:
    shift = between_sites(described)
    blocks: list[Block] = []
    if shift is not None:
        rows: list[Row] = []
        for aspect in shift.aspects:
            largest = shift.largest(aspect)
            if largest is not None:
                (first, second), distance = largest
                shade = min(distance / aspect.large, 1.0)
                level = aspect.level(distance)
                rows.append(
                    [aspect.title, Cell(f"{distance:.2f} {aspect.unit}", level, shade=shade), f"{first}, {second}"]
                )
        columns = [Column("Aspect", numeric=False), Column("Largest distance"), Column("Between", numeric=False)]
        blocks.append(Table(columns, rows))
    results = described.results
    for what, sites in ({} if results is None else results.simulated_sites).items():
        blocks.append(Text(f"Simulated at {listed(sites)}: {what}. Such a shift is made up."))
    if shift is None:
        blocks.append(
            Text(
                "Distances are not known: the sites have told nothing of their scans. A job with "
                "evaluation.reference=true asks them, and so does 'fedshift survey'."
            )
        )
    how = "How far the training sites' scans are from each other: the pair that differs most, in each aspect."
    return Section("shift", "Shift between the sites", how, blocks)


def _file(described: Described) -> Section:
    evaluation = described.header.job.evaluation
    kept = evaluation.largest_component
    part = "the largest part" if isinstance(kept, bool) else f"the largest part of {listed(kept)}"
    ways = (("the mean over mirror images", evaluation.mirror), (part, kept))
    predictions = " and ".join(way for way, is_taken in ways if is_taken)
    facts = [
        ("File", f"{described.path.name}, {size(described.path.stat().st_size)}"),
        ("SHA-256", described.sha256),
        ("Numbers in the network", f"{described.parameters:,}"),
        ("Round", str(described.header.round)),
        ("Made by", f"fedshift {described.header.fedshift}"),
        *(("Image preparation: " + key, _plain(value)) for key, value in described.header.preparation.items()),
        *([("Predictions take", predictions)] if predictions else []),
    ]
    return Section("file", "The file", "To tell that this card is of a file, compare the SHA-256.", [Facts(facts)])


def _plain(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value)
