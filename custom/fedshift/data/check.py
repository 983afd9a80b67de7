"""``check``: list everything that is wrong with a folder of scans, or with prepared sites, in one sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedshift.data.arrays import SliceArrays, cached_arrays, labels_of, open_arrays, slices_of
from fedshift.data.casefiles import CaseFiles, CasePair, Finding, dummy_finding, is_dummy, read_case, structure_of
from fedshift.data.images import open_images
from fedshift.data.scans import content_hash
from fedshift.data.scansets import ScanSet, find_sets, pair_folders
from fedshift.schema.errors import DataError, FedshiftError
from fedshift.schema.manifest import FILE_NAME, Case, Manifest, read_manifest

Progress = Callable[[str], None]


@dataclass
class Counts:
    """What `check` has looked at."""

    sites: int = 0
    """Prepared sites, or folders of scans."""
    samples: int = 0
    """Cases or pictures, also those with errors."""
    prepared: bool = False
    pictures: bool = False

    def __str__(self) -> str:
        """``8 cases at 2 sites``."""
        sample = "picture" if self.pictures else "case"
        where = "site" if self.prepared else "folder"
        words = [f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in ((self.samples, sample), (self.sites, where))]
        return f"{words[0]} {'at' if self.prepared else 'in'} {words[1]}"


@dataclass
class _Seen:
    """Content found so far, over all folders of one check: hash -> (case, where, split or None)."""

    images: dict[str, tuple[str, Path, str | None]] = field(default_factory=dict)
    masks: dict[str, tuple[str, Path, str | None]] = field(default_factory=dict)


def check(
    path: Path, *, masks: Path | None = None, progress: Progress | None = None, counts: Counts | None = None
) -> list[Finding]:
    """Examine scans or prepared sites.

    Args:
        path: a folder of scans in any known layout, a prepared site, or a folder with several of either.
        masks: the masks, if they lie in a folder of their own; ``path`` then holds the images.
        progress: called with what is read next.
        counts: is filled in with how much there was to look at.

    Returns:
        Errors and warnings in the order found; preparation refuses what is an error here.

    Raises:
        DataError: ``path`` does not exist.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist: name the folder that holds the scans")
    seen = _Seen()
    tell = progress or (lambda _: None)
    prepared = [] if masks else _prepared_sites(path)
    counts = counts or Counts()
    if prepared:
        counts.prepared, counts.sites = True, len(prepared)
        return [finding for site in prepared for finding in _check_site(site, seen, tell, counts)]
    try:
        sets = [pair_folders(path, masks)] if masks else find_sets(path)
    except DataError as error:
        what, _, mend = str(error).removeprefix(str(path)).strip().partition(": ")
        return [Finding("error", path, what, mend)]
    counts.sites, counts.samples = len(sets), sum(len(scans.cases) for scans in sets)
    return [finding for scans in sets for finding in _check_set(scans, seen, tell)]


def _prepared_sites(path: Path) -> list[Path]:
    patterns = (FILE_NAME, f"*/{FILE_NAME}", f"*/*/{FILE_NAME}")
    found = [manifest.parent for pattern in patterns for manifest in sorted(path.glob(pattern))]
    return [site for site in found if not site.name.startswith(".")]


def _check_set(scans: ScanSet, seen: _Seen, tell: Progress) -> Iterator[Finding]:
    yield from scans.findings
    dummies = 0
    for case in scans.cases:
        tell(f"{scans.name} {case.id}")
        pair, findings = read_case(case)
        yield from findings
        if pair is not None:
            dummies += is_dummy(pair.image)
            yield from _twice(case, pair, None, seen)
    yield from dummy_finding(scans.folder, dummies, len(scans.cases))


def _check_site(site: Path, seen: _Seen, tell: Progress, counts: Counts) -> Iterator[Finding]:
    again = "prepare the site again"
    for left in sorted(site.parent.glob(f".{site.name}.*-*")):
        yield Finding("warning", left, "was left by a preparation that was cut off", "delete it if none is running")
    try:
        manifest = read_manifest(site)
    except FedshiftError as error:
        what = str(error).removeprefix(str(site / FILE_NAME)).lstrip(": ")
        yield Finding("error", site / FILE_NAME, f"cannot be used ({what})", again)
        return
    counts.samples += len(manifest.entries)
    counts.pictures = counts.pictures or bool(manifest.pictures)
    ids = Counter(entry.id for entry in manifest.entries)
    for entry_id in sorted(entry_id for entry_id, times in ids.items() if times > 1):
        yield Finding("error", site / FILE_NAME, f"lists the id {entry_id} twice", again)
    if manifest.pictures:
        yield from _check_pictures(site, manifest, seen, tell)
        return
    opened = list(_opened_arrays(site))
    yield from (found for found in opened if isinstance(found, Finding))
    caches = {found.folder: found for found in opened if isinstance(found, _Cache)}
    dummies = 0
    for case in manifest.cases:
        tell(f"{manifest.site} {case.id}")
        files = _prepared_files(site, case)
        pair, findings = read_case(files, structure=structure_of(manifest.classes))
        yield from findings
        if pair is not None:
            dummies += is_dummy(pair.image)
            changed = list(_fits_manifest(files, pair, case))
            yield from changed
            stale = [folder for folder, cache in caches.items() if not changed and not cache.is_of(pair, case)]
            for folder in stale:
                del caches[folder]
                what = f"has other slices of {case.id} than its volumes"
                yield Finding("error", folder, what, "delete it, it is made again")
            yield from _twice(files, pair, case.split, seen)
    yield from _not_listed(site, manifest)
    for split in ("train", "val", "test"):
        if split not in {case.split for case in manifest.cases}:
            yield Finding("warning", site, f"has no {split} case", "add cases, three are the least")
    yield from dummy_finding(site, dummies, len(manifest.cases))


