"""Cells: whatever is added to and subtracted from whatever is told, no group below the floor comes out."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.federation.site.privacy.cells import OTHER, Cells


def everyone(n: int) -> list[str]:
    return [f"P{number}" for number in range(n)]


def sizes(cells: dict[str, np.ndarray]) -> dict[str, int]:
    return {value: int(cell.sum()) for value, cell in cells.items()}


def revealed(cells: list[np.ndarray], subjects: np.ndarray) -> int:
    """The fewest subjects of a group that sums and differences of cells give."""
    fewest = len(subjects)
    for signs in product((-1, 0, 1), repeat=len(cells)):
        group = np.tensordot(signs, np.array(cells, int), 1)
        if set(np.unique(group)) == {0, 1}:
            fewest = min(fewest, len(set(subjects[group == 1])))
    return fewest


@given(
    st.lists(st.tuples(*[st.sampled_from("abc")] * 3), min_size=4, max_size=24),
    st.integers(min_value=2, max_value=5),
    st.integers(min_value=1, max_value=3),
)
@settings(max_examples=60, deadline=None)
def test_no_difference_of_what_is_told_is_of_fewer_subjects(
    table: list[tuple[str, ...]], floor: int, scans: int
) -> None:
    """Also where columns nest or cross, and where subjects have several cases."""
    subjects = np.array([f"P{number // scans}" for number in range(len(table))])
    cells, whole = Cells(list(subjects), floor), np.ones(len(table), bool)
    if not cells.admit([whole]):
        assert len(set(subjects)) < floor
        return
    told = [whole]
    for column in zip(*table, strict=True):
        told += cells.column(whole, column).values()
    distinct = [*{cell.tobytes(): cell for cell in told}.values()]
    assert revealed(distinct[:9], subjects) >= floor


def test_small_values_are_put_together_and_the_rest_stays_large_enough() -> None:
    cells, whole = Cells(everyone(20), 3), np.ones(20, bool)
    assert cells.admit([whole])
    assert sizes(cells.column(whole, ["GE"] * 9 + ["Siemens"] * 8 + ["Philips"] * 2 + ["Canon"])) == {
        "GE": 9,
        "Siemens": 8,
        OTHER: 3,
    }


def test_one_hidden_value_takes_another_with_it() -> None:
    """20 in all, less 9 and 10, would be the one that is hidden."""
    cells, whole = Cells(everyone(20), 3), np.ones(20, bool)
    assert cells.admit([whole])
    assert sizes(cells.column(whole, ["GE"] * 9 + ["Siemens"] * 10 + ["Canon"])) == {"Siemens": 10, OTHER: 10}


def test_a_column_within_another_does_not_lay_open_what_that_hides() -> None:
    """Ten are of GE; eight of these are Signa: were both told, two would be left."""
    cells, whole = Cells(everyone(22), 3), np.ones(22, bool)
    assert cells.admit([whole])
    assert sizes(cells.column(whole, ["GE"] * 10 + ["Siemens"] * 12)) == {"GE": 10, "Siemens": 12}
    model = ["Signa"] * 8 + ["Discovery"] * 2 + ["Prisma"] * 9 + ["Vida"] * 3
    assert sizes(cells.column(whole, model)) == {"Prisma": 9, OTHER: 13}


def test_a_column_that_adds_up_with_two_others_is_not_told() -> None:
    """A or B, told beside A and B, gives the two that are both: A + B - (A or B)."""
    n = 22
    a = np.arange(n) < 10
    b = (np.arange(n) >= 8) & (np.arange(n) < 16)
    cells, whole = Cells(everyone(n), 3), np.ones(n, bool)
    assert cells.admit([whole]) and cells.admit([a]) and cells.admit([b])
    assert not cells.admit([a | b])


def test_scans_of_one_patient_are_one() -> None:
    cells, whole = Cells(["P1"] * 5 + ["P2"] * 5 + ["P3"] * 5 + ["P4"] * 5, 3), np.ones(20, bool)
    assert cells.admit([whole])
    assert not cells.admit([np.arange(20) < 10]), "ten cases, of two patients"
    assert cells.column(whole, ["x"] * 10 + ["y"] * 10) == {}


def test_too_few_are_not_told_of_at_all() -> None:
    assert not Cells(everyone(2), 3).admit([np.ones(2, bool)])


def test_many_columns_that_cross_are_told_where_every_group_is_large() -> None:
    """Fourteen findings of 300 radiographs, each known of nine in ten: their cells are independent."""
    rng = np.random.default_rng(0)
    cells = Cells(everyone(300), 3)
    for _ in range(14):
        known, has = rng.random(300) < 0.9, rng.random(300) < 0.2
        assert cells.admit([known & has, known & ~has])
