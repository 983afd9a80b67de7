"""Lineage of a model: which sites have taken part in training its weights, or the weights that it started from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedshift.schema.errors import ConfigError

Lineage = dict[str, tuple[str, ...]]
"""Data set -> sites. Sites of other data sets may have the same names and are others."""
MODEL_FORMAT, MODEL_SCHEMA = "fedshift model", 3
"""What the header of a model file says in ``format`` and ``schema``."""


def joined(lineage: Mapping[str, Iterable[str]], dataset: str, sites: Iterable[str]) -> Lineage:
    """``lineage`` and more sites of a data set; without data sets that have no sites."""
    every = {name: dict.fromkeys(of) for name, of in lineage.items()}
    every[dataset] = every.get(dataset, {}) | dict.fromkeys(sites)
    return {name: tuple(of) for name, of in every.items() if of}


def lineage_of(content: object, *, where: str) -> Lineage:
    """The sites that have trained the model in a file that fedshift wrote; nobody for any other file.

    Args:
        content: what the file holds.
        where: how to name the file in errors.

    Raises:
        ConfigError: a model of another version of fedshift, or one whose header is damaged.
    """
    if not isinstance(content, dict) or content.get("format") != MODEL_FORMAT:
        return {}
    header: dict[Any, Any] = content
    try:
        known = {str(name): _names(of) for name, of in header["lineage"].items()}
        return joined(known, str(header["job"]["task"]["dataset"]), _names(header["sites"]))
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(
            "other-version",
            f"{where} does not say which sites trained it: another version of fedshift wrote it, or it is damaged",
        ) from None


def _names(value: object) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise TypeError
    return list(value)
