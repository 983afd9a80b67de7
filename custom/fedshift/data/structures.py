"""Masks whose structures have names: which structure is which class, and their voxels on the image's grid.

A class is found by name or by code. A number says nothing: it differs from file to file.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedshift.data.labels import BACKGROUND, IGNORE, Labels
from fedshift.data.scan_file import ScanError
from fedshift.data.scans import Scan
from fedshift.schema.codes import plain_name
from fedshift.schema.names import few_names
from fedshift.schema.reading import Reading
from fedshift.schema.regions import Regions

MOST_STRUCTURES = 255  # that are drawn where nobody says which are wanted: values of a mask without names go up to this
CodeKey = tuple[tuple[str, str], tuple[str, str] | None]
LOOK = "look whether it is the right mask of the case"
_SAYS_NOTHING = re.compile(r"(?:(?:segment|segmentation|label|roi)?[ _-]*\d*)", re.IGNORECASE)
"""Names that a program gives to structures that nobody has named."""
_OLD_SNOMED = ("SRT", "SNM3", "99SDM")


class Remark(NamedTuple):
    """A warning of a mask: what is there, as the rest of a sentence about its file, and what to do."""

    what: str
    remedy: str = LOOK


@dataclass(frozen=True)
class Drawing:
    """A structure on the image's grid: its voxels, bool [z, y, x], and what was decided in drawing it."""

    voxels: np.ndarray
    remarks: tuple[Remark, ...] = ()
    resampled: str | None = None
    gaps: str | None = None


@dataclass(frozen=True)
class Structure:
    """A segment, or a region of interest (ROI): its name, its code, and how to draw it on the image's grid."""

    name: str
    code: CodeKey | None
    meaning: str
    """The code in words."""
    draw: Callable[[], Drawing]
    value: int | None = None
    """Of its voxels in the file, which a command line may have named."""


@dataclass(frozen=True)
class _Chosen:
    structure: Structure
    drawing: Drawing
    value: int
    name: str = ""
    """Of the class."""


def modern(value: str, scheme: str) -> tuple[str, str]:
    """A code's value and scheme; SNOMED's old codes (SRT), which DICOM has retired, as those that follow them."""
    if scheme in _OLD_SNOMED:
        try:
            table = importlib.import_module("pydicom.sr.coding").snomed_mapping["SRT"]
        except ImportError:  # a mask that is no DICOM, and pydicom is not installed
            return value, scheme
        return (str(table[value]), "SCT") if value in table else (value, scheme)
    return value, scheme


def paint(
    structures: Sequence[Structure],
    image: Scan,
    labels: Labels | None,
    path: Path,
    reading: Reading,
    *,
    sets: bool = False,
) -> tuple[Scan, list[Remark]]:
    """A mask of the structures of a file that are wanted, on its image's grid.

    Without ``labels`` all structures that can be drawn are, with the values 1, 2 and so on in the file's order, and
    where two overlap the later one has the voxel; or, as ``sets`` (`fedshift.runtime.regions`), all of them have it.
    Where structures are regions of ``labels``, a voxel is of the class that is in just the regions that it is in.
    ``reading``: what is known of the file so far.

    Returns:
        The mask, with the first of each class's values in ``labels``; and remarks.
    """
    chosen, remarks = _all_drawn(structures) if labels is None else _wanted(structures, labels, path)
    voxels = np.zeros(image.voxels.shape, np.uint16)
    if labels is not None and labels.regions is not None and _are_regions(chosen, labels, path):
        _paint_regions(voxels, chosen, labels, labels.regions, path)
    elif sets:
        for each in chosen:
            voxels[each.drawing.voxels] |= 1 << (each.value - 1)
    else:
        _paint_classes(voxels, chosen, path, exclusive=labels is not None)
    remarks += [remark for each in chosen for remark in each.drawing.remarks]
    record = reading.model_copy(
        update={
            "structures": ", ".join(f"{each.structure.name!r} is {each.name or each.value}" for each in chosen) or None,
            "resampled": _joined(each.drawing.resampled for each in chosen),
            "gaps": _joined(each.drawing.gaps for each in chosen),
            "remarks": (*reading.remarks, *(remark.what for remark in remarks)),
        }
    )
    mask = Scan(
        voxels, image.spacing, image.origin, image.direction, image.stored, image.stored_direction, reading=record
    )
    return mask, remarks


