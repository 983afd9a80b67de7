"""What the values of a mask mean, and the names of its structures where it has some: which class each stands for."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pydantic import TypeAdapter, ValidationError

from fedshift.schema.codes import ClassCodes, plain_name
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import ClassName
from fedshift.schema.strict import first_fault, nearest

BACKGROUND = "background"
MOST_CLASSES = 256  # classes are stored in 8 bits
MOST_VALUE = 65535  # largest value of a mask that can be given a name
_NAME: TypeAdapter[str] = TypeAdapter(ClassName)


@dataclass(frozen=True)
class Labels:
    """A site's classes, and the value or values of a mask that stand for each.

    ``classes`` begins with the background, ``class_of`` maps each value that a mask may have, except 0, to the index of
    its class. ``annotated``: the classes that the masks outline, None for all but the background. In a mask that names
    its structures a class is the structure of its name, or of its code in ``codes``; ``structures`` maps other names
    (`fedshift.schema.codes.plain_name`) to their classes. ``said`` maps the values that a person or a file beside the
    masks has named to their classes, which names must not contradict.
    """

    classes: tuple[str, ...]
    class_of: Mapping[int, int]
    annotated: tuple[str, ...] | None = None
    structures: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, ClassCodes] = field(default_factory=dict)
    said: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of_classes(cls, classes: Sequence[str], annotated: tuple[str, ...] | None = None) -> Labels:
        """The labels of prepared masks: each value is the index of its class."""
        allowed = classes[1:] if annotated is None else annotated
        return cls(tuple(classes), {classes.index(name): classes.index(name) for name in allowed}, annotated)

    @classmethod
    def named(cls, values: Mapping[str, Iterable[int]]) -> Labels:
        """Labels from names and their values, in the order given; names may repeat the background's."""
        classes = (BACKGROUND, *(check_name(name) for name in values if name != BACKGROUND))
        if len(classes) > MOST_CLASSES:
            what = f"{len(classes)} classes are named, at most {MOST_CLASSES} can be: leave some out"
            raise ConfigError("too-many-classes", what)
        class_of: dict[int, int] = {}
        for name, each in values.items():
            index = classes.index(name)
            for value in each:
                if not 0 <= value <= MOST_VALUE or (value == 0 and index):
                    what = f"{value} cannot stand for {name}: give values from 1 to {MOST_VALUE}"
                    raise ConfigError("label-value", what)
                if class_of.setdefault(value, index) != index:
                    raise ConfigError(
                        "label-shared",
                        f"value {value} stands for {classes[class_of[value]]} and for {name}: a voxel has one class, "
                        "so give the value to one of them",
                    )
        class_of.pop(0, None)
        return cls(classes, MappingProxyType(class_of))

    @property
    def values(self) -> dict[str, list[int]]:
        """Class -> its values, as manifests record them; classes without a value are left out."""
        values_of = {
            name: [v for v, k in self.class_of.items() if k == index] for index, name in enumerate(self.classes)
        }
        return {name: sorted(values) for name, values in values_of.items() if values}

    @property
    def structure(self) -> str:
        return " or ".join(self.annotated or self.classes[1:])

    def __str__(self) -> str:
        """``0 outside, 1 left kidney, 2 or 3 right kidney``."""
        parts = [f"{' or '.join(map(str, values))} {name}" for name, values in self.values.items()]
        return ", ".join(["0 outside", *parts])


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
                "their structures, as DICOM does, these names, such as 'prostate=Whole gland'",
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
        return text if any(character.isalpha() for character in text) else ""


