"""A site's answer to a validation: finished models scored on its own cases, under its policy.

The scores are those of ``fedshift evaluate`` on the same cases. What is told of them is sums over groups of cases, none
of them below the policy's floor, nor any that could be computed from them (`fedshift.federation.site.privacy.cells`).
Which groups these are depends on the site's data and not on what a job asks, so further jobs tell of no smaller ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from fedshift.data.cases import CaseFiles
from fedshift.data.site_check import prepared_files
from fedshift.data.splits import subject_of
from fedshift.federation.site.privacy.cells import Cells
from fedshift.federation.validation_noise import NoisyMeans
from fedshift.inference import scoring
from fedshift.inference.carried import Carried, Listed, main_score, misfit, open_carried, segments, structures_of
from fedshift.inference.carried_bundle import bundle_scores
from fedshift.inference.model import Model
from fedshift.inference.monai_bundle import Bundle
from fedshift.inference.ready import Choice
from fedshift.inference.validation_areas import admitted, areas
from fedshift.schema.errors import DataError, FedshiftError, PolicyError
from fedshift.schema.files import csv_text, write_text
from fedshift.schema.job import EvaluationSpec
from fedshift.schema.manifest import Case, Manifest, Picture, manifest_sha256, read_manifest
from fedshift.schema.policy import Policy
from fedshift.schema.seeding import derive_seed
from fedshift.schema.validation import CASES_FILE, ClassArea, ModelScores, Scores, SiteValidation, ValidationSpec
from fedshift.tasks.evaluation.by_class import names as names_by_class
from fedshift.tasks.evaluation.by_class import values_by_score
from fedshift.tasks.evaluation.paired import paired_difference
from fedshift.tasks.evaluation.spread import distribution

log = logging.getLogger("fedshift")

UNKNOWN = "unknown"
"""The value of a stratum that the site's table leaves empty."""
CLASSES = "scores by class"
"""What is withheld where too few cases lack a class, or have it."""


@dataclass(frozen=True)
class CaseValues:
    """Scores of single cases, which stay at the site: score -> value of each case (n,), NaN for a case without it."""

    values: Mapping[str, np.ndarray]
    failed: frozenset[str] = frozenset()
    """Cases that the model cannot be scored on although they can be read."""
    truth: np.ndarray | None = None
    """Of a classifier, whether each case has each class, (n, K): 1, 0, or NaN where it is unknown."""
    probabilities: np.ndarray | None = None
    """Of a classifier, (n, K)."""


@dataclass(frozen=True)
class SiteCases:
    """The cases of a site that are scored: those of one part that can be read."""

    folder: Path
    manifest: Manifest
    entries: tuple[Case | Picture, ...]

    @property
    def subjects(self) -> list[str]:
        """Whose each case is."""
        return [subject_of(entry) for entry in self.entries]

    def without(self, lost: frozenset[str]) -> SiteCases:
        """The others."""
        return SiteCases(self.folder, self.manifest, tuple(each for each in self.entries if each.id not in lost))


