"""Settings models that refuse what they do not know, and name the nearest key they do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer
from pydantic_core import ErrorDetails

from fedshift.schema.errors import ConfigError


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'rounds'? Known: …`` for an unknown name."""
    known = sorted(known)
    close = closest(name, known)
    hint = f"; did you mean {close!r}?" if close else ";"
    return f"{hint} Known: {', '.join(known) or 'none'}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, upper and lower case being the same; None if nothing is like it."""
    by_lower_case = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.5)
    return by_lower_case[close[0]] if close else None


class Strict(BaseModel):
    """Frozen settings. ``parse`` turns every fault into one sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @classmethod
    def parse(cls, raw: Any, *, where: str) -> Self:
        """Build from plain data; ``where`` is the file or option named in the error.

        Raises:
            ConfigError: an unknown key (with the nearest known one), a missing key or a bad value.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            # A misspelt key is also a missing one; the unknown name says more.
            first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
            path = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                known = _known_keys(cls, first["loc"][:-1])
                raise ConfigError(
                    "unknown-key", f"{where}: unknown key {path!r}{nearest(str(first['loc'][-1]), known)}"
                ) from None
            reason = sentence(first)
            if first["type"] == "value_error":  # a sentence of ours
                raise ConfigError(
                    "invalid-value", f"{where}: {path!r}: {reason}" if path else f"{where}: {reason}"
                ) from None
            place = f"{path!r} " if path else ""
            raise ConfigError(
                "invalid-value", f"{where}: {place}{reason[0].lower()}{reason[1:]}{_instead(first)}"
            ) from None


class Sparse(Strict):
    """Settings that leave keys at their defaults out of files, so that these stay short."""

    RARE: ClassVar[tuple[str, ...]]
    """The keys that are left out."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialise(self)
        fields = type(self).model_fields
        return {
            key: value
            for key, value in content.items()
            if key not in self.RARE or getattr(self, key) != fields[key].default
        }


def sentence(fault: ErrorDetails) -> str:
    """What a fault says: a validator's own sentence without pydantic's words before it, or pydantic's sentence."""
    return str(fault["ctx"]["error"]) if fault["type"] == "value_error" else fault["msg"]


def first_fault(error: ValueError) -> str:
    """What is wrong in a file's content, in one line, such as ``rounds.0.seconds: Field required``."""
    if not isinstance(error, ValidationError):
        return str(error).partition("\n")[0]
    fault = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    return f"{place}: {sentence(fault)}" if place else sentence(fault)


MAX_ECHO = 40
"""Characters of a refused value that an error message repeats."""


def _instead(fault: ErrorDetails) -> str:
    """``, not 'maen'; did you mean 'mean'?`` for a single value that was refused.

    Texts are repeated only where a number or one of a few words was expected: others may be paths, which must not get
    into a message that leaves a site.
    """
    value, kind = fault["input"], fault["type"]
    is_choice = kind == "literal_error"
    may_be_text = is_choice or kind.endswith("_parsing")
    if not isinstance(value, (bool, int, float, str) if may_be_text else (bool, int, float)):
        return ""
    near = closest(str(value), re.findall(r"'([^']+)'", fault["ctx"]["expected"])) if is_choice else None
    return f", not {value!r:.{MAX_ECHO}}" + (f"; did you mean {near!r}?" if near else "")


def _known_keys(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """Field names of the model that ``path`` leads to."""
    for part in path:
        field = model.model_fields.get(str(part))
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
        inner = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if inner:
            model = inner[0]
    return list(model.model_fields)
