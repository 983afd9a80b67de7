"""Codes of classes: what a class is called in DICOM segmentations, structure sets and reports.

They also say which tasks take cases without their structure, such as patients without a lesion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    model_serializer,
    model_validator,
)

from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import Sparse, Strict

SHORT = 16
"""Characters of a code's value and scheme, which are short strings (SH)."""


def _plain(text: str) -> str:
    if not text.isprintable() or "\\" in text or text != text.strip():
        raise ValueError("has characters that a DICOM code cannot have")
    return text


def _text(value: object) -> object:
    """YAML reads the number of a concept as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _short(text: str) -> str:
    if not 0 < len(_plain(text)) <= SHORT:
        raise ValueError(f"must have 1 to {SHORT} characters")
    return text


_Short = Annotated[str, BeforeValidator(_text), AfterValidator(_short)]
_Long = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_plain)]


class Code(Strict):
    """A concept of a coding scheme, written as a list: ``[41216001, SCT, Prostate]``.

    ``scheme`` is the designator of DICOM PS3.16, section 8: ``SCT`` for SNOMED CT; one of one's own begins with ``99``.
    """

    value: _Short
    scheme: _Short
    meaning: _Long

    @model_validator(mode="before")
    @classmethod
    def _of_a_list(cls, raw: Any) -> Any:
        if isinstance(raw, list | tuple):
            if len(raw) != 3:
                raise ValueError("must be a list of value, scheme and meaning, such as [41216001, SCT, Prostate]")
            return dict(zip(("value", "scheme", "meaning"), raw, strict=True))
        return raw

    @model_serializer
    def _as_a_list(self) -> list[str]:
        return [self.value, self.scheme, self.meaning]

    @property
    def same_as(self) -> tuple[str, str]:
        """What two codes of one concept have in common, whatever they call it."""
        return self.value, self.scheme


class ClassCodes(Sparse):
    """Codes of one class, as DICOM SEG has them (PS3.3, C.8.20.4).

    ``category``: what sort of thing it is, such as an anatomical structure; ``type``: the thing; ``modifier``: which
    part or side of it.
    """

    RARE = ("modifier",)

    category: Code
    type: Code
    modifier: Code | None = None

    @property
    def same_as(self) -> tuple[tuple[str, str], tuple[str, str] | None]:
        """What two classes that are the same have in common: the type and its modifier."""
        return self.type.same_as, None if self.modifier is None else self.modifier.same_as


Codes = dict[str, ClassCodes]
"""Class -> its codes."""
LESION = frozenset({("49755003", "SCT"), ("M-01000", "SRT")})
"""Categories of what a patient need not have: Morphologically Altered Structure (PS3.16, CID 7150), also formerly."""
WITHOUT_STRUCTURE = "cases_without_structure"
"""Key in ``preparation`` of volumes: how many of the site's masks are empty."""
_LETTERS = re.compile(r"[^a-z0-9]+")


def plain_name(name: str) -> str:
    """A name as it is compared with others: ``Whole gland``, ``whole_gland`` and ``WHOLE GLAND`` are one."""
    return _LETTERS.sub(" ", name.lower()).strip()


def parse_codes(task: Mapping[str, Any], *, where: str) -> Codes:
    """The codes in a task's file; empty if it has none.

    Args:
        task: the file's content.
        where: how to name it in errors.

    Raises:
        ConfigError: they are none.
    """
    raw = task.get("codes") or {}
    if not isinstance(raw, dict):
        raise ConfigError("invalid-value", f"{where}: 'codes' must map classes to category and type")
    return {str(name): ClassCodes.parse(codes, where=f"{where}: codes of {name}") for name, codes in raw.items()}


def takes_empty(data: Mapping[str, Any], classes: Sequence[str], codes: Codes) -> bool:
    """Whether masks may be empty: what ``data.empty`` says, else whether all classes are lesions by their category.

    Args:
        data: the task's ``data``.
        classes: the task's, the background first.
        codes: of the classes.
    """
    stated = data.get("empty")
    if stated is not None:
        return bool(stated)
    foreground = classes[1:]
    return bool(foreground) and all(name in codes and codes[name].category.same_as in LESION for name in foreground)
