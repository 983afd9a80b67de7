"""Curves for TensorBoard, made from a run's results as they grow.

Tags: ``val/<metric>/<site>``, ``val/<metric>/mean``, ``train_loss/<site>`` and ``train_loss/mean`` by round, and
``test_best/<metric>/<site>``, ``test_last/<metric>/<site>`` once, at the round of the model they belong to; so are
``held_out_best/<metric>/<site>`` and ``held_out_last/<metric>/<site>`` of sites that are held out.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from fedshift.schema.results import Results

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

log = logging.getLogger("fedshift")

FOLDER = "tb_events"

Scalar = tuple[str, int, float]
"""Tag, round, value."""


class Events:
    """Event files of one run."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is the run's; files go to ``tb_events`` in it."""
        self._folder = folder / FOLDER
        # All points are made from the results: those of a run that was interrupted come again.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._writer: SummaryWriter | None = None
        self._written: set[tuple[str, int]] = set()
        self._known = 0
        self._failed = False

    def prepare(self) -> None:
        """Begin the files. That takes a second; `update` does it when nobody has done it before."""
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only the server needs it

        self._writer = SummaryWriter(str(self._folder))

    def update(self, results: Results) -> None:
        """Write what is new since the last call. Curves that can't be written don't end a run."""
        if self._failed:
            return
        try:
            self._update(results)
        except OSError as error:
            self._failed = True
            log.warning("curves for TensorBoard are written no more: %s", error)

    def _update(self, results: Results) -> None:
        # The last evaluation adds to earlier rounds.
        start = self._known if results.final is None else 0
        new = [p for p in scalars(results, start=start) if p[:2] not in self._written]
        if not new:
            return
        if self._writer is None:
            self.prepare()
            assert self._writer is not None
        for tag, round_, value in new:
            self._writer.add_scalar(tag, value, round_)
            self._written.add((tag, round_))
        self._writer.flush()
        # The scores of a round come with the answers to the next.
        self._known = max(len(results.rounds) - 2, 0)

    def close(self) -> None:
        """Nothing more will come."""
        if self._writer is not None:
            with suppress(OSError):  # the disk is full, which `update` has said
                self._writer.close()


def scalars(results: Results, *, start: int = 0) -> Iterator[Scalar]:
    """The points of a run's curves, in order of rounds, without those of the first ``start`` records."""
    for record in results.rounds[start:]:
        yield from _by_site(
            "train_loss", record.round, {s: r.train_loss for s, r in record.sites.items() if r.train_loss is not None}
        )
        metrics = sorted({name for site in record.sites.values() for name in site.val})
        for name in metrics:
            values = {s: r.val[name] for s, r in record.sites.items() if name in r.val}
            yield from _by_site(f"val/{name}", record.round, values)
    if results.final is not None:
        for which, scores in (("best", results.final.best), ("last", results.final.last)):
            for name in sorted({n for splits in scores.sites.values() for n in splits.get("test", {})}):
                found = {s: v["test"][name] for s, v in scores.sites.items() if name in v.get("test", {})}
                yield from _by_site(f"test_{which}/{name}", scores.round, found)
            for site, parts in scores.held_out.items():
                for name, value in sorted(parts.get("all", {}).items()):
                    yield f"held_out_{which}/{name}/{site}", scores.round, value


def _by_site(tag: str, round_: int, values: dict[str, float]) -> Iterator[Scalar]:
    for site, value in values.items():
        yield f"{tag}/{site}", round_, value
    if values:
        yield f"{tag}/mean", round_, fmean(values.values())
