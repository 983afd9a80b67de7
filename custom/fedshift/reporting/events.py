"""Curves for TensorBoard, made from a run's results as they grow.

Tags: ``val/<metric>/<site>``, ``val/<metric>/mean``, ``train_loss/<site>`` and ``train_loss/mean`` by round, and
``test_best/<metric>/<site>``, ``test_last/<metric>/<site>`` once, at the round of the model they belong to; so are
``held_out_best/<metric>/<site>`` and ``held_out_last/<metric>/<site>`` of sites that are held out.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from fedshift.reporting.results import Results

FOLDER = "tb_events"

Scalar = tuple[str, int, float]
"""Tag, round, value."""


class Events:
    """Event files of one run."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is the run's; files go to ``tb_events`` in it."""
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only the server needs it

        # All points are made from the results: those of a run that was interrupted come again.
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        self._writer = SummaryWriter(str(folder / FOLDER))
        self._written: set[tuple[str, int]] = set()

    def update(self, results: Results) -> None:
        """Write what is new since the last call."""
        for tag, round_, value in scalars(results):
            if (tag, round_) not in self._written:
                self._writer.add_scalar(tag, value, round_)
                self._written.add((tag, round_))
        self._writer.flush()

    def close(self) -> None:
        """Nothing more will come."""
        self._writer.close()


def scalars(results: Results) -> Iterator[Scalar]:
    """All points of a run's curves, in order of rounds."""
    for record in results.rounds:
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
