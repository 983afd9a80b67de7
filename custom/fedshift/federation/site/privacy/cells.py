"""Which groups of a site's cases may be told of, so that no number of them together tells of fewer than a floor.

A *cell* is a group whose size and sums leave, such as the cases of one vendor. Whoever has several cells can add and
subtract them: the cases of all vendors less those of the named ones, or those of a vendor less those of its models. So
cells are admitted one after another, and a cell is refused with which any group of fewer than ``floor`` subjects could
be computed.

**Exactly that**: what can be computed from the cells are the rational combinations of their indicators, which are 1
for a case in the cell and 0 for another. Cases that are in the same cells can't be told apart and make an *atom*. In
reduced echelon form the indicators, as rows over atoms, have pivots; a combination that is an indicator itself is 0 or
1 at each pivot, and these values determine it. A group of fewer subjects than the floor has no pivots of more, so
trying all sets of pivots of so few finds every group that could be computed (`reveals`).

The rule looks at which group is whose, and at no score, so the same data give the same cells in every job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

OTHER = "other"
"""The cell of all values whose own cells are not told."""
MOST_SETS = 2**16
"""Sets of pivots that are tried; cells with which there would be more are not told."""
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
        owners = [np.unique(self.subjects[whose.reshape(-1) == atom]) for atom in range(atoms.shape[1])]
        order = sorted(range(len(owners)), key=lambda atom: -len(owners[atom]))  # few small pivots: few sets of them
        basis, pivots = _echelon(atoms[:, order].astype(int))
        return not reveals(basis, pivots, [owners[atom] for atom in order], self.floor)


def reveals(basis: np.ndarray, pivots: Sequence[int], owners: Sequence[np.ndarray], floor: int) -> bool:
    """Whether a group of fewer than ``floor`` subjects can be computed, or too many sets had to be tried.

    Args:
        basis: in reduced echelon form, (rank, atoms).
        pivots: the atom of each row's pivot.
        owners: the subjects of each atom.
        floor: the fewest subjects that may be told of.
    """
    sets = list(islice(_sets([frozenset(owners[atom].tolist()) for atom in pivots], floor), MOST_SETS + 1))
    if len(sets) > MOST_SETS:
        return True
    for start in range(0, len(sets), CHUNK):
        chosen = np.zeros((len(sets[start : start + CHUNK]), len(basis)))
        for row, rows in enumerate(sets[start : start + CHUNK]):
            chosen[row, list(rows)] = 1
        groups = chosen @ basis
        is_group = (np.abs(groups * (groups - 1)) < TOLERANCE).all(1)
        for group in groups[is_group] > 0.5:
            cells = [owners[int(atom)] for atom in np.flatnonzero(group)]
            if len(np.unique(np.concatenate(cells))) < floor:
                return True
    return False


def _sets(subjects: Sequence[frozenset[int]], floor: int) -> Iterator[tuple[int, ...]]:
    """All sets of places whose ``subjects`` together are fewer than the floor, but for the empty one."""
    waiting: list[tuple[tuple[int, ...], frozenset[int]]] = [((), frozenset())]
    while waiting:
        places, whose = waiting.pop()
        for place in range(places[-1] + 1 if places else 0, len(subjects)):
            more = whose | subjects[place]
            if len(more) < floor:
                yield (*places, place)
                waiting.append(((*places, place), more))


def _echelon(rows: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The reduced echelon form of whole numbers (n, columns) without rows of zeros, and the column of each pivot.

    In whole numbers of any size, so that it is exact (Bareiss, Mathematics of Computation 22, 1968).
    """
    matrix, pivots, last = rows.astype(object), list[int](), 1
    for column in range(rows.shape[1]):
        rank = len(pivots)
        candidates = np.flatnonzero(matrix[rank:, column])
        if not len(candidates):
            continue
        matrix[[rank, rank + candidates[0]]] = matrix[[rank + candidates[0], rank]]
        pivot, value = matrix[rank].copy(), matrix[rank, column]
        matrix = (matrix * value - np.outer(matrix[:, column], pivot)) // last
        matrix[rank] = pivot
        pivots.append(column)
        last = value
    return (matrix[: len(pivots)] / last).astype(float).reshape(len(pivots), rows.shape[1]), pivots
