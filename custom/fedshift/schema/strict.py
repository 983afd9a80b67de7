"""Settings models that refuse what they do not know, and name the nearest key they do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from fedshift.schema.errors import ConfigError


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'rounds'? Known: …`` for an unknown name."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{hint} Known: {', '.join(known) or 'none'}"


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
                raise ConfigError(f"{where}: unknown key {path!r}{nearest(str(first['loc'][-1]), known)}") from None
            place = f"{path!r} " if path else ""
            raise ConfigError(f"{where}: {place}{first['msg'][0].lower()}{first['msg'][1:]}") from None


def _known_keys(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """Field names of the model that ``path`` leads to."""
    for part in path:
        field = model.model_fields.get(str(part))
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
        inner = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if inner:
            model = inner[0]
    return list(model.model_fields)
