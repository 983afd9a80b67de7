"""What the cases of a folder have in common or share with others, for one finding about all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedshift.data.case_check import Decoded
from fedshift.data.cases import CaseFiles
from fedshift.data.scan_file import Finding
from fedshift.data.series import is_ct, is_dicom
from fedshift.runtime.regions import IGNORED
from fedshift.schema.manifest import is_dummy_geometry
from fedshift.schema.names import few_names
from fedshift.schema.regions import JOIN

LOW_CT = -500
"""Hounsfield units; air, which is in nearly every CT scan, has -1000. MRI as it is stored has no such values."""


@dataclass
class Notes:
    """Facts of cases that are added one by one."""

    dummies: int = 0
    """Cases whose header is a placeholder."""
    ct: int = 0
    """Cases that are CT by their DICOM files."""
    lowest: list[float] = field(default_factory=list)
    """The lowest intensity of each case."""
    empty: list[str] = field(default_factory=list)
    """Ids of the cases whose masks are rightly empty."""
    masks_with: dict[int, list[Path]] = field(default_factory=dict)
    """Value in any mask -> the masks that have it."""
    at_corners: int = 0
    """Masks of pictures in which all four corners are of a structure, as where black and white are exchanged."""

    units: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    """Number of a sequence -> units of its intensities in DICOM, "" for none -> ids of the cases that have them."""

    def add(self, case: CaseFiles, decoded: Decoded) -> None:
        is_dummy = is_dummy_geometry(decoded.image.spacing, decoded.image.direction)
        self.dummies += is_dummy and not decoded.image.is_picture
        self.ct += is_ct(case.image)
        self.lowest.append(min(float(image.voxels.min()) for image in decoded.images))
        for number, (path, image) in enumerate(zip(case.images, decoded.images, strict=True)):
            if is_dicom(path):
                self.units.setdefault(number, {}).setdefault(image.reading.units or "", []).append(case.id)
        values = np.flatnonzero(np.bincount(decoded.mask.voxels.ravel())).tolist()
        self.empty += [case.id] if values == [0] else []
        if decoded.image.is_picture:
            corners = decoded.mask.voxels[0, [0, 0, -1, -1], [0, -1, 0, -1]]
            self.at_corners += bool(((corners > 0) & (corners < IGNORED)).all())
        for value in values:
            self.masks_with.setdefault(value, []).append(case.mask)

    def not_outlined(self, folder: Path, classes: Sequence[str], annotated: Sequence[str] | None) -> Iterator[Finding]:
        """Warn about classes that no mask of a folder has; the masks' values are the indices of classes.

        Not about those of several structures that may overlap (`fedshift.schema.regions.overlapping`).
        """
        for name in annotated or classes[1:]:
            if JOIN in name and {*name.split(JOIN)} <= {*classes}:
                continue
            if self.masks_with and classes.index(name) not in self.masks_with:
                remedy = (
                    "look whether its value is right, or name with --annotated the classes that the masks do outline"
                )
                yield Finding("warning", "class-missing", folder, f"has no mask with a voxel of {name}", remedy)

    def findings(
        self,
        images: Path,
        masks: Path,
        cases: int,
        sequences: Sequence[str],
        *,
        true_spacing: bool = False,
        unsaid: bool = False,
    ) -> Iterator[Finding]:
        """One warning for each of the other facts of ``cases`` cases.

        ``true_spacing``: whether voxels of 1 x 1 x 1 mm are no placeholder; ``unsaid``: although no person has said it.
        """
        if self.empty:
            what = f"has {len(self.empty)} empty mask(s) among {cases}, of {few_names(self.empty)}"
            remedy = (
                "they are taken for cases without the structure, which have no Dice and are scored by the volume of "
                "false positives; if one should have it, draw it"
            )
            yield Finding("warning", "mask-empty", masks, what, remedy)
        if 2 * self.at_corners > cases:
            what = f"has {self.at_corners} mask(s) among {cases} in which all four corners are inside a structure"
            remedy = "look whether black and white are exchanged, and export them again if they are"
            yield Finding("warning", "mask-inverted", masks, what, remedy)
        if self.dummies and not true_spacing:  # one for all: the geometry is usually lost for a whole set at once
            what = f"has a dummy geometry in {self.dummies} of {cases} header(s), 1 x 1 x 1 mm voxels and no rotation"
            remedy = (
                "without the original headers, distances and volumes in mm mean nothing; if the voxels are of this "
                "size, prepare with --true-spacing"
            )
            yield Finding("warning", "dummy-geometry", images, what, remedy)
        if self.dummies and unsaid:
            what = f"has voxels of 1 x 1 x 1 mm and no rotation in {self.dummies} of {cases} header(s), taken as real"
            remedy = (
                "if the headers have lost their voxel size, prepare with 'fedshift data prepare own', since distances "
                "and volumes in mm would mean nothing; if they have not, add --true-spacing to predict and evaluate"
            )
            yield Finding("warning", "spacing-unsaid", images, what, remedy)
        for number, units in self.units.items():
            if len(units) > 1:
                named = f" of {sequences[number]}" if len(sequences) > 1 else ""
                shown = "; ".join(f"{unit or 'none'} in {few_names(ids)}" for unit, ids in units.items())
                what = f"has scans{named} in several units ({shown}), whose intensities are no one scale"
                remedy = "export all in one unit, or keep the cases of one of them"
                yield Finding("warning", "units-differ", images, what, remedy)
        yield from self._looks_like_ct(images, sequences)

    def _looks_like_ct(self, folder: Path, sequences: Sequence[str]) -> Iterator[Finding]:
        low = [value for value in self.lowest if value <= LOW_CT]
        few = 2 * max(len(low), self.ct) <= len(self.lowest)
        if few or any("CT" in name.upper() for name in sequences):
            return
        named = [name for name in sequences if not re.fullmatch(r"\d{4}", name)]
        how = f"call the sequence CT where it is called {' or '.join(named)}" if named else "name it with --sequence CT"
        remedy = f"{how}, so that the plan takes CT's normalisation"
        if 2 * self.ct > len(self.lowest):
            yield Finding("warning", "looks-like-ct", folder, "is CT by its DICOM files and not by its name", remedy)
        else:
            what = f"looks like CT (down to {min(low):g})"
            yield Finding("warning", "looks-like-ct", folder, what, f"if it is, {remedy}")


@dataclass
class Contents:
    """Content that was seen so far, over all folders of one check: hash -> (case, where, split or None)."""

    images: dict[str, tuple[str, Path, str | None]] = field(default_factory=dict)
    masks: dict[str, tuple[str, Path, str | None]] = field(default_factory=dict)

    def shared(self, files: CaseFiles, decoded: Decoded, *, split: str | None, dataset: str) -> Iterator[Finding]:
        """Find content that two cases share: one patient under two names, or a mask that was copied by mistake.

        Prepared data sets are apart: the same scans may be in several, with other classes.
        """
        doubled = False
        for number, content in enumerate(decoded.contents):
            sha = f"{dataset} {content}"
            if sha in self.images and not doubled:
                other, where, other_split = self.images[sha]
                splits = f", one for {other_split} and one for {split}," if split and split != other_split else ""
                what = f"{files.named(number)}has the same voxels as case {other}{splits} in {where}"
                remedy = "keep one of the two, and in one split" if split else "remove one of the two"
                yield Finding("error", "same-content", files.images[number], what, remedy)
                doubled = True
            self.images.setdefault(sha, (files.id, files.image.parent, split))
        sha_mask = f"{dataset} {decoded.mask.sha256}"
        if not doubled and decoded.mask.voxels.any():
            if sha_mask in self.masks:
                other, where, _ = self.masks[sha_mask]
                what = f"is also the mask of case {other} in {where}"
                yield Finding("warning", "same-mask", files.mask, what, "see which is right")
            self.masks.setdefault(sha_mask, (files.id, files.mask.parent, split))


@dataclass
class Counts:
    """What a check has looked at."""

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
