"""Write prepared sites of volumes: volumes in one orientation, cached slices and a manifest.

A site folder is either written completely or not at all. Splits are by subject: the sessions of one (``sub-01_ses-1``,
``sub-01_ses-2``) are together, and any other case is a subject of its own (`fedshift.data.splits.subject_of`). Subjects
are sorted by a hash of (dataset, site, subject) and divided so that about 60/20/20 % are train/val/test: val and test
get ``round(n / 5)`` subjects each, and at least one if there are three or more (3: 1/1/1, 6: 4/1/1, 8: 4/2/2,
10: 6/2/2); one or two are all train. The hash depends on nothing else, so the same download gives the same split on
every machine. Cases that already have a split keep it, and a later session joins its subject; other new subjects fill
the splits that lack most.

A data set of volumes has a module whose ``plan_volumes(source, ...)`` finds the scans of each of its sites
(`VolumePlan`), as ``plan`` does for pictures; reading, checks, splits and writing are the same for all.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from data_prep.replace_folder import replace_folder
from fedshift.data.arrays import build_arrays
from fedshift.data.case_check import Decoded, Draw, read_case
from fedshift.data.case_notes import Notes
from fedshift.data.cases import CaseFiles as CaseFiles
from fedshift.data.cases import name_fault, site_fault
from fedshift.data.labels import Labels, check_name
from fedshift.data.picture_files import is_picture
from fedshift.data.picture_scan import write_picture
from fedshift.data.prepared import FOLDER, mask_file, sequence_files
from fedshift.data.scan_file import Finding, as_compared
from fedshift.data.scans import ORIENTATION, write_scan
from fedshift.data.site_check import empty_splits
from fedshift.data.splits import subject_of
from fedshift.schema.codes import WITHOUT_STRUCTURE
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import FILE_NAME, Case, Manifest, Split, Stored, read_manifest
from fedshift.schema.reading import Reading

log = logging.getLogger(__name__)

SPLIT_RULE = "by-case 60/20/20"
OWN_SCANS = "own scans"
"""In the source of a site's manifest, where a hospital's own scans are among its cases."""
VOLUMES = {
    "orientation": ORIENTATION,
    "intensity": "per volume: clip at the 99th percentile, min-max, times 255, floor",
}
PICTURES = {"orientation": "upright", "intensity": "as decoded"}
"""What the manifest says of all sites of volumes, and of all sites of pictures."""
LEFT_OUT = "cases_left_out_as_damaged"
"""Key in ``preparation``: how many cases ``skip_damaged`` has left out."""
Change = Callable[[str, Decoded], Decoded]
"""What is done to a case, given by id, before it is written."""
Arrays = Callable[[Path, Manifest], Mapping[str, str]]
"""Writes arrays into a site's folder that need not be made from its volumes; gives ``Manifest.arrays`` of them."""


@dataclass(frozen=True, kw_only=True)
class SitePlan:
    """The scans of one site, not read yet.

    Attributes:
        cases: the scans and masks; a case that has a split keeps it, and others are dealt one.
        findings: what was found when images and masks were matched.
        source: where the scans come from, in a few words without a path.
        licence: licence terms, for the manifest.
        citation: reference, for the manifest.
        preparation: what the manifest says of the preparation besides what is the same for all.
        change: what is done to each case before it is written.
        draw: puts the masks of pictures together (`fedshift.data.case_check.read_case`).
        arrays: writes arrays that come with the scans.
    """

    site: str
    cases: tuple[CaseFiles, ...]
    findings: tuple[Finding, ...] = ()
    source: str
    licence: str
    citation: str
    preparation: Mapping[str, Any] | None = None
    change: Change | None = None
    draw: Draw | None = None
    arrays: Arrays | None = None


@dataclass(frozen=True, kw_only=True)
class VolumePlan:
    """The sites of a data set of volumes."""

    dataset: str
    labels: Labels
    sites: tuple[SitePlan, ...]
    sequences: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return sum(len(site.cases) for site in self.sites)


