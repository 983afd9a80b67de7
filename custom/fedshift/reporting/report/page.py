"""Build a report and write it as one self-contained HTML file."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

import fedshift
from fedshift.reporting import figures
from fedshift.reporting.report import (
    benefit,
    by_class,
    classes,
    comparison,
    contributions,
    curves,
    distributions,
    guarantee,
    labelled,
    labelled_images,
    methods,
    repeat,
    scores,
    setup,
    summary,
    traffic,
    transfer,
    validation,
)
from fedshift.reporting.report.runs import ReportInput, Run, Transfer, label_runs
from fedshift.reporting.report.section import Chapter, Figures, Section
from fedshift.reporting.report.wording import listed
from fedshift.reporting.table import PHANTOM_NOTE
from fedshift.schema.errors import ConfigError
from fedshift.schema.protocol_results import LabelledImages, LabelledScans, LeaveOneOut
from fedshift.schema.strict import nearest
from fedshift.schema.validation import Validation

COMPARISON = "Comparison"
Pictures = Callable[[Run | Transfer], Sequence[Section]]
"""Makes the sections that show images."""

_SECTIONS: tuple[Callable[[Run], Section | None], ...] = (
    summary.summary,
    scores.per_site,
    guarantee.of_run,
    benefit.all_sites,
    contributions.of_sites,
    distributions.score_distributions,
    curves.over_rounds,
    by_class.of_run,
    classes.confusion,
    classes.calibration,
    setup.data,
    setup.what_was_run,
    traffic.cost,
    traffic.faults,
)


def chapters(
    records: Sequence[ReportInput], *, pictures: Pictures | None = None, site: str | None = None
) -> list[Chapter]:
    """Build the chapters: first the comparison of several runs, then each run, then all other records.

    After a run come the pages of its sites, if they compared its model with their own or were left out in turn.

    Args:
        records: what was read.
        pictures: adds the sections with images.
        site: only this site's page of each run.

    Raises:
        ConfigError: there is no page of ``site``.
    """
    runs = label_runs([record for record in records if isinstance(record, Run)])
    return with_ids(_all_chapters(runs, records, pictures) if site is None else _site_chapters(runs, records, site))


def _all_chapters(runs: Sequence[Run], records: Sequence[ReportInput], pictures: Pictures | None) -> list[Chapter]:
    chapters: list[Chapter] = []
    compared = comparison.compare(runs) if len(runs) > 1 else []
    if compared:
        phantom = any(run.results.is_phantom for run in runs)
        tasks = listed(list(dict.fromkeys(run.results.job.task for run in runs)))
        chapters.append(
            Chapter("comparison", COMPARISON, compared, f"{len(runs)} runs of {tasks} side by side", phantom)
        )
    for run in runs:
        sections = [section for make in _SECTIONS if (section := make(run)) is not None]
        sections += methods.sections(run)
        shown = list(pictures(run)) if pictures is not None else []
        sections += [*shown, repeat.repeat_section(run)]
        chapters.append(Chapter("run", run.label, sections, _about(run), run.results.is_phantom, bool(shown)))
        chapters += _pages(run, records, several=len(runs) > 1)
    for record in records:
        if isinstance(record, Chapter):
            chapters.append(record)
        if isinstance(record, Transfer):
            key, title = transfer.heading(record)
            shown = list(pictures(record)) if pictures is not None else []
            sections = transfer.sections(record, shown)
            chapters.append(
                Chapter(key, title, sections, _about(record.run), record.run.results.is_phantom, bool(shown))
            )
        if isinstance(record, LabelledScans):
            scored = labelled.sections(record)
            chapters.append(Chapter("evaluation", labelled.TITLE, scored, labelled.about(record), record.is_phantom))
        if isinstance(record, Validation):
            scored, about = validation.sections(record), validation.about(record)
            chapters.append(Chapter("validation", validation.TITLE, scored, about, record.is_phantom))
        if isinstance(record, LabelledImages):
            scored, about = labelled_images.sections(record), labelled_images.about(record)
            chapters.append(Chapter("evaluation", labelled_images.TITLE, scored, about, record.is_phantom))
    return chapters


def _pages(run: Run, records: Sequence[ReportInput], *, several: bool) -> list[Chapter]:
    """A chapter for each site of a run."""
    transfers = [item for item in records if isinstance(item, Transfer)]
    left_out = [item.record for item in transfers if isinstance(item.record, LeaveOneOut)]
    if not benefit.has_pages(run, left_out):
        return []
    of_run = f" ({run.label})" if several else ""
    return [
        Chapter(
            "site",
            f"{site}: is it worth it?{of_run}",
            benefit.site_sections(run, site, left_out),
            f"{site}, {_about(run)}",
            run.results.is_phantom,
            of_site=True,
        )
        for site in run.results.data
    ]


def _site_chapters(runs: Sequence[Run], records: Sequence[ReportInput], site: str) -> list[Chapter]:
    sites = list(dict.fromkeys(name for run in runs for name in run.results.data))
    if site not in sites:
        raise ConfigError("unknown-site", f"--site: no run has a site {site!r}{nearest(site, sites)}")
    pages = [
        chapter
        for run in runs
        for name, chapter in zip(run.results.data, _pages(run, records, several=len(runs) > 1), strict=False)
        if name == site
    ]
    if not pages:
        raise ConfigError(
            "no-comparison",
            f"--site: there is nothing to say on {site} alone: make the job with 'fedshift job --with-local', or name "
            "the folder of a leave-one-out of the same job as well",
        )
    return pages


def with_ids(chapters: Sequence[Chapter]) -> list[Chapter]:
    """The chapters as `render` needs them: no two sections or figures of the page have the same id."""
    return [_unique(chapter, f"c{number}") for number, chapter in enumerate(chapters)]


def render(chapters: Sequence[Chapter]) -> str:
    """Render the chapters as HTML. All text is escaped; only figures are inserted as markup."""
    import jinja2

    folder = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        chapters=chapters,
        heading=_heading(chapters),
        phantom=PHANTOM_NOTE if any(chapter.phantom for chapter in chapters) else "",
        images=any(chapter.images for chapter in chapters),
        style=Markup((folder / "style.css").read_text(encoding="utf-8")),  # trusted: the package's own file
        version=fedshift.__version__,
    )


def write(html: str, path: Path) -> None:
    """Write the page atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(html, encoding="utf-8", errors="replace")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # where nothing can be, nothing can be removed
            temporary.unlink(missing_ok=True)
        raise ConfigError(
            "file-unwritable", f"{path} cannot be written ({error.strerror}): name another file with --out"
        ) from None


def _heading(chapters: Sequence[Chapter]) -> str:
    """The page's title."""
    records = sum(not chapter.of_site for chapter in chapters)
    return chapters[0].about if records <= 1 or chapters[0].title == COMPARISON else f"{records} records"


def _about(run: Run) -> str:
    return f"{run.methods} on {run.results.job.task}, seed {run.results.job.seed}"


def _unique(chapter: Chapter, prefix: str) -> Chapter:
    """The chapter with section and figure ids that start with ``prefix``, so that they are unique in the page."""
    sections = [
        replace(
            section,
            id=f"{prefix}-{section.id}",
            blocks=[
                replace(block, figures=[figures.with_id_prefix(figure, prefix) for figure in block.figures])
                if isinstance(block, Figures)
                else block
                for block in section.blocks
            ],
        )
        for section in chapter.sections
    ]
    return replace(chapter, id=prefix, sections=sections)
