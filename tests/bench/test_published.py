"""Published figures: read strictly, found by row and column."""

from __future__ import annotations

from pathlib import Path

import pytest
from errors import raises

from fedshift_bench.published import read_published
from fedshift_bench.spec import Published

HEAD = "row,column,value,std,unit,note\n"


def read(tmp_path: Path, text: str, **labels: dict[str, str]) -> list[tuple[str, str, str]]:
    (tmp_path / "published").mkdir(exist_ok=True)
    (tmp_path / "published" / "t.csv").write_text(text, encoding="utf-8")
    published = Published.parse({"file": "t.csv", **labels}, where="test")
    figures = read_published(published, folder=tmp_path / "papers", rows=["FedAvg", "Ours"], columns=["HK", "average"])
    return [(figure.row, figure.column, figure.text) for figure in figures]


def test_figures_are_found_by_our_labels(tmp_path: Path) -> None:
    text = HEAD + 'FedAvg,HK,62.50,,%,\n"FedFA, 2023",Avg.,89.5,0.3,%,\nFedAvg,UCL,1,,%,\n'
    assert read(tmp_path, text) == [("FedAvg", "HK", "62.50")]
    labels = {"rows": {"Ours": "FedFA, 2023"}, "columns": {"average": "Avg."}}
    assert read(tmp_path, text, **labels) == [("FedAvg", "HK", "62.50"), ("Ours", "average", "89.5 ± 0.3")]


@pytest.mark.parametrize(
    ("text", "code", "name"),
    [
        ("row,column,value\n", "published-line", "t.csv"),
        (HEAD + "FedAvg,HK,62.5\n", "published-line", "t.csv, line 2"),
        (HEAD + "FedAvg,HK,1,,%,\nFedAvg,HK,2,,%,\n", "published-line", "line 3: FedAvg, HK"),
        (HEAD + "FedAvg,HK,1,,%,\n", "unknown-label", "'Mean'"),
        (HEAD + "FedAvg,HK,many,,%,\n", "invalid-value", "t.csv, line 2"),
        (HEAD + "FedAvg,HK,nan,,%,\n", "invalid-value", "t.csv, line 2"),
    ],
)
def test_a_line_that_does_not_fit_is_named(tmp_path: Path, text: str, code: str, name: str) -> None:
    with raises(code, naming=name):
        read(tmp_path, text, columns={"average": "Mean"})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with raises("published-missing", naming="t.csv"):
        read_published(Published(file="t.csv"), folder=tmp_path / "papers", rows=[], columns=[])
