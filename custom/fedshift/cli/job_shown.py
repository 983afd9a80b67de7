"""A resolved job as commented YAML: above each key what it means, which values it takes, and its default."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from fedshift.schema.job import JobSpec
    from fedshift.schema.settings import Setting

WIDTH = 100


def commented(job: JobSpec) -> str:
    """The job's ``fedshift.yaml`` with a comment above every key that a model or a method knows."""
    return "\n".join(_lines(job.dump(), known_settings(job))) + "\n"


def known_settings(job: JobSpec) -> dict[str, Setting]:
    """Dotted key of the job -> what is known of it, with the keys of its kind of data and of its methods."""
    from fedshift.methods import method_set
    from fedshift.schema.job import JobSpec
    from fedshift.schema.settings import settings
    from fedshift.tasks.kinds import build_task

    known = [*settings(JobSpec), *settings(build_task(job).data_spec, "task.data.")]
    for name in job.methods:
        known += settings(method_set.find(name).Config, f"methods.{name}.")
    return {setting.key: setting for setting in known}


def _lines(values: Mapping[str, Any], known: Mapping[str, Setting], path: str = "") -> Iterator[str]:
    """The keys of a mapping; those that a job may have and this one leaves out are comments with their defaults."""
    indent = "  " * path.count(".")
    for key, value in values.items():
        yield from _comment(known.get(f"{path}{key}"), indent)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{_in_a_line(key)}:"
            yield from _lines(value, known, f"{path}{key}.")
        else:
            yield f"{indent}{_in_a_line(key)}: {_in_a_line(value)}"
    for setting in known.values():
        parent, _, key = setting.key.rpartition(".")
        if path and f"{parent}." == path and key not in values and setting.default is not None:
            yield from _comment(setting, indent)
            yield f"{indent}# {key}: {setting.default}"


def _comment(setting: Setting | None, indent: str) -> Iterator[str]:
    if setting is not None:
        default = "required" if setting.default is None else f"default {setting.default}"
        text = f"{setting.meaning} {setting.type[:1].upper()}{setting.type[1:]}; {default}.".strip()
        yield from textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _in_a_line(value: Any) -> str:
    """A value as YAML without line breaks, which PyYAML writes inside of a list only."""
    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=float("inf")).strip()[1:-1]
