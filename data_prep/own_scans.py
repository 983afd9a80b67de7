"""Prepare a hospital's own scans as a site. Later calls add or withdraw cases."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from data_prep.volumes import LEFT_OUT, OWN_SCANS, SPLIT_RULE, CaseFiles, SitePlan, refuse_unmatched, write_site
from fedshift.data.case_check import MOST_OF_A_MASK, SWAPPED, look_swapped, read_values
from fedshift.data.cases import CaseTable, both_sides, sequences_fault, spelled_as
from fedshift.data.check import numbers_of_structures
from fedshift.data.colours import colours_of_masks, with_colours
from fedshift.data.labels import Labels, colours_as_values, every_label, settle_labels
from fedshift.data.layouts.find import gather
from fedshift.data.named_masks import names_structures
from fedshift.data.scan_file import same_form
from fedshift.data.scans import read_volumes
from fedshift.data.site_check import prepared_files
from fedshift.data.splits import subject_of
from fedshift.runtime.regions import IGNORED
from fedshift.schema.codes import WITHOUT_STRUCTURE, ClassCodes
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.manifest import FILE_NAME, TRUE_SPACING, Case, Manifest, Split, read_manifest
from fedshift.schema.regions import Regions
from fedshift.schema.strict import nearest

log = logging.getLogger(__name__)

LICENCE = "property of the site, not for redistribution"
_SAME_FOR_ALL = ("source", "orientation", "intensity", "labels", "split_rule", LEFT_OUT, WITHOUT_STRUCTURE)


def prepare_own(
    images: Path | None,
    masks: Path | None,
    site: str,
    root: Path,
    *,
    dataset: str,
    source: Path | None = None,
    sequences: Mapping[str, str] = MappingProxyType({}),
    labels: Mapping[str, Sequence[int | str]] = MappingProxyType({}),
    classes: Sequence[str] | None = None,
    codes: Mapping[str, ClassCodes] = MappingProxyType({}),
    annotated: Sequence[str] | None = None,
    wanted: Sequence[str] | None = None,
    volume: int | None = None,
    subject: str | None = None,
    withdraw: Sequence[str] = (),
    matrices: Sequence[int] = (),
    licence: str = LICENCE,
    citation: str = "",
    trust_voxels: bool = False,
    interpolate: bool = False,
    true_spacing: bool = False,
    regions: Regions | None = None,
    ignore: bool | None = None,
    empty: bool = False,
    skip_damaged: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Prepare a site from its own scans or update it; returns ``root/dataset/site``.

    Existing cases keep their splits; a corrected mask of the same image replaces the former one. The site folder is
    written completely and replaced only when everything succeeded, so no data of a withdrawn case remain in it. A site
    that was made from a public data set gets own scans beside its cases if classes and sequences are the same.

    Args:
        images: a folder of NIfTI, NRRD or MetaImage files, or of sub-folders with one DICOM series each, or of DICOM
            studies; or a pattern; None when cases are only withdrawn.
        masks: a folder of masks with the same names (a suffix such as ``_segmentation`` is allowed), or of DICOM masks
            of those studies; or a pattern.
        site: the site's name in the federation.
        root: root folder of the prepared data.
        dataset: the data set the site takes part in.
        source: a folder in any known layout, or a table of cases (`fedshift.data.cases_csv`), in place of ``images``
            and ``masks``; or what relative paths begin at.
        sequences: name -> pattern or "", see `fedshift.data.layouts.find.gather`.
        labels: class -> values of the masks, or names of structures where masks name them; several are merged.
        classes: the classes of the task, the background first; by default those of the site or of the scans.
        codes: of the classes; structures of masks that name them are found by them.
        annotated: the classes that the site's masks outline; None for all.
        wanted: the sequences that the task takes, empty for one without a name; None if no task is named.
        volume: which volume to take of images that have several, from 1 (`fedshift.data.scans.read_scan`).
        subject: whose scan a case is, by its id (`fedshift.data.cases.subject_pattern`); None where BIDS names say it.
        withdraw: ids of cases to remove.
        matrices: sizes whose slices are cached now, in addition to those that the site already has.
        licence: licence terms, for the manifest.
        citation: reference, for the manifest.
        trust_voxels: use the first image's geometry for files whose header differs but whose voxel count matches.
        interpolate: fill slices between two contours of a structure set (`fedshift.data.contours`).
        true_spacing: voxels of 1 x 1 x 1 mm are no placeholder.
        regions: of the task's classes; ``annotated``, labels and structures of masks may then be of regions.
        ignore: whether the task has voxels to ignore; None if no task is named.
        empty: whether masks may be empty, see `fedshift.schema.codes`.
        skip_damaged: leave out cases with an error.
        progress: called with the id of each case before it is read.

    Raises:
        ConfigError: labels that do not fit the classes, or arguments that do not go together.
        DataError: masks missing or extra, scans with errors, a different image under a known id, an id to withdraw
            that does not exist or still lies in ``images``, or a site with other classes or sequences, or without those
            of the task.
    """
    target = root / dataset / site
    manifest = read_manifest(target) if (target / FILE_NAME).is_file() else None
    known = {case.id: case for case in manifest.cases} if manifest else {}
    withdraw = [same_form(case) for case in withdraw]
    table = _gather(source, images, masks, sequences, volume, manifest, target, wanted)
    table = table.with_subjects(subject) if table is not None and subject is not None else table
    if table is not None and not table.cases:
        refuse_unmatched(table.findings, site)
    labels = colours_of_masks(labels, [table]) if table else labels
    stay = known.keys() - set(withdraw)
    of_task: dict[str, Any] = {"codes": codes, "regions": regions, "ignore": ignore}
    meant = _labels(table, manifest, labels, classes, annotated, target, stay, of_task)
    names = _names(table, manifest, wanted, target, asked=bool(sequences)) if table else ()
    for finding in (*numbers_of_structures(table, labels), *both_sides(table)) if table else ():
        log.warning("%s", finding.sentence())
    options = {"trust_voxels": trust_voxels, "interpolate": interpolate, "may_be_empty": empty}
    new_cases = [
        replace(
            case,
            labels=meant,
            subject=case.subject or (known[case.id].subject if case.id in known else ""),
            strata=case.strata or (known[case.id].strata if case.id in known else {}),
        )
        for case in (table.with_options(**options).cases if table else ())
    ]
    _refuse_withdrawals(withdraw, known=list(known), new_cases=new_cases, target=target, images=images or source)
    kept = (
        [prepared_files(target, manifest, case) for case in known.values() if case.id not in withdraw]
        if manifest
        else []
    )
    cases = {case.id: case for case in [*kept, *new_cases]}  # a given case replaces a kept one
    if not cases:
        raise DataError("case-missing", f"{target} would be left without a case: delete the folder instead")
    preparation = dict(manifest.preparation) if manifest else {}
    origin = preparation.get("source", OWN_SCANS) if manifest else OWN_SCANS
    mixed = manifest is not None and origin != OWN_SCANS and bool(new_cases) and OWN_SCANS not in origin
    if meant is None:
        assert manifest is not None
        meant = Labels.of_classes(manifest.classes, manifest.annotated)
    if manifest is not None and manifest.ignore and not meant.ignored:
        meant = replace(meant, ignored=frozenset({IGNORED}))
    splits = _splits(known, new_cases)
    _refuse_divided(known, new_cases, target)
    plan = SitePlan(
        site=site,
        cases=tuple(replace(case, split=splits.get(case.id)) for case in cases.values()),
        findings=table.findings if table else (),
        source=f"{origin}, and {OWN_SCANS}" if mixed else origin,
        licence=_both(manifest, licence, mixed=mixed, public=origin != OWN_SCANS, ours="licence"),
        citation=_both(manifest, citation, mixed=mixed, public=origin != OWN_SCANS, ours="citation"),
        preparation=_notes(preparation, meant, changed=bool(new_cases), true_spacing=true_spacing),
    )
    return write_site(
        plan,
        root,
        dataset=dataset,
        labels=meant,
        sequences=names if table else manifest.sequences if manifest else (),
        matrices=sorted({*matrices, *_cached(target)}),
        skip_damaged=skip_damaged,
        images={case.id: known[case.id].sha256_image for case in new_cases if case.id in known},
        progress=progress,
    )


