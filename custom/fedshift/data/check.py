"""``check``: list everything that is wrong with a folder of scans, or with prepared sites, in one sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedshift.data.arrays import SliceArrays, cached_arrays, labels_of, open_arrays, slices_of
from fedshift.data.blocks import verify
from fedshift.data.casefiles import (
    CaseFiles,
    Decoded,
    Finding,
    ct_finding,
    dummy_finding,
    empty_finding,
    is_dummy,
    lowest_of,
    name_fault,
    read_case,
)
from fedshift.data.dicom_masks import is_dicom_mask
from fedshift.data.images import open_images
from fedshift.data.labels import Labels, every_label, settle_labels
from fedshift.data.named_masks import names_structures, structures_in
from fedshift.data.pairing import ScanSet
from fedshift.data.patterns import is_pattern
from fedshift.data.prepared import image_files, mask_file
from fedshift.data.resampled import cached_volumes
from fedshift.data.scan_file import ScanError, reading
from fedshift.data.scans import content_hash
from fedshift.data.scansets import gather, sequences_fault, spelled_as
from fedshift.data.series import is_ct
from fedshift.data.splits import subject_of
from fedshift.schema.codes import ClassCodes
from fedshift.schema.empty_masks import WITHOUT_STRUCTURE
from fedshift.schema.errors import ConfigError, DataError, FedshiftError
from fedshift.schema.manifest import FILE_NAME, Case, Manifest, read_manifest

Progress = Callable[[str], None]
FEWEST_PATIENTS = 3
"""With fewer a site has no case for validation and for tests, see `data_prep.volumes`."""


@dataclass
class Counts:
    """What `check` has looked at."""

    sites: int = 0
    """Prepared sites, or folders of scans."""
    samples: int = 0
    """Cases or pictures, also those with errors."""
    prepared: bool = False
    pictures: bool = False
    unnamed: bool = False
    """Whether nothing says what the masks' values or structures are, so that preparation will ask."""

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
    path: Path,
    *,
    masks: Path | None = None,
    labels: Mapping[str, Sequence[int | str]] = MappingProxyType({}),
    dataset: str = "",
    classes: Sequence[str] | None = None,
    codes: Mapping[str, ClassCodes] = MappingProxyType({}),
    annotated: Sequence[str] | None = None,
    sequences: Mapping[str, str] = MappingProxyType({}),
    wanted: Sequence[str] | None = None,
    volume: int | None = None,
    trust_voxels: bool = False,
    interpolate: bool = False,
    empty: bool = False,
    progress: Progress | None = None,
    counts: Counts | None = None,
) -> list[Finding]:
    """Examine scans or prepared sites.

    Args:
        path: a folder of scans in any known layout, a prepared site, or a folder with several of either.
        masks: the masks, if they lie in a folder of their own; ``path`` then holds the images. Both may be patterns.
        labels: class -> values of the masks, or names of structures where masks name them, for scans that are not
            prepared yet.
        dataset: that of the task; a prepared site of another one is an error.
        classes: those of the task, the background first.
        codes: of these classes; structures of masks that name them are found by them.
        annotated: the classes that the masks outline; None for all.
        sequences: name of a sequence -> its pattern, or "" (`fedshift.data.scansets.gather`).
        wanted: the sequences that the task takes, empty for one without a name; None if no task is named.
        volume: see `fedshift.data.casefiles.CaseFiles`.
        trust_voxels: likewise.
        interpolate: likewise.
        empty: whether masks of scans that are not prepared yet may be empty, see `fedshift.schema.empty_masks`.
        progress: called with what is read next.
        counts: is filled in with how much there was to look at.

    Returns:
        Errors and warnings in the order found; preparation refuses what is an error here.

    Raises:
        ConfigError: labels or sequences that do not fit the scans.
        DataError: ``path`` does not exist, or may not be looked at.
    """
    with reading(path):
        by_pattern = masks is not None and (is_pattern(path) or any(sequences.values()))
        there = by_pattern or path.exists()
    if not there:
        raise DataError(f"{path} does not exist: name the folder that holds the scans")
    seen = _Seen()
    tell = progress or (lambda _: None)
    prepared = [] if masks else _prepared_sites(path)
    counts = counts or Counts()
    if prepared:
        counts.prepared, counts.sites = True, len(prepared)
        found = [finding for site in prepared for finding in _check_site(site, seen, tell, counts)]
        return [*found, *_unlike(prepared), *_other_task(prepared, dataset, classes, wanted)]
    try:
        if masks is None or any(sequences.values()):
            sets = gather(path, masks=masks, sequences=sequences, volume=volume)
        else:
            sets = gather(None, images=path, masks=masks, sequences=sequences, volume=volume)
    except ConfigError:
        raise
    except ScanError as error:
        return [Finding("error", error.path, error.what, error.mend)]
    except DataError as error:
        what, _, mend = str(error).partition(": ")
        return [Finding("error", path, what, mend)]
    sets = [
        replace(
            scans,
            cases=tuple(
                replace(case, trust_voxels=trust_voxels, interpolate=interpolate, may_be_empty=empty)
                for case in scans.cases
            ),
        )
        for scans in sets
    ]
    counts.sites, counts.samples = len(sets), sum(len(scans.cases) for scans in sets)
    of_set = [
        (
            scans,
            settle_labels(
                given=labels,
                described=scans.labels,
                classes=classes,
                codes=codes,
                annotated=annotated,
                named=all(names_structures(case.mask) for case in scans.cases),
            ),
        )
        for scans in sets
    ]
    findings = [finding for scans, meant in of_set for finding in _check_set(scans, meant, classes, seen, tell, counts)]
    for scans in sets:
        findings += numbers_of_structures(scans, labels)
        if scans.cases and wanted is not None:
            fault = sequences_fault(spelled_as(scans.sequences, wanted), wanted)
            findings += [Finding("error", scans.folder, *fault)] if fault else []
    return findings