def _check_pictures(site: Path, manifest: Manifest, seen: _Seen, tell: Progress) -> Iterator[Finding]:
    """Compare hashes, splits and cached arrays of pictures; the picture files themselves are not kept."""
    tell(manifest.site)
    known = int(manifest.preparation.get("pictures_straddling", 0))
    if known:
        what = f"has {known} picture(s) with copies in other splits or sites ({manifest.preparation.get('split_rule')})"
        yield Finding("warning", site, what, "prepare it with another split unless a paper is to be repeated")
    for picture in manifest.pictures:
        other, where, split = seen.images.setdefault(
            f"{manifest.dataset} {picture.sha256}", (picture.id, site, picture.split)
        )
        if (where, split) != (site, picture.split) and not known:
            what = f"lists {picture.id} ({picture.split}), which is the same as {other} ({split}) in {where}"
            yield Finding("error", site / FILE_NAME, what, "prepare the data set again")
    for folder in sorted((site / "arrays").glob("*")):
        if folder.name.isdigit():
            try:
                open_images(site, size=int(folder.name), channels=_channels(folder / "images.npy"), full=True)
            except DataError as error:
                what = f"cannot be used ({str(error).split(': ')[0]})"
                yield Finding("error", folder, what, "prepare the site again")
    splits = {picture.split for picture in manifest.pictures}
    if splits == {"test"}:
        if f"all of {manifest.site} test" not in str(manifest.preparation.get("split_rule")):
            yield Finding("warning", site, "has pictures for testing only", "hold this site out, it cannot train")
        return
    for part in ("train", "val", "test"):
        if part not in splits:
            yield Finding("warning", site, f"has no {part} picture", "add pictures, three of a class are the least")


def _channels(images: Path) -> int:
    try:
        shape = np.load(images, mmap_mode="r", allow_pickle=False).shape
    except (ValueError, OSError, EOFError):
        return 3
    return int(shape[1]) if len(shape) == 4 else 3


def _prepared_files(site: Path, case: Case) -> CaseFiles:
    volumes = site / "volumes"
    return CaseFiles(case.id, volumes / f"{case.id}.nii.gz", volumes / f"{case.id}_mask.nii.gz")


def _fits_manifest(files: CaseFiles, pair: CasePair, case: Case) -> Iterator[Finding]:
    what = "is not what was prepared, its voxels have changed"
    for file, voxels, known in (
        (files.image, pair.image.voxels, case.sha256_image),
        (files.mask, pair.mask.voxels, case.sha256_label),
    ):
        if voxels.shape != case.shape or content_hash(voxels) != known:
            yield Finding("error", file, what, "prepare the site again")


def _twice(files: CaseFiles, pair: CasePair, split: str | None, seen: _Seen) -> Iterator[Finding]:
    """Find content that two cases share: one patient under two names, or a mask that was copied by mistake."""
    sha = content_hash(pair.image.voxels)
    if sha in seen.images:
        other, where, other_split = seen.images[sha]
        splits = f", one for {other_split} and one for {split}," if split and split != other_split else ""
        yield Finding(
            "error",
            files.image,
            f"has the same voxels as case {other}{splits} in {where}",
            "keep one of the two, and in one split",
        )
    else:
        sha_mask = content_hash(pair.mask.voxels)
        if sha_mask in seen.masks:
            other, where, _ = seen.masks[sha_mask]
            yield Finding("warning", files.mask, f"is also the mask of case {other} in {where}", "see which is right")
        seen.masks.setdefault(sha_mask, (files.id, files.mask.parent, split))
    seen.images.setdefault(sha, (files.id, files.image.parent, split))


def _not_listed(site: Path, manifest: Manifest) -> Iterator[Finding]:
    """Scans in ``volumes/`` that the manifest does not name, such as those of a patient who withdrew."""
    listed = {case.id for case in manifest.cases}
    for file in sorted((site / "volumes").glob("*.nii.gz")):
        if file.name.removesuffix(".nii.gz").removesuffix("_mask") not in listed:
            yield Finding("warning", file, "is not in the manifest and is not used", "delete it")


@dataclass(frozen=True)
class _Cache:
    """Cached slices of a site, which can be compared with its volumes."""

    folder: Path
    arrays: SliceArrays
    clip_above_quantile: float

    def is_of(self, pair: CasePair, case: Case) -> bool:
        """Whether the slices are those that the volumes give."""
        rows = slice(case.offset, case.offset + case.shape[0])
        images = slices_of(pair.image.voxels, self.arrays.matrix, self.clip_above_quantile)
        labels = labels_of(pair.mask.voxels, self.arrays.matrix)
        return np.array_equal(self.arrays.images[rows], images) and np.array_equal(self.arrays.labels[rows], labels)


def _opened_arrays(site: Path) -> Iterator[_Cache | Finding]:
    for folder, matrix, clip_above_quantile in cached_arrays(site):
        try:
            arrays = open_arrays(site, matrix=matrix, clip_above_quantile=clip_above_quantile, full=True)
            yield _Cache(folder, arrays, clip_above_quantile)
        except DataError as error:
            what = f"cannot be used ({str(error).split(': ')[0]})"
            yield Finding("error", folder, what, "delete it, it is made again")
