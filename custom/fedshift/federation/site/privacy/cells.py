"""Which groups of a site's cases may be told of, so that no number of them together tells of fewer than a floor.

A *cell* is a group whose size and sums leave, such as the cases of one vendor. Whoever has several cells can add and
subtract them: the cases of all vendors less those of the named ones, or those of a vendor less those of its models. So
cells are admitted one after another, and a cell is refused with which any group of fewer than ``floor`` subjects could
be computed.

**Exactly that**: what can be computed from the cells are the rational combinations of their indicators, which are 1
for a case in the cell and 0 for another. Cases that are in the same cells can't be told apart and make an *atom*. In
reduced echelon form the indicators, as rows over atoms, have pivots; a combination that is an indicator itself is 0 or
1 at each pivot, and these values determine it. So trying all 2^rank of them finds every group that can be computed
(`smallest`).

The rule looks at which group is whose, and at no score, so the same data give the same cells in every job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

OTHER = "other"
"""The cell of all values whose own cells are not told."""
MOST_RANK = 14
"""Independent cells that are admitted: 2^14 combinations are tried."""
TOLERANCE = 1e-9
CHUNK = 4096


class Cells:
    """The cells that have been admitted.

    Attributes:
        subjects: whose each case is, (n,).
        floor: the fewest subjects that may be told of.
    """

    def __init__(self, subjects: Sequence[str], floor: int) -> None:
        self.floor = floor
        self.subjects = np.unique(np.array(subjects, dtype=str), return_inverse=True)[1]
        self._admitted: list[np.ndarray] = []

    def admit(self, cells: Iterable[np.ndarray]) -> bool:
        """Admit all of these, each (n,) bool, or none; False if a group below the floor could then be computed."""
        rows = [*self._admitted, *(cell for cell in cells if cell.any())]
        if not self._safe(rows):
            return False
        self._admitted = rows
        return True

    def column(self, whole: np.ndarray, values: Sequence[str]) -> dict[str, np.ndarray]:
        """The cells of a column within the cells' whole, by value; none if it may not be told.

        Values of too few subjects are put together as `OTHER`, and then the next smallest, until all can be admitted.

        Args:
            whole: a cell that has been admitted, (n,).
            values: of the column, (n,).
        """
        named = {value: whole & (np.array(values) == value) for value in sorted(set(values) - {OTHER})}
        by_size = sorted(named, key=lambda value: (self._size(named[value]), value))
        by_size = [value for value in by_size if named[value].any()]
        for apart in range(len(by_size) + 1):
            kept = sorted(by_size[apart:])
            rest = whole & ~np.any([named[value] for value in kept], axis=0) if kept else whole
            cells = {value: named[value] for value in kept} | ({OTHER: rest} if rest.any() else {})
            if kept and self.admit(cells.values()):
                return cells
        return {}

    def _size(self, cell: np.ndarray) -> int:
        return len(np.unique(self.subjects[cell]))

    def _safe(self, rows: Sequence[np.ndarray]) -> bool:
        if not rows:
            return True
        if min(map(self._size, rows)) < self.floor:
            return False
        atoms, whose = np.unique(np.array(rows), axis=1, return_inverse=True)
        basis = _echelon(atoms.astype(int))
        if len(basis) > MOST_RANK:
            return False
        owners = [np.unique(self.subjects[whose.reshape(-1) == atom]) for atom in range(atoms.shape[1])]
        return smallest(basis, owners) >= self.floor


def smallest(basis: np.ndarray, owners: Sequence[np.ndarray]) -> float:
    """The fewest subjects of any group that the rows of a basis give; infinity if they give none.

    Args:
        basis: in reduced echelon form, (rank, atoms).
        owners: the subjects of each atom.
    """
    rank, fewest = len(basis), np.inf
    for start in range(1, 2**rank, CHUNK):
        numbers = np.arange(start, min(start + CHUNK, 2**rank))
        groups = (numbers[:, None] >> np.arange(rank) & 1) @ basis
        is_group = (np.abs(groups * (groups - 1)) < TOLERANCE).all(1)
        for group in groups[is_group] > 0.5:
            there = [owners[int(atom)] for atom in np.flatnonzero(group)]
            fewest = min(fewest, len(np.unique(np.concatenate(there))))
    return fewest


def _echelon(rows: np.ndarray) -> np.ndarray:
    """The reduced echelon form of whole numbers, without rows of zeros; computed in fractions, so that it is exact."""
    left = [[Fraction(int(value)) for value in row] for row in rows]
    done: list[list[Fraction]] = []
    for column in range(rows.shape[1]):
        pivot = next((row for row in left if row[column]), None)
        if pivot is None:
            continue
        left = [row for row in left if row is not pivot]
        pivot = [value / pivot[column] for value in pivot]
        left = [_without(row, pivot, column) for row in left]
        done = [_without(row, pivot, column) for row in done] + [pivot]
    return np.array([[float(value) for value in row] for row in done]).reshape(len(done), rows.shape[1])


def _without(row: list[Fraction], pivot: list[Fraction], column: int) -> list[Fraction]:
    factor = row[column]
    return [value - factor * other for value, other in zip(row, pivot, strict=True)] if factor else row
