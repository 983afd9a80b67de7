"""What is worth seeing of a method's own arrays in the model file: a module a method, found by the method's name.

Such a module has ``section(run, arrays)``, which gives a `Section`, or None if there is nothing to see.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Section


def sections(run: Run) -> Iterator[Section]:
    """Of every method that has a module here and arrays in the run's model file."""
    if run.model is None:
        return
    known = {module.name for module in pkgutil.iter_modules(__path__)}
    for name, arrays in run.model.arrays.items():
        if name in known:
            section: Section | None = importlib.import_module(f"{__name__}.{name}").section(run, arrays)
            if section is not None:
                yield section
