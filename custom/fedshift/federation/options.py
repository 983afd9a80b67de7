"""``--set path=value`` options: parsing, contradictions, and where each value goes. Their order does not matter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import yaml

from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import nearest
from fedshift.schema.task import TaskSpec

APART = {"federation": "federation.min_sites", "evaluation": "evaluation.gradient_norm"}
"""Keys of a job that don't belong to its task, each with an example of a key below it."""
NETWORK_NAME = ("network", "name")


@dataclass(frozen=True)
class Option:
    """One ``path=value``; ``text`` is what the user wrote, for error messages."""

    text: str
    path: tuple[str, ...]
    value: Any


def apply_options(
    texts: Sequence[str],
    *,
    raw: dict[str, Any],
    chosen: dict[str, dict[str, Any]],
    apart: dict[str, dict[str, Any]],
) -> set[tuple[str, str]]:
    """Write the options into a job's parts.

    Shorter paths are applied before longer ones, and ``network.name`` first of all paths of its length, because another
    network discards the former network's options.

    Args:
        texts: ``path=value`` pairs; values are YAML.
        raw: the task, changed in place.
        chosen: method name to options, changed in place.
        apart: the other keys of a job (`APART`), changed in place.

    Returns:
        (first key, the rest joined by dots) of every path among them, also of those inside a value that is a mapping.

    Raises:
        ConfigError: not ``path=value``, an unknown first key, or two options that contradict each other.
    """
    options = [parse_option(text) for text in texts]
    for a, b in combinations(options, 2):
        _refuse_contradiction(*sorted((a, b), key=lambda option: len(option.path)))
    whole_network = next((option.value for option in options if option.path == ("network",)), None)
    keeps_network = isinstance(whole_network, dict) and "name" in whole_network
    for option in sorted(options, key=lambda option: (len(option.path), option.path != NETWORK_NAME)):
        if option.path == NETWORK_NAME and not keeps_network:
            raw["network"] = {"name": option.value}
        else:
            _write(option, raw=raw, chosen=chosen, apart=apart)
    return {(path[0], ".".join(path[1:])) for option in options for path in _paths(option.path, option.value)}


def parse_option(text: str) -> Option:
    """Parse ``path=value``, of which the value is YAML; ConfigError if it is something else."""
    path, sign, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not sign or not all(keys):
        raise ConfigError("option-form", f"--set takes path=value, such as fedfa.p=0.3, not {text!r}")
    if len(keys) > 1 and method_set.is_method(keys[0].lower()):
        keys[0] = keys[0].lower()
    try:
        return Option(text, tuple(keys), yaml.safe_load(value))
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(
            "option-form", f"--set {text}: the value is not valid YAML, such as 0.3, name or [1, 2]"
        ) from None


def _paths(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, ...]]:
    yield path
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        yield from _paths((*path, str(key)), inner)


def _refuse_contradiction(short: Option, long: Option) -> None:
    """Two options contradict each other if they give the same key two values."""
    if long.path[: len(short.path)] != short.path:
        return
    value = short.value
    for key in long.path[len(short.path) :]:
        if not isinstance(value, Mapping):
            break
        if key not in value:
            return
        value = value[key]
    if not _same(value, long.value):
        raise ConfigError(
            "options-clash",
            f"--set {short.text} and --set {long.text} contradict each other: give {'.'.join(long.path)} one value",
        )


def _same(a: Any, b: Any) -> bool:
    """Equal as YAML, where true is not 1."""
    return json.dumps(a, sort_keys=True, default=str) == json.dumps(b, sort_keys=True, default=str)


def _write(
    option: Option, *, raw: dict[str, Any], chosen: dict[str, dict[str, Any]], apart: dict[str, dict[str, Any]]
) -> None:
    first, *rest = option.path
    if method_set.is_method(first) and rest:
        if first not in chosen:
            raise ConfigError(
                "unknown-option",
                f"--set {option.text}: the job does not use method {first}: add it to the methods, or leave this out",
            )
        chosen[first][".".join(rest)] = option.value
        return
    known = [*TaskSpec.model_fields, *APART, *chosen]
    if first not in known:
        raise ConfigError("unknown-option", f"--set {option.text}: unknown key {first!r}{nearest(first, known)}")
    target = apart.get(first, raw)
    keys = rest if first in apart else [first, *rest]
    if not keys:
        raise ConfigError("option-form", f"--set {option.text}: name a key below {first!r}, such as {APART[first]}")
    for key in keys[:-1]:
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            raise ConfigError(
                "option-form", f"--set {option.text}: {key!r} holds a value, not keys: set {key!r} itself"
            )
    target[keys[-1]] = option.value
