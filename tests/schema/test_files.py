"""A file is replaced as one or stays as it was, and no spreadsheet runs a cell of the tables that commands write."""

from __future__ import annotations

import csv
import errno
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from bench.made import made

from fedshift.cli import evaluate, predict_table
from fedshift.inference.scoring import Scored
from fedshift.schema.files import csv_text, path_of, safe_cell, write_private, write_text
from fedshift_bench.curves import curves_csv
from fedshift_bench.leaderboard import RankedRow, leaderboard_csv
from fedshift_bench.record import Comparison
from fedshift_bench.tables import long_csv
from fedshift_survey.cli import drift
from fedshift_survey.drift.compare import Compared, Limits
from fedshift_survey.drift.conclusion import Month

if TYPE_CHECKING:
    from fedshift.inference.model import Model
    from fedshift.schema.protocol_results import LabelledScans
    from fedshift_bench.leaderboard import Leaderboard

PACKAGE = Path(drift.__file__).parents[2]
RUN = "=1+1"
"""What a cell must not begin with, in any program's idea of where a cell begins."""


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1+1", "'+1+1"),
        ("-1+1", "'-1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t'=1"),
        ("\rx", "'\nx"),
        ("a\r\n=x", "a\n'=x"),
        (" =1", " '=1"),
        ('"=1"', '"\'=1"'),
        ("\uff1d1", "'\uff1d1"),
        ("a;=1", "a;'=1"),
        ("a, =1", "a, '=1"),
        ('a;"=1"', 'a;"\'=1"'),
        ("a\n-x", "a\n'-x"),
        ("a|@x", "a|'@x"),
        ("a=1; b-2", "a=1; b-2"),
        ("T2 - 3 mm", "T2 - 3 mm"),
        ("", ""),
        (None, ""),
        (-1.5, "-1.5"),
        (np.float64(-0.25), "-0.25"),
        ("-1.5e-07", "-1.5e-07"),
        ("+3", "+3"),
        (7, "7"),
        (Path("=a.nii.gz"), "./=a.nii.gz"),
        (Path("/scans/a;=b.nii.gz"), "/scans/a;'=b.nii.gz"),
    ],
)
def test_what_a_spreadsheet_would_run_is_text_and_numbers_stay_numbers(value: object, cell: str) -> None:
    assert safe_cell(value) == cell
    assert safe_cell(cell) == cell
    assert list(csv.reader(io.StringIO(csv_text(["a"], [[value]]), newline=""))) == [["a"], [cell] if cell else [""]]
    if isinstance(value, Path):
        assert path_of(cell) == value


def test_no_other_module_writes_csv() -> None:
    writers = [
        file.relative_to(PACKAGE).as_posix()
        for file in sorted(PACKAGE.rglob("*.py"))
        if re.search(r"csv\.(writer|DictWriter)|to_csv", file.read_text(encoding="utf-8"))
    ]
    assert writers == ["fedshift/schema/files.py"]


def _comparison() -> Comparison:
    cells = made({(RUN,): [{"A": 0.5, "B": 0.6}, {"A": 0.4, "B": 0.7}]}, axes={f"x;{RUN}": [RUN]})
    curved = [cell.model_copy(update={"curve": [0.1, 0.2], "initial_weights": RUN}) for cell in cells.cells]
    return cells.model_copy(update={"cells": curved})


def _leaderboard() -> str:
    row = RankedRow(RUN, 1.0, 0.5, -0.1, 3, 0.5, None)
    board = SimpleNamespace(rows=[row], blocks=[f"x;{RUN}"], scores=np.array([[-0.5]]))
    return leaderboard_csv(cast("Leaderboard", board))


def _predictions(out: Path) -> str:
    row = {"file": Path(f"x;{RUN}.nii.gz"), "class": RUN, "error": f"no;{RUN}"}
    predict_table.write_rows(iter([(row, {}), (row | {"error": ""}, {})]), out, n=2, about={})
    return (out / predict_table.PARTIAL).read_text(encoding="utf-8")


def _scores(out: Path) -> str:
    fine = Scored(RUN, Path("a"), {f"x;{RUN}": dict.fromkeys(evaluate.COLUMNS, -0.5)})
    lost = Scored(RUN, Path("b"), {}, error=f"no;{RUN}")
    evaluate._write(
        out, evaluate.COLUMNS, [fine, lost], cast("LabelledScans", SimpleNamespace(write=lambda folder: None))
    )
    return (out / evaluate.TABLE).read_text(encoding="utf-8")


def _drift(out: Path) -> str:
    scan = Compared(Path(f"x;{RUN}.nii.gz"), differs=(RUN, "=2"), error=f"no;{RUN}")
    header = SimpleNamespace(job=SimpleNamespace(name="j"), kind="phantom")
    model = cast("Model", SimpleNamespace(path=Path("m.pt"), header=header, of_pictures=False))
    drift._write(out, [Month(RUN, [scan])], [], "", model=model, sites=[], usual=Limits({RUN: 1.0}, flags_nothing=True))
    return (out / drift.TABLE).read_text(encoding="utf-8")


WRITERS: dict[str, Callable[[Path], str]] = {
    "table.csv": lambda out: long_csv(_comparison()),
    "curves.csv": lambda out: curves_csv(_comparison()),
    "leaderboard.csv": lambda out: _leaderboard(),
    "predictions.csv": _predictions,
    "scores.csv": _scores,
    "drift.csv": _drift,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_no_table_has_a_cell_that_runs_whatever_separates_cells(name: str, separator: str, tmp_path: Path) -> None:
    text = WRITERS[name](tmp_path)
    assert text.count(RUN) > 1
    cells = [cell for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) for cell in row]
    assert not [cell for cell in cells if cell.strip('" ').startswith(("=", "+", "@")) or cell.startswith("-1+")]


def test_a_file_ends_with_one_newline_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    for text in ("{}", "{}\n"):
        write_text(tmp_path / "results.json", text)
        assert (tmp_path / "results.json").read_bytes() == b"{}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "results.json", "before")
    write = Path.write_text

    def full(path: Path, text: str, **options: str) -> int:
        write(path, text[:3], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError) as raised:
        write_text(tmp_path / "results.json", "after this")
    assert raised.value.errno == errno.ENOSPC
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == "before\n"


def test_a_private_file_and_its_name_are_on_disk_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced, sync = tmp_path / "new" / "answered.json", [], os.fsync

    def spy(handle: int) -> None:
        synced.append((os.fstat(handle).st_ino, path.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", spy)
    write_private(path, b"{}")
    assert path.read_bytes() == b"{}" and path.stat().st_mode & 0o777 == 0o600
    assert synced == [(path.stat().st_ino, False), (path.parent.stat().st_ino, True)], "the folder after the renaming"
