"""A tree of pictures is the same in folders, in a zip and in a zip a site; what is wrong with a zip is said."""

from __future__ import annotations

import os
import pickle
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from errors import raises
from picturefiles import TREE, patch_zip, pixels, shown, write_16_bits, write_picture, write_tree, write_zip
from PIL import Image

from data_prep import office_caltech, officehome, pacs
from data_prep.dealing import BY_CONTENT
from data_prep.office_caltech import OFFICE_CALTECH
from data_prep.pacs import PACS
from data_prep.pictures import Plan, write_pictures
from data_prep.trees import Tree, find_pictures
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import read_manifest

FLAGS, SIZE = 8, 24
"""Where a zip's table of contents has a member's flags and its size when unpacked."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "raw", TREE.sites, TREE.classes)


def content(source: Path, root: Path) -> dict[str, list[tuple[str, str, str, str]]]:
    """Id, content, class and split of all pictures by site."""
    folders = write_pictures(Plan(TREE, find_pictures(source, TREE), (8,), BY_CONTENT), root)
    return {
        folder.name: [(p.id, p.sha256, p.label, p.split) for p in read_manifest(folder).pictures] for folder in folders
    }


def one_zip(tree: Path) -> Path:
    return write_zip(tree.parent / "things.zip", tree)


def zip_in_folders(tree: Path) -> Path:
    shutil.copytree(tree, tree.parent / "up" / "data" / "Things")
    for junk in ("data/Things/here/cup/._frame_0001.png", "__MACOSX/here/cup/a.png", "__MACOSX/there/pen/a.png"):
        (tree.parent / "up" / junk).parent.mkdir(parents=True, exist_ok=True)
        (tree.parent / "up" / junk).write_bytes(b"junk, as macOS adds")
    return write_zip(tree.parent / "things.zip", tree.parent / "up")


def zip_a_site(tree: Path) -> Path:
    write_zip(tree.parent / "zips" / "here.zip", tree / "here", inside="here")
    write_zip(tree.parent / "zips" / "there.zip", tree / "there")
    return tree.parent / "zips"


def zip_and_folder(tree: Path) -> Path:
    write_zip(tree / "here.zip", tree / "here", inside="here")
    shutil.rmtree(tree / "here")
    shutil.move(tree / "there", tree / "deeper")  # unpacked into a folder of its own
    (tree / "there").mkdir()
    shutil.move(tree / "deeper", tree / "there" / "there")
    return tree


@pytest.mark.parametrize("pack", [one_zip, zip_in_folders, zip_a_site, zip_and_folder])
def test_a_zip_gives_what_folders_give(tree: Path, tmp_path: Path, pack: object) -> None:
    before = content(tree, tmp_path / "a")
    source = pack(tree)  # type: ignore[operator]
    files = sorted(tmp_path.rglob("*"))
    pictures = find_pictures(source, TREE)
    assert [picture.size for picture in shown(pictures["here"])] == [(24, 20)] * 10
    assert sorted(tmp_path.rglob("*")) == files, "nothing is unpacked"
    assert content(source, tmp_path / "b") == before


def test_other_data_sets_come_as_zips_too(tmp_path: Path) -> None:
    source = write_zip(tmp_path / "p.zip", write_tree(tmp_path / "p", PACS.sites, PACS.classes, each=1), inside="PACS")
    assert pacs.plan(source).total == 4 * 7
    root = write_tree(tmp_path / "o", OFFICE_CALTECH.sites, OFFICE_CALTECH.classes, each=2)
    for site in OFFICE_CALTECH.sites:
        for part, k in (("train", 1), ("test", 2)):
            paths = [f"office_caltech_10/{site}/{label}/frame_{k:04d}.png" for label in OFFICE_CALTECH.classes]
            (root / f"{site}_{part}.pkl").write_bytes(pickle.dumps((paths, list(OFFICE_CALTECH.classes))))
    source = write_zip(tmp_path / "office_caltech_10_dataset.zip", root, inside="office_caltech_10")
    assert office_caltech.plan(source, split="papers").total == 4 * 20, "the lists are in the zip"


def test_lists_are_found_beside_a_zip(tree: Path) -> None:
    source = one_zip(tree)
    (tree.parent / "list.txt").write_text("beside", encoding="utf-8")
    opened = Tree(source, TREE)
    assert opened.files() == {"list.txt", "things.zip"}
    assert opened.open("list.txt").read() == b"beside"


def test_every_kind_of_picture_in_a_zip(tree: Path) -> None:
    colours, grey = pixels(1), pixels(2, channels=1)[..., 0]
    cup = tree / "here" / "cup"
    Image.fromarray(grey).save(cup / "a.png")
    Image.fromarray(colours).convert("CMYK").save(cup / "b.jpg", quality=100, subsampling=0)
    Image.fromarray(colours).quantize(256).save(cup / "c.gif")
    Image.fromarray(grey.astype(np.uint16) * 257).save(cup / "d.tif")
    pictures = find_pictures(one_zip(tree), TREE)["here"]
    read = dict(zip([p.id for p in pictures], shown(pictures), strict=True))
    for name, wanted, within in (("a.png", grey, 0), ("b.jpg", colours, 6), ("c.gif", colours, 24), ("d.tif", grey, 0)):
        pixel = np.asarray(read[f"cup/{name}"]).astype(int)
        expected = wanted if wanted.ndim == 3 else np.stack([wanted] * 3, -1)
        assert pixel.shape == (20, 24, 3) and np.abs(pixel - expected).max() <= within, name


def test_a_name_that_is_not_utf8_has_the_same_id_in_folder_and_zip(tree: Path) -> None:
    cup = tree / "here" / "cup"
    write_picture(cup / "Tasse_茶.png", 901)
    source = one_zip(write_picture(cup / "caf_.png", 902).parents[2])
    source.write_bytes(source.read_bytes().replace(b"caf_.png", b"caf\xe9.png"))
    ids = [picture.id for picture in find_pictures(source, TREE)["here"]]
    assert "cup/caf\\xe9.png" in ids and "cup/Tasse_茶.png" in ids
    with suppress(OSError):  # some file systems have UTF-8 names only
        (cup / "caf_.png").rename(os.fsdecode(os.fsencode(cup) + b"/caf\xe9.png"))
        assert [picture.id for picture in find_pictures(tree, TREE)["here"]] == ids


@pytest.mark.parametrize("module", [office_caltech, officehome, pacs], ids=lambda module: module.__name__)
def test_odd_names_and_16_bits_in_the_data_sets_trees(module: ModuleType, tmp_path: Path) -> None:
    """In zips; `Tree` reads folders alike, as the tests before say."""
    of = {office_caltech: OFFICE_CALTECH, officehome: officehome.OFFICEHOME, pacs: PACS}[module]
    label, site = of.classes[1], of.sites[-1]
    folders = {name: name.replace("Real_World", "Real World") for name in of.sites}
    raw = write_tree(tmp_path / "raw", list(folders.values()), of.classes, each=1, suffix=".jpg", name="{:05d}")
    expected = write_16_bits(raw / folders[site] / label / "caf_.png", 5)
    source = write_zip(tmp_path / "raw.zip", raw)
    source.write_bytes(source.read_bytes().replace(b"caf_.png", b"caf\xe9.png"))
    found = {picture.id: picture for picture in module.plan(source).by_site[site]}
    assert len(found) == len(of.classes) + 1
    odd = found[f"{label}/caf\\xe9.png"]
    assert odd.label == label
    np.testing.assert_array_equal(np.asarray(shown([odd])[0]), expected)


def test_paths_that_lead_out_of_a_zip_are_passed_over(tree: Path) -> None:
    write_picture(tree / "ab" / "here" / "cup" / "other.png", 903)
    write_picture(tree / "a" / "here" / "pen" / "other.png", 904)
    source = one_zip(tree)
    assert b"ab/here/cup/other" in source.read_bytes()
    source.write_bytes(source.read_bytes().replace(b"ab/here/", b"../here/").replace(b"a/here/", b"./here/"))
    assert len(find_pictures(source, TREE)["here"]) == 10


def test_what_is_damaged_in_a_zip_is_named_and_nothing_is_written(tree: Path, tmp_path: Path) -> None:
    cut = write_picture(tree / "here" / "cup" / "cut.jpg", 5)
    cut.write_bytes(cut.read_bytes()[:-200])
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    for name in ("flipped", "locked", "packed"):
        Image.fromarray(noise).save(tree / "here" / "pen" / f"{name}.png")
    (tree / "there" / "cup" / "text.jpg").write_text("not found", encoding="utf-8")
    source = one_zip(tree)
    raw = bytearray(source.read_bytes())
    raw[raw.index(b"here/pen/flipped.png") + 2000] ^= 0xFF
    source.write_bytes(raw)
    patch_zip(source, "here/pen/locked.png", at=FLAGS, value=b"\1")
    patch_zip(source, "here/pen/packed.png", at=10, value=b"\x63")
    patch_zip(source, "there/pen/frame_0001.png", at=SIZE, value=struct.pack("<I", 2**31))
    with raises("pictures-damaged", naming="Things") as raised:
        content(source, tmp_path / "out")
    names = ("cut", "flipped", "locked", "packed", "text", "frame")
    lines = dict(zip(names, str(raised.value).split("\n  ")[1:], strict=True))
    assert f"{source}/here/cup/cut.jpg cannot be read (" in lines["cut"]
    assert f"{source}/here/pen/flipped.png cannot be read (" in lines["flipped"]
    assert "locked.png cannot be read (" in lines["locked"] and "password" in lines["locked"]
    assert "packed.png" in lines["packed"] and "compression method" in lines["packed"]
    assert f"{source}/there/cup/text.jpg cannot be read (" in lines["text"]
    assert "2147483648 bytes" in lines["frame"]
    assert not any((tmp_path / "out").rglob("*.npy"))


def test_other_classes_may_be_expected(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_picture(tree / "here" / "cupboard" / "a.png", 1)
    assert len(find_pictures(tree, TREE)["here"]) == 10
    assert "here/cupboard" in caplog.text and "did you mean 'cup'?" in caplog.text
    caplog.clear()
    assert len(Tree(tree, TREE).pictures(some_classes=True)["here"]) == 10 and not caplog.text


def test_a_site_s_folder_may_have_other_names(tree: Path) -> None:
    (tree / "here").rename(tree / "right here")
    folders = {"here": ("right here", "right_here")}
    assert list(Tree(tree, TREE, folders=folders).pictures()) == ["here", "there"]
    assert len(Tree(one_zip(tree), TREE, folders=folders).pictures()["here"]) == 10
    (tree / "right here").rename(tree / "here")
    with raises("file-missing", naming="right here"):
        Tree(tree, TREE, folders=folders)


def no_zip(tree: Path) -> Path:
    (tree.parent / "page.zip").write_text("<html>", encoding="utf-8")
    return tree.parent / "page.zip"


def cut_zip(tree: Path) -> Path:
    source = one_zip(tree)
    source.write_bytes(source.read_bytes()[:-400])
    return source


def zip_without_a_class(tree: Path) -> Path:
    shutil.rmtree(tree / "there" / "pen")
    return one_zip(tree)


def zip_without_a_site(tree: Path) -> Path:
    shutil.rmtree(tree / "there")
    return one_zip(tree)


def folder_with_the_zip(tree: Path) -> Path:
    write_zip(tree.parent / "loads" / "other.zip", tree / "here")
    write_zip(tree.parent / "loads" / "things.zip", tree, inside="things")
    (tree.parent / "loads" / "broken.zip").write_bytes(b"PK")
    return tree.parent / "loads"


def site_s_zip_without_a_class(tree: Path) -> Path:
    shutil.rmtree(tree / "there" / "pen")
    return zip_a_site(tree)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_zip, r"page\.zip is damaged or no zip \(File is not a zip file\)"),
        (cut_zip, r"things\.zip is damaged or no zip \("),
        (zip_without_a_class, r"things\.zip/there/pen: the class has no such folder, but cup"),
        (site_s_zip_without_a_class, r"there\.zip/pen: the class has no such folder, but cup"),
        (zip_without_a_site, r"things\.zip has no folder there, it holds here"),
        (
            folder_with_the_zip,
            r"has no folder here, there, it holds broken\.zip, other\.zip, things\.zip: did you mean ",
        ),
        (lambda t: t.parent / "absent.zip", r"absent\.zip is not a folder"),
    ],
)
def test_what_is_wrong_is_said(tree: Path, spoil: object, message: str) -> None:
    source = spoil(tree)  # type: ignore[operator]
    with pytest.raises(DataError, match=message) as raised:
        find_pictures(source, TREE)
    if "did you mean" in message:
        assert f"did you mean {source / 'things.zip'}? expected" in str(raised.value)