def _prepared_sites(path: Path) -> list[Path]:
    patterns = (FILE_NAME, f"*/{FILE_NAME}", f"*/*/{FILE_NAME}")
    found = [manifest.parent for pattern in patterns for manifest in sorted(path.glob(pattern))]
    return [site for site in found if not site.name.startswith(".")]


def numbers_of_structures(scans: ScanSet, given: Mapping[str, Sequence[int | str]]) -> list[Finding]:
    """One warning where numbers are ``given`` for the structures of DICOM masks, which are found by their names."""
    numbers = [(name, value) for name, values in given.items() for value in values if isinstance(value, int)]
    if not (numbers and scans.cases and all(is_dicom_mask(case.mask) for case in scans.cases)):
        return []
    name, value = numbers[0]
    what = (
        f"has DICOM masks, whose structures have names, so that the number in --label {name}={value} is not looked at"
    )
    mend = f"give the name of the structure, as in --label '{name}=Whole gland', unless it is called {name}"
    return [Finding("warning", scans.folder, what, mend)]


def _other_task(
    sites: Sequence[Path], dataset: str, classes: Sequence[str] | None, wanted: Sequence[str] | None
) -> Iterator[Finding]:
    """Errors for sites that are prepared for another task."""
    for site in sites:
        with suppress(FedshiftError):  # is found when the site is checked
            manifest = read_manifest(site)
            if dataset and manifest.dataset != dataset:
                what = f"is of data set {manifest.dataset}, and the task is of {dataset}"
                yield Finding("error", site, what, "name the right folder, or the right task")
            elif classes is not None and manifest.classes != tuple(classes):
                what = f"has the classes {', '.join(manifest.classes)}, and the task {', '.join(classes)}"
                yield Finding("error", site, what, "prepare the site for the task, or name the right one")
            elif wanted is not None and manifest.cases and (fault := sequences_fault(manifest.sequences, wanted)):
                yield Finding("error", site, *fault)


