"""OfficeHome: four sites of 65 classes from the zip or unpacked, one of them under a name without a blank."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from picturefiles import write_officehome, write_zip

from data_prep.officehome import OFFICEHOME, plan
from fedshift.federation.resolve import resolve
from fedshift.schema.errors import DataError

EACH = 3


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_officehome(tmp_path_factory.mktemp("officehome"), each=EACH)


@pytest.fixture(scope="session")
def zipped(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zip")
    return write_zip(folder / "OfficeHomeDataset_10072016.zip", unpacked, inside="OfficeHomeDataset_10072016")


@pytest.fixture
def raw(unpacked: Path, tmp_path: Path) -> Path:
    """Links: tests may take files away and add some, but not change them."""
    return Path(shutil.copytree(unpacked, tmp_path / "raw", copy_function=os.link))


@pytest.mark.parametrize("name", ["Real World", "Real_World", "RealWorld"])
def test_unpacked_it_is_the_same(raw: Path, zipped: Path, name: str) -> None:
    if name != "Real World":
        (raw / "Real World").rename(raw / name)
    expected = {site: [picture.id for picture in pictures] for site, pictures in plan(zipped).found.items()}
    assert {site: [picture.id for picture in pictures] for site, pictures in plan(raw).found.items()} == expected
    assert plan(raw).found["Real_World"][0].read().size == (24, 20)
    assert expected["Art"][3] == "Backpack/00001.jpg"


def test_the_folder_of_the_zip_and_the_folder_above(raw: Path, zipped: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"did you mean .*/OfficeHomeDataset_10072016\.zip\? expected OfficeHome as"):
        plan(zipped.parent)
    shutil.move(raw, tmp_path / "up" / "OfficeHomeDataset_10072016")
    with pytest.raises(DataError, match=r"did you mean .*up/OfficeHomeDataset_10072016\? expected OfficeHome as fold"):
        plan(tmp_path / "up")


def test_what_is_wrong_is_said(raw: Path) -> None:
    shutil.rmtree(raw / "Product" / "ToothBrush")
    with pytest.raises(DataError, match=r"Product/ToothBrush: .*Alarm_Clock"):
        plan(raw)
    shutil.rmtree(raw / "Real World")
    with pytest.raises(DataError, match=r"no folder Real World.*Art, Clipart, Product.*https://www"):
        plan(raw)


def test_fraug_s_protocol() -> None:
    fraug = resolve("officehome", "fraug", protocol="fraug")
    assert fraug.task.sites == OFFICEHOME.sites and fraug.task.classes == OFFICEHOME.classes
    assert (fraug.task.schedule.batch_size, fraug.task.schedule.local_steps, fraug.task.schedule.rounds) == (
        16,
        10,
        300,
    )
    assert (fraug.task.data["fraction"], fraug.task.data["fraction_of"]) == (0.1, "site")
    assert not fraug.methods["fraug"]["share_generator_bn"]
    assert fraug.methods["fraug"]["generator_distance"] == fraug.methods["fraug"]["rtnet_distance"] == "mmd"
    assert (fraug.methods["fraug"]["lr_generator"], fraug.methods["fraug"]["lr_rtnet"]) == (0.05, 0.025)