def _paint_classes(voxels: np.ndarray, chosen: Sequence[_Chosen], path: Path, *, exclusive: bool) -> None:
    for each in chosen:
        drawn = each.drawing.voxels
        both = drawn & (voxels != 0) & (voxels != each.value) if exclusive else np.zeros(1, bool)
        if both.any():
            what = f"has {int(both.sum())} voxel(s) of {each.structure.name!r} that are of another class too"
            remedy = "give each voxel one class, or name a task with 'regions' of structures that overlap"
            raise ScanError("mask-overlap", path, what, remedy)
        voxels[drawn] = each.value


def _are_regions(chosen: Sequence[_Chosen], labels: Labels, path: Path) -> bool:
    """Whether structures are regions; where all their names are of classes as well, whether they overlap."""
    assert labels.regions is not None
    names = [each.name for each in chosen if each.name not in (BACKGROUND, IGNORE)]
    no_regions = [name for name in names if name not in labels.regions.names]
    no_classes = [name for name in names if name not in labels.classes]
    if no_regions and no_classes:
        what = f"has {no_classes[0]}, a region, and {no_regions[0]}, a class"
        raise ScanError("structure-mixed", path, what, "export either the regions or the classes that they are made of")
    if no_regions or no_classes or not names:
        return bool(no_classes)
    covered = np.zeros(chosen[0].drawing.voxels.shape, bool)
    for each in chosen:
        if (covered & each.drawing.voxels).any():
            return True
        covered |= each.drawing.voxels
    return False


def _paint_regions(voxels: np.ndarray, chosen: Sequence[_Chosen], labels: Labels, regions: Regions, path: Path) -> None:
    """Paint the class that is in just the regions that a voxel is in, of those that the masks outline."""
    sets = np.zeros(voxels.shape, np.uint8)
    for each in chosen:
        if each.name in regions.names:
            sets[each.drawing.voxels] |= 1 << regions.names.index(each.name)
    outlined = [labels.classes.index(name) for name in labels.annotated or labels.classes[1:]]
    known = sum(1 << number for number in regions.known(outlined))
    class_of = {0: 0}
    for number in outlined:
        class_of.setdefault(int(regions.sets[number]) & known, number)
    for each_set in np.unique(sets).tolist():
        clashing = sets == each_set
        if each_set not in class_of:
            within, without = (
                [name for k, name in enumerate(regions.names) if known >> k & 1 and bool(each_set >> k & 1) is inside]
                for inside in (True, False)
            )
            what = f"has {int(clashing.sum())} voxel(s) that are {' and '.join(within)}, and not {' or '.join(without)}"
            remedy = "correct the mask, or give the task a class that is in just these regions"
            raise ScanError("mask-overlap", path, what, remedy)
        if each_set:
            voxels[clashing] = labels.values[labels.classes[class_of[each_set]]][0]
    for each in chosen:
        if each.name == IGNORE:
            voxels[each.drawing.voxels] = each.value


def _joined(texts: Iterable[str | None]) -> str | None:
    return "; ".join(dict.fromkeys(text for text in texts if text)) or None


def _all_drawn(structures: Sequence[Structure]) -> tuple[list[_Chosen], list[Remark]]:
    """All structures that can be drawn with their values, where nobody says which are wanted; remarks on the others."""
    chosen: list[_Chosen] = []
    faults: list[ScanError] = []
    for structure in structures[:MOST_STRUCTURES]:
        try:
            drawing = structure.draw()
        except ScanError as error:  # a point or a couch, for example, that no task asks for
            faults.append(error)
            continue
        chosen.append(_Chosen(structure, drawing, len(chosen) + 1))
    if faults and not chosen:
        raise faults[0]
    return chosen, [Remark(f"{fault.what}, which does not matter unless it is a class") for fault in faults]