def _notes(former: Mapping[str, Any], labels: Labels, *, changed: bool, true_spacing: bool) -> dict[str, Any]:
    """What the manifest keeps of the former preparation."""
    notes = {key: value for key, value in former.items() if key not in _SAME_FOR_ALL}
    if former.get("split_rule", SPLIT_RULE) != SPLIT_RULE:
        notes["split_rule"] = former["split_rule"]
    if "labels" in former and (not changed or isinstance(former["labels"], str)):
        notes["labels"] = former["labels"]
    return notes | ({TRUE_SPACING: True} if true_spacing else {})


def _both(manifest: Manifest | None, terms: str, *, mixed: bool, public: bool, ours: str) -> str:
    """A public data set's terms stay where own scans are added to it."""
    if manifest is None or not public:
        return terms
    former = str(getattr(manifest, ours))
    return f"{former}; {OWN_SCANS}: {terms}" if mixed and terms else former


def _gather(
    source: Path | None,
    images: Path | None,
    masks: Path | None,
    sequences: Mapping[str, str],
    volume: int | None,
    manifest: Manifest | None,
    target: Path,
    of_task: Sequence[str] | None,
) -> CaseTable | None:
    """The scans that are given; None if cases are only withdrawn."""
    if manifest is not None and manifest.kind != "patients":
        raise DataError(
            "phantom-mixed", f"{target} holds simulated scans: choose another --site or --out for scans of patients"
        )
    if source is None and images is None and masks is None and not any(sequences.values()):
        return None
    wanted = sequences or dict.fromkeys(manifest.sequences if manifest else (), "")
    tables = gather(source, images=images, masks=masks, sequences=wanted, volume=volume)
    table = _of_site(tables, target.name, images or source)
    table = with_colours(table, manifest.sequences if manifest and of_task is None else of_task)
    if manifest is not None and table.cases and table.of_pictures != manifest.pictured:
        held = "pictures" if manifest.pictured else "volumes"
        raise DataError("kind-of-data", f"{target} holds {held}, the given scans are others: choose another --site")
    if not table.cases and not any(finding.level == "error" for finding in table.findings):
        raise DataError(
            "scans-missing",
            f"{images or source} holds no scans: expected NIfTI, NRRD or MetaImage files, or DICOM sub-folders",
        )
    return table


