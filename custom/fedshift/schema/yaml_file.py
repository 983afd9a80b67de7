"""Read YAML files: what cannot be read, and why, in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fedshift.schema.errors import ConfigError

DEEPEST = 100
"""Levels of a YAML file. Our own have fewer than ten."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        ConfigError: no such file, one that cannot be read, or not a mapping.
    """
    try:
        if not path.is_file():
            raise ConfigError("file-missing", f"{path} does not exist")
        raw = _load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            "file-unreadable", f"{path} cannot be read ({error.strerror}): see to its permissions"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError("not-text", f"{path} is not UTF-8 text: save it in that encoding") from None
    except yaml.YAMLError as error:
        raise ConfigError("not-yaml", f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError("too-deep", f"{path} is nested too deeply: write it with fewer levels") from None
    if not isinstance(raw, dict):
        raise ConfigError("not-a-mapping", f"{path} must hold keys and values, not {type(raw).__name__}")
    return raw


def _load(text: str) -> object:
    """A YAML text's content, by libyaml, which takes a tenth of the time of Python's parser."""
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    level = 0
    for event in yaml.parse(text, Loader=loader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > DEEPEST:
            raise RecursionError
    return loader(text).get_single_data()  # as yaml.safe_load does with the loader in Python
