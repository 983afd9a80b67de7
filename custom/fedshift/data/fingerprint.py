"""A site's fingerprint: sums over its cases of voxel sizes, intensities and volumes of labels.

Training images of a federation cannot be looked at together, but nnU-Net's rules need only such sums. Numbers that only
one case has are rounded (`rounded`, `bins`), the same way at every site.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedshift.data.arrays import require_masks
from fedshift.data.prepared import read_images, read_labels
from fedshift.schema.errors import DataError
from fedshift.schema.fingerprint import (
    ALL,
    BINS,
    INSIDE,
    LOWEST,
    OUTSIDE,
    STEP,
    Fingerprint,
    Geometry,
    Intensities,
    Tally,
    ThreeTallies,
    Volumes,
)
from fedshift.schema.manifest import Case, Manifest, read_manifest
from fedshift.schema.names import one_line

GRID, VOLUME = 0.01, 0.2
"""Largest rounding of voxel sizes, numbers of voxels and extents, and of volumes, as a part of the number."""
SMALLEST = 2.0**-12  # intensities nearer to zero than this are counted as zero
KEPT_BITS = 5  # of the 23 bits of a float's mantissa: bins are 1/32 to 1/64 of the number wide
_DROPPED = 23 - KEPT_BITS
SCANNER = "scanner"
"""Key in a manifest's ``preparation``: the scanner's make and model (or a simulated one's settings), where known."""


def rounded(value: float, share: float) -> float:
    """The nearest multiple of the largest of … 0.1, 0.2, 0.5, 1, 2, 5 … that is at most ``share`` of the value."""
    if value <= 0:
        return 0.0
    most = share * value * (1 + 1e-9)  # 0.05 of 1 is a step of 0.05
    power = math.floor(math.log10(most))
    digit = next(digit for digit in (5, 2, 1) if digit * 10.0**power <= most)
    steps = round(value / (digit * 10.0**power))
    # By way of decimal text, so that one multiple is one number wherever it was computed.
    return float(f"{steps * digit}e{power}")


def bins(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bins of float32 numbers and how many are in each: (middles of bins, counts), by value."""
    values = np.where(np.abs(values) < SMALLEST, np.float32(0), values.astype(np.float32))
    # The leading bits of a float are its bin: no search, and edges that are the same everywhere.
    codes, counts = np.unique(values.view(np.uint32) >> np.uint32(_DROPPED), return_counts=True)
    middle = (codes.astype(np.uint32) << np.uint32(_DROPPED)) | np.uint32(1 << (_DROPPED - 1))
    middles = np.where(codes == 0, np.float32(0), middle.astype(np.uint32).view(np.float32)).astype(np.float64)
    order = np.argsort(middles)
    return middles[order], counts[order]


@dataclass
class _Sum:
    """A `Tally` in the making."""

    masses: dict[float, float] = field(default_factory=dict)

    def add(self, value: float, mass: float = 1.0) -> None:
        self.masses[value] = self.masses.get(value, 0.0) + mass

    @property
    def tally(self) -> Tally:
        return tuple(sorted(self.masses.items()))


@dataclass
class _IntensitySum:
    """`Intensities` in the making."""

    cases: int = 0
    mean: float = 0.0
    square: float = 0.0
    squared_mean: float = 0.0
    normalised_mean: float = 0.0
    values: _Sum = field(default_factory=_Sum)
    normalised: np.ndarray = field(default_factory=lambda: np.zeros(BINS))

    def add(self, voxels: np.ndarray, centre: float, spread: float) -> None:
        n = len(voxels)
        mean = float(voxels.mean(dtype=np.float64))
        self.cases += 1
        self.mean += mean
        self.square += float(np.square(voxels, dtype=np.float64).mean())
        self.squared_mean += mean**2
        self.normalised_mean += (mean - centre) / spread
        for middle, count in zip(*bins(voxels), strict=True):
            self.values.add(float(middle), float(count) / n)
        place = ((voxels - centre) / spread - LOWEST) / STEP
        index = np.clip(np.floor(place), 0, BINS - 1).astype(np.int64)
        self.normalised += np.bincount(index, minlength=BINS) / n

    @property
    def intensities(self) -> Intensities:
        return Intensities(
            cases=self.cases,
            mean=self.mean,
            square=self.square,
            squared_mean=self.squared_mean,
            values=self.values.tally,
            normalised_mean=self.normalised_mean,
            normalised=tuple(self.normalised.tolist()),
        )


@dataclass
class _VolumeSum:
    """`Volumes` in the making."""

    cases: int = 0
    measured: int = 0  # those whose voxel size is known
    ml: float = 0.0
    square: float = 0.0
    values: _Sum = field(default_factory=_Sum)

    def add(self, ml: float | None) -> None:
        self.cases += 1
        if ml is not None:
            self.measured += 1
            self.ml += ml
            self.square += ml**2
            self.values.add(rounded(ml, VOLUME))


def surveyed_cases(manifest: Manifest) -> tuple[Case, ...]:
    """The cases that a survey looks at: all but those of the test part; all of them if there are no others."""
    return tuple(case for case in manifest.cases if case.split != "test") or manifest.cases


def counts_only(folder: Path, *, why: str) -> Fingerprint:
    """What a site tells that withholds its fingerprint: how many cases it has, and of what.

    Raises:
        DataError: the site has no volumes, or a broken manifest.
    """
    return _fingerprint(_volumes_of(folder), withheld=why)


def fingerprint(
    folder: Path, *, least: int = 1, scanners: bool = False, progress: Callable[[str], None] = lambda case: None
) -> Fingerprint:
    """Compute the fingerprint of the site in a prepared folder.

    Args:
        folder: the site's.
        least: no sum over fewer cases is given, nor two sums that differ by fewer.
        scanners: whether the scanners' makes and models are given.
        progress: called before each case is read.

    Raises:
        DataError: the site has no volumes, or one that cannot be read.
    """
    manifest = _volumes_of(folder)
    cases = surveyed_cases(manifest)
    sums = _CaseSums(manifest.classes, manifest.annotated, manifest.sequences)
    for case in cases:
        progress(case.id)
        sums.add(*_read(folder, manifest, case))
    sizes = [(case.shape, manifest.known_spacing(case)) for case in cases]
    return _fingerprint(
        manifest,
        surveyed=len(cases),
        geometry=_geometry(sizes, least=least),
        volumes=sums.told_volumes(least=least),
        intensities=sums.told_intensities(least=least),
        scanners=_scanners(manifest) if scanners else None,
    )


def case_fingerprints(folder: Path) -> Iterator[Fingerprint]:
    """The fingerprint of each surveyed case by itself, which must stay at the site.

    Raises:
        DataError: as `fingerprint`.
    """
    manifest = _volumes_of(folder)
    for case in surveyed_cases(manifest):
        images, labels, spacing = _read(folder, manifest, case)
        yield scan_fingerprint(
            images,
            labels,
            spacing,
            like=Fingerprint(
                site=manifest.site,
                dataset=manifest.dataset,
                kind=manifest.kind,
                cases={},
                classes=manifest.classes,
                sequences=manifest.sequences,
                annotated=manifest.annotated,
            ),
        )


def scan_fingerprint(
    images: np.ndarray, labels: np.ndarray, spacing: Sequence[float] | None, *, like: Fingerprint
) -> Fingerprint:
    """The fingerprint of one scan, with the names, classes and sequences of ``like``.

    ``images`` (S, z, y, x) as stored, ``labels`` the class of each voxel (z, y, x), ``spacing`` mm along z, y, x.
    """
    sums = _CaseSums(like.classes, like.annotated, like.channels)
    sums.add(images, labels, spacing)
    fields = {
        "cases": {"train": 1},
        "surveyed": 1,
        "geometry": _geometry([(labels.shape, spacing)]),
        "volumes": sums.told_volumes(),
        "intensities": sums.told_intensities(),
    }
    kept = {"site", "dataset", "kind", "classes", "sequences", "annotated"}
    return Fingerprint.model_validate({**like.model_dump(include=kept), **fields})


class _CaseSums:
    """Sums of volumes and intensities over cases that come one by one."""

    def __init__(self, classes: Sequence[str], annotated: Sequence[str] | None, sequences: Sequence[str]) -> None:
        self._classes, self._sequences, self._cases = classes, sequences or ("image",), 0
        self._outlined = classes[1:] if annotated is None else annotated
        self._volumes = {name: _VolumeSum() for name in self._outlined}
        self._intensities: dict[str, dict[str, _IntensitySum]] = {}
        self._together: Counter[tuple[str, ...]] = Counter()  # how many cases have just these classes

    def add(self, images: np.ndarray, labels: np.ndarray, spacing: Sequence[float] | None) -> None:
        self._cases += 1
        known = None if spacing is None or len(labels) == 1 else math.prod(spacing) / 1000  # a picture has no volume
        masks = {ALL: np.ones(labels.shape, bool), OUTSIDE: labels == 0}
        inside = (labels > 0) & (labels < len(self._classes))  # others are to be ignored
        if len(self._outlined) > 1 and inside.any():
            masks[INSIDE] = inside
        present = []
        for number, name in enumerate(self._classes[1:], 1):
            mask = labels == number
            if name in self._volumes and mask.any():
                self._volumes[name].add(None if known is None else float(mask.sum()) * known)
                masks[name] = mask
                present.append(name)
        if present:
            self._together[tuple(present)] += 1
        for sequence, image in zip(self._sequences, images, strict=True):
            _add_intensities(self._intensities.setdefault(sequence, {}), image, masks)

    def told_volumes(self, *, least: int = 1) -> dict[str, Volumes]:
        """By class; of one that fewer than ``least`` cases have, or have been measured, the number of cases alone."""
        return {
            name: Volumes(cases=v.cases, surveyed=self._cases)
            if v.measured < least
            else Volumes(cases=v.cases, surveyed=self._cases, ml=v.ml, square=v.square, values=v.values.tally)
            for name, v in self._volumes.items()
        }

    def told_intensities(self, *, least: int = 1) -> dict[str, dict[str, Intensities]]:
        """By sequence and place, without places that would give away what is true of fewer than ``least`` cases."""
        withheld = {name for name, volume in self._volumes.items() if volume.cases < least}
        # A case with one class is the same inside it as inside all labels, and one without labels the same outside
        # them as everywhere. So the difference of two such sums is of the other cases alone.
        if self._together and min(self._together.values()) < least:
            withheld.add(INSIDE)
        if 0 < self._together.total() < least:
            withheld.add(OUTSIDE)
        return {
            sequence: {place: sums.intensities for place, sums in places.items() if place not in withheld}
            for sequence, places in self._intensities.items()
        }


def _read(folder: Path, manifest: Manifest, case: Case) -> tuple[np.ndarray, np.ndarray, Sequence[float] | None]:
    return read_images(folder, manifest, case), read_labels(folder, case, manifest.stored), manifest.known_spacing(case)


def _add_intensities(sums: dict[str, _IntensitySum], image: np.ndarray, masks: Mapping[str, np.ndarray]) -> None:
    image = image.astype(np.float32)
    centre, spread = float(image.mean(dtype=np.float64)), float(image.std(dtype=np.float64))
    for place, mask in masks.items():
        voxels = image.ravel() if place == ALL else image[mask]
        if len(voxels):
            sums.setdefault(place, _IntensitySum()).add(voxels, centre, spread or 1.0)


def _volumes_of(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    if not manifest.cases:
        what = f"{folder} holds pictures to classify, and a survey is of what is segmented: name a data set with masks"
        raise DataError("kind-of-data", what)
    require_masks(folder, manifest)
    return manifest


def _fingerprint(manifest: Manifest, **fields: object) -> Fingerprint:
    splits = {case.split for case in manifest.cases}
    return Fingerprint.model_validate(
        {
            "site": manifest.site,
            "dataset": manifest.dataset,
            "kind": manifest.kind,
            "simulated": manifest.simulated,
            "cases": {split: len(manifest.by_split(split)) for split in sorted(splits)},
            "classes": manifest.classes,
            "sequences": manifest.sequences,
            "annotated": manifest.annotated,
            **fields,
        }
    )


def _geometry(cases: Sequence[tuple[Sequence[int], Sequence[float] | None]], *, least: int = 1) -> Geometry:
    """Of the shape and the spacing of each case; the spacing is None where it is not known.

    If fewer than ``least`` cases have one, none is told.
    """
    known = [(shape, spacing) for shape, spacing in cases if spacing is not None]
    if len(known) < least:
        known = []
    return Geometry(
        cases=len(known),
        spacing=_three([spacing for _, spacing in known], GRID),
        extent=_three([[n * mm for n, mm in zip(shape, spacing, strict=True)] for shape, spacing in known], GRID),
        voxels=_three([shape for shape, _ in cases], GRID),
    )


def _three(rows: Sequence[Sequence[float]], share: float) -> ThreeTallies:
    sums = (_Sum(), _Sum(), _Sum())
    for row in rows:
        for total, value in zip(sums, row, strict=True):
            total.add(rounded(value, share))
    return tuple(total.tally for total in sums)  # type: ignore[return-value]


def _scanners(manifest: Manifest) -> dict[str, int]:
    """Scanner → cases, as far as preparation has noted them: one name for the site, or a list with one a case."""
    noted = manifest.preparation.get(SCANNER)
    if isinstance(noted, dict):  # settings of a simulated one
        noted = one_line("simulated: " + ", ".join(f"{key} {value}" for key, value in noted.items()))
    names = noted if isinstance(noted, list) else [noted] * len(manifest.cases) if isinstance(noted, str) else []
    return {one_line(name): names.count(name) for name in dict.fromkeys(names)}
