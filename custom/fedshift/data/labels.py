"""What the values of a mask mean, and the names of its structures where it has some: which class each stands for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from pydantic import TypeAdapter, ValidationError

from fedshift.runtime.regions import IGNORED
from fedshift.schema.codes import ClassCodes, plain_name
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import ClassName
from fedshift.schema.regions import JOIN, Regions, make_regions
from fedshift.schema.strict import first_fault, nearest

BACKGROUND, IGNORE = "background", "ignore"
MOST_CLASSES = 256  # classes are stored in 8 bits
MOST_VALUE = 65535  # largest value of a mask that can be given a name
COLOUR = 1 << 24
"""What the value of a colour begins at: this, and red, green and blue as one number of 24 bits."""
_COLOUR = re.compile("#[0-9a-fA-F]{6}")
_NAME: TypeAdapter[str] = TypeAdapter(ClassName)


@dataclass(frozen=True)
class Labels:
    """A site's classes, and the value or values of a mask that stand for each.

    ``classes`` begins with the background, ``class_of`` maps each value that a mask may have, except 0, to the index of
    its class. ``annotated``: the classes that the masks outline, None for all but the background. In a mask that names
    its structures a class is the structure of its name, or of its code in ``codes``; ``structures`` maps other names
    (`fedshift.schema.codes.plain_name`) to their classes. ``value_names`` maps the values that a person or a file
    beside the masks has named to their classes, which names must not contradict.

    ``regions``: where classes make regions, their table; structures of a mask may then be regions and overlap
    (`fedshift.data.structures`). ``ignored``: the values of voxels to ignore.
    """

    classes: tuple[str, ...]
    class_of: Mapping[int, int]
    annotated: tuple[str, ...] | None = None
    structures: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, ClassCodes] = field(default_factory=dict)
    value_names: Mapping[int, str] = field(default_factory=dict)
    regions: Regions | None = None
    ignored: frozenset[int] = frozenset()

    @classmethod
    def of_classes(
        cls, classes: Sequence[str], annotated: tuple[str, ...] | None = None, *, ignore: bool = False
    ) -> Labels:
        """The labels of prepared masks: each value is the index of its class, or `IGNORED` if they have such."""
        allowed = classes[1:] if annotated is None else annotated
        values = {classes.index(name): classes.index(name) for name in allowed}
        return cls(tuple(classes), values, annotated, ignored=frozenset([IGNORED] if ignore else []))

    @classmethod
    def named(cls, values: Mapping[str, Iterable[int]]) -> Labels:
        """Labels from names and their values, in the order given; names may repeat the background's.

        The values of the name ``ignore`` are `ignored`.
        """
        ignored = frozenset(_value(value, IGNORE) for value in values.get(IGNORE, ()))
        values = {name: each for name, each in values.items() if name != IGNORE}
        classes = (BACKGROUND, *(check_name(name) for name in values if name != BACKGROUND))
        if len(classes) > MOST_CLASSES:
            what = f"{len(classes)} classes are named, at most {MOST_CLASSES} can be: leave some out"
            raise ConfigError("too-many-classes", what)
        class_of: dict[int, int] = {}
        for name, each in values.items():
            index = classes.index(name)
            for value in each:
                if index or not (0 <= value <= MOST_VALUE or is_colour(value)):
                    _value(value, name)
                if value in ignored:
                    raise ConfigError(
                        "label-shared",
                        f"value {shown(value)} stands for {name} and is to be ignored: leave one of the two out",
                    )
                if class_of.setdefault(value, index) != index:
                    raise ConfigError(
                        "label-shared",
                        f"value {shown(value)} stands for {classes[class_of[value]]} and for {name}: a voxel has one "
                        "class, so give the value to one of them",
                    )
        class_of.pop(0, None)
        return cls(classes, MappingProxyType(class_of), ignored=ignored)

    @classmethod
    def of_regions(cls, values: Mapping[str, Iterable[int]], order: Sequence[int] = ()) -> Labels:
        """Labels from regions and their values, which they may share: values of the same regions are a class.

        A class is called as the region whose place its value has in ``order`` (nnU-Net's ``regions_class_order``), or
        as its regions.

        Raises:
            ConfigError: names or values that cannot be, or regions as `fedshift.schema.regions.make_regions`.
        """
        ignored, of_regions = (
            values.get(IGNORE, ()),
            {n: [*v] for n, v in values.items() if n not in (IGNORE, BACKGROUND)},
        )
        wrong = any(
            value not in region_values for value, region_values in zip(order, of_regions.values(), strict=False)
        )
        if order and (wrong or len(order) != len(of_regions)):
            fault = f"regions_class_order is {', '.join(map(str, order))}, and the regions are {', '.join(of_regions)}"
            raise ConfigError("regions-order", f"{fault}: give one of the values of each, in their order")
        named = dict(zip(order, of_regions, strict=False))
        sets: dict[tuple[str, ...], list[int]] = {}
        for value in sorted({value for each in of_regions.values() for value in each}):
            sets.setdefault(tuple(name for name, each in of_regions.items() if value in each), []).append(value)
        called = {
            each: next((named[v] for v in set_values if v in named), JOIN.join(each))
            for each, set_values in sets.items()
        }
        if len(set(called.values())) < len(called):
            called = {each: JOIN.join(each) for each in sets}
        labels = cls.named(
            {
                BACKGROUND: values.get(BACKGROUND, ()),
                **{called[e]: set_values for e, set_values in sets.items()},
                IGNORE: ignored,
            }
        )
        members = {name: [called[each] for each in sets if name in each] for name in of_regions}
        written = [labels.classes[labels.class_of[value]] for value in order]
        return replace(labels, regions=regions_of(members, labels.classes, written))

    @property
    def values(self) -> dict[str, list[int]]:
        """Class -> its values, as manifests record them; classes without a value are left out."""
        values_of: dict[str, Iterable[int]] = {
            name: [v for v, k in self.class_of.items() if k == index] for index, name in enumerate(self.classes)
        }
        values_of[IGNORE] = self.ignored
        return {name: sorted(values) for name, values in values_of.items() if values}

    @property
    def recorded(self) -> dict[str, list[int | str]]:
        """`values` as a manifest has them, where a colour is ``#ff0000``; `colours_as_values` reads them."""
        return {name: [shown(v) if is_colour(v) else v for v in values] for name, values in self.values.items()}

    @property
    def by_colour(self) -> bool:
        """Whether the masks are pictures whose colours stand for classes."""
        return any(map(is_colour, self.class_of))

    @property
    def structure(self) -> str:
        return " or ".join(self.annotated or self.classes[1:])

    def __str__(self) -> str:
        """``0 outside, 1 left kidney, 2 or 3 right kidney``."""
        parts = [f"{' or '.join(map(shown, values))} {name}" for name, values in self.values.items()]
        return ", ".join(["0 outside", *parts])


def is_colour(value: int) -> bool:
    """Whether a value stands for a colour."""
    return COLOUR <= value < 2 * COLOUR


def shown(value: int) -> str:
    """A value as people write it, a colour as ``#ff0000``."""
    return f"#{value - COLOUR:06x}" if is_colour(value) else str(value)


def colours_as_values(
    values_of: Mapping[str, Sequence[int | str]], *, numbers: bool = False
) -> dict[str, tuple[int | str, ...]]:
    """Class -> values, in which colours such as ``#ff0000`` are numbers from `COLOUR` on.

    ``numbers``: whether three numbers are red, green and blue of one colour, as in masks in colour.
    """
    settled: dict[str, tuple[int | str, ...]] = {}
    for name, values in values_of.items():
        if numbers and len(values) == 3 and all(isinstance(value, int) and 0 <= value < 256 for value in values):
            red, green, blue = (int(value) for value in values)
            settled[name] = (COLOUR + (red << 16) + (green << 8) + blue,)
        else:
            settled[name] = tuple(
                COLOUR + int(value[1:], 16) if isinstance(value, str) and _COLOUR.fullmatch(value) else value
                for value in values
            )
    return settled


def _value(value: int, name: str) -> int:
    if not (1 <= value <= MOST_VALUE or is_colour(value)):
        raise ConfigError("label-value", f"{value} cannot stand for {name}: give values from 1 to {MOST_VALUE}")
    return value


def regions_of(
    regions: Mapping[str, Sequence[str]], classes: Sequence[str], order: Sequence[str] = ()
) -> Regions | None:
    """`fedshift.schema.regions.make_regions`, with a ConfigError."""
    try:
        return make_regions(regions, classes, order)
    except ValueError as error:
        raise ConfigError("regions-invalid", str(error)) from None


def check_name(name: str, *, what: str = "a class") -> str:
    """The name of a class (or of what else is in results and tables) as it is.

    Raises:
        ConfigError: it cannot be one.
    """
    try:
        return _NAME.validate_python(name)
    except ValidationError as error:
        raise ConfigError("class-name", first_fault(error).replace("a class", what)) from None


def parse_labels(texts: Iterable[str]) -> dict[str, tuple[int | str, ...]]:
    """Class -> values, from texts such as ``prostate=1,2``; or names of structures, as in ``prostate=Whole gland``.

    Raises:
        ConfigError: a text of another form, or a name given twice.
    """
    values_of: dict[str, tuple[int | str, ...]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.rpartition("="))
        numbers = tuple(_number_or_name(value.strip()) for value in values.split(","))
        if not (name and equals and all(number != "" for number in numbers)):
            raise ConfigError(
                "option-form",
                f"--label takes a name and values of the masks, such as prostate=1,2, not {text!r}; of masks that name "
                "their structures, as DICOM does, these names, such as 'prostate=Whole gland'; of masks in colour, a "
                "colour, such as cup=255,0,0",
            )
        if name in values_of:
            raise ConfigError("option-twice", f"--label names {name} twice: write --label {name}=VALUE,VALUE once")
        values_of[name] = numbers
    return values_of


def every_label(classes: Sequence[str], values: Iterable[int] = range(1, MOST_CLASSES)) -> str:
    """``--label A=1 --label B=2``: the part of a command that says what the values are of all classes but the first."""
    return " ".join(f"--label {shlex.quote(name)}={value}" for name, value in zip(classes[1:], values, strict=False))


def _number_or_name(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text if _COLOUR.fullmatch(text) or any(character.isalpha() for character in text) else ""


def settle_labels(
    *,
    label_values: Mapping[str, Sequence[int | str]] = MappingProxyType({}),
    described: Labels | None = None,
    recorded: Labels | None = None,
    classes: Sequence[str] | None = None,
    annotated: Sequence[str] | None = None,
    codes: Mapping[str, ClassCodes] = MappingProxyType({}),
    named: bool = False,
    regions: Regions | None = None,
    ignore: bool | None = None,
) -> Labels | None:
    """The labels of a site's masks, from all that is known; None if nothing says what the values mean.

    The ``label_values`` that a person names come before what a file beside the masks says (``described``), and that
    before what an earlier preparation has ``recorded``. ``classes`` are the task's or the prepared site's, the
    background first; ``annotated`` those that the masks outline, None for all; by ``codes`` their structures are found
    in masks that name them. ``named``: whether all masks do. ``regions``: of the task's classes; ``annotated``, names
    and values may then be of regions too. ``ignore``: whether the task has voxels to ignore; None if there is no task.

    Raises:
        ConfigError: names that do not fit together, or a class that is annotated and has no value.
    """
    if classes is not None:
        annotated = _classes_of_regions(annotated, classes, regions)
        _refuse_unknown(annotated or (), classes[1:])
    numbers, structures = _numbers_and_structures(label_values, named=named)
    value_names = {value: name for name, values in label_values.items() for value in values if isinstance(value, int)}
    if described is not None and not label_values:
        value_names = {value: name for name, values in described.values.items() for value in values}
    described = described or recorded
    if label_values:
        labels: Labels | None = _named(numbers, classes, regions, named=named)
    elif described is None and classes is not None and named:
        labels = Labels.of_classes(classes, ignore=bool(ignore))
    elif described is None and classes is not None and len(annotated or classes[1:]) == 1:
        labels = Labels.named({(annotated or classes[1:])[0]: (1,)})  # one structure, and 1 is inside
    else:
        labels = described
    if labels is None:
        return None
    prepared = regions is None and ignore is None and classes is not None and {*labels.classes} <= {*classes}
    if labels.regions is not None and classes is not None and not prepared:
        labels = _with_regions_of(labels, labels.regions, classes, regions)
    if labels.ignored and ignore is False:
        raise ConfigError(
            "ignore-unknown", "masks have voxels to ignore, and the task has none: set ignore: true in its file"
        )
    if classes is not None:
        labels = _in_order_of(labels, classes, from_file=not label_values)
    if annotated is None and labels.annotated is not None:
        annotated = labels.annotated
    if annotated is not None:
        _refuse_unknown(annotated, labels.classes[1:])
        annotated = tuple(name for name in labels.classes[1:] if name in annotated)
        of_annotated = {
            value: k for value, k in labels.class_of.items() if labels.classes[k] in (BACKGROUND, *annotated)
        }
        labels = replace(labels, class_of=of_annotated, annotated=annotated)
    for name in annotated or labels.classes[1:]:
        if name not in labels.values:
            raise ConfigError(
                "class-without-value",
                f"no value of the masks is given for {name}: add --label {name}=VALUE, or, if the masks of this site "
                "do not outline it, name those that they do with --annotated",
            )
    regions = regions or labels.regions
    known = {name.lower(): name for name in (*(regions.names if regions else ()), *labels.classes)}
    known |= {BACKGROUND: BACKGROUND, IGNORE: IGNORE}
    structures = {structure: known[name.lower()] for structure, name in structures.items()}
    value_names = {value: known[name.lower()] for value, name in value_names.items() if name.lower() in known}
    codes = {name: class_codes for name, class_codes in codes.items() if name in known.values()}
    return replace(labels, structures=structures, codes=codes, value_names=value_names, regions=regions)


def _classes_of_regions(
    annotated: Sequence[str] | None, classes: Sequence[str], regions: Regions | None
) -> Sequence[str] | None:
    """Classes that masks outline, in place of names of regions, as which those are taken that can be both."""
    if annotated is None or regions is None:
        return annotated
    if {*annotated} <= {*classes} and not {*annotated} <= {*regions.names}:
        return annotated
    _refuse_unknown(annotated, (*classes[1:], *regions.names))
    members = {
        name: [classes[n] for n in numbers] for name, numbers in zip(regions.names, regions.members, strict=True)
    }
    outlined = {name for each in annotated for name in members.get(each, [each])}
    known = [regions.names[n] for n in regions.known(classes.index(name) for name in outlined)]
    if more := [name for name in known if name not in annotated]:
        raise ConfigError(
            "regions-partial",
            f"--annotated names {', '.join(annotated)}, whose classes are all those of {more[0]} too: masks that do "
            f"not outline {more[0]} cannot tell them apart, so leave the site out, or name {more[0]} too",
        )
    return [name for name in classes[1:] if name in outlined]


def _named(
    values: Mapping[str, Sequence[int]], classes: Sequence[str] | None, regions: Regions | None, *, named: bool
) -> Labels:
    """Labels from names and their values, which regions may share; or names of regions in masks that name them."""
    names = {name.lower() for name in values} - {BACKGROUND, IGNORE}
    if regions is not None and classes is not None and names <= {name.lower() for name in regions.names}:
        if named and not names <= {name.lower() for name in classes}:
            return Labels.of_classes(classes)
        every = [value for name, each in values.items() if name.lower() in names for value in each]
        if len(set(every)) < len(every) or not names <= {name.lower() for name in classes}:
            return Labels.of_regions(values)
    return Labels.named(values)


def _with_regions_of(labels: Labels, label_regions: Regions, classes: Sequence[str], regions: Regions | None) -> Labels:
    """Labels with the classes of a task, each found by its regions; ``label_regions`` are those of the masks."""
    if regions is None:
        raise ConfigError(
            "regions-unknown",
            f"the masks have the regions {', '.join(label_regions.names)}, which overlap, and the task has none: give "
            "its file 'regions', or say which values are which class with --label",
        )
    known = {name.lower(): number for number, name in enumerate(regions.names)}
    for name in label_regions.names:
        if name.lower() not in known:
            raise ConfigError(
                "class-unknown", f"the masks have {name!r}, which is no region{nearest(name, regions.names)}"
            )
    values: dict[str, list[int]] = {}
    for number, name in enumerate(labels.classes[1:], start=1):
        within_regions = frozenset(
            known[label_regions.names[k].lower()] for k in np.flatnonzero(label_regions.table[number])
        )
        bits = sum(1 << k for k in within_regions)
        of_task = next((c for c in range(1, len(classes)) if int(regions.sets[c]) == bits), None)
        if of_task is None:
            within = " and ".join(regions.names[k] for k in sorted(within_regions))
            raise ConfigError(
                "regions-unknown",
                f"the masks have voxels that are {within} and nothing else, and the task has no class that is: add one "
                "to its classes and regions",
            )
        values.setdefault(classes[of_task], []).extend(labels.values.get(name, ()))
    return replace(Labels.named({**values, IGNORE: labels.ignored}), annotated=None)


def _refuse_unknown(annotated: Sequence[str], known: Sequence[str]) -> None:
    for name in annotated:
        if name not in known:
            raise ConfigError("class-unknown", f"--annotated names {name!r}, which is no class{nearest(name, known)}")


def _numbers_and_structures(
    label_values: Mapping[str, Sequence[int | str]], *, named: bool
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """The values of each class, a free one for a class that only names structures; and structure -> class."""
    numbers = {name: tuple(v for v in values if isinstance(v, int)) for name, values in label_values.items()}
    structures: dict[str, str] = {}
    for name, values in label_values.items():
        for value in values:
            if isinstance(value, str) and structures.setdefault(plain_name(value), name) != name:
                raise ConfigError("label-shared", f"structure {value!r} stands for two classes: give it to one of them")
    used = {value for values in numbers.values() for value in values}
    for name in label_values:
        if not numbers[name] and not named:
            raise ConfigError(
                "label-structure",
                f"--label {name}={label_values[name][0]} names a structure, as DICOM masks have, and these masks have "
                f"values: give whole numbers, such as {name}=1,2",
            )
        if not numbers[name] and name != BACKGROUND:
            free = next(value for value in range(1, MOST_VALUE) if value not in used)
            used.add(free)
            numbers[name] = (free,)
    return numbers, structures


def _in_order_of(labels: Labels, classes: Sequence[str], *, from_file: bool) -> Labels:
    """The same labels with the indices of ``classes``; names are compared without regard to case."""
    known = {name.lower(): name for name in (BACKGROUND, *classes[1:])}
    values: dict[str, list[int]] = {name: [] for name in classes[1:]}
    for name, numbers in labels.values.items():
        if name == IGNORE:
            continue
        if name.lower() not in known:
            where = "the description beside the masks has" if from_file else "--label has"
            named = f"--label {classes[1]}=1,2" if len(classes) == 2 else every_label(classes)
            raise ConfigError(
                "class-unknown",
                f"{where} {name!r}, which is none of the classes {', '.join(classes[1:])}: say which values stand for "
                f"these, as in {named}",
            )
        values.setdefault(known[name.lower()], []).extend(numbers)
    settled = replace(Labels.named(values), ignored=labels.ignored)
    annotated = labels.annotated and tuple(known[name.lower()] for name in labels.annotated if name.lower() in known)
    return replace(settled, classes=(classes[0], *settled.classes[1:]), annotated=annotated)
