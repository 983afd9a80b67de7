"""Facts about the project that pages state, from the code."""

from __future__ import annotations

from pathlib import Path

import yaml

from fedshift.data.reading_rules import table
from fedshift.methods import method_set
from fedshift.tasks import monai_networks

APPS = Path(__file__).resolve().parents[2] / "apps"


def number_of_methods() -> str:
    """How many methods there are."""
    return str(len(method_set.available()))


def number_of_networks() -> str:
    """How many of MONAI's networks a job can name."""
    return str(len(monai_networks.names()))


def tasks(kind: str) -> str:
    """The tasks of a kind that the project has, by name."""
    read = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(APPS.glob("*.yaml"))]
    return ", ".join(f"`{task['name']}`" for task in read if task["kind"] == kind)


def reading(*group: str) -> str:
    """What is read, converted, warned of and refused of a format."""
    return table(" ".join(group))