def _check_set(
    scans: ScanSet,
    labels: Labels | None,
    classes: Sequence[str] | None,
    seen: _Seen,
    tell: Progress,
    counts: Counts,
) -> Iterator[Finding]:
    yield from scans.findings
    if labels is None and scans.unusable_labels is not None:
        yield scans.unusable_labels
    dummies = said = 0
    lowest: list[float] = []
    without: list[str] = []
    holders: dict[int, list[Path]] = {}
    for case in scans.cases:
        tell(f"{scans.name} {case.id}")
        if fault := name_fault(case.id, several=len(scans.sequences) > 1):
            yield Finding("error", case.image, f"is of a case whose name {case.id!r} {fault[0]}", fault[1])
        decoded, findings = read_case(replace(case, labels=labels))
        yield from findings
        if decoded is not None:
            dummies += is_dummy(decoded.image)
            lowest.append(lowest_of(decoded))
            said += is_ct(case.image)
            without += [] if decoded.mask.voxels.any() else [case.id]
            for value in np.unique(decoded.mask.voxels).tolist():
                holders.setdefault(value, []).append(case.mask)
            yield from _twice(case, decoded, None, seen, "")
    if labels is None:
        named = bool(scans.cases) and all(names_structures(case.mask) for case in scans.cases)
        unnamed = list(_without_classes(scans) if named else _without_names(scans.folder, holders, classes))
        counts.unnamed = counts.unnamed or bool(unnamed)
        yield from unnamed
    else:
        yield from not_outlined(scans.folder, labels.classes, labels.annotated, holders)
    yield from empty_finding(scans.folder, without, len(scans.cases))
    yield from dummy_finding(scans.folder, dummies, len(scans.cases))
    yield from ct_finding(scans.folder, lowest, said, scans.sequences)


def _without_classes(scans: ScanSet) -> Iterator[Finding]:
    """One warning for a folder of masks that name structures, with these, if nothing says which are wanted."""
    held: Counter[str] = Counter()
    for case in scans.cases:
        with suppress(ScanError):  # is found when the mask is read
            held.update(dict.fromkeys(structures_in(case.mask), 1))
    if held:
        shown = ", ".join(f"{name!r} ({times})" for name, times in sorted(held.items(), key=lambda one: -one[1])[:12])
        more = f" and {len(held) - 12} more" if len(held) > 12 else ""
        kind = "DICOM masks" if all(is_dicom_mask(case.mask) for case in scans.cases) else "masks"
        what = f"has {kind} with the structures {shown}{more}, and nothing says which of them are classes"
        mend = "name the task with --task, or each class with its structures, as in --label 'prostate=Whole gland'"
        yield Finding("warning", scans.folder, what, mend)


def _without_names(
    folder: Path, holders: Mapping[int, Sequence[Path]], classes: Sequence[str] | None
) -> Iterator[Finding]:
    """One finding for a folder whose masks have other values than 0 and 1, and nothing says what they mean.

    It is an error if the task is known, as it then only has to be said which class is which.
    """
    values = sorted(holders.keys() - {0})
    if not values or values == [1]:
        return
    single = [f"{value} in {files[0].name} only" for value, files in sorted(holders.items()) if len(files) == 1]
    shown = ", ".join(map(str, values)) + (f" ({', '.join(single[:3])})" if single and len(holders[0]) > 1 else "")
    listed = ",".join(map(str, values))
    each = every_label([*(classes or ("",)), *("NAME" for _ in values)], values[:3])
    mend = f"name them, as in {each}" + ("" if classes else f", or merge them, as in --label NAME={listed}")
    what = f"has masks with the label(s) {shown}, and nothing says what they are"
    yield Finding("warning" if classes is None else "error", folder, what, mend)


