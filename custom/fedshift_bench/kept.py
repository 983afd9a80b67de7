"""Finished cells of an earlier ``cells.json``: they are not run again, on whatever machine and in whatever folder.

A cell is the same if its key is: the resolved job, the kind of run and the data (`WorkItem`). The version of fedshift
is not part of it, as a hash of the package would end every comparison with every commit; tables say which version
made which rows, and ``--again`` runs cells anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from fedshift_bench.cell_record import CellRecord
from fedshift_bench.cells import Cell, WorkItem
from fedshift_bench.record import FILE_NAME, Comparison, read_comparison
from fedshift_bench.spec import Spec


class Kept:
    """The finished cells of comparisons; of two with the same key the first."""

    def __init__(self, comparisons: Iterable[Comparison] = (), *, again: Collection[str] = ()) -> None:
        """``again`` are keys of cells that are to run anew and therefore are not kept."""
        self._records: dict[str, CellRecord] = {}
        self._data: list[dict[str, str]] = []
        for comparison in comparisons:
            for record in comparison.cells:
                if record.state == "done" and record.key not in again:
                    self._records.setdefault(record.key, record)
                    data = {site: about.manifest_sha256 for site, about in record.data.items()}
                    if data not in self._data:
                        self._data.append(data)

    def has(self, cell: Cell) -> bool:
        """Whether the cell need not run: it is kept, with the data of this machine or where these are missing."""
        return self.find(cell) is not None

    def find(self, cell: Cell) -> CellRecord | None:
        """The record of a cell; where its data are missing, that of the same job on any preparation of them."""
        if cell.work is not None:
            return self._records.get(cell.work.key)
        for data in self._data:
            work = WorkItem(kind=cell.plan.kind, name=cell.plan.name, jobs=cell.plan.at(cell.seed), data=data)
            if work.key in self._records:
                return self._records[work.key]
        return None


def finished_comparisons(spec: Spec, scale_name: str, *, folder: Path, out: Path) -> list[Comparison]:
    """The comparisons whose cells are kept: that in ``out``, then that of `Spec.finished`, as far as they exist.

    Args:
        spec: the spec at its scale.
        scale_name: ``<name>_<scale>``, the folder below `Spec.finished`.
        folder: the folder of the spec's file.
        out: the folder of the command's own tables.

    Raises:
        ConfigError: a file is no ``cells.json``.
    """
    mends = {out: "remove it or name another --out; cells that have finished in --workspace are not run again"}
    if spec.finished:
        mends.setdefault(folder / spec.finished / scale_name, "remove it or leave 'finished' out of the spec")
    return [read_comparison(path, mend=mend) for path, mend in mends.items() if (path / FILE_NAME).is_file()]