def write_volumes(
    plan: VolumePlan,
    root: Path,
    *,
    matrices: Sequence[int] = (),
    trust_voxels: bool = False,
    empty: bool = False,
    skip_damaged: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Path]:
    """Prepare all sites of a plan; returns their folders ``root/<dataset>/<site>``.

    The sites are written together or not at all, so that a case never is at two of them. Each folder is replaced
    completely. Its split depends only on the names of its cases, so the same download gives the same split everywhere.

    Raises:
        DataError: scans with errors, or a site that has own scans too.
    """
    folders = []
    with ExitStack() as together:
        for site in plan.sites:
            target = root / plan.dataset / site.site
            if (target / FILE_NAME).is_file() and OWN_SCANS in str(read_manifest(target).preparation.get("source")):
                what = f"{target} has own scans among its cases, which would be lost"
                raise DataError("folder-in-use", f"{what}: give another --out, or delete it")
            options: dict[str, Any] = {"labels": plan.labels, "trust_voxels": trust_voxels, "may_be_empty": empty}
            cases = tuple(replace(case, **options) for case in site.cases)

            def announce(case: str, site: str = site.site) -> None:
                if progress is not None:
                    progress(f"{site} {case}")

            folders.append(
                write_site(
                    replace(site, cases=cases),
                    root,
                    dataset=plan.dataset,
                    labels=plan.labels,
                    sequences=plan.sequences,
                    matrices=matrices,
                    skip_damaged=skip_damaged,
                    together=together,
                    progress=announce,
                )
            )
    return folders


