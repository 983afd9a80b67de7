"""Prepare a hospital's own scans as a site. Later calls add or withdraw cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from data_prep.volumes import CaseFiles, write_site
from fedshift.data.scans import content_hash, read_scan
from fedshift.data.scansets import pair_folders
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import FILE_NAME, Manifest, read_manifest
from fedshift.schema.strict import nearest

SOURCE = "own scans"
LICENCE = "property of the site, not for redistribution"


def prepare_own(
    images: Path | None,
    masks: Path | None,
    site: str,
    root: Path,
    *,
    dataset: str = "prostate",
    withdraw: Sequence[str] = (),
    matrices: Sequence[int] = (),
    licence: str = LICENCE,
    citation: str = "",
    trust_voxels: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Prepare a site from its own scans or update it; returns ``root/dataset/site``.

    Images and masks are matched by file name. Existing cases keep their splits; a corrected mask of the same image
    replaces the former one. The site folder is written completely and replaced only when everything succeeded, so no
    data of a withdrawn case remain in it.

    Args:
        images: a folder of NIfTI, NRRD or MetaImage files, or of sub-folders with one DICOM series each; None
            when cases are only withdrawn.
        masks: a folder of masks with the same names (a suffix such as ``_segmentation`` is allowed), values 0 and
            1 (or 2 for a second zone).
        site: the site's name in the federation.
        root: root folder of the prepared data.
        dataset: the data set the site takes part in.
        withdraw: ids of cases to remove.
        matrices: sizes whose slices are cached now, in addition to those that the site already has.
        licence: licence terms, for the manifest.
        citation: reference, for the manifest.
        trust_voxels: use the image's geometry for a mask whose header differs but whose voxel count matches.
        progress: called with the id of each case before it is read.

    Raises:
        DataError: masks missing or extra, scans with errors, a different image under a known id, an id to withdraw
            that does not exist or still lies in ``images``, or a site that was prepared from another source.
    """
    target = root / dataset / site
    manifest = read_manifest(target) if (target / FILE_NAME).is_file() else None
    if manifest and manifest.preparation.get("source") != SOURCE:
        raise DataError(
            f"{target} was prepared from {manifest.preparation.get('source')}: choose another --site or --out"
        )
    given = _given(images, masks, trust_voxels)
    known = {case.id: case for case in manifest.cases} if manifest else {}
    _refuse_withdrawals(withdraw, known=list(known), given=given, target=target, images=images)
    if manifest:
        _refuse_other_images(manifest, given)
    kept = [
        CaseFiles(case, target / "volumes" / f"{case}.nii.gz", target / "volumes" / f"{case}_mask.nii.gz")
        for case in known
        if case not in withdraw
    ]
    cases = {case.id: case for case in [*kept, *given]}  # a given case replaces a kept one
    if not cases:
        raise DataError(f"{target} would be left without a case: delete the folder instead")
    return write_site(
        list(cases.values()),
        root,
        dataset=dataset,
        site=site,
        kind="patients",
        licence=licence,
        citation=citation,
        matrices=sorted({*matrices, *_cached(target)}),
        splits={case.id: case.split for case in known.values()},
        source=SOURCE,
        progress=progress,
    )


def _given(images: Path | None, masks: Path | None, trust_voxels: bool) -> list[CaseFiles]:
    if images is None and masks is None:
        return []
    if images is None or masks is None:
        raise DataError("--images and --masks go together: name both folders, or neither to withdraw cases only")
    found = pair_folders(images, masks)
    errors = [finding.sentence() for finding in found.findings if finding.level == "error"]
    if errors:
        raise DataError("\n  ".join(["nothing was prepared, images and masks are not in pairs:", *errors]))
    if not found.cases:
        raise DataError(f"{images} holds no scans: expected NIfTI, NRRD or MetaImage files, or DICOM sub-folders")
    return [CaseFiles(case.id, case.image, case.mask, trust_voxels=trust_voxels) for case in found.cases]


def _refuse_withdrawals(
    withdraw: Sequence[str], *, known: Sequence[str], given: Sequence[CaseFiles], target: Path, images: Path | None
) -> None:
    for case in withdraw:
        if case not in known:
            raise DataError(f"{target} has no case {case!r} to withdraw{nearest(case, known)}")
        if case in {other.id for other in given}:
            raise DataError(
                f"case {case} is to be withdrawn but is still in {images}: remove it from that folder, "
                "or the next preparation would add it again"
            )


def _refuse_other_images(manifest: Manifest, given: Sequence[CaseFiles]) -> None:
    """Refuse a different image under a known id: the case keeps its split, so the id must mean the same patient."""
    known = {case.id: case.sha256_image for case in manifest.cases}
    for case in given:
        if case.id in known and content_hash(read_scan(case.image).voxels) != known[case.id]:
            raise DataError(
                f"{case.image} differs from the image that the site has as {case.id}: "
                f"rename it, or withdraw {case.id} first"
            )


def _cached(target: Path) -> list[int]:
    return [int(folder.name) for folder in (target / "arrays").glob("*") if folder.name.isdigit()]
