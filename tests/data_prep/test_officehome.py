"""OfficeHome: four sites of 65 classes from the zip or unpacked, one of them under a name without a blank."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
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
    expected = {site: [picture.id for picture in pictures] for site, pictures in plan(zipped).by_site.items()}
    assert {site: [picture.id for picture in pictures] for site, pictures in plan(raw).by_site.items()} == expected
    assert plan(raw).by_site["Real_World"][0].read().size == (24, 20)
    assert expected["Art"][3] == "Backpack/00001.jpg"


def too_far_up(raw: Path) -> Path:
    (raw.parent / "up").mkdir()
    return raw.rename(raw.parent / "up" / "OfficeHomeDataset_10072016").parent


def without(name: str) -> Callable[[Path], Path]:
    def make(raw: Path) -> Path:
        shutil.rmtree(raw / name)
        return raw

    return make


EXPECTED = r"\? expected OfficeHome as "


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (too_far_up, rf"did you mean .*up/OfficeHomeDataset_10072016{EXPECTED}"),
        (without("Product/ToothBrush"), r"Product/ToothBrush: .*Alarm_Clock"),
        (without("Real World"), r"no folder Real World.*Art, Clipart, Product.*https://www"),
    ],
    ids=["too far up", "a class less", "a site less"],
)
def test_what_is_wrong_is_said(make: Callable[[Path], Path], words: str, raw: Path) -> None:
    with pytest.raises(DataError, match=words):
        plan(make(raw))


def test_the_folder_of_the_zip(zipped: Path) -> None:
    with pytest.raises(DataError, match=rf"did you mean .*/OfficeHomeDataset_10072016\.zip{EXPECTED}"):
        plan(zipped.parent)


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
