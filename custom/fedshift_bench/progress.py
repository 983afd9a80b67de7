"""What ``fedshift compare`` shows on the terminal while cells are resolved and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from fedshift.cli.display import console
from fedshift.reporting.progress import duration
from fedshift_bench.runner import GridProgress, State

SECONDS_PER_LINE = 30.0
"""Seconds between two progress lines if the output is not a terminal."""
say = partial(console.print, markup=False, emoji=False)
"""Prints a line as it is."""
STATES: dict[State, str] = {"running": "running", "elsewhere": "in another process", "failed": "failed"}


def time_range(low: float, high: float) -> str:
    """Format a range of seconds: ``2 min 10 s to 5 min 30 s``."""
    first, last = duration(low), duration(high)
    return first if first == last else f"{first} to {last}"


def describe(progress: GridProgress, *, phantom: bool = False) -> str:
    """The progress of a comparison in one line."""
    done, n_rounds = progress.rounds
    total = sum(len(entry.cells) for entry in progress.entries)
    ended = f"{'PHANTOM ' if phantom else ''}{progress.count('done', 'failed')} of {total} cells ended"
    counts = [f"{count} {word}" for state, word in STATES.items() if (count := progress.count(state))]
    left = f"about {duration(progress.seconds_left)} left"
    return ", ".join([ended, f"{done} of {n_rounds} rounds of all cells", *counts, left])


@contextmanager
def resolving() -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how many cells are resolved."""
    if not console.is_terminal:
        yield lambda done, of: None
        return
    with console.status("resolving") as status:
        yield lambda done, of: status.update(f"resolving {done}/{of}")


@contextmanager
def running(*, phantom: bool) -> Iterator[Callable[[GridProgress], None]]:
    """Show the progress of all cells: a bar on a terminal, else a line when a cell has ended, and now and then."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if console.is_terminal:
        columns = (BarColumn(30), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=1.0)
            yield lambda progress: bar.update(
                task, completed=progress.share, description=describe(progress, phantom=phantom)
            )
        return
    n_ended, last_printed = -1, 0.0

    def show(progress: GridProgress) -> None:
        nonlocal n_ended, last_printed
        count, now = progress.count("done", "failed"), progress.clock()
        if count != n_ended or now - last_printed > SECONDS_PER_LINE:
            n_ended, last_printed = count, now
            say(describe(progress, phantom=phantom))

    yield show