def answer(
    folder: Path,
    site: str,
    spec: ValidationSpec,
    models: Path,
    policy: Policy | None = None,
    *,
    packages: Listed = None,
    ledger: Path | None = None,
    scores_folder: Path | None = None,
    device: str = "auto",
    progress: Callable[[str, str], None] = lambda model, case: None,
) -> SiteValidation:
    """What the site tells.

    Args:
        folder: the site's prepared folder.
        site: its name in the federation, which need not be its folder's.
        spec: what is asked.
        models: the folder with the job's models.
        policy: the site's policy; None for the default one.
        packages: those whose code the site lets a model use; None for all that are installed.
        ledger: folder of its account of what left with noise; None if nothing leaves this machine.
        scores_folder: where the scores of single cases are written, for the site itself; None for nowhere.
        device: a torch device name, or ``auto``.
        progress: called with model and case after each is scored.

    Raises:
        PolicyError: the policy forbids that anything is told, or there are too few cases.
        DataError: the folder cannot be used.
    """
    policy = policy or Policy()
    _refuse(policy, spec, site)
    manifest = read_manifest(folder)
    if manifest.dataset != spec.dataset:
        raise DataError(
            "other-data",
            f"{folder} holds data set {manifest.dataset}, the job is for {spec.dataset}: name the right folder",
        )
    noise = None if policy.statistics is None else NoisyMeans(policy, policy.statistics, site=site, job=spec.validation)
    if noise is not None and ledger is not None:
        noise.check(ledger)
    entries = manifest.entries if spec.part == "all" else manifest.by_split(spec.part)
    cases = SiteCases(folder, manifest, tuple(entries))
    _require_enough(cases, policy, site)
    opened, refused = _opened(spec, models, manifest, site, device, packages)
    cases = cases.without(_unreadable(cases))
    _require_enough(cases, policy, site)
    scored: dict[str, CaseValues] = {}
    for name, model in opened.items():
        try:
            of_model = _score(model, cases, spec, device=device, progress=partial(progress, name))
        except FedshiftError as error:
            log.error("site %s: model %s is not scored: %s", site, name, error)
            refused[name] = "it cannot be scored here (the site's log says more)"
            continue
        if of_model.failed:
            log.error("site %s: model %s fails on %s", site, name, ", ".join(sorted(of_model.failed)))
            refused[name] = "it fails on cases that can be read (the site's log says which)"
            continue
        scored[name] = of_model
    if scores_folder is not None:
        _write_own(scores_folder, cases, scored)
    unscored = SiteValidation(
        site=site,
        dataset=manifest.dataset,
        kind=manifest.kind,
        manifest_sha256=manifest_sha256(folder),
        unknown_spacing=manifest.has_unknown_spacing,
        refused=refused,
    )
    if not scored:
        return unscored
    if noise is not None:
        values = {name: each.values for name, each in scored.items()}
        return noise.answer(unscored, values, cases.subjects, ledger, first=spec.first)
    return _with_scores(unscored, spec, cases, scored, opened, policy)


def _refuse(policy: Policy, spec: ValidationSpec, site: str) -> None:
    """Refuse what the policy lets nothing leave of."""
    if policy.budget is not None and policy.statistics is None:
        raise PolicyError(
            "no-noise",
            f"site {site}: its policy has a budget (privacy.budget), and scores of models that a job brings would "
            "leave without noise: set privacy.statistics at the site, or leave it out",
        )
    if spec.part == "all" and policy.covers_network:
        raise PolicyError(
            "no-noise",
            f"site {site}: its policy puts noise on the network, and scores of its training cases would have none: ask "
            "for the test part (--part test)",
        )


def _require_enough(cases: SiteCases, policy: Policy, site: str) -> None:
    if len(set(cases.subjects)) < policy.least_told:
        raise PolicyError(
            "too-few-cases",
            f"site {site}: it has fewer cases to score than its policy wants for that (privacy.survey_cases, "
            f"privacy.min_cases: {policy.least_told}, a subject's scans as one): ask for all cases with --part all, or "
            "leave the site out",
        )


# --- the models -----------------------------------------------------------------------------------------


def _opened(
    spec: ValidationSpec, folder: Path, manifest: Manifest, site: str, device: str, packages: Listed
) -> tuple[dict[str, Carried], dict[str, str]]:
    """The models that fit the site, and why the others are refused."""
    opened: dict[str, Carried] = {}
    refused: dict[str, str] = {}
    for ref in spec.models:
        try:
            model, _ = open_carried(folder, ref, device=device, packages=packages)
        except PolicyError as error:  # which tells nothing of the data
            log.error("site %s: %s", site, error)
            refused[ref.name] = str(error)
            continue
        except FedshiftError as error:
            log.error("site %s: model %s cannot be used: %s", site, ref.name, error)
            refused[ref.name] = "its file cannot be used here (the site's log says more)"
            continue
        why = misfit(model, manifest)
        if why:
            log.error("site %s: model %s does not fit: %s", site, ref.name, why)
            refused[ref.name] = why
        else:
            opened[ref.name] = model
    return opened, refused


# --- the scores -----------------------------------------------------------------------------------------


