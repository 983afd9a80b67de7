"""A prepared site is there as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from errors import raises

from data_prep.replace_folder import replace_folder


def listed(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_new_site_takes_the_place_of_the_former(tmp_path: Path) -> None:
    for name in ("old", "new"):
        with replace_folder(tmp_path / "HK") as folder:
            (folder / name).touch()
            assert not (tmp_path / "HK" / name).exists()
    assert listed(tmp_path) == ["HK", "HK/new"]


@pytest.mark.parametrize("former", [True, False])
def test_what_fails_half_way_leaves_the_former_site_and_nothing_else(former: bool, tmp_path: Path) -> None:
    if former:
        (tmp_path / "HK").mkdir()
        (tmp_path / "HK" / "old").touch()
    before = listed(tmp_path)
    with pytest.raises(ZeroDivisionError), replace_folder(tmp_path / "HK") as folder:
        (folder / "new").touch()
        raise ZeroDivisionError
    assert listed(tmp_path) == before


def test_a_full_disk_is_named_with_the_place(tmp_path: Path) -> None:
    with raises("folder-unwritable", naming="HK"), replace_folder(tmp_path / "HK"):
        raise OSError(28, "No space left on device")
    assert listed(tmp_path) == []


def test_a_rename_that_fails_puts_the_former_site_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with replace_folder(tmp_path / "HK") as folder:
        (folder / "old").touch()
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if ".partial" in path.name:
            raise PermissionError(13, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with raises("folder-unwritable", naming="HK"), replace_folder(tmp_path / "HK") as folder:
        (folder / "new").touch()
    assert listed(tmp_path) == ["HK", "HK/old"]
