"""Every key of a settings model: type, default and meaning, for pages and for commented job files.

A key's meaning is what its model's docstring says of it: the sentences, or parts after a semicolon, that begin with the
key in double backticks, and those that follow in the same paragraph and name no key; without such a sentence all that
mention the key.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, MultipleOf
from pydantic import BaseModel
from pydantic.fields import FieldInfo

WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "mapping", type(None): "null"}
LIMITS = {Ge: ("ge", "from"), Gt: ("gt", "above"), Le: ("le", "up to"), Lt: ("lt", "below")}


@dataclass(frozen=True)
class Setting:
    """A key as a task, a job or ``--set`` names it (``schedule.rounds``).

    Attributes:
        type: what values it takes, in words.
        default: as in YAML; None if the key is required.
        meaning: from the docstring, with code in single backticks; empty if it says nothing.
    """

    key: str
    type: str
    default: str | None
    meaning: str


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """Every key of a model and of the models in it, in their order."""
    meant = meanings(model)
    for name, field in model.model_fields.items():
        name = field.alias or name
        key = f"{prefix}{name}"
        inner = _model_of(field.annotation)
        if inner is None or _is_optional(field.annotation) or name in meant:
            yield Setting(key, _type(field), _default(field), meant.get(name, ""))
        if inner is not None:
            yield from settings(inner, f"{key}.")


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """What the docstrings of a model and its bases say of each of its keys; keys without a word are left out."""
    of_it: dict[str, list[str]] = {}
    mentions: dict[str, list[str]] = {}
    keys = [field.alias or name for name, field in model.model_fields.items()]
    texts = [inspect.cleandoc(base.__doc__) for base in model.__mro__ if "__doc__" in vars(base) and base.__doc__]
    for paragraph in "\n\n".join(text for text in texts if "``" in text).split("\n\n"):
        current: list[str] = []
        for sentence in _sentences(" ".join(paragraph.split())):
            named = [key for key in keys if re.search(rf"``{key}(?:``|: )", sentence)]
            first = re.match(r"``(\w+)(?:``|: )", sentence)
            if first and first[1] in named:
                current = [first[1]]
                of_it.setdefault(first[1], []).append(_without_key(sentence, first[1]))
            elif named:
                current = []
            for key in named or current:
                (mentions if named else of_it).setdefault(key, []).append(_without_key(sentence, key))
    return {key: _plain(" ".join(sentences)) for key, sentences in {**mentions, **of_it}.items()}


def _sentences(paragraph: str) -> list[str]:
    return re.split(r"(?<=[.;]) (?=``\w+)|(?<=\.) (?=[A-Z])", paragraph)


def _without_key(sentence: str, key: str) -> str:
    """A sentence without ``key:`` at its begin, and with a full stop."""
    sentence = re.sub(rf"^``{key}``: (?!mm\b)([a-z])(?=[a-z])", lambda letter: letter[1].upper(), sentence)
    return re.sub(r"(?:;|::)$", ".", sentence.removeprefix(f"``{key}``: "))


def _plain(meaning: str) -> str:
    """Without references to code, and with single backticks."""
    return re.sub(r",? (?:see )?\(?`fedshift\.[\w.]+`\)?", "", meaning.replace("``", "`"))


def _type(field: FieldInfo) -> str:
    words = _words(field.annotation)
    limits = [_limit(part) for part in field.metadata]
    return ", ".join([words, *(limit for limit in limits if limit)])


def _words(kind: Any) -> str:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _either([f"`{_yaml(choice)}`" for choice in inside])
    if origin in (Union, types.UnionType):
        return _either([_words(part) for part in inside])
    if origin is tuple and inside[-1] is Ellipsis:
        return f"list of {_plural(_words(inside[0]))}"
    if origin is tuple:
        return f"list of {len(inside)} {_plural(_words(inside[0]))}"
    if hasattr(kind, "__metadata__"):  # Annotated
        limits = [_limit(part) for info in kind.__metadata__ for part in getattr(info, "metadata", [info])]
        bounds = ", ".join(limit for limit in limits if limit)
        return f"{_words(inside[0])} ({bounds})" if bounds else _words(inside[0])
    return WORDS.get(origin or kind, "mapping" if _model_of(kind) else "text")


def _limit(part: object) -> str:
    for kind, (attribute, word) in LIMITS.items():
        if isinstance(part, kind):
            return f"{word} {getattr(part, attribute):g}"
    if isinstance(part, MultipleOf):
        return f"a multiple of {part.multiple_of}"
    if isinstance(part, MinLen) and part.min_length > 1:
        return f"at least {part.min_length}"
    return f"at most {part.max_length}" if isinstance(part, MaxLen) else ""


def _plural(words: str) -> str:
    return re.sub(r"^(whole number|number|mapping|text)\b", r"\1s", words)


def _either(choices: list[str]) -> str:
    *first, last = dict.fromkeys(choices)
    return f"{', '.join(first)} or {last}" if first else last


def _model_of(kind: Any) -> type[BaseModel] | None:
    """The settings model that a type is, or may be."""
    for part in (kind, *get_args(kind)) if get_origin(kind) in (None, Union, types.UnionType) else ():
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _is_optional(kind: Any) -> bool:
    return type(None) in get_args(kind)


def _default(field: FieldInfo) -> str | None:
    if field.is_required():
        return None
    value = field.get_default(call_default_factory=True)
    return _yaml(value.model_dump(mode="json") if isinstance(value, BaseModel) else value)


def _yaml(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_yaml, value))}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