def _score(
    model: Carried, cases: SiteCases, spec: ValidationSpec, *, device: str, progress: Callable[[str], None]
) -> CaseValues:
    choice = Choice(site=None if spec.statistics == "own" else spec.statistics, estimate=spec.statistics == "own")
    if isinstance(model, Model) and not model.is_segmentation:
        from fedshift.inference.labelled import scores_at_site

        progress("")
        ids = [entry.id for entry in cases.entries]
        kept = scores_at_site(model, cases.folder, ids, spec.part, choice, device=device)
        return CaseValues(kept.values, truth=kept.truth, probabilities=kept.probabilities)
    true_spacing, files = cases.manifest.has_true_spacing, _files(cases, model)
    if isinstance(model, Bundle):
        tolerance = EvaluationSpec().tolerance
        results = bundle_scores(model, files, tolerance=tolerance, true_spacing=true_spacing)
    else:
        ready = scoring.ready_for(model, files, choice, device=device, true_spacing=true_spacing)
        tolerance = model.header.job.evaluation.tolerance
        results = scoring.score_cases(ready, files, tolerance=tolerance, true_spacing=true_spacing)
    scored, failed = [], set()
    for case in results:
        progress(case.id)
        scored.append(case.scores)
        if case.error is not None:
            log.error("case %s: %s", case.id, case.error)
            failed.add(case.id)
    if failed:
        return CaseValues({}, frozenset(failed))
    return CaseValues(values_by_score(scored, structures_of(model)))


def _files(cases: SiteCases, model: Carried) -> list[CaseFiles]:
    """The prepared files of the cases, with the model's sequences."""
    entries = cast("tuple[Case, ...]", cases.entries)
    files = (prepared_files(cases.folder, cases.manifest, entry) for entry in entries)
    return [scoring.with_sequences(case, model.sequences) for case in files]


def _unreadable(cases: SiteCases) -> frozenset[str]:
    """The cases that cannot be read, whatever the model: which ones are scored must not tell of a model."""
    lost = set()
    for entry in cases.entries if cases.manifest.has_masks and cases.manifest.cases else ():
        assert isinstance(entry, Case)
        try:
            scoring.decode(prepared_files(cases.folder, cases.manifest, entry))
        except FedshiftError as error:
            log.error("case %s is left out: %s", entry.id, error)
            lost.add(entry.id)
    return frozenset(lost)


def _write_own(path: Path, cases: SiteCases, scored: Mapping[str, CaseValues]) -> None:
    names = list(dict.fromkeys(score for each in scored.values() for score in each.values))
    rows = [
        [entry.id, model, *(f"{each.values[name][number]:.9g}" if name in each.values else "" for name in names)]
        for model, each in scored.items()
        for number, entry in enumerate(cases.entries)
    ]
    path.mkdir(parents=True, exist_ok=True)
    write_text(path / CASES_FILE, csv_text(["case", "model", *names], rows))


# --- what is told ---------------------------------------------------------------------------------------