def not_outlined(
    folder: Path, classes: Sequence[str], annotated: Sequence[str] | None, indices: Collection[int]
) -> Iterator[Finding]:
    """Warn about classes that no mask of a folder has, given the class indices that occur in any."""
    for name in annotated or classes[1:]:
        if classes.index(name) not in indices and indices:
            yield Finding(
                "warning",
                folder,
                f"has no mask with a voxel of {name}",
                "look whether its value is right, or name with --annotated the classes that the masks do outline",
            )


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
    lowest: list[float] = []
    without: list[str] = []
    indices: set[int] = set()
    labels = Labels.of_classes(manifest.classes, manifest.annotated)
    for case in manifest.cases:
        tell(f"{manifest.site} {case.id}")
        files = prepared_files(site, manifest, case, labels)
        decoded, findings = read_case(files)
        yield from findings
        if decoded is not None:
            dummies += is_dummy(decoded.image)
            lowest.append(lowest_of(decoded))
            without += [] if decoded.mask.voxels.any() else [case.id]
            indices.update(np.unique(decoded.mask.voxels).tolist())
            changed = list(_fits_manifest(files, decoded, case))
            yield from changed
            stale = [folder for folder, cache in caches.items() if not changed and not cache.is_of(decoded, case)]
            for folder in stale:
                del caches[folder]
                what = f"has other slices of {case.id} than its volumes"
                yield Finding("error", folder, what, "delete it, it is made again")
            yield from _twice(files, decoded, case.split, seen, manifest.dataset)
    yield from not_outlined(site, manifest.classes, manifest.annotated, indices)
    yield from _not_listed(site, manifest)
    yield from _divided(site, manifest)
    yield from empty_splits(site, manifest)
    yield from empty_finding(site, without, len(manifest.cases))
    yield from dummy_finding(site, 0 if manifest.has_true_spacing else dummies, len(manifest.cases))
    yield from ct_finding(site, lowest, 0, manifest.sequences)


def empty_splits(site: Path, manifest: Manifest) -> Iterator[Finding]:
    """Warn about a site of volumes that has no case to validate with, or none to test or train with."""
    empty = [split for split in ("train", "val", "test") if not any(case.split == split for case in manifest.cases)]
    if empty:
        patients = len({subject_of(case.id) for case in manifest.cases})
        what = f"has {' and '.join(f'no {split} case' for split in empty)}"
        mend = "add cases of other patients"
        if patients < FEWEST_PATIENTS:
            mend += f", {FEWEST_PATIENTS} patients are the least; this site has {patients}"
        yield Finding("warning", site, what, mend)


def _unlike(prepared: Sequence[Path]) -> Iterator[Finding]:
    """Compare classes and sequences of the sites of each data set with those of its first site.

    No job takes sites with other classes, or with the same in another order. A sequence is picked by its name.
    """
    first: dict[str, tuple[Path, Manifest]] = {}
    for site in prepared:
        try:
            manifest = read_manifest(site)
        except FedshiftError:
            continue  # is found by its own check
        other, known = first.setdefault(manifest.dataset, (site, manifest))
        if manifest.classes != known.classes:
            what = f"has the classes {', '.join(manifest.classes)}, {other} {', '.join(known.classes)}"
            mend = "delete the one that is wrong, and prepare it again with the other's classes, in the same order"
            yield Finding("error", site / FILE_NAME, what, mend)
        if set(manifest.sequences) != set(known.sequences):
            have, wanted = (", ".join(one.sequences) or "one without a name" for one in (manifest, known))
            what = f"has the sequences {have}, {other} {wanted}"
            yield Finding("warning", site / FILE_NAME, what, "prepare both with the same")


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


def prepared_files(site: Path, manifest: Manifest, case: Case, labels: Labels | None = None) -> CaseFiles:
    """The files of a prepared case, whose masks hold the indices of classes."""
    files = image_files(site, manifest, case.id)
    meant = labels or Labels.of_classes(manifest.classes, manifest.annotated)
    return CaseFiles(
        case.id,
        files,
        mask_file(site, case.id),
        sequences=manifest.sequences,
        labels=meant,
        may_be_empty=bool(manifest.preparation.get(WITHOUT_STRUCTURE)),
        reading=case.reading,
    )


def _fits_manifest(files: CaseFiles, decoded: Decoded, case: Case) -> Iterator[Finding]:
    what = "is not what was prepared, its voxels have changed"
    for file, voxels, shape, known in (
        (files.image, decoded.voxels, decoded.image.voxels.shape, case.sha256_image),
        (files.mask, decoded.mask.voxels, decoded.mask.voxels.shape, case.sha256_label),
    ):
        if shape != case.shape or content_hash(voxels) != known:
            among = " (or another sequence of the case)" if file == files.image and len(files.images) > 1 else ""
            yield Finding("error", file, f"{what}{among}", "prepare the site again")


