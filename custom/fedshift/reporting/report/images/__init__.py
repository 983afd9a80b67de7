"""Sections that show or are made from images: only on request, only where the sites' data are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fedshift.reporting.report.images import cases, features, intensities
from fedshift.reporting.report.images.models import look
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Section


def sections(
    run: Run,
    *,
    folders: Mapping[str, Path] | None = None,
    most_sites: int,
    tell: Callable[[str], None] = lambda line: None,
) -> Iterator[Section]:
    """Cases, intensities and features of the first ``most_sites`` sites.

    Args:
        run: with its model file.
        folders: of the sites that are to be shown; None looks for all of them, as a simulated run does.
        most_sites: how many sites at most.
        tell: called with what is being done.

    Raises:
        ConfigError: there is no model file, or a site's folder is not that of the run.
        DataError: a site's data cannot be found or used.
    """
    looked = look(run, folders=folders, most_sites=most_sites, tell=tell)
    for make in (cases.section, intensities.section, features.section):
        tell(f"{run.label}: {make.__module__.rpartition('.')[2]}")
        yield make(looked)