def _with_scores(
    unscored: SiteValidation,
    spec: ValidationSpec,
    cases: SiteCases,
    scored: Mapping[str, CaseValues],
    opened: Mapping[str, Carried],
    policy: Policy,
) -> SiteValidation:
    """The answer with all that may be told."""
    subjects, withheld = cases.subjects, dict[str, str]()
    first = next(iter(scored))
    main, values = main_score(opened[first]), scored[first].values
    known = {
        name: ~np.isnan(each) for name, each in values.items() if all(name in other.values for other in scored.values())
    }
    columns = {
        column: [entry.strata.get(column, UNKNOWN) for entry in cases.entries]
        for column in cases.manifest.strata
        if not _why_no_stratum(policy, column)
    }
    cells, truth = Cells(subjects, policy.least_told), scored[first].truth
    for part in ("test", "val") if spec.part == "all" else ():  # for which another job may ask
        _groups(cells, known, truth, columns, main, np.array([entry.split == part for entry in cases.entries]))
    told_of = _groups(cells, known, truth, columns, main, np.ones(len(subjects), bool))
    if told_of is None:
        raise PolicyError(
            "too-few-cases",
            f"site {unscored.site}: fewer of its cases have {main} than its policy wants (privacy.survey_cases, "
            f"privacy.min_cases: {policy.least_told}): leave the site out",
        )
    names, groups = told_of.names, told_of.columns
    whole = known[main]
    of_classes = {k: structures_of(opened[first])[k] for k in told_of.classes}
    areas_told: dict[str, dict[str, ClassArea]] = {}
    if truth is not None:
        probabilities = {name: each.probabilities for name, each in scored.items() if each.probabilities is not None}
        several = len(set(subjects)) < len(subjects)
        areas_told = areas(truth, probabilities, of_classes, first=spec.first, several=several)
    if len(names) < len(known) or (truth is not None and len(of_classes) < truth.shape[1]):
        withheld[CLASSES] = "fewer cases lack a class, or have it, than the site's policy lets be told of"
    asked = cases.manifest.strata if spec.strata is None else spec.strata
    for column in asked:
        if column not in cases.manifest.strata:
            withheld[column] = "the site's table has no such column"
        elif not groups.get(column):
            too_small = "its groups are smaller than the site's policy lets be told of"
            withheld[column] = _why_no_stratum(policy, column) or too_small
    over_whole = [name for name in names if np.array_equal(known[name], whole)]
    seed = derive_seed(0, "scoring", 0, "bootstrap")

    def spreads(model: str, over: Sequence[str], cell: np.ndarray | None = None) -> Scores:
        distributions: Scores = {}
        for name in over:
            inside = ~np.isnan(scored[model].values[name]) if cell is None else cell
            whose = [subject for subject, is_in in zip(subjects, inside, strict=True) if is_in]
            each = scored[model].values[name][inside]
            distributions[name] = distribution(each, seed=seed, share_cases=False, subjects=whose)
        return distributions

    models = {}
    structures = structures_of(opened[first]) if segments(opened[first]) else ()
    classifier = opened[first]
    is_binary = isinstance(classifier, Model) and not (classifier.task.dense or classifier.task.findings)
    compared = [name for name in names_by_class(main, structures) if name in names]
    for model, each in scored.items():
        strata = {
            column: {str(value): spreads(model, over_whole, cell) for value, cell in groups[column].items()}
            for column in asked
            if groups.get(column)
        }
        against = {}
        for name in compared if model != spec.first and spec.first in scored else ():
            inside = known[name]
            against[name] = paired_difference(
                each.values[name][inside],
                scored[spec.first].values[name][inside],
                is_binary=is_binary,
                seed=seed,
                subjects=[subject for subject, is_in in zip(subjects, inside, strict=True) if is_in],
            )
        models[model] = ModelScores(
            scores=spreads(model, names), strata=strata, against_first=against, areas=areas_told.get(model, {})
        )
    return SiteValidation.model_validate({**unscored.model_dump(), "models": models, "withheld": withheld})


@dataclass(frozen=True)
class _Groups:
    """What may be told of: scores by name, classes of a classifier by number, and by column and value their cases."""

    names: list[str]
    classes: list[int]
    columns: dict[str, dict[str, np.ndarray]]


def _groups(
    cells: Cells,
    known: Mapping[str, np.ndarray],
    truth: np.ndarray | None,
    columns: Mapping[str, Sequence[str]],
    main: str,
    part: np.ndarray,
) -> _Groups | None:
    """What may be told of a part; None if nothing may.

    ``known``: which cases have each score, (n,); ``main`` is the first to be told. ``truth``: of a classifier.
    """
    whole = known[main] & part if main in known else np.zeros_like(part)
    if not whole.any() or not cells.admit([whole]):
        return None
    names = [name for name, has in known.items() if (has & part).any() and cells.admit([has & part])]
    classes = [] if truth is None else admitted(cells, truth, part)
    return _Groups(names, classes, {column: cells.column(whole, values) for column, values in columns.items()})


def _why_no_stratum(policy: Policy, column: str) -> str:
    """Why the site does not tell scores by a column; empty if it may."""
    if "statistics" not in policy.allow:
        return "its policy does not allow statistics (privacy.allow)"
    if policy.strata is not None and column not in policy.strata:
        return "its policy does not name it (privacy.strata)"
    if policy.encryption == "required":
        return "its policy wants sums that the server cannot read (privacy.encryption: required)"
    if policy.covers_network:
        return "its policy puts noise on the network and none on statistics (privacy.weights, privacy.dp_sgd)"
    return ""