def _twice(files: CaseFiles, decoded: Decoded, split: str | None, seen: _Seen, dataset: str) -> Iterator[Finding]:
    """Find content that two cases share: one patient under two names, or a mask that was copied by mistake.

    Prepared data sets are apart: the same scans may be in several, with other classes.
    """
    doubled = False
    for number, image in enumerate(decoded.images):
        sha = f"{dataset} {content_hash(image.voxels)}"
        if sha in seen.images and not doubled:
            other, where, other_split = seen.images[sha]
            splits = f", one for {other_split} and one for {split}," if split and split != other_split else ""
            mend = "keep one of the two, and in one split" if split else "remove one of the two"
            yield Finding(
                "error",
                files.images[number],
                f"{files.named(number)}has the same voxels as case {other}{splits} in {where}",
                mend,
            )
            doubled = True
        seen.images.setdefault(sha, (files.id, files.image.parent, split))
    sha_mask = f"{dataset} {content_hash(decoded.mask.voxels)}"
    if not doubled and decoded.mask.voxels.any():
        if sha_mask in seen.masks:
            other, where, _ = seen.masks[sha_mask]
            yield Finding("warning", files.mask, f"is also the mask of case {other} in {where}", "see which is right")
        seen.masks.setdefault(sha_mask, (files.id, files.mask.parent, split))


def _not_listed(site: Path, manifest: Manifest) -> Iterator[Finding]:
    """Scans in ``volumes/`` that the manifest does not name, such as those of a patient who withdrew."""
    listed = {file for case in manifest.cases for file in image_files(site, manifest, case.id)}
    listed |= {mask_file(site, case.id) for case in manifest.cases}
    for file in sorted((site / "volumes").glob("*.nii.gz")):
        if file not in listed:
            yield Finding("warning", file, "is not in the manifest and is not used", "delete it")


def _divided(site: Path, manifest: Manifest) -> Iterator[Finding]:
    """Subjects whose sessions are in several splits, as preparation once dealt them: scores are then too good."""
    of_subject: dict[str, list[Case]] = {}
    for case in manifest.cases:
        of_subject.setdefault(subject_of(case.id), []).append(case)
    for subject, cases in of_subject.items():
        splits = {case.split for case in cases}
        if len(splits) > 1:
            shown = ", ".join(f"{case.id} ({case.split})" for case in cases)
            stays = next(split for split in ("train", "val", "test") if split in splits)
            moved = ", ".join(case.id for case in cases if case.split != stays)
            mend = f"withdraw {moved} and add the same scans again, they then join those of {stays}"
            yield Finding("error", site / FILE_NAME, f"has {subject} in several splits, as {shown}", mend)


@dataclass(frozen=True)
class _Cache:
    """Cached slices of a site, which can be compared with its volumes."""

    folder: Path
    arrays: SliceArrays
    clip_above_quantile: float

    def is_of(self, decoded: Decoded, case: Case) -> bool:
        """Whether the slices are those that the volumes give."""
        rows = slice(case.offset, case.offset + case.shape[0])
        images = slices_of(decoded.image.voxels, self.arrays.matrix, self.clip_above_quantile)
        labels = labels_of(decoded.mask.voxels, self.arrays.matrix)
        return np.array_equal(self.arrays.images[rows], images) and np.array_equal(self.arrays.labels[rows], labels)


def _opened_arrays(site: Path) -> Iterator[_Cache | Finding]:
    for folder, matrix, clip_above_quantile in cached_arrays(site):
        try:
            arrays = open_arrays(site, matrix=matrix, clip_above_quantile=clip_above_quantile, full=True)
            yield _Cache(folder, arrays, clip_above_quantile)
        except DataError as error:
            what = f"cannot be used ({str(error).split(': ')[0]})"
            yield Finding("error", folder, what, "delete it, it is made again")
    for folder in cached_volumes(site):
        try:
            verify(folder, None, fix="", full=True)
        except DataError as error:
            what = f"cannot be used ({str(error).split(': ')[0]})"
            yield Finding("error", folder, what, "delete it, it is made again")
