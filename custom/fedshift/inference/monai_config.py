"""Read the configuration of a MONAI bundle as data. MONAI would evaluate Python in it; nothing is evaluated here.

A configuration is JSON or YAML. ``@name`` or ``@name::part`` is a reference to another place in it, and so is an
expression that is nothing else, ``$@name``. Names of number types (``$torch.float32``) are understood. Every other
expression (``$…``), macro (``%…``) and component where a value is expected is code, and refused where it is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from fedshift.federation.model_files import did_you_mean
from fedshift.schema.errors import ConfigError

FOLDER = "configs"
INFERENCE = ("inference.json", "inference.yaml", "inference.yml")
METADATA = "metadata.json"
TARGET, DISABLED, DESCRIPTION = "_target_", "_disabled_", "_desc_"
OTHER = "take another bundle"
DEEPEST = 16
"""More references in a row than this are a circle."""
LARGEST = 4 * 2**20
"""Bytes of a configuration; those of MONAI's model zoo have a few thousand."""
_REFERENCE = re.compile(r"\$?@([\w.]+(?:(?:::|#)[\w.]+)*)")
_NUMBERS = re.compile(r"\$(torch|np|numpy)\.(float16|float32|float64|uint8|int16|int32|int64|bool)")


@dataclass(frozen=True)
class Component:
    """A class of MONAI with plain options: its name without modules, and where it stands in the configuration."""

    name: str
    options: dict[str, Any]
    where: str


class BundleConfig:
    """The configuration of inference and the metadata of a bundle's folder."""

    def __init__(self, folder: Path) -> None:
        """Read both files.

        Raises:
            ConfigError: there is no such file, or it cannot be read.
        """
        self.folder = folder
        self.file = next((path for name in INFERENCE if (path := folder / FOLDER / name).is_file()), None)
        if self.file is None:
            fault = f"{folder} is neither a model file nor a MONAI bundle for segmentation, which has "
            raise ConfigError("no-model", f"{fault}{FOLDER}/{INFERENCE[0]}{did_you_mean(folder)}")
        self._content = _read(self.file)
        metadata = folder / FOLDER / METADATA
        self.metadata = _read(metadata) if metadata.is_file() else {}

    @classmethod
    def from_content(cls, content: dict[str, Any], metadata: dict[str, Any], where: Path) -> BundleConfig:
        """What was read elsewhere; errors name ``where``."""
        config = cls.__new__(cls)
        config.folder = config.file = where
        config._content, config.metadata = content, metadata
        return config

    @property
    def content(self) -> dict[str, Any]:
        """The configuration as it was read."""
        return self._content

    def components(self, name: str) -> list[Component]:
        """The components of a ``Compose``, or of a list, in order; a single component as a list of one.

        Raises:
            ConfigError: it is not there, or a part of it is code.
        """
        node = self._entry(name)
        if isinstance(node, dict) and _short(node) == "Compose":
            where, node = f"{name}.transforms", self._followed(node.get("transforms", []), f"{name}.transforms")
        else:
            where = name
        nodes = node if isinstance(node, list) else [node]
        return [part for number, each in enumerate(nodes) for part in self._component(each, f"{where}[{number}]")]

    def component(self, name: str) -> Component:
        """One component.

        Raises:
            ConfigError: as for `components`.
        """
        components = list(self._component(self._entry(name), name))
        if len(components) != 1:
            raise self.refusal(name, "is disabled", OTHER)
        return components[0]

    def value(self, node: Any, where: str) -> Any:
        """What a node says, with references followed: numbers, words, number types, lists and mappings of them.

        Raises:
            ConfigError: a part of it is code.
        """
        node = self._followed(node, where)
        if isinstance(node, str) and node.startswith("$"):
            number_type = _NUMBERS.fullmatch(node)
            if number_type is None:
                raise self.refusal(where, f"is an expression ({_cut(node)}), and no code of a bundle is run")
            return _number_type(number_type)
        if isinstance(node, str) and node.startswith("%"):
            raise self.refusal(where, f"is a macro ({_cut(node)}), which is not read")
        if isinstance(node, list):
            return [self.value(inner, f"{where}[{number}]") for number, inner in enumerate(node)]
        if isinstance(node, dict):
            if TARGET in node:
                raise self.refusal(where, f"is a component ({_cut(str(node[TARGET]))}) where a value is expected")
            return {str(key): self.value(inner, f"{where}.{key}") for key, inner in node.items()}
        return node

    def refusal(self, where: str, why: str, remedy: str = "take a bundle where it is plain data") -> ConfigError:
        """The error that names a place in the configuration."""
        return ConfigError("bundle-config", f"{self.file}: {where} {why}: {remedy}")

    def _entry(self, name: str) -> Any:
        if name not in self._content:
            raise self.refusal(name, "is missing", "download the bundle again")
        return self._followed(self._content[name], name)

    def _component(self, node: Any, where: str) -> Iterator[Component]:
        node = self._followed(node, where)
        if not isinstance(node, dict) or not isinstance(node.get(TARGET), str):
            is_code = isinstance(node, str) and node.startswith("$")
            why = f"is an expression ({_cut(node)}), and no code of a bundle is run" if is_code else "is no component"
            raise self.refusal(where, why)
        odd = next((key for key in node if key.startswith("_") and key not in (TARGET, DISABLED, DESCRIPTION)), None)
        if odd is not None:
            raise self.refusal(where, f"has {odd}, which is not read")
        disabled = self.value(node.get(DISABLED, False), f"{where}.{DISABLED}")
        if disabled is True or str(disabled).lower() == "true":
            return
        name = _short(node)
        options = {key: value for key, value in node.items() if not key.startswith("_")}
        yield Component(name, options, where)

    def _followed(self, node: Any, where: str) -> Any:
        """What a node refers to, if it is nothing but a reference."""
        for _ in range(DEEPEST):
            reference = _REFERENCE.fullmatch(node) if isinstance(node, str) else None
            if reference is None:
                return node
            node = self._at(reference[1], where)
        raise self.refusal(where, "refers to itself", OTHER)

    def _at(self, reference: str, where: str) -> Any:
        node: Any = self._content
        for step in re.split("::|#", reference):
            if isinstance(node, dict) and step in node:
                node = node[step]
            elif isinstance(node, list) and step.isdecimal() and int(step) < len(node):
                node = node[int(step)]
            else:
                raise self.refusal(where, f"refers to @{_cut(reference)}, which is not there", OTHER)
        return node


def _number_type(match: re.Match[str]) -> Any:
    """The type that ``$torch.float32`` and the like name; numpy calls its own type of ``bool`` ``bool_``."""
    return getattr(torch if match[1] == "torch" else np, "bool_" if match[0] == "$np.bool" else match[2])


def _short(node: dict[str, Any]) -> str:
    """A class's name without its module, if that is MONAI's; else in full, so that no list has it."""
    target = str(node.get(TARGET))
    return target.rpartition(".")[2] if target.startswith("monai.") else target


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST:
            message = f"{path} is larger than {LARGEST // 2**20} MiB, which no configuration is"
            raise ConfigError("file-large", message)
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        message = f"{path} cannot be read as {path.suffix[1:].upper()}: download the bundle again"
        raise ConfigError("file-unreadable", message) from None
    if not isinstance(content, dict):
        message = f"{path} has no names at its top, as a bundle's configuration has: download the bundle again"
        raise ConfigError("not-a-mapping", message)
    return content