def _of_site(tables: Sequence[CaseTable], site: str, source: Path | None) -> CaseTable:
    """The one table that is of a site."""
    sites = [table.site for table in tables]
    if any(sites):
        of_site = next((table for table in tables if table.site == site), None)
        if of_site is None:
            raise DataError("site-unknown", f"{source} has no site {site!r}{nearest(site, filter(None, sites))}")
        return of_site
    if len(tables) > 1:
        names = ", ".join(table.name for table in tables[:5])
        raise DataError(
            "several-sites",
            f"{source} holds the scans of {len(tables)} folders ({names}): name one, a site is prepared at a time",
        )
    return tables[0]


def _splits(known: Mapping[str, Case], new_cases: Sequence[CaseFiles]) -> dict[str, Split]:
    """The splits of cases that have one: a known case keeps its own."""
    splits: dict[str, Split] = {case.id: case.split for case in known.values()}
    subjects: dict[str, Split] = {subject_of(case): case.split for case in known.values()}
    for case in new_cases:
        if case.split is None:
            continue
        before = splits.get(case.id) or subjects.get(case.subject or subject_of(case.id))
        if before not in (None, case.split):
            raise DataError(
                "split-changed",
                f"case {case.id} or another of its subject is in {before} at the site, and is to be in {case.split}: "
                "correct the split, or withdraw the case and prepare it again",
            )
        splits[case.id] = case.split
    return splits


def _refuse_divided(known: Mapping[str, Case], new_cases: Sequence[CaseFiles], target: Path) -> None:
    """Refuse a subject that is said of known cases in several splits: they keep these, and scores would be too good."""
    subjects: dict[str, dict[str, Split]] = {}
    newly_said = set()
    for case in new_cases:
        if case.id in known:
            subject = case.subject or subject_of(case.id)
            subjects.setdefault(subject, {})[case.id] = known[case.id].split
            if subject != subject_of(known[case.id]):
                newly_said.add(subject)
    for subject, split_of in subjects.items():
        if subject in newly_said and len(set(split_of.values())) > 1:
            shown = ", ".join(f"{name} ({split})" for name, split in split_of.items())
            raise DataError(
                "subject-divided",
                f"{target} was prepared without the subject {subject}, whose cases are in several splits there, as "
                f"{shown}: delete the folder and prepare it again, since models trained on it have seen test cases",
            )


def _names(
    table: CaseTable, manifest: Manifest | None, wanted: Sequence[str] | None, target: Path, *, asked: bool
) -> tuple[str, ...]:
    """The names of the site's sequences. One without a name gets that which is ``asked`` for."""
    names = spelled_as(table.sequences, manifest.sequences if manifest else wanted or ())
    if manifest is not None and names != manifest.sequences:
        have = manifest.sequences
        if len(names) > 1 or len(have) > 1 or (names and have):
            raise DataError(
                "other-sequences",
                f"{target} has the sequences {', '.join(have) or 'one without a name'}, the scans "
                f"{', '.join(names) or 'one without a name'}: choose the same, in this order, with --sequence",
            )
        names = names if asked else have
    names = spelled_as(names, wanted or ())
    if wanted is not None and (fault := sequences_fault(names, wanted)):
        raise DataError("other-sequences", f"{table.folder} {fault[0]}: {fault[1]}")
    return names


