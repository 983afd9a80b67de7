"""The generators of pages that no test of the site looks into."""

from __future__ import annotations

from pathlib import Path

import pytest

HOOKS = Path(__file__).parents[2] / "docs" / "hooks"


@pytest.fixture(autouse=True)
def _hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HOOKS))


def test_a_mark_becomes_what_its_generator_makes() -> None:
    from marks import filled  # type: ignore[import-not-found]

    assert (
        filled("There are <!-- make: facts.number_of_methods -->.")
        != "There are <!-- make: facts.number_of_methods -->."
    )
    assert filled("<!-- any other comment -->") == "<!-- any other comment -->"


def test_error_codes_are_found_with_their_sentences_and_areas(tmp_path: Path) -> None:
    from error_codes import raised, table  # type: ignore[import-not-found]

    (tmp_path / "custom" / "fedshift" / "data").mkdir(parents=True)
    (tmp_path / "custom" / "fedshift" / "data" / "scans.py").write_text(
        "class DataError(FedshiftError): ...\n"
        "class Other(ValueError): ...\n"
        'raise DataError("mask-grid", f"{path.name}: has {len(voxels)} voxels: " "resample it")\n'
        'raise DataError("only a sentence")\n'
        'raise Other("not-ours", "no")\n'
        "class ScanError(DataError):\n    def __init__(self, code, path, what, mend): ...\n"
        'said = f"has {n} axes"\n'
        'raise ScanError("axes", path, said, "save it anew")\n'
        'Finding("warning", "axes", path, "has no axes", "save it anew")\n',
        encoding="utf-8",
    )
    (tmp_path / "data_prep").mkdir()
    assert set(raised(tmp_path)) == {
        ("data", "mask-grid", "NAME: has VOXELS voxels: resample it"),
        ("data", "axes", "PATH has N axes: save it anew"),
        ("data", "axes", "PATH has no axes: save it anew"),
    }
    assert table(str(tmp_path)).splitlines()[-1] == "| `mask-grid` | data | NAME: has VOXELS voxels: resample it |"
    assert table(str(tmp_path / "data_prep")) == "No error has a code."
