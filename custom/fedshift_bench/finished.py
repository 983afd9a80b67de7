"""Finished cells of an earlier ``cells.json``: they are not run again, on whatever machine and in whatever folder.

A cell is the same if its key is: the resolved job, the kind of run and the data (`WorkItem`). The version of fedshift
is not part of it, as a hash of the package would end every comparison with every commit; tables say which version
made which rows, and ``--again`` runs cells anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from fedshift_bench.cell_record import CellRecord
from fedshift_bench.cells import Cell
from fedshift_bench.record import FILE_NAME, Comparison, read_comparison
from fedshift_bench.spec import Spec, folder_name


class FinishedCells:
    """The finished cells of comparisons; of two with the same key the first.

    ``again`` are keys of cells that are to run anew and therefore do not count.
    """

    def __init__(self, comparisons: Iterable[Comparison] = (), *, again: Collection[str] = ()) -> None:
        self._records: dict[str, CellRecord] = {}
        self._data: list[dict[str, str]] = []
        for record in (record for comparison in comparisons for record in comparison.done):
            if record.key not in again:
                self._records.setdefault(record.key, record)
                data = {site: about.manifest_sha256 for site, about in record.data.items()}
                if data not in self._data:
                    self._data.append(data)

    def find(self, cell: Cell) -> CellRecord | None:
        """The record of a cell; where its data are missing, that of the same job on any preparation of them."""
        works = [cell.work] if cell.work is not None else map(cell.work_on, self._data)
        return next((self._records[work.key] for work in works if work.key in self._records), None)


def finished_comparisons(spec: Spec, scale: str, *, folder: Path, out: Path) -> list[Comparison]:
    """The comparisons whose cells need not run again: that in ``out``, and that of `Spec.finished`, if they exist.

    ``folder`` is that of the spec's file, and ``out`` has the command's own tables.

    Raises:
        ConfigError: a file is no ``cells.json``.
    """
    remedies = {out: "remove it or name another --out; cells that have finished in --workspace are not run again"}
    if spec.finished:
        committed = folder / spec.finished / folder_name(spec.name, scale)
        remedies.setdefault(committed, "remove it or leave 'finished' out of the spec")
    return [read_comparison(path, remedy=text) for path, text in remedies.items() if (path / FILE_NAME).is_file()]