def _wanted(structures: Sequence[Structure], labels: Labels, path: Path) -> tuple[list[_Chosen], list[Remark]]:
    wanted = [name for name in (labels.annotated or labels.classes[1:]) if name in labels.values]
    if (regions := labels.regions) is not None:
        known = regions.known(labels.classes.index(name) for name in wanted)
        wanted = list(dict.fromkeys((*wanted, *(regions.names[number] for number in known))))
    wanted += [IGNORE] if labels.ignored else []
    remarks: list[Remark] = []
    classes = _classes_of(structures, labels, wanted, path, remarks)
    chosen = [
        _Chosen(structure, structure.draw(), labels.values.get(name, [0])[0], name)
        for structure, name in zip(structures, classes, strict=True)
        if name in wanted
    ]
    if not chosen:
        named = ", ".join(repr(structure.name) for structure in structures[:8]) or "no structure"
        first = repr(structures[0].name) if structures else "NAME"
        remedy = f"say which one is, as in --label {wanted[0] if wanted else 'NAME'}={first}"
        raise ScanError("structure-missing", path, f"has {named}, none of which is {' or '.join(wanted)}", remedy)
    remarks += _of_one_name(chosen)
    unwanted = [structure.name for structure, name in zip(structures, classes, strict=True) if name is None]
    if unwanted:
        shown = ", ".join(map(repr, unwanted[:8]))
        remarks.append(Remark(f"has structures that are no class of the data set and are left out: {shown}"))
    return chosen, remarks


def _of_one_name(chosen: Sequence[_Chosen]) -> Iterable[Remark]:
    """Warn of structures of one name that a person has given to a class: nothing says whether all of them are meant."""
    of_name: dict[str, list[_Chosen]] = {}
    for each in chosen:
        of_name.setdefault(plain_name(each.structure.name), []).append(each)
    for same in of_name.values():
        if len(same) < 2 or same[0].name == BACKGROUND:
            continue
        once, twice = np.zeros((2, *same[0].drawing.voxels.shape), bool)
        for each in same:
            twice |= once & each.drawing.voxels
            once |= each.drawing.voxels
        names = few_names([repr(each.structure.name) for each in same])
        what = f"has {len(same)} structures of one name, {names}, which are all taken as {same[0].name}"
        what += f", and {np.count_nonzero(twice)} voxel(s) are in more than one of them" if twice.any() else ""
        yield Remark(what, "look whether they are its parts, and keep one of them if they are of several readers")


def _classes_of(
    structures: Sequence[Structure], labels: Labels, wanted: Sequence[str], path: Path, remarks: list[Remark]
) -> list[str | None]:
    by_name = {plain_name(name): name for name in wanted if name not in labels.structures.values()}
    by_code = {labels.codes[name].same_as: name for name in by_name.values() if name in labels.codes}
    names: dict[str, str] = {}
    classes: list[str | None] = []
    for structure in structures:
        key = plain_name(structure.name)
        if key in labels.structures:
            classes.append(labels.structures[key])  # several may be merged
            continue
        name = by_name.get(key)
        coded = None if structure.code is None else by_code.get(structure.code)
        if name is not None and coded not in (None, name):
            what = f"has a structure called {structure.name!r} with the code of {coded}"
            remedy = f"correct its code, or say what it is, as in --label {name}={structure.name!r}"
            raise ScanError("structure-code", path, what, remedy)
        if name is not None and coded is None and structure.code is not None and name in labels.codes:
            meaning = labels.codes[name].type.meaning
            what = f"calls a structure {structure.name!r} and codes it as {structure.meaning!r}, not {meaning!r}"
            remarks.append(Remark(what))
        name = _by_name_before_value(structure, name or coded, labels.value_names, path, remarks)
        if name in names and name != BACKGROUND:
            what = f"has two structures that are {name}, {names[name]!r} and {structure.name!r}"
            remedy = f"keep one of them, or say which, as in --label {name}={structure.name!r}"
            raise ScanError("structure-twice", path, what, remedy)
        if name is not None:
            names[name] = structure.name
        classes.append(name)
    return classes


def _by_name_before_value(
    structure: Structure, name: str | None, value_names: Mapping[int, str], path: Path, remarks: list[Remark]
) -> str | None:
    """The class of a structure by its name, or by its value where its name says nothing."""
    by_value = None if structure.value is None else value_names.get(structure.value)
    if name is None and by_value is not None and _SAYS_NOTHING.fullmatch(structure.name):
        return by_value
    if name is None and by_value not in (None, BACKGROUND):
        raise ScanError(
            "structure-code",
            path,
            f"calls its value {structure.value} {structure.name!r}, and what is said of the values is that it is "
            f"{by_value}",
            f"name structures in place of values, as in --label {by_value}={structure.name!r}, or correct its name",
        )
    is_said = by_value is not None or name in value_names.values()
    if name is not None and structure.value is not None and is_said and by_value != name:
        meant = f"it is said to be {by_value}" if by_value else f"{name} is said to have another"
        what = f"calls its value {structure.value} {structure.name!r}, where {meant}"
        remarks.append(Remark(what, "its name is followed; look at the mask on the image"))
    return name
