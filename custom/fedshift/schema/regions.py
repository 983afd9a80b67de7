"""Regions of a task: structures that are made of classes, and may overlap.

Masks and targets stay maps of classes. A network has an output for each region; losses and scores turn classes into
regions by the table that is here, and predictions turn sets of regions (`fedshift.runtime.regions`) into classes.

Structures that may overlap in any way have a class for each combination of them (`overlapping`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedshift.runtime.regions import MOST_REGIONS
from fedshift.schema.codes import plain_name
from fedshift.schema.strict import nearest

JOIN = "+"
"""Between the names of structures in that of the class of voxels that are in all of them."""


@dataclass(frozen=True)
class Regions:
    """``names`` of the regions, and for each the numbers of its classes, of ``n_classes`` with the background.

    ``order``: the class as which each region is written into a map of classes, region after region, so that later ones
    cover earlier ones; empty for the class that is in just the regions that a voxel is in.
    """

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    n_classes: int
    order: tuple[int, ...] = ()

    @cached_property
    def table(self) -> np.ndarray:
        """Whether a class is in a region, bool (classes, regions)."""
        table = np.zeros((self.n_classes, len(self.names)), bool)
        for number, members in enumerate(self.members):
            table[list(members), number] = True
        return table

    def named(self, classes: Sequence[str]) -> dict[str, list[str]]:
        """Region -> the names of its classes, in the order of the regions."""
        return {n: [classes[k] for k in numbers] for n, numbers in zip(self.names, self.members, strict=True)}

    @cached_property
    def sets(self) -> np.ndarray:
        """The set of regions of each value that a mask may have, uint8 (256,); of what is no class the empty one."""
        sets = np.zeros(256, np.uint8)
        sets[: self.n_classes] = self.table @ (1 << np.arange(len(self.names)))
        return sets

    @cached_property
    def written(self) -> tuple[int, ...]:
        """The class as which each set of regions is written, of 2 to the power of their number.

        Without ``order``, a set that no class has is written as the last of its regions alone.
        """
        classes = self.order or tuple(self._alone(number) for number in range(len(self.names)))
        first: dict[int, int] = {}
        if not self.order:
            for number in range(self.n_classes):
                first.setdefault(int(self.sets[number]), number)
        return tuple(first.get(each, self._last(each, classes)) for each in range(1 << len(self.names)))

    def _last(self, regions: int, classes: Sequence[int]) -> int:
        return classes[regions.bit_length() - 1] if regions else 0

    def _alone(self, number: int) -> int:
        """The class of a region that is in the fewest others."""
        return min(self.members[number], key=lambda each: int(self.table[each].sum()))

    def known(self, annotated: Iterable[int] | None) -> tuple[int, ...]:
        """The regions that masks outline which outline some classes (None for all): those of these classes alone."""
        if annotated is None:
            return tuple(range(len(self.names)))
        outlined = set(annotated)
        return tuple(number for number, members in enumerate(self.members) if outlined.issuperset(members))


def make_regions(
    regions: Mapping[str, Sequence[str]], classes: Sequence[str], order: Sequence[str] = ()
) -> Regions | None:
    """The regions of a task with these classes, the background first; None if it has none.

    Raises:
        ValueError: a region without classes, of one that is no class, or with the classes of another; too many; an
            order that does not have a class of each region, or hides a region.
    """
    if not regions:
        if order:
            raise ValueError("'regions_class_order' is for regions, and there are none: leave it out")
        return None
    if len(regions) > MOST_REGIONS:
        raise ValueError(f"{len(regions)} regions are named, at most {MOST_REGIONS} can be: leave some out")
    names: dict[frozenset[str], str] = {}
    spelled = {plain_name(name): name for name in classes[1:]}
    for name, members in regions.items():
        if (other := spelled.get(plain_name(name), name)) != name:
            raise ValueError(f"region {name!r} is called nearly as the class {other!r}: call it the same, or otherwise")
        if not members:
            raise ValueError(f"region {name!r} has no class: name at least one{nearest('', classes[1:])}")
        for member in members:
            if member not in classes[1:]:
                raise ValueError(f"region {name!r} has {member!r}, which is no class{nearest(member, classes[1:])}")
        if (twin := names.setdefault(frozenset(members), name)) != name:
            raise ValueError(f"regions {twin!r} and {name!r} have the same classes: leave one of them out")
    table = Regions(tuple(regions), _numbers(regions.values(), classes), len(classes))
    return table if not order else _ordered(table, classes, order)


def _numbers(regions: Iterable[Sequence[str]], classes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(sorted({classes.index(member) for member in members})) for members in regions)


def _ordered(regions: Regions, classes: Sequence[str], order: Sequence[str]) -> Regions:
    if len(order) != len(regions.names):
        raise ValueError(
            f"'regions_class_order' has {len(order)} classes, and there are {len(regions.names)} regions: name one for "
            "each, in the order of the regions"
        )
    for name, members, written in zip(regions.names, regions.members, order, strict=True):
        class_names = [classes[number] for number in members]
        if written not in class_names:
            raise ValueError(
                f"'regions_class_order' has {written!r}, which is no class of {name!r}{nearest(written, class_names)}"
            )
    for number, name in enumerate(regions.names):
        for other, covering in zip(regions.names[number + 1 :], regions.members[number + 1 :], strict=True):
            if set(covering) >= set(regions.members[number]):
                raise ValueError(
                    f"region {other!r} is written after {name!r} and hides it: name {other!r} before {name!r} in "
                    "'regions', and its class first in 'regions_class_order'"
                )
    return Regions(regions.names, regions.members, regions.n_classes, tuple(classes.index(name) for name in order))


def overlapping(structures: Sequence[str]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The classes and regions of structures that may overlap in any way: a class for each combination.

    The class of number n is in structure k, from 1, where bit k - 1 of n is set.

    Raises:
        ValueError: there are too many.
    """
    if len(structures) > MOST_REGIONS:
        raise ValueError(
            f"{len(structures)} structures may overlap, at most {MOST_REGIONS} can be: name those that do overlap"
        )
    sets = range(1, 1 << len(structures))
    names = {each: JOIN.join(s for k, s in enumerate(structures) if each >> k & 1) for each in sets}
    regions = {s: tuple(names[each] for each in sets if each >> k & 1) for k, s in enumerate(structures)}
    return ("background", *names.values()), regions
