"""Write one prepared site of volumes: volumes in one orientation, cached slices and a manifest.

A site folder is either written completely or not at all. Splits are by case. Cases are sorted by a hash of (dataset,
site, id) and divided so that about 60/20/20 % are train/val/test: val and test get ``round(n / 5)`` cases each, and at
least one if there are three cases or more (3: 1/1/1, 6: 4/1/1, 8: 4/2/2, 10: 6/2/2); one or two cases are all train.
The hash depends on nothing else, so the same download gives the same split on every machine. Cases that already have a
split keep it; the others fill the splits that lack most cases.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from data_prep.replace_folder import replace_folder
from fedshift.data.arrays import build_arrays
from fedshift.data.casefiles import CaseFiles as CaseFiles
from fedshift.data.casefiles import Finding, dummy_finding, is_dummy, read_case, structure_of
from fedshift.data.scans import ORIENTATION, content_hash, write_scan
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Case, Manifest, Split

log = logging.getLogger(__name__)

SPLIT_RULE = "by-case 60/20/20"
CLASSES = ("background", "prostate")


def write_site(
    cases: Sequence[CaseFiles],
    root: Path,
    *,
    dataset: str,
    site: str,
    kind: Literal["patients", "phantom"],
    licence: str,
    citation: str,
    matrices: Sequence[int] = (),
    splits: Mapping[str, Split] | None = None,
    source: str,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Check and write a site; returns its folder ``root/dataset/site``.

    The site is written to a temporary folder that is renamed at the end, so an existing site does not change if
    anything fails.

    Args:
        cases: the scans and masks.
        root: root folder of the prepared data.
        dataset: name of the data set.
        site: name of the site.
        kind: real patients or the phantom.
        licence: licence terms, for the manifest.
        citation: reference, for the manifest.
        matrices: sizes whose slices are cached now; others are cached at first use.
        splits: splits of the cases that already have one.
        source: where the scans come from, in a few words without a path.
        progress: called with the id of each case before it is read.

    Raises:
        DataError: no case, an invalid name, a duplicate id or content, or any error that the checks find.
    """
    _refuse_names(cases, dataset, site)
    target = root / dataset / site
    with replace_folder(target) as beside:
        (beside / "volumes").mkdir()
        split_of = deal_splits([case.id for case in cases], dataset=dataset, site=site, fixed=splits or {})
        manifest = Manifest(
            schema=1,
            dataset=dataset,
            site=site,
            kind=kind,
            preparation={
                "source": source,
                "orientation": ORIENTATION,
                "intensity": "per volume: clip at the 99th percentile, min-max, times 255, floor",
                "labels": "values above 1 merged into 1",
                "split_rule": SPLIT_RULE,
            },
            classes=CLASSES,
            cases=_write_volumes(cases, beside, split_of, site, progress),
            licence=licence,
            citation=citation,
        )
        arrays = {str(matrix): build_arrays(beside, manifest, matrix) for matrix in matrices}
        manifest.model_copy(update={"arrays": arrays}).write(beside)
    return target


def deal_splits(ids: Sequence[str], *, dataset: str, site: str, fixed: Mapping[str, Split]) -> dict[str, Split]:
    """Assign a split to every case; cases in ``fixed`` keep theirs. The module's docstring describes the rule."""
    splits: dict[str, Split] = {case: fixed[case] for case in ids if case in fixed}
    held_out = max(1, round(len(ids) / 5)) if len(ids) >= 3 else 0
    lacking: dict[Split, int] = {"test": held_out, "val": held_out}
    for split in splits.values():
        if split in lacking:
            lacking[split] -= 1
    new = [case for case in ids if case not in splits]
    for case in sorted(new, key=lambda case: hashlib.sha256(f"{dataset}/{site}/{case}".encode()).digest()):
        most = max(lacking, key=lambda split: lacking[split])
        splits[case] = most if lacking[most] > 0 else "train"
        if lacking[most] > 0:
            lacking[most] -= 1
    return splits


def _write_volumes(
    cases: Sequence[CaseFiles],
    folder: Path,
    split_of: Mapping[str, Split],
    site: str,
    progress: Callable[[str], None] | None,
) -> tuple[Case, ...]:
    """Write image and mask of every case; errors of all cases are collected into one."""
    entries: list[Case] = []
    findings: list[Finding] = []
    seen: dict[str, str] = {}
    offset = dummies = 0
    for case in cases:
        if progress:
            progress(case.id)
        pair, found = read_case(case, structure=structure_of(CLASSES))
        findings += found
        if pair is None:
            continue
        sha = content_hash(pair.image.voxels)
        if sha in seen:
            what = f"has the same voxels as case {seen[sha]}"
            findings.append(Finding("error", case.image, what, "remove one of the two"))
            continue
        seen[sha] = case.id
        write_scan(pair.image, folder / "volumes" / f"{case.id}.nii.gz")
        write_scan(pair.mask, folder / "volumes" / f"{case.id}_mask.nii.gz")
        slices, rows, columns = pair.image.voxels.shape
        x, y, z = pair.image.spacing
        entries.append(
            Case(
                id=case.id,
                sha256_image=sha,
                sha256_label=content_hash(pair.mask.voxels),
                split=split_of[case.id],
                shape=(slices, rows, columns),
                spacing=(round(z, 6), round(y, 6), round(x, 6)),
                direction=tuple(round(cosine, 6) for cosine in pair.image.direction),
                array="arrays",
                offset=offset,
            )
        )
        offset += slices
        dummies += is_dummy(pair.image)
    errors = [finding.sentence() for finding in findings if finding.level == "error"]
    if errors:
        more = "".join(f"\n  {error}" for error in errors[:20])
        raise DataError(f"site {site} was not prepared, {len(errors)} error(s) in its scans:{more}")
    for finding in [*findings, *dummy_finding(cases[0].image.parent, dummies, len(cases))]:
        log.warning("%s", finding.sentence())
    return tuple(entries)


def _refuse_names(cases: Sequence[CaseFiles], dataset: str, site: str) -> None:
    """Check ids and site names: they become file names, possibly on a case-insensitive file system."""
    if not cases:
        raise DataError(f"site {site} has no case: give at least one image with its mask")
    for what, name in (("dataset", dataset), ("site", site), *(("case", case.id) for case in cases)):
        if not re.fullmatch(r"\w[\w .+-]*", name) or name.endswith(("_mask", ".", " ")):
            raise DataError(
                f"{what} name {name!r} cannot be a file name here: use letters, digits, '-', '_' and '.', "
                "and no '_mask' at the end"
            )
    seen: dict[str, CaseFiles] = {}
    for case in cases:
        other = seen.setdefault(case.id.lower(), case)
        if other is not case:
            raise DataError(f"case id {case.id} is there twice ({other.image} and {case.image}): rename or remove one")
