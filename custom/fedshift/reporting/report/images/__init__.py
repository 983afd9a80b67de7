"""Sections that show or are made from images: only on request, only where the sites' data are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from fedshift.reporting.report.images import cases, features, intensities
from fedshift.reporting.report.images.models import look
from fedshift.reporting.report.runs import Run, Transfer, own_models
from fedshift.reporting.report.section import Section


def sections(
    record: Run | Transfer,
    *,
    folders: Mapping[str, Path] | None = None,
    most_sites: int,
    progress: Callable[[str], None] = lambda line: None,
) -> Iterator[Section]:
    """Cases, intensities and features of the first ``most_sites`` sites; of a cross-site record its models' features.

    Args:
        record: a run with its model file, or a cross-site record that was made with ``--keep-models``; none of others.
        folders: of the sites that are to be shown; None looks for all of them, as a simulated run does.
        most_sites: how many sites at most.
        progress: called with what is being done.

    Raises:
        ConfigError: a run has no model file, or a site's folder is not that of the run.
        DataError: a site's data cannot be found or used.
    """
    look_at = partial(look, folders=folders, most_sites=most_sites, progress=progress)
    if isinstance(record, Run):
        looked = look_at(record)
        for make in (cases.section, intensities.section, features.section):
            progress(f"{record.label}: {make.__module__.rpartition('.')[2]}")
            yield make(looked)
        return
    models = own_models(record)
    if not models:
        return
    progress("features of own models")
    yield features.of_own_models(look_at(record.run, models=models))
    if record.run.model is not None and record.run.model.is_shared:
        progress("features of the best aggregate")
        yield features.section(look_at(record.run))
