"""Rows for every method that a task takes, so that a spec need not list them and a new method is in without an edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.federation.resolve import split_methods
from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError
from fedshift_bench.cell_plan import make_plan
from fedshift_bench.cells import merge
from fedshift_bench.spec import Settings, Spec

REFERENCE = "trains on all sites' images in one place: a reference, and no federated method"
"""Why a centralised reference gets no row unless the spec names it."""


@dataclass(frozen=True)
class Expanded:
    """A spec with all of its rows, and the methods without a row with the reason."""

    spec: Spec
    left_out: Mapping[str, str]


def expand(spec: Spec, *, folder: Path, on_tried: Callable[[int, int], None] = lambda done, of: None) -> Expanded:
    """Add a row for every method that the spec asks for (`Spec.every_method`) and does not name itself.

    A method gets no row if the spec leaves it out, if it is a centralised reference, or if its job is refused. Rows are
    called as the methods' files. ``folder`` is that of the spec's file; ``on_tried`` gets the number of methods tried
    and their total.

    Raises:
        ConfigError: the spec leaves out a method that does not exist.
    """
    if spec.every_method is None:
        return Expanded(spec, {})
    for name in spec.every_method.without:
        method_set.find(name)
    rows, left_out = dict(spec.axes[spec.row_axis]), {}
    named = {tuple(split_methods(row.methods)) for row in rows.values() if row.methods is not None}
    new = [name for name in method_set.available() if (name,) not in named]
    for number, name in enumerate(new, 1):
        settings = Settings(methods=name)
        reason = spec.every_method.without.get(name) or _refusal(spec, settings, folder)
        if reason:
            left_out[name] = " ".join(reason.split())
        else:
            rows[name] = settings
        on_tried(number, len(new))
    return Expanded(spec.with_rows(rows), left_out)


def add_rows(spec: Spec, methods: Sequence[str], options: Mapping[str, Any]) -> tuple[Spec, list[str]]:
    """Add rows of a user's own to an expanded spec, or find those that it has; and their labels, in order.

    ``methods`` are names as for ``fedshift job``, or labels of the spec's rows. ``options`` are as for ``--set`` and
    for these rows only: a row with options is not the spec's own and is called after them.
    """
    rows, labels = dict(spec.axes[spec.row_axis]), []
    text = ", ".join(f"{key}={value}" for key, value in options.items())
    for name in methods:
        known = {label.lower(): label for label in rows}.get(name.lower())
        row = rows[known] if known is not None else Settings(methods=name)
        label = known or "+".join(split_methods(name))
        if options:
            label = f"{label} ({text})"
            row = row.model_copy(update={"options": {**row.options, **options}})
        rows.setdefault(label, row)
        labels.append(label)
    return spec.with_rows(rows), labels


def _refusal(spec: Spec, settings: Settings, folder: Path) -> str:
    """Why the task refuses the method, at the first value of each further axis; empty if it takes it."""
    if method_set.pooled_reference({str(settings.methods): {}}) is not None:
        return REFERENCE
    further = [next(iter(values.values())) for values in list(spec.axes.values())[1:]]
    try:
        make_plan(merge(spec, [settings, *further]), metric=spec.metric, folder=folder)
    except ConfigError as error:
        return str(error)
    return ""