def write_site(
    plan: SitePlan,
    root: Path,
    *,
    dataset: str,
    labels: Labels,
    kind: Literal["patients", "phantom"] = "patients",
    sequences: tuple[str, ...] = (),
    matrices: Sequence[int] = (),
    skip_damaged: bool = False,
    together: ExitStack | None = None,
    images: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Check and write a site; returns its folder ``root/dataset/site``.

    The site is written to a temporary folder that is renamed at the end, so an existing site does not change if
    anything fails.

    Args:
        plan: the site's scans.
        root: root folder of the prepared data.
        dataset: name of the data set.
        labels: the site's classes, and what the masks' values mean where a case says nothing else.
        kind: real patients or the phantom.
        sequences: names of the sequences, empty for one unnamed.
        matrices: sizes whose slices are cached now; others are cached at first use.
        skip_damaged: leave out cases with an error, with a warning for each error; the manifest counts them.
        together: the site gets its name only when this is closed, with the others that are written in it.
        images: hashes of the images of cases that keep their split, so that their ids must mean the same patients.
        progress: called with the id of each case before it is read.

    Raises:
        DataError: no case, an invalid name, a duplicate id or content, another image under a known id, or any error
            that the checks find.
    """
    cases, site = plan.cases, plan.site
    unmatched = [finding for finding in plan.findings if finding.level == "error"]
    if not (skip_damaged and cases):
        refuse_unmatched(unmatched, site)
    _refuse_names(cases, dataset, site, several=len(sequences) > 1 and not is_picture(cases[0].image))
    if matrices and len(labels.classes) > 2:
        raise DataError(
            "option-classes",
            f"site {site} has {len(labels.classes) - 1} classes, slices at a matrix are cached for one: leave out "
            "--matrix",
        )
    if matrices and labels.ignored:
        raise DataError(
            "option-classes",
            f"site {site} has voxels to ignore, which slices at a matrix have not: leave out --matrix",
        )
    target = root / dataset / site
    with ExitStack() if together is None else nullcontext(together) as opened:
        folder = opened.enter_context(replace_folder(target))
        (folder / FOLDER).mkdir()
        names = [check_name(name, what="a sequence") for name in sequences]
        stored: Stored = "png" if is_picture(cases[0].image) else "nifti"
        if stored == "png" and matrices:
            raise DataError("option-kind", f"site {site} has pictures, --matrix is for slices of volumes: leave it out")
        writer = _Writer(
            folder, names, plan.change, images or {}, recorded=kind != "phantom", stored=stored, draw=plan.draw
        )
        for case in cases:
            if progress:
                progress(case.id)
            writer.write(case if case.labels else replace(case, labels=labels))
        writer.refuse_errors(site, skip_damaged=skip_damaged)
        preparation = {
            "source": plan.source,
            **(PICTURES if stored == "png" else VOLUMES),
            "labels": labels.recorded,
            "split_rule": SPLIT_RULE,
            **(plan.preparation or {}),
            **_regions(labels),
        }
        known = {as_compared(case.id) for case in cases}
        unpaired = {as_compared(finding.case) or str(finding.file) for finding in unmatched} - known
        aside = len(cases) - len(writer.entries) + len(unpaired)
        if aside:
            preparation[LEFT_OUT] = aside
        if writer.notes.empty:
            preparation[WITHOUT_STRUCTURE] = len(writer.notes.empty)
        subjects = {case.id: subject_of(case) for case in writer.entries}
        fixed = {case.id: case.split for case in cases if case.split is not None}
        split_of = deal_splits(subjects, dataset=dataset, site=site, fixed=fixed)
        manifest = Manifest(
            schema=1,
            dataset=dataset,
            site=site,
            kind=kind,
            preparation=preparation,
            classes=labels.classes,
            sequences=sequences,
            annotated=labels.annotated,
            ignore=bool(labels.ignored),
            cases=tuple(case.model_copy(update={"split": split_of[case.id]}) for case in writer.entries),
            stored=stored,
            licence=plan.licence,
            citation=plan.citation,
        )
        _warn([*plan.findings, *writer.findings], cases, manifest, writer, target)
        arrays = {str(matrix): build_arrays(folder, manifest, matrix) for matrix in matrices}
        arrays |= {} if plan.arrays is None else plan.arrays(folder, manifest)
        manifest.model_copy(update={"arrays": arrays}).write(folder)
    return target


def _regions(labels: Labels) -> dict[str, Any]:
    """Regions as a task file has them."""
    if labels.regions is None:
        return {}
    order = [labels.classes[number] for number in labels.regions.order]
    return {"regions": labels.regions.named(labels.classes)} | ({"regions_class_order": order} if order else {})


def refuse_unmatched(findings: Sequence[Finding], site: str) -> None:
    """Raise one error for all images and masks that have no counterpart, or that are there twice.

    Raises:
        DataError: there are such.
    """
    sentences = [finding.sentence() for finding in findings if finding.level == "error"]
    if sentences:
        title = f"site {site} was not prepared, its images and masks do not go together:"
        raise DataError("cases-unmatched", "\n  ".join([title, *sentences]))


def deal_splits(
    subjects: Mapping[str, str],
    *,
    dataset: str,
    site: str,
    fixed: Mapping[str, Split],
    parts: Sequence[Split] = ("test", "val"),
) -> dict[str, Split]:
    """Assign a split to every case; cases in ``fixed`` keep theirs. The module's docstring describes the rule.

    ``subjects``: case -> whose scan it is. ``parts``: those that others are dealt to, beside training.

    Where ``fixed`` has one subject in several splits, its new sessions go to training if a case of it is there: in
    another split they would be scored by a model that has seen the subject.
    """
    split_of: dict[str, Split] = {}
    for split in ("train", "val", "test"):
        for case, subject in subjects.items():
            if fixed.get(case) == split:
                split_of.setdefault(subject, split)
    everyone = set(subjects.values())
    held_out = max(1, round(len(everyone) / 5)) if len(everyone) >= 3 else 0
    lacking: dict[Split, int] = dict.fromkeys(parts, held_out)
    for split in split_of.values():
        if split in lacking:
            lacking[split] -= 1
    new = everyone - split_of.keys()
    for subject in sorted(new, key=lambda each: hashlib.sha256(f"{dataset}/{site}/{each}".encode()).digest()):
        most = max(lacking, key=lambda split: lacking[split])
        split_of[subject] = most if lacking[most] > 0 else "train"
        if lacking[most] > 0:
            lacking[most] -= 1
    return {case: fixed.get(case) or split_of[subject] for case, subject in subjects.items()}


class _Writer:
    """Reads, checks and writes the cases of one site, and collects what is wrong with them.

    Attributes:
        entries: the cases that are written; their splits are dealt when all are known.
        findings: of all cases.
        notes: what they have in common.
        lost: cases that the site has already, and whose files cannot be used now.
    """

    def __init__(
        self,
        folder: Path,
        sequences: Sequence[str],
        change: Change | None,
        images: Mapping[str, str],
        *,
        recorded: bool,
        stored: Stored,
        draw: Draw | None,
    ) -> None:
        """``recorded``: whether the entries say how their files were read, which tells nothing of simulated ones."""
        self._folder, self._sequences, self._change, self._images = folder, sequences, change, images
        self._recorded, self._stored, self._draw = recorded, stored, draw
        self.entries: list[Case] = []
        self.findings: list[Finding] = []
        self.notes = Notes()
        self.lost: list[str] = []
        self._seen: dict[str, str] = {}
        self._offset = 0

    def write(self, case: CaseFiles) -> None:
        """Read, check and write one case.

        Raises:
            DataError: another image than the site has under this id.
        """
        decoded, findings = read_case(case, draw=self._draw)
        self.findings += findings
        if decoded is None:
            self.lost += [case.id] if case.id in self._images else []
            return
        if self._change is not None:
            decoded = self._change(case.id, decoded)
        hashes, of_all = decoded.contents, decoded.sha256
        if self._images.get(case.id, of_all) != of_all:
            raise DataError(
                "case-changed",
                f"{case.image} differs from the image that the site has as {case.id}: rename it, or withdraw "
                f"{case.id} first",
            )
        for number, sha in enumerate(hashes):
            if sha in self._seen:
                what = f"{case.named(number)}has the same voxels as case {self._seen[sha]}"
                self.findings.append(
                    Finding("error", "same-content", case.images[number], what, "remove one of the two")
                )
                return
        self._seen.update(dict.fromkeys(hashes, case.id))
        files = sequence_files(self._folder, len(self._sequences), case.id, self._stored)
        mask = mask_file(self._folder, case.id, self._stored)
        if self._stored == "png":
            write_picture([image.voxels for image in decoded.images], files[0])
            write_picture([decoded.mask.voxels], mask)
        else:
            for image, path in zip(decoded.images, files, strict=True):
                write_scan(image, path)
            write_scan(decoded.mask, mask)
        slices, rows, columns = decoded.image.voxels.shape
        x, y, z = decoded.image.spacing
        self.entries.append(
            Case(
                id=case.id,
                sha256_image=of_all,
                sha256_label=decoded.mask.sha256,
                split="train",
                shape=(slices, rows, columns),
                spacing=(round(z, 6), round(y, 6), round(x, 6)),
                direction=tuple(round(cosine, 6) for cosine in decoded.image.direction),
                array="arrays",
                offset=self._offset,
                reading=self._reading(case, decoded),
                subject="" if case.subject == subject_of(case.id) else case.subject,
                strata=dict(case.strata),
            )
        )
        self._offset += slices
        self.notes.add(case, decoded)

    def _reading(self, case: CaseFiles, decoded: Decoded) -> dict[str, Reading]:
        if case.reading is not None:
            return dict(case.reading)
        return decoded.reading(self._sequences) if self._recorded else {}

    def refuse_errors(self, site: str, *, skip_damaged: bool) -> None:
        """Raise one error for all that was found.

        Raises:
            DataError: a case has an error, and ``skip_damaged`` is not set, the site would lose it, or no case is left.
        """
        errors = [finding.sentence() for finding in self.findings if finding.level == "error"]
        if errors and not (skip_damaged and self.entries and not self.lost):
            if skip_damaged and self.lost:
                known = f"the site has {', '.join(self.lost)} already, and only new cases are left out"
                errors = [f"{known}: take its files away to keep it as it is, or withdraw it", *errors]
            more = "".join(f"\n  {error}" for error in errors[:20])
            raise DataError(
                "scans-damaged", f"site {site} was not prepared, {len(errors)} error(s) in its scans:{more}"
            )


def _warn(
    findings: Sequence[Finding], cases: Sequence[CaseFiles], manifest: Manifest, writer: _Writer, target: Path
) -> None:
    images, masks = cases[0].image.parent, cases[0].mask.parent
    spacing = {"true_spacing": manifest.has_true_spacing, "unsaid": manifest.is_spacing_unsaid}
    of_site = [
        *writer.notes.not_outlined(masks, manifest.classes, manifest.annotated),
        *writer.notes.findings(images, masks, len(cases), manifest.sequences, **spacing),
        *empty_splits(target, manifest),
        *_other_meaning(manifest, target),
    ]
    for finding in [*findings, *of_site]:
        log.warning("%s%s", "left out: " if finding.level == "error" else "", finding.sentence())


def _other_meaning(manifest: Manifest, target: Path) -> Iterator[Finding]:
    """Warn of values of masks that stood for another class when the site was prepared before."""
    if not (target / FILE_NAME).is_file():
        return
    former, current = (
        {value: name for name, values in labels.items() for value in values} if isinstance(labels, Mapping) else {}
        for labels in (each.preparation.get("labels") for each in (read_manifest(target), manifest))
    )
    other = [value for value in former.keys() & current.keys() if former[value] != current[value]]
    if other:
        each = ", ".join(f"{value} was {former[value]} and is {current[value]}" for value in sorted(other, key=str))
        what = f"has masks whose values had another meaning when the site was prepared before: {each}"
        remedy = "if the masks are drawn as they were, say what their values mean and prepare them again"
        yield Finding("warning", "labels-changed", target, what, remedy)


def _refuse_names(cases: Sequence[CaseFiles], dataset: str, site: str, *, several: bool) -> None:
    """Check ids and site names: they become file names, possibly on a case-insensitive file system."""
    if not cases:
        raise DataError("case-missing", f"site {site} has no case: give at least one image with its mask")
    for what, name in (("dataset", dataset), ("site", site)):
        if fault := site_fault(name):
            raise DataError("site-name", f"{what} name {name!r} {fault[0]}: {fault[1]}")
    for case in cases:
        if fault := name_fault(case.id, several=several):
            raise DataError("case-name", f"case name {case.id!r} {fault[0]}: {fault[1]}")
    by_name: dict[str, CaseFiles] = {}
    for case in cases:
        other = by_name.setdefault(as_compared(case.id), case)
        if other is not case:
            raise DataError(
                "case-twice", f"case id {case.id} is there twice ({other.image} and {case.image}): rename or remove one"
            )
