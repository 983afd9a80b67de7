"""Which sequences pictures have: red, green and blue, or one without a name for grey; and colours of their masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedshift.data.cases import CaseTable
from fedshift.data.labels import colours_as_values
from fedshift.data.picture_files import is_picture
from fedshift.data.picture_scan import COLOURS, has_colours, in_colour
from fedshift.data.scan_file import Finding, as_compared
from fedshift.schema.errors import ConfigError


def with_colours(table: CaseTable, wanted: Sequence[str] | None = None) -> CaseTable:
    """A table of pictures with their colours as sequences; any other table as it is.

    ``wanted``: the sequences of the task or of the prepared site, empty for one without a name, which pictures in grey
    have; None if nobody has said it: then all are in colour if one of them is that may be.

    Raises:
        ConfigError: sequences that no picture has.
    """
    pictures = [is_picture(case.image) for case in table.cases]
    if not any(pictures):
        return table
    if not all(pictures):
        of_other = [case for case, picture in zip(table.cases, pictures, strict=True) if not picture]
        what = f"is a volume, and the image of case {table.cases[pictures.index(True)].id} is a picture"
        more = [
            Finding(
                "error",
                "pictures-mixed",
                case.image,
                what,
                "put volumes and pictures into folders of their own",
                case.id,
            )
            for case in of_other
        ]
        cases = tuple(case for case in table.cases if is_picture(case.image))
        return with_colours(replace(table, cases=cases, findings=(*table.findings, *more)), wanted)
    if any(len(set(case.images)) > 1 for case in table.cases):
        what = f"{table.folder} has several pictures for a case, for the sequences {', '.join(table.sequences)}"
        how = "the sequences of a picture are its own colours, name one file, or put three into one in colour"
        raise ConfigError("several-pictures", f"{what}: {how}")
    names = table.sequences or _colours(table, wanted)
    if len(names) < 2 and not set(names) & set(COLOURS):
        return table
    known = {as_compared(name) for name in COLOURS}
    if other := next((name for name in names if as_compared(name) not in known), None):
        what = f"{table.folder} has pictures, whose sequences are {', '.join(COLOURS)}, and not {other!r}"
        raise ConfigError("sequence-unknown", f"{what}: name some of these with --sequence and in data.sequences")
    names = tuple(as_compared(name) for name in names)
    if len(names) not in (1, len(COLOURS)):
        what = f"{', '.join(names)} are two of three colours"
        raise ConfigError("sequence-count", f"{what}: take one or all with --sequence")
    numbers = tuple(map(COLOURS.index, names))
    cases = tuple(
        replace(case, images=(case.image,) * len(names), channels=numbers, sequences=names, volume=None)
        for case in table.cases
    )
    return replace(table, cases=cases, sequences=names)


def _colours(table: CaseTable, wanted: Sequence[str] | None) -> tuple[str, ...]:
    if wanted is not None:
        wants = {as_compared(name) for name in wanted} & set(COLOURS)
    else:
        wants = {case.id for case in table.cases if not case.channels and in_colour(case.image)}
    return COLOURS if wants else ()


def colours_of_masks(
    label_values: Mapping[str, Sequence[int | str]], tables: Sequence[CaseTable]
) -> dict[str, tuple[int | str, ...]]:
    """The ``label_values`` that a person has named, where colours are meant as values of colours.

    Three numbers are a colour where masks are pictures in colour.
    """
    asked = any(len(values) == 3 for values in label_values.values())
    masks = (case.mask for table in tables for case in table.cases)
    return colours_as_values(
        label_values, numbers=asked and any(is_picture(mask) and has_colours(mask) for mask in masks)
    )