def _labels(
    table: CaseTable | None,
    manifest: Manifest | None,
    label_values: Mapping[str, Sequence[int | str]],
    classes: Sequence[str] | None,
    annotated: Sequence[str] | None,
    target: Path,
    stay: Set[str],
    of_task: Mapping[str, Any],
) -> Labels | None:
    """What the masks' values mean; None if there are no masks.

    ``stay``: the cases that the site has and keeps; ``of_task``: options of `settle_labels`.
    """
    if table is None:
        return None
    if manifest is not None:
        if classes is not None and tuple(classes) != manifest.classes:
            raise DataError(
                "other-classes",
                f"{target} has the classes {', '.join(manifest.classes)}, the task {', '.join(classes)}: delete the "
                "folder and prepare all its cases again, or give another --out",
            )
        annotated = annotated or manifest.annotated
        if classes is None:
            _tell_order(target, manifest.classes, table.labels, label_values)
        classes = manifest.classes
    recorded = manifest.preparation.get("labels") if manifest else None
    recorded_labels = _recorded(recorded) if isinstance(recorded, dict) else None
    described = table.labels if recorded_labels else table.described_labels(label_values)
    labels = settle_labels(
        label_values=label_values,
        described=described,
        recorded=recorded_labels,
        classes=classes,
        annotated=annotated,
        **of_task,
        named=all(names_structures(case.mask) for case in table.cases),
    )
    if labels is None:
        raise ConfigError("labels-missing", _what_are_they(table, classes))
    outlined = labels.annotated or labels.classes[1:]
    if manifest is not None and outlined != (manifest.annotated or manifest.classes[1:]):
        lacking = sorted(stay - {case.id for case in table.cases})
        if lacking:  # their masks would outline other classes than those that are given
            raise DataError(
                "other-classes",
                f"{target} has masks of {', '.join(manifest.annotated or manifest.classes[1:])}, the given ones are of "
                f"{', '.join(outlined)}, and a site's masks outline the same classes: give {lacking[0]} and all its "
                f"other cases again, or delete the folder and prepare it again with --annotated {_listed(outlined)}",
            )
    return labels


def _tell_order(
    target: Path, kept: Sequence[str], described: Labels | None, label_values: Mapping[str, Sequence[int | str]]
) -> None:
    """Warn of classes that are given, or described beside the masks, in another order than the site has them."""
    names = [*label_values] or ([] if described is None else [*described.classes[1:]])
    asked = [name for name in names if name in kept]
    if asked != [name for name in kept if name in asked]:
        log.warning(
            "%s keeps its order of classes, %s, and here they are named in the order %s: for that one, delete the "
            "folder and prepare all its cases again",
            target,
            ", ".join(kept[1:]),
            ", ".join(asked),
        )


def _recorded(values: Mapping[str, Sequence[int | str]]) -> Labels:
    numbers = {name: [int(value) for value in texts] for name, texts in colours_as_values(values).items()}
    return Labels.named(numbers)


def _listed(names: Sequence[str]) -> str:
    return shlex.quote(",".join(names))


def _what_are_they(table: CaseTable, classes: Sequence[str] | None) -> str:
    values: set[int] = set()
    folder = os.path.commonpath([case.mask.parent for case in table.cases])
    if any(names_structures(case.mask) for case in table.cases):
        return (
            f"the masks in {folder} name their structures, and nothing says which are classes: name a task with "
            "--task, or each class with the names of its structures, as in --label 'prostate=Whole gland'"
        )
    for case in table.cases[:5]:
        mask = read_values(case.mask).voxels
        values_here = np.unique(mask)
        if values_here.size > MOST_OF_A_MASK:
            image = read_volumes(case.image, case.channels[:1] or [None], volume=case.volume)[0].voxels
            if look_swapped(image, mask):
                return f"{case.mask} has {values_here.size} different values, and {case.image} only a few: {SWAPPED}"
        values.update(values_here.astype(int).tolist())
    shown = sorted(values - {0})
    names = list(classes[1:]) if classes else ["NAME"] * len(shown)
    example = every_label(["", *names], shown)
    merged = (
        f", or merge them, as in --label {names[0]}={','.join(map(str, shown))}"
        if len(shown) > 1 and not classes
        else ""
    )
    return (
        f"the masks in {folder} have the value(s) {', '.join(map(str, shown)) or 0}, and nothing says what they "
        f"are: name them, as in {example or '--label NAME=1'}{merged}"
    )


def _refuse_withdrawals(
    withdraw: Sequence[str], *, known: Sequence[str], new_cases: Sequence[CaseFiles], target: Path, images: Path | None
) -> None:
    for case in withdraw:
        if case not in known:
            raise DataError("case-unknown", f"{target} has no case {case!r} to withdraw{nearest(case, known)}")
        if case in {other.id for other in new_cases}:
            raise DataError(
                "case-still-there",
                f"case {case} is to be withdrawn but is still in {images}: remove it from that folder, "
                "or the next preparation would add it again",
            )


def _cached(target: Path) -> list[int]:
    return [int(folder.name) for folder in (target / "arrays").glob("*") if folder.name.isdigit()]
