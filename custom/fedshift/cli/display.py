"""The progress of a run on the terminal: a line per round, and a progress bar where there is a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from fedshift.reporting.progress import Progress, duration
from fedshift.schema.errors import FedshiftError
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.federation.server.coordinator import Coordinator
    from fedshift.reporting.progress import ProgressFile
    from fedshift.schema.job import JobSpec

console = Console(soft_wrap=True, highlight=False)


def make_display(*, phantom: bool) -> Lines:
    """A progress bar on a terminal, else only lines. ``phantom``: every line says that the data are simulated."""
    return Bar(phantom=phantom) if console.is_terminal else Lines(phantom=phantom)


@contextmanager
def shown(folder: Path, job: JobSpec, *, phantom: bool) -> Iterator[Callable[[Coordinator], None]]:
    """Show a run in this process: on the terminal, in ``progress.json`` and as TensorBoard curves in ``folder``."""
    from fedshift.reporting.events import Events
    from fedshift.reporting.progress import ProgressFile, read_progress
    from fedshift.reporting.recent_log import RecentLog
    from fedshift.reporting.trackers import make_trackers

    events = Events(folder, trackers=make_trackers(job.federation.tracking, job=job.name, folder=folder))
    recent = RecentLog()
    file = ProgressFile(folder, recent=recent)
    display = make_display(phantom=phantom)

    def show(coordinator: Coordinator) -> None:
        file.update(coordinator)
        events.update(coordinator.results)
        display.show(read_progress(folder))

    try:
        with ending_noted(file), display:
            yield show
    finally:
        events.close()
        recent.close()


@contextmanager
def steps_shown(clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str, int, int], None]]:
    """Show work in steps: a line when something else begins, and a bar with the time left where there is a terminal.

    Yields a function to call with what is done, and how many steps of how many it has made; 0 if it has none.
    """
    columns = (BarColumn(30), TextColumn("{task.description}"), TimeElapsedColumn())
    last, timed = ("", 0), (0, clock())
    with RichProgress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")

        def show(what: str, done: int, total: int) -> None:
            nonlocal last, timed
            if total != last[1]:  # other work, of which nothing is known yet
                timed = done, clock()
            taken, seconds = done - timed[0], clock() - timed[1]
            text = f"{what}, {duration(seconds / taken * (total - done))} left" if taken and done < total else what
            bar.update(task, description=text, completed=done, total=total or None)
            if what != last[0]:
                print(text, flush=True)  # while a bar is shown, rich puts it above
            last = what, total

        yield show


@contextmanager
def ending_noted(file: ProgressFile) -> Iterator[None]:
    """Write into ``progress.json`` that a run has failed or was stopped, if it does."""
    try:
        yield
    except FedshiftError as error:
        file.fail(str(error))
        raise
    except KeyboardInterrupt:
        file.stop()
        raise
    except Exception as error:
        file.fail(f"{type(error).__name__}: {error}")
        raise


def describe(progress: Progress | None, *, phantom: bool = False) -> str:
    """One line about a moment of a run."""
    if progress is None:
        what = "starting the sites"
    elif progress.step == "training":
        what = f"round {progress.round}/{progress.rounds}"
    elif not progress.rounds:
        what = "scoring finished models"
    else:
        what = {"statistics": "statistics", "evaluation": "last evaluation"}[progress.step]
    if phantom or (progress is not None and progress.phantom):
        what = f"PHANTOM {what}"
    if progress is None:
        return what
    parts = [what]
    if progress.sites_in:
        parts.append(f"{len(progress.sites_in)}/{len(progress.sites)} sites in")
    if progress.score is not None:
        parts.append(f"mean validation {progress.metric} {progress.score:.3f} (round {progress.score_round})")
    if progress.seconds_left is not None and progress.state == "running":
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join(parts)


class Lines:
    """Prints a line per round, and one for every answer that is left out."""

    def __init__(self, *, phantom: bool) -> None:
        """``phantom``: every line says that the data are simulated."""
        self._phantom = phantom
        self._place: tuple[str, int] | None = ("", -1)
        self._rejected: set[tuple[tuple[str, int] | None, str]] = set()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, progress: Progress | None) -> None:
        place = None if progress is None else (progress.step, progress.round)
        if place != self._place:
            if self._phantom and self._place == ("", -1):
                from fedshift.reporting.table import PHANTOM_NOTE

                print(PHANTOM_NOTE, flush=True)
            self._place = place
            print(describe(progress, phantom=self._phantom), flush=True)
        for site, reason in () if progress is None else progress.rejected.items():
            if (place, site) not in self._rejected:
                self._rejected.add((place, site))
                print(printable(f"  site {site} is left out: {reason}"), flush=True)


class Bar(Lines):
    """The same lines above a progress bar."""

    def __enter__(self) -> Bar:
        columns = (BarColumn(30), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = RichProgress(*columns, console=console, transient=True)
        self._bar.start()
        self._task = self._bar.add_task(describe(None, phantom=self._phantom), total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, progress: Progress | None) -> None:
        """Print what is new, and move the bar."""
        super().show(progress)  # while a bar is shown, rich puts what is printed above it
        if progress is not None:
            self._bar.update(self._task, completed=progress.share)
        self._bar.update(self._task, description=describe(progress, phantom=self._phantom))
