"""PACS: four sites of seven classes, split by content."""

from __future__ import annotations

from pathlib import Path

import pytest
from errors import raises
from picturefiles import write_tree

from data_prep.pacs import PACS, plan
from data_prep.pictures import write_pictures
from fedshift import cli
from fedshift.cli import data as data_command
from fedshift.federation.resolve import resolve
from fedshift.schema.errors import ConfigError
from fedshift.schema.manifest import read_manifest


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "raw", PACS.sites, PACS.classes, each=4)


def test_a_folder_too_far_up_is_recognised(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    raw.rename(tmp_path / "up" / "PACS")
    with raises("file-missing", naming="up/PACS?"):
        plan(tmp_path / "up")


def test_of_many_sites_the_pictures_that_were_written_are_counted(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_command, "MAX_SITES_LISTED", 3)
    (raw / "photo" / "dog" / "frame_0001.png").write_bytes(b"damaged")
    command = ["data", "prepare", "pacs", "--source", str(raw), "--out", str(tmp_path / "out"), "--size", "8"]
    assert cli.main([*command, "--skip-damaged"]) == 0
    assert "4 sites, 111 pictures, in " in capsys.readouterr().out


def test_fraug_s_protocol() -> None:
    fraug = resolve("pacs", "fraug", protocol="fraug")
    assert (
        fraug.task.schedule.local_steps == 5
        and fraug.task.data["fraction"] == 0.1
        and fraug.task.data["fraction_of"] == "site"
    )
    assert fraug.methods["fraug"]["rtnet_distance"] == "l2"
    assert "sketch" not in resolve("pacs", "afl+fedrdn", protocol="augmentation").task.sites


def test_the_tasks_own_normalisation_does_not_go_with_moderate_augmentation() -> None:
    with pytest.raises(ConfigError, match=r"with fedrdn\.mode=fixed"):
        resolve("pacs", "fedavg+augmentation", options=["augmentation.level=moderate"])


def test_real_sub_sites(shared_data: Path) -> None:
    if not (shared_data / "pacs").is_dir():
        pytest.skip("no pacs among the real data")
    found = plan(shared_data / "pacs", subsites=4).by_site
    assert len(found) == 13 and len(found["sketch"]) == 252
    assert sum(map(len, found.values())) == 1008


@pytest.mark.slow
def test_real_pictures(shared_data: Path, tmp_path: Path) -> None:
    if not (shared_data / "pacs").is_dir():
        pytest.skip("no pacs among the real data")
    for folder in write_pictures(plan(shared_data / "pacs"), tmp_path, sizes=[32]):
        manifest = read_manifest(folder)
        assert len(manifest.pictures) == 252 and len({picture.sha256 for picture in manifest.pictures}) == 252
        for label in PACS.classes:
            splits = [picture.split for picture in manifest.pictures if picture.label == label]
            assert [splits.count(part) for part in ("train", "val", "test")] == [22, 7, 7]