def settle_labels(
    *,
    given: Mapping[str, Sequence[int | str]] = MappingProxyType({}),
    described: Labels | None = None,
    recorded: Labels | None = None,
    classes: Sequence[str] | None = None,
    annotated: Sequence[str] | None = None,
    codes: Mapping[str, ClassCodes] = MappingProxyType({}),
    named: bool = False,
) -> Labels | None:
    """The labels of a site's masks, from all that is known; None if nothing says what the values mean.

    What a person has ``given`` comes before what a file beside the masks says (``described``), and that before what an
    earlier preparation has ``recorded``. ``classes`` are the task's or the prepared site's, the background first;
    ``annotated`` those that the masks outline, None for all; by ``codes`` their structures are found in masks that name
    them. ``named``: whether all masks do.

    Raises:
        ConfigError: names that do not fit together, or a class that is annotated and has no value.
    """
    if classes is not None:
        _refuse_unknown(annotated or (), classes[1:])
    numbers, structures = _numbers_and_structures(given, named=named)
    said = {value: name for name, values in given.items() for value in values if isinstance(value, int)}
    if described is not None and not given:
        said = {value: name for name, values in described.values.items() for value in values}
    described = described or recorded
    if given:
        labels: Labels | None = Labels.named(numbers)
    elif described is None and classes is not None and named:
        labels = Labels.of_classes(classes)
    elif described is None and classes is not None and len(annotated or classes[1:]) == 1:
        labels = Labels.named({(annotated or classes[1:])[0]: (1,)})  # one structure, and 1 is inside
    else:
        labels = described
    if labels is None:
        return None
    if classes is not None:
        labels = _in_order_of(labels, classes, from_file=not given)
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
    known = {name.lower(): name for name in labels.classes} | {BACKGROUND: BACKGROUND}
    structures = {structure: known[name.lower()] for structure, name in structures.items()}
    said = {value: known[name.lower()] for value, name in said.items() if name.lower() in known}
    codes = {name: those for name, those in codes.items() if name in labels.classes}
    return replace(labels, structures=structures, codes=codes, said=said)


def _refuse_unknown(annotated: Sequence[str], known: Sequence[str]) -> None:
    for name in annotated:
        if name not in known:
            raise ConfigError("class-unknown", f"--annotated names {name!r}, which is no class{nearest(name, known)}")


def _numbers_and_structures(
    given: Mapping[str, Sequence[int | str]], *, named: bool
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """The values of each class, a free one for a class that only names structures; and structure -> class."""
    numbers = {name: tuple(v for v in values if isinstance(v, int)) for name, values in given.items()}
    structures: dict[str, str] = {}
    for name, values in given.items():
        for value in values:
            if isinstance(value, str) and structures.setdefault(plain_name(value), name) != name:
                raise ConfigError("label-shared", f"structure {value!r} stands for two classes: give it to one of them")
    taken = {value for values in numbers.values() for value in values}
    for name in given:
        if not numbers[name] and not named:
            raise ConfigError(
                "label-structure",
                f"--label {name}={given[name][0]} names a structure, as DICOM masks have, and these masks have values: "
                f"give whole numbers, such as {name}=1,2",
            )
        if not numbers[name] and name != BACKGROUND:
            free = next(value for value in range(1, MOST_VALUE) if value not in taken)
            taken.add(free)
            numbers[name] = (free,)
    return numbers, structures


def _in_order_of(labels: Labels, classes: Sequence[str], *, from_file: bool) -> Labels:
    """The same labels with the indices of ``classes``; names are compared without regard to case."""
    known = {name.lower(): name for name in (BACKGROUND, *classes[1:])}
    values: dict[str, list[int]] = {name: [] for name in classes[1:]}
    for name, numbers in labels.values.items():
        if name.lower() not in known:
            where = "the description beside the masks has" if from_file else "--label has"
            named = f"--label {classes[1]}=1,2" if len(classes) == 2 else every_label(classes)
            raise ConfigError(
                "class-unknown",
                f"{where} {name!r}, which is none of the classes {', '.join(classes[1:])}: say which values stand for "
                f"these, as in {named}",
            )
        values.setdefault(known[name.lower()], []).extend(numbers)
    settled = Labels.named(values)
    annotated = labels.annotated and tuple(known[name.lower()] for name in labels.annotated if name.lower() in known)
    return replace(settled, classes=(classes[0], *settled.classes[1:]), annotated=annotated)
