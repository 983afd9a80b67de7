"""OfficeHome: four sites of 65 classes from the zip or unpacked, one of them under a name without a blank."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from picturefiles import pixels, write_picture, write_tree, write_zip
from PIL import Image

from data_prep.officehome import OFFICEHOME, plan
from fedshift import cli
from fedshift.data.check import check
from fedshift.data.images import open_images
from fedshift.federation.resolve import resolve
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.base import build_task

DOMAINS = ("Art", "Clipart", "Product", "Real World")
EACH = 3


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of the download, with the two lists that lie beside its domains."""
    root = write_tree(
        tmp_path_factory.mktemp("officehome"), DOMAINS, OFFICEHOME.classes, each=EACH, suffix=".jpg", name="{:05d}"
    )
    (root / "ImageInfo.csv").write_text("Art/Alarm_Clock/00001.jpg, 24, 20\n", encoding="utf-8")
    (root / "imagelist.txt").write_text("Art/Alarm_Clock/00001.jpg\n", encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def zipped(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zip")
    return write_zip(folder / "OfficeHomeDataset_10072016.zip", unpacked, inside="OfficeHomeDataset_10072016")


@pytest.fixture
def raw(unpacked: Path, tmp_path: Path) -> Path:
    """Links: tests may take files away and add some, but not change them."""
    return Path(shutil.copytree(unpacked, tmp_path / "raw", copy_function=os.link))


@pytest.fixture(scope="session")
def prepared(zipped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prepared")
    command = ["data", "prepare", "officehome", "--source", str(zipped), "--out", str(root), "--size", "8,32"]
    assert cli.main(command) == 0
    return root / "officehome"


def test_four_sites_of_65_classes(prepared: Path) -> None:
    assert sorted(folder.name for folder in prepared.iterdir()) == ["Art", "Clipart", "Product", "Real_World"]
    for folder in prepared.iterdir():
        manifest = read_manifest(folder)
        assert (manifest.dataset, manifest.site, len(manifest.classes)) == ("officehome", folder.name, 65)
        assert [len(manifest.by_split(part)) for part in ("train", "val", "test")] == [65, 65, 65]
        assert sorted(set(open_images(folder, size=8, channels=3).labels)) == list(range(65))
        assert manifest.pictures[3].id == "Backpack/00001.jpg"
    assert check(prepared.parent) == []


@pytest.mark.parametrize("name", ["Real World", "Real_World", "RealWorld"])
def test_unpacked_it_is_the_same(raw: Path, zipped: Path, name: str) -> None:
    if name != "Real World":
        (raw / "Real World").rename(raw / name)
    expected = {site: [picture.id for picture in pictures] for site, pictures in plan(zipped).found.items()}
    assert {site: [picture.id for picture in pictures] for site, pictures in plan(raw).found.items()} == expected
    assert plan(raw).found["Real_World"][0].read().size == (24, 20)


def test_the_folder_of_the_zip_and_the_folder_above(raw: Path, zipped: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"did you mean .*/OfficeHomeDataset_10072016\.zip\? expected OfficeHome as"):
        plan(zipped.parent)
    shutil.move(raw, tmp_path / "up" / "OfficeHomeDataset_10072016")
    with pytest.raises(DataError, match=r"did you mean .*up/OfficeHomeDataset_10072016\? expected OfficeHome as fold"):
        plan(tmp_path / "up")


def test_what_is_wrong_is_said(raw: Path) -> None:
    shutil.rmtree(raw / "Product" / "ToothBrush")
    with pytest.raises(DataError, match="Product/ToothBrush: the class has no such folder, but Alarm_Clock, Backpack"):
        plan(raw)
    shutil.rmtree(raw / "Real World")
    with pytest.raises(DataError, match=r"has no folder Real World, it holds Art, Clipart, Product: .* at https://www"):
        plan(raw)


def test_every_kind_of_picture_and_a_damaged_one(raw: Path) -> None:
    radio, grey = raw / "Art" / "Radio", pixels(7, channels=1)[..., 0]
    Image.fromarray(grey).save(radio / "00010.jpg")
    Image.fromarray(pixels(8)).convert("CMYK").save(radio / "00011.jpg")
    Image.fromarray(pixels(9)).quantize(16).save(radio / "00012.png")
    Image.fromarray(grey.astype(np.uint16) * 200).save(radio / "00013.png")
    cut = write_picture(radio / "00014.jpg", 11)
    cut.write_bytes(cut.read_bytes()[:-150])
    *others, last = [picture for picture in plan(raw).found["Art"] if picture.label == "Radio"]
    assert [picture.read().mode for picture in others] == ["RGB"] * (EACH + 4)
    with pytest.raises(DataError, match=r"Art/Radio/00014\.jpg cannot be read"):
        last.read()


def test_the_task_opens_what_was_prepared(prepared: Path) -> None:
    job = resolve("officehome", "fedavg", options=["data.size=32", "data.fraction=0.2"])
    x, _ = next(build_task(job).open(prepared / "Real_World", "Real_World").chunks())
    assert x.shape == (13, 3, 32, 32) and x.min() < 0 < x.max(), "normalised as ImageNet is"


def test_fraug_s_protocol() -> None:
    fraug = resolve("officehome", "fraug", protocol="fraug")
    assert fraug.task.sites == OFFICEHOME.sites and fraug.task.classes == OFFICEHOME.classes
    assert (fraug.task.schedule.batch_size, fraug.task.schedule.local_steps, fraug.task.schedule.rounds) == (
        16,
        10,
        300,
    )
    assert fraug.task.data["fraction"] == 0.1 and not fraug.methods["fraug"]["share_generator_bn"]
    assert fraug.methods["fraug"]["generator_distance"] == fraug.methods["fraug"]["rtnet_distance"] == "mmd"
    assert (fraug.methods["fraug"]["lr_generator"], fraug.methods["fraug"]["lr_rtnet"]) == (0.05, 0.025)


# --- sub-sites ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough pictures to be divided: of six, one is for validation."""
    return write_tree(tmp_path_factory.mktemp("wide"), DOMAINS, OFFICEHOME.classes, each=6)


def test_the_sub_sites_that_are_prepared_are_those_of_the_protocol(
    wide: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["data", "prepare", "officehome", "--source", str(wide), "--out", str(tmp_path), "--size", "32"]
    assert cli.main([*command, "--subsites", "4", "--seed", "3"]) == 0
    assert "Clipart: 390 picture(s) (260 train, 65 val, 65 test)" in capsys.readouterr().out
    folders = {folder.name: folder for folder in (tmp_path / "officehome_subsites").iterdir()}
    job = resolve("officehome", "vm+fedrdn", protocol="augmentation", options=["data.size=32"])
    assert set(folders) == {*job.task.sites, "Clipart"} and job.task.dataset == "officehome_subsites"
    for domain in ("Art", "Product", "Real_World"):
        manifests = [read_manifest(folders[f"{domain}_{k}"]) for k in (1, 2, 3, 4)]
        ids = [picture.id for manifest in manifests for picture in manifest.pictures]
        assert len(ids) == len(set(ids)) >= 380, "disjoint"
        counts = np.array([[len(m.by_split(part)) for part in ("train", "val", "test")] for m in manifests])
        assert counts[:, 0].min() > 0 and 150 < counts.sum(0)[0] <= 325 and 55 <= counts.sum(0)[1] <= 65
        rule = "4 sub-sites a domain, seed 3, Clipart whole by content"
        assert {manifest.preparation["split_rule"] for manifest in manifests} == {rule}
    assert [finding for finding in check(tmp_path) if finding.level == "error"] == []
    x, _ = next(build_task(job).open(folders["Real_World_4"], "Real_World_4").chunks())
    assert x.shape[1:] == (3, 32, 32)


def test_another_domain_may_stay_whole(wide: Path) -> None:
    found = plan(wide, subsites=2, whole="Real_World").found
    assert list(found) == ["Art_1", "Art_2", "Clipart_1", "Clipart_2", "Product_1", "Product_2", "Real_World"]
    with pytest.raises(DataError, match="--whole and --seed only apply to sub-sites: add --subsites"):
        plan(wide, whole="Art")
    with pytest.raises(DataError, match="Art: 6 sub-sites of a fifth of a domain each need more than the domain"):
        plan(wide, subsites=6)


@pytest.mark.parametrize(
    ("protocol", "dataset", "sites"),
    [
        (
            "augmentation",
            "officehome_subsites",
            tuple(f"{domain}_{k}" for domain in ("Art", "Product", "Real_World") for k in (1, 2, 3, 4)),
        ),
        ("augmentation_domains", "officehome", ("Art", "Product", "Real_World")),
    ],
)
def test_the_augmentation_papers_protocols(protocol: str, dataset: str, sites: tuple[str, ...]) -> None:
    task = resolve("officehome", "afl+fedrdn", protocol=protocol).task
    assert (task.dataset, task.sites, task.held_out) == (dataset, sites, ("Clipart",))
    assert task.network.options["norm"] == "group" and task.optimizer.lr == 5e-5
    assert (task.schedule.rounds, task.schedule.local_steps, task.schedule.batch_size) == (80, 200, 32)
    moderate = resolve(
        "officehome", "vm+augmentation+fedrdn", protocol=protocol, options=["augmentation.level=moderate"]
    )
    assert moderate.methods["vm"]["beta"] == 0.5 and moderate.task.data["mean"] == [0]
    assert moderate.methods["fedrdn"]["mode"] == "fixed" and moderate.methods["fedrdn"]["fixed_mean"][0] == 0.485
