"""``check`` of prepared sites: the manifest, the volumes, the cached arrays, and whether sites go together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.data.arrays import SliceArrays, cached_arrays, labels_of, open_arrays, open_images, slices_of
from fedshift.data.blocks import verify
from fedshift.data.case_check import Decoded, read_case
from fedshift.data.case_notes import Contents, Counts, Notes
from fedshift.data.cases import CaseFiles, sequences_fault
from fedshift.data.labels import Labels
from fedshift.data.prepared import FOLDER, SUFFIX, image_files, mask_file, read_images
from fedshift.data.resampled import cached_volumes
from fedshift.data.scan_file import Finding
from fedshift.data.scans import content_hash
from fedshift.data.splits import subject_of
from fedshift.data.whole_volumes import cached_whole
from fedshift.schema.codes import WITHOUT_STRUCTURE
from fedshift.schema.errors import DataError, FedshiftError
from fedshift.schema.manifest import FILE_NAME, Case, Manifest, Picture, read_manifest
from fedshift.schema.names import few_names

FEWEST_PATIENTS = 3  # with fewer a site has no case for validation and for tests, see `data_prep.volumes`


def check_site(site: Path, contents: Contents, progress: Callable[[str], None], counts: Counts) -> Iterator[Finding]:
    again = "prepare the site again"
    for leftover in sorted(site.parent.glob(f".{site.name}.*-*")):
        what = "was left by a preparation that was cut off"
        yield Finding("warning", "leftover", leftover, what, "delete it if none is running")
    try:
        manifest = read_manifest(site)
    except FedshiftError as error:
        what = str(error).removeprefix(str(site / FILE_NAME)).lstrip(": ")
        yield Finding("error", "manifest-broken", site / FILE_NAME, f"cannot be used ({what})", again)
        return
    counts.samples += len(manifest.entries)
    counts.pictures = counts.pictures or bool(manifest.pictures) or manifest.pictured
    ids = Counter(entry.id for entry in manifest.entries)
    for entry_id in sorted(entry_id for entry_id, times in ids.items() if times > 1):
        yield Finding("error", "case-twice", site / FILE_NAME, f"lists the id {entry_id} twice", again)
    if manifest.pictures:
        yield from _check_pictures(site, manifest, contents, progress)
        return
    if not manifest.has_masks:
        yield from _check_labelled(site, manifest, contents, progress)
        return
    opened = list(_opened_arrays(site))
    yield from (result for result in opened if isinstance(result, Finding))
    caches = {result.folder: result for result in opened if isinstance(result, _Cache)}
    notes = Notes()
    labels = Labels.of_classes(manifest.classes, manifest.annotated, ignore=manifest.ignore)
    for case in manifest.cases:
        progress(f"{manifest.site} {case.id}")
        files = prepared_files(site, manifest, case, labels)
        decoded, findings = read_case(files)
        yield from findings
        if decoded is None:
            continue
        notes.add(files, decoded)
        changed = list(_fits_manifest(files, decoded, case))
        yield from changed
        stale = [folder for folder, cache in caches.items() if not changed and not cache.is_of(decoded, case)]
        for folder in stale:
            del caches[folder]
            what = f"has other slices of {case.id} than its volumes"
            yield Finding("error", "arrays-changed", folder, what, "delete it, it is made again")
        yield from contents.shared(files, decoded, split=case.split, dataset=manifest.dataset)
    yield from notes.not_outlined(site, manifest.classes, manifest.annotated)
    yield from _not_listed(site, manifest)
    yield from _divided(site, manifest)
    yield from empty_splits(site, manifest)
    yield from notes.findings(
        site, site, len(manifest.cases), manifest.sequences, true_spacing=manifest.has_true_spacing
    )


def _check_labelled(
    site: Path, manifest: Manifest, contents: Contents, progress: Callable[[str], None]
) -> Iterator[Finding]:
    """Compare the files of volumes to classify, their splits and their cached arrays with the manifest."""
    for case in manifest.cases:
        progress(f"{manifest.site} {case.id}")
        file = image_files(site, manifest, case.id)[0]
        try:
            voxels = read_images(site, manifest, case)
        except DataError as error:
            what, _, remedy = str(error).removeprefix(str(file)).strip().partition(": ")
            yield Finding("error", error.code, file, what, remedy or "prepare the site again")
            continue
        if content_hash(voxels if len(voxels) > 1 else voxels[0]) != case.sha256_image:
            what = "is not what was prepared, its voxels have changed"
            yield Finding("error", "files-changed", file, what, "prepare the site again")
        key = f"{manifest.dataset} {case.sha256_image}"
        other, where, split = contents.images.setdefault(key, (case.id, site, case.split))
        if (other, where) != (case.id, site):
            what = f"lists {case.id} ({case.split}), which is the same as {other} ({split}) in {where}"
            yield Finding("error", "same-content", site / FILE_NAME, what, "prepare the data set again")
    yield from _damaged(cached_whole(site))
    yield from _not_listed(site, manifest)
    yield from _divided(site, manifest)
    yield from empty_splits(site, manifest)


def empty_splits(site: Path, manifest: Manifest) -> Iterator[Finding]:
    """Warn about a site of volumes that has no case to validate with, or none to test or train with."""
    empty = [split for split in ("train", "val", "test") if not any(case.split == split for case in manifest.cases)]
    if empty:
        patients = len({subject_of(case) for case in manifest.cases})
        what = f"has {' and '.join(f'no {split} case' for split in empty)}"
        remedy = "add cases of other patients"
        if patients < FEWEST_PATIENTS:
            remedy += f", {FEWEST_PATIENTS} patients are the least; this site has {patients}"
        yield Finding("warning", "split-empty", site, what, remedy)


def unlike(prepared: Sequence[Path]) -> Iterator[Finding]:
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
            remedy = "delete the one that is wrong, and prepare it again with the other's classes, in the same order"
            yield Finding("error", "other-classes", site / FILE_NAME, what, remedy)
        if set(manifest.sequences) != set(known.sequences):
            have, wanted = (", ".join(each.sequences) or "one without a name" for each in (manifest, known))
            what = f"has the sequences {have}, {other} {wanted}"
            yield Finding("warning", "other-sequences", site / FILE_NAME, what, "prepare both with the same")


def other_task(
    sites: Sequence[Path], dataset: str, classes: Sequence[str] | None, wanted: Sequence[str] | None
) -> Iterator[Finding]:
    for site in sites:
        with suppress(FedshiftError):  # is found when the site is checked
            manifest = read_manifest(site)
            if dataset and manifest.dataset != dataset:
                what = f"is of data set {manifest.dataset}, and the task is of {dataset}"
                yield Finding("error", "other-data", site, what, "name the right folder, or the right task")
            elif classes is not None and manifest.classes != tuple(classes):
                what = f"has the classes {', '.join(manifest.classes)}, and the task {', '.join(classes)}"
                remedy = "prepare the site for the task, or name the right one"
                yield Finding("error", "other-classes", site, what, remedy)
            elif wanted is not None and manifest.cases and (fault := sequences_fault(manifest.sequences, wanted)):
                yield Finding("error", "other-sequences", site, *fault)


def _check_pictures(
    site: Path, manifest: Manifest, contents: Contents, progress: Callable[[str], None]
) -> Iterator[Finding]:
    """Compare hashes, splits and cached arrays of pictures; the picture files themselves are not kept."""
    progress(manifest.site)
    known = int(manifest.preparation.get("pictures_straddling", 0))
    if known:
        what = f"has {known} picture(s) with copies in other splits or sites ({manifest.preparation.get('split_rule')})"
        remedy = "prepare it with another split unless a paper is to be repeated"
        yield Finding("warning", "split-straddled", site, what, remedy)
    for picture in manifest.pictures:
        other, where, split = contents.images.setdefault(
            f"{manifest.dataset} {picture.sha256}", (picture.id, site, picture.split)
        )
        if (where, split) != (site, picture.split) and not known:
            what = f"lists {picture.id} ({picture.split}), which is the same as {other} ({split}) in {where}"
            yield Finding("error", "same-content", site / FILE_NAME, what, "prepare the data set again")
    for folder in sorted((site / "arrays").glob("*")):
        if folder.name.isdigit():
            try:
                open_images(site, size=int(folder.name), channels=_channels(folder / "images.npy"), full=True)
            except DataError as error:
                what = f"cannot be used ({str(error).split(': ')[0]})"
                yield Finding("error", "arrays-damaged", folder, what, "prepare the site again")
    yield from _divided(site, manifest)
    splits = {picture.split for picture in manifest.pictures}
    if splits == {"test"}:
        if f"all of {manifest.site} test" not in str(manifest.preparation.get("split_rule")):
            what = "has pictures for testing only"
            yield Finding("warning", "split-empty", site, what, "hold this site out, it cannot train")
        return
    for part in ("train", "val", "test"):
        if part not in splits:
            what = f"has no {part} picture"
            yield Finding("warning", "split-empty", site, what, "add pictures, three of a class are the least")


def _channels(images: Path) -> int:
    try:
        shape = np.load(images, mmap_mode="r", allow_pickle=False).shape
    except (ValueError, OSError, EOFError):
        return 3
    return int(shape[1]) if len(shape) == 4 else 3


def prepared_files(site: Path, manifest: Manifest, case: Case, labels: Labels | None = None) -> CaseFiles:
    """The files of a prepared case, whose masks hold the indices of classes."""
    files = image_files(site, manifest, case.id)
    files *= max(len(manifest.sequences), 1) if manifest.pictured else 1
    meant = labels or Labels.of_classes(manifest.classes, manifest.annotated, ignore=manifest.ignore)
    return CaseFiles(
        case.id,
        files,
        mask_file(site, case.id, manifest.stored),
        channels=tuple(range(len(manifest.sequences))) if manifest.pictured else (),
        sequences=manifest.sequences,
        labels=meant,
        may_be_empty=bool(manifest.preparation.get(WITHOUT_STRUCTURE)),
        reading=case.reading,
        subject=case.subject,
        strata=case.strata,
    )


def _fits_manifest(files: CaseFiles, decoded: Decoded, case: Case) -> Iterator[Finding]:
    what = "is not what was prepared, its voxels have changed"
    for file, scan, sha256, known in (
        (files.image, decoded.image, decoded.sha256, case.sha256_image),
        (files.mask, decoded.mask, decoded.mask.sha256, case.sha256_label),
    ):
        if scan.voxels.shape != case.shape or sha256 != known:
            among = " (or another sequence of the case)" if file == files.image and len(files.images) > 1 else ""
            yield Finding("error", "files-changed", file, f"{what}{among}", "prepare the site again")


def _not_listed(site: Path, manifest: Manifest) -> Iterator[Finding]:
    """Scans in ``volumes/`` that the manifest does not name, such as those of a patient who withdrew."""
    listed = {file for case in manifest.cases for file in image_files(site, manifest, case.id)}
    listed |= {mask_file(site, case.id, manifest.stored) for case in manifest.cases}
    for file in sorted((site / FOLDER).glob(f"*{SUFFIX[manifest.stored]}")):
        if file not in listed:
            yield Finding("warning", "file-unlisted", file, "is not in the manifest and is not used", "delete it")


def _divided(site: Path, manifest: Manifest) -> Iterator[Finding]:
    """Subjects whose scans or pictures are in several splits, as when a table says so: scores are then too good."""
    of_subject: dict[str, list[Case | Picture]] = {}
    for case in manifest.entries:
        of_subject.setdefault(subject_of(case), []).append(case)
    for subject, cases in of_subject.items():
        splits = {case.split for case in cases}
        if len(splits) > 1 and not manifest.has_masks:
            shown = few_names([f"{case.id} ({case.split})" for case in cases])
            what = f"has {subject} in several splits, as {shown}"
            yield Finding("error", "subject-divided", site / FILE_NAME, what, "correct the table, and prepare it again")
        elif len(splits) > 1:
            shown = ", ".join(f"{case.id} ({case.split})" for case in cases)
            stays = next(split for split in ("train", "val", "test") if split in splits)
            moved = ", ".join(case.id for case in cases if case.split != stays)
            remedy = f"withdraw {moved} and add the same scans again, they then join those of {stays}"
            what = f"has {subject} in several splits, as {shown}"
            yield Finding("error", "subject-divided", site / FILE_NAME, what, remedy)


@dataclass(frozen=True)
class _Cache:
    folder: Path
    arrays: SliceArrays
    clip_above_quantile: float

    def is_of(self, decoded: Decoded, case: Case) -> bool:
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
            yield Finding("error", "arrays-damaged", folder, what, "delete it, it is made again")
    yield from _damaged(cached_volumes(site))


def _damaged(folders: Sequence[Path]) -> Iterator[Finding]:
    for folder in folders:
        try:
            verify(folder, None, fix="", full=True)
        except DataError as error:
            what = f"cannot be used ({str(error).split(': ')[0]})"
            yield Finding("error", "arrays-damaged", folder, what, "delete it, it is made again")


def prepared_sites(path: Path) -> list[Path]:
    """The prepared sites in a folder, or up to two levels below it."""
    patterns = (FILE_NAME, f"*/{FILE_NAME}", f"*/*/{FILE_NAME}")
    sites = [manifest.parent for pattern in patterns for manifest in sorted(path.glob(pattern))]
    return [site for site in sites if not site.name.startswith(".")]
