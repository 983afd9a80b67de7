"""Pictures of every kind become sites; copies never straddle; what is wrong is said with the file's name."""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from errors import raises
from forbidding import forbid
from picturefiles import TREE, write_picture, write_tree
from PIL import Image

from data_prep import pictures
from data_prep.dealing import BY_CONTENT
from data_prep.pictures import Dealing, Plan, Source, write_pictures
from data_prep.trees import find_pictures
from fedshift.data.arrays import UNKNOWN, open_images
from fedshift.data.check import check
from fedshift.data.decode import read_picture, resize_picture
from fedshift.data.splits import subject_of
from fedshift.schema.errors import ConfigError
from fedshift.schema.manifest import Manifest, read_manifest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "raw", TREE.sites, TREE.classes)


def prepare(tree: Path, **options: object) -> list[Path]:
    dealing = options.pop("dealing", BY_CONTENT)
    plan = Plan(TREE, find_pictures(tree, TREE), (16,), dealing)  # type: ignore[arg-type]
    return write_pictures(plan, tree.parent / "out", **options)  # type: ignore[arg-type]


def split_of(site: Path) -> dict[str, str]:
    return {picture.id: picture.split for picture in read_manifest(site).pictures}


def test_a_site_holds_what_the_files_show(tree: Path) -> None:
    here, there = prepare(tree, sizes=[16, 8])
    assert (here, there) == tuple(tree.parent / "out" / "things" / site for site in TREE.sites)
    manifest = read_manifest(here)
    assert manifest.kind == "images" and manifest.classes == TREE.classes and not manifest.cases
    assert [picture.id for picture in manifest.pictures][4:6] == ["cup/frame_0005.png", "pen/frame_0001.png"]
    assert manifest.preparation["split_rule"] == BY_CONTENT.rule and manifest.preparation["sizes"] == [8, 16]
    arrays = open_images(here, size=8, channels=3)
    assert list(arrays.labels) == [0] * 5 + [1] * 5 and isinstance(np.load(here / "arrays/8/images.npy"), np.ndarray)
    for row, picture in enumerate(manifest.pictures):
        with Image.open(tree / "here" / picture.id) as stored:
            expected = np.asarray(stored.resize((8, 8), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(arrays.images[row].transpose(1, 2, 0), expected)
    with Image.open(here / "montage.png") as montage:
        assert montage.height == 2 * pictures.TILE and len(montage.getcolors(1 << 20) or ()) > 50
    assert check(tree.parent / "out") == []
    assert str(tree) not in (here / "manifest.json").read_text(encoding="utf-8")


def test_three_fifths_of_each_class_are_for_training(tree: Path) -> None:
    for site in prepare(tree):
        for label in TREE.classes:
            splits = [split for picture, split in split_of(site).items() if picture.startswith(label)]
            assert [splits.count(split) for split in ("train", "val", "test")] == [3, 1, 1]


def test_names_and_formats_do_not_change_the_split(tree: Path, tmp_path: Path) -> None:
    before = {p.sha256: p.split for p in read_manifest(prepare(tree)[0]).pictures}
    for k, path in enumerate(sorted((tree / "here" / "cup").iterdir())):
        with Image.open(path) as stored:
            stored.save(path.with_name(f"{9 - k}.bmp"))
        path.unlink()
    assert {p.sha256: p.split for p in read_manifest(prepare(tree)[0]).pictures} == before


def test_preparing_again_changes_nothing(tree: Path) -> None:
    def content(folders: list[Path]) -> dict[Path, bytes]:
        return {file: file.read_bytes() for folder in folders for file in folder.rglob("*") if file.is_file()}

    assert content(prepare(tree)) == content(prepare(tree))
    assert sorted(entry.name for entry in (tree.parent / "out" / "things").iterdir()) == ["here", "there"]


def test_copies_go_to_one_split_of_one_site(tree: Path) -> None:
    for k in range(1, 6):  # each cup twice at one site, a pen among the cups, and two of its cups at the other
        shutil.copy(tree / "here" / "cup" / f"frame_{k:04d}.png", tree / "here" / "cup" / f"copy_{k}.png")
    shutil.copy(tree / "here" / "pen" / "frame_0001.png", tree / "here" / "cup" / "pen.png")
    for k in (1, 2):
        shutil.copy(tree / "here" / "cup" / f"frame_{k:04d}.png", tree / "there" / "cup" / f"other_{k}.png")
    here, there = prepare(tree)
    places = defaultdict(set)
    for site in (here, there):
        for picture in read_manifest(site).pictures:
            places[picture.sha256].add((site, picture.split))
    assert all(len(found) == 1 for found in places.values())
    assert len(split_of(here)) == 16 and len(split_of(there)) == 10, "the first site keeps what both have"
    assert len(open_images(there, size=16, channels=3).images) == 10
    notes = [read_manifest(site).preparation for site in (here, there)]
    assert [note["pictures_same_as_another"] for note in notes] == [6, 0]
    assert [note["pictures_left_out_as_another_site_has_them"] for note in notes] == [0, 2]
    assert check(tree.parent / "out") == []


def test_a_given_split_is_kept_and_says_what_straddles(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copy(tree / "here" / "cup" / "frame_0001.png", tree / "here" / "pen" / "again.png")
    shutil.copy(tree / "here" / "cup" / "frame_0002.png", tree / "there" / "cup" / "again.png")
    pictures = find_pictures(tree, TREE)
    splits = {s: {f.id: "test" if f.label == "pen" else "train" for f in files} for s, files in pictures.items()}
    dealing = Dealing(lambda site, _: splits[site], "papers: by class", keep_copies=True)  # type: ignore[arg-type,return-value]
    here, there = prepare(tree, dealing=dealing)
    assert split_of(here) == splits["here"] and split_of(there) == splits["there"]
    notes = [read_manifest(site).preparation for site in (here, there)]
    assert [note["pictures_straddling"] for note in notes] == [2, 1], (
        "a site that comes first cannot know of later ones"
    )
    assert notes[0]["split_rule"] == "papers: by class"
    assert "site here: 2 pictures straddle splits or sites" in caplog.text
    findings = check(tree.parent / "out")
    assert {finding.level for finding in findings} == {"warning"}
    assert findings[0].code == "split-straddled" and "papers: by class" in findings[0].message


def test_shrinking_averages_and_channels_come_first(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2, 1] = 200
    small = resize_picture(Image.fromarray(stripes), 8)
    assert small.shape == (3, 8, 8) and small.dtype == np.uint8
    assert np.abs(small[1].astype(int) - 100).max() <= 6, "a plain bilinear would pick stripes"
    assert not small[[0, 2]].any()


@pytest.mark.reads("picture: cut short, damaged or no picture")
def test_every_damaged_file_is_named_and_nothing_is_written(tree: Path) -> None:
    before = prepare(tree)
    content = (before[0] / "manifest.json").read_bytes()
    cut = write_picture(tree / "here" / "cup" / "cut.jpg", 5)
    cut.write_bytes(cut.read_bytes()[:-200])
    (tree / "here" / "pen" / "text.png").write_text("not found", encoding="utf-8")
    (tree / "there" / "cup" / "empty.jpg").touch()
    Image.fromarray(np.full((9, 9), 0.5, np.float32)).save(tree / "there" / "pen" / "numbers.tif")
    with raises("pictures-damaged", naming="Things") as raised:
        prepare(tree, sizes=[8])
    lines = str(raised.value).splitlines()[1:]
    for line, name in zip(lines, ("here/cup/cut.jpg", "here/pen/text.png", "there/cup/empty.jpg"), strict=False):
        assert f"{tree / name} cannot be read (" in line and line.endswith("): download it again"), line
        assert line.count(name) == 1, line
    assert "numbers.tif holds fractional values" in lines[3]
    assert (before[0] / "manifest.json").read_bytes() == content
    assert sorted(entry.name for entry in before[0].parent.iterdir()) == ["here", "there"]


def test_damaged_files_can_be_left_out_and_are_counted(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = split_of(prepare(tree)[0])
    (tree / "here" / "pen" / "text.png").write_text("not found", encoding="utf-8")
    here, there = prepare(tree, skip_damaged=True)
    assert split_of(here) == whole, "the others stay in their splits"
    counts = [read_manifest(site).preparation["pictures_left_out_as_damaged"] for site in (here, there)]
    copies = read_manifest(here).preparation["pictures_left_out_as_another_site_has_them"]
    assert (counts, copies) == ([1, 0], 0)
    assert "here/pen/text.png cannot be read" in caplog.text
    assert check(tree.parent / "out") == []


@pytest.mark.parametrize(
    ("name", "words"), [("absent.jpg", ("file-missing", "absent.jpg")), ("cut.png", ("file-damaged", "cut.png"))]
)
def test_pictures_that_cannot_be_read_alone(name: str, words: tuple[str, str], tmp_path: Path) -> None:
    cut = write_picture(tmp_path / "cut.png", 3)
    cut.write_bytes(cut.read_bytes()[:300])
    with raises(words[0], naming=words[1]):
        read_picture(tmp_path / name)


def test_a_picture_that_may_not_be_read_is_no_full_disk(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("frame_0001.png", "frame_0002.png"):
        forbid(tree / "here" / "cup" / name, monkeypatch)
    with raises("pictures-damaged", naming=("frame_0001.png", f"{tree}/here/cup/frame_0002.png", "Permission denied")):
        prepare(tree)


def test_a_long_list_of_damaged_files_says_how_many_more(tree: Path) -> None:
    for path in tree.glob("*/*/*.png"):
        path.write_bytes(b"damaged")
    for name in ("a.png", "b.png"):
        (tree / "here" / "cup" / name).write_bytes(b"damaged")
    with raises("pictures-damaged", naming="22") as raised:
        prepare(tree)
    lines = str(raised.value).splitlines()
    assert len(lines) == 22 and lines[-1] == "  … and 2 others"


def test_a_site_that_only_tests_is_to_be_held_out(tree: Path) -> None:
    dealing = Dealing(lambda site, pictures: dict.fromkeys((p.id for p, _ in pictures), "test"), "all test")
    prepare(tree, dealing=dealing)
    findings = check(tree.parent / "out")
    assert [finding.level for finding in findings] == ["warning"] * 2
    assert findings[0].code == "split-empty"


def test_names_in_any_script_and_any_encoding(tree: Path) -> None:
    write_picture(tree / "here" / "cup" / "Tasse_Grün_茶.png", 901)
    raw = os.fsencode(tree / "here" / "cup") + b"/caf\xe9.png"
    with suppress(OSError):  # some file systems have UTF-8 names only
        shutil.copy(write_picture(tree / "here" / "cup" / "tmp.png", 902), os.fsdecode(raw))
    (tree / "here" / "cup" / "tmp.png").unlink()
    ids = split_of(prepare(tree)[0])
    assert "cup/Tasse_Grün_茶.png" in ids
    assert not Path(os.fsdecode(raw)).exists() or "cup/caf\\xe9.png" in ids


def test_what_is_no_picture_is_passed_over(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("Thumbs.db", ".hidden.png", "readme.txt"):
        (tree / "here" / "cup" / name).write_bytes(b"x")
    (tree / "here" / "cups").mkdir()
    (tree / ".git").mkdir()
    assert len(find_pictures(tree, TREE)["here"]) == 10
    assert "did you mean 'cup'?" in caplog.text


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: shutil.rmtree(t), ("not-a-folder", "raw")),
        (lambda t: shutil.rmtree(t / "there"), ("file-missing", "there, it holds here")),
        (lambda t: shutil.rmtree(t / "there" / "pen"), ("class-missing", "pen")),
        (lambda t: [f.unlink() for f in (t / "here" / "cup").iterdir()], ("class-missing", "cup")),
        (
            lambda t: shutil.copytree(t, t / "data") and shutil.rmtree(t / "here"),
            ("file-missing", "did you mean"),
        ),
    ],
)
def test_another_layout_is_described(tree: Path, spoil: object, message: tuple[str, str]) -> None:
    spoil(tree)  # type: ignore[operator]
    with raises(message[0], naming=message[1]) as raised:
        find_pictures(tree, TREE)
    assert "nowhere" in str(raised.value)


def all_damaged(tree: Path) -> None:
    for path in tree.glob("there/*/*.png"):
        path.write_bytes(b"damaged")


def all_copies(tree: Path) -> None:
    for label in TREE.classes:
        shutil.rmtree(tree / "there" / label)
        shutil.copytree(tree / "here" / label, tree / "there" / label)


@pytest.mark.parametrize(
    ("spoil", "options", "words"),
    [
        (lambda tree: None, {"sizes": [4]}, ("invalid-value", "size 4")),
        (all_damaged, {"skip_damaged": True}, ("pictures-damaged", "there")),
        (all_copies, {}, ("picture-missing", "there")),
    ],
    ids=["a size", "all damaged", "all copies"],
)
def test_no_site_is_made_of(
    spoil: Callable[[Path], object], options: dict[str, object], words: tuple[str, str], tree: Path
) -> None:
    spoil(tree)
    with raises(words[0], naming=words[1]):
        prepare(tree, **options)


def test_progress_names_site_and_picture(tree: Path) -> None:
    told: list[str] = []
    prepare(tree, progress=told.append)
    assert len(told) == 20 and told[0] == "here cup/frame_0001.png" and told[-1] == "there pen/frame_0005.png"


def test_check_finds_what_was_changed_afterwards(tree: Path) -> None:
    here, there = prepare(tree, sizes=[8, 16])
    manifest = json.loads((here / "manifest.json").read_text(encoding="utf-8"))
    copy = manifest["pictures"][0] | {"id": "cup/again.png", "split": "val"}
    copy["split"] = "val" if manifest["pictures"][0]["split"] != "val" else "train"
    manifest["pictures"].append(copy)
    manifest["counts"][copy["split"]]["cup"] += 1
    (here / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    np.save(there / "arrays" / "8" / "labels.npy", np.zeros(10, np.uint8))
    findings = [finding.sentence() for finding in check(tree.parent / "out") if finding.level == "error"]
    assert any("cup/again.png" in line and "same as cup/frame_0001.png" in line for line in findings)
    assert any("arrays/8" in line and "pen/frame_0001.png" in line for line in findings)


def test_a_manifest_counts_its_pictures_and_is_held_to_it(tree: Path) -> None:
    (tree / "here" / "cup" / "frame_0001.png").unlink()
    here, _ = prepare(tree)
    manifest = read_manifest(here)
    assert manifest.counts is not None
    for split in ("train", "val", "test"):
        labels = [picture.label for picture in manifest.by_split(split)]
        assert manifest.counts[split] == {label: labels.count(label) for label in TREE.classes}
    assert sum(manifest.counts[split]["cup"] for split in manifest.counts) == 4
    path = here / "manifest.json"
    content = json.loads(path.read_text(encoding="utf-8"))

    def refused(message: str) -> None:
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"manifest\.json: .*{message}"):
            read_manifest(here)

    content["counts"]["test"]["pen"] += 1
    refused("'counts' says 2 test picture\\(s\\) of 'pen', 'pictures' lists 1")
    content["counts"]["test"] = {"pen": 1, "fork": 2, "cup": manifest.counts["test"]["cup"]}
    refused("'counts' says 2 test picture\\(s\\) of 'fork', 'pictures' lists 0")
    del content["counts"]["val"]
    content["counts"]["test"].pop("fork")
    refused("'counts' says 0 val picture\\(s\\) of 'cup', 'pictures' lists 1")
    del content["counts"]
    path.write_text(json.dumps(content), encoding="utf-8")
    earlier = read_manifest(here)
    assert earlier.counts is None and earlier.pictures == manifest.pictures
    earlier.write(here)
    assert json.loads(path.read_text(encoding="utf-8")) == content, "what was prepared earlier stays as it was"


@pytest.mark.parametrize(
    ("change", "words"),
    [({"pictures": []}, "'cases' or 'pictures'"), ({"classes": ["cup", "fork"]}, "'pen' is none of the classes")],
    ids=["no pictures", "another class"],
)
def test_a_manifest_holds_volumes_or_pictures(change: dict[str, object], words: str, tree: Path) -> None:
    content = json.loads((prepare(tree)[0] / "manifest.json").read_text(encoding="utf-8"))
    assert "cases" not in content
    with pytest.raises(ConfigError, match=words):
        Manifest.parse(content | change, where="here")


def test_findings_are_stored_with_their_unknown_ones(tree: Path) -> None:
    before = prepare(tree)
    assert '"subject"' not in (before[0] / "manifest.json").read_text(encoding="utf-8")
    said: list[dict[str, bool]] = [{"cup": True, "pen": False}, {"cup": True}, {"pen": True}, {"cup": False}]
    found = {
        site: [
            Source(f"{k}", "", source.read, said[k % 4], subject=f"s{k // 2}") for k, source in enumerate(found[site])
        ]
        for found in [find_pictures(tree, TREE)]
        for site in TREE.sites
    }
    here, _ = write_pictures(Plan(TREE, found, (16,), BY_CONTENT), tree.parent / "findings")
    manifest = read_manifest(here)
    assert manifest.has_findings and not manifest.has_masks
    assert manifest.counts is not None and sum(of["cup"] for of in manifest.counts.values()) == 6
    assert sum(of["pen"] for of in manifest.counts.values()) == 2
    labels = open_images(here, size=16, channels=3).labels
    assert labels[:4].tolist() == [[1, 0], [1, UNKNOWN], [UNKNOWN, 1], [0, UNKNOWN]] and labels.dtype == np.uint8
    assert [subject_of(picture) for picture in manifest.pictures[:3]] == ["s0", "s0", "s1"]
    content = json.loads((here / "manifest.json").read_text(encoding="utf-8"))
    assert set(content["pictures"][0]) == {"id", "sha256", "split", "findings", "subject"}
    labels[1, 1] = 0
    np.save(here / "arrays/16/labels.npy", labels)
    with raises("labels-changed", naming="pen of picture 1,"):
        open_images(here, size=16, channels=3)


@pytest.mark.parametrize("change", [{"label": "cup"}, {"findings": {}}, {"findings": {"fork": True}}])
def test_a_picture_has_either_a_label_or_findings(change: dict[str, object], tree: Path) -> None:
    here, _ = prepare(tree)
    content = json.loads((here / "manifest.json").read_text(encoding="utf-8"))
    content.pop("counts")
    for picture in content["pictures"]:
        picture |= {"findings": {"cup": True}, "label": ""}
    Manifest.parse(content, where="manifest.json")
    content["pictures"][3] |= change
    with raises("invalid-value", naming="manifest.json"):
        Manifest.parse(content, where="manifest.json")
