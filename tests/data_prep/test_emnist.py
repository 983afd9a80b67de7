"""EMNIST: idx files of all forms, LEAF's writers and arrays become sites; images stand upright, white on black."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from digitfiles import idx
from errors import raises
from letterfiles import letters, write_idx, write_leaf

from data_prep.emnist import CLASSES, plan, read_emnist
from data_prep.pictures import write_pictures
from fedshift import cli
from fedshift.data.arrays import open_images
from fedshift.data.check import check
from fedshift.federation.resolve import resolve
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.manifest import read_manifest

PARTS = ("train", "val", "test")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_idx(tmp_path_factory.mktemp("raw"))


def test_images_stand_upright_and_letters_begin_with_a(raw: Path) -> None:
    (x_train, y_train), (x_test, y_test) = read_emnist(raw, "letters")
    np.testing.assert_array_equal(x_train, letters(312))
    np.testing.assert_array_equal(x_test, letters(104, 1))
    assert list(y_train[24:28]) == [24, 25, 0, 1] and list(y_test[:2]) == [0, 1]


@pytest.mark.parametrize(("form", "first", "count"), [("letters", 1, 26), ("balanced", 0, 47), ("byclass", 0, 62)])
def test_every_form_has_its_classes(form: Any, first: int, count: int, tmp_path: Path) -> None:
    write_idx(tmp_path / "gzip", form, first=first, each=3, packed=form != "balanced")
    planned = plan(tmp_path, form=form, sites_count=4)
    assert (
        planned.picture_set.dataset == f"emnist_{form}"
        and len(planned.picture_set.classes) == len(set(planned.picture_set.classes)) == count
    )
    sources = [source for site in planned.by_site.values() for source in site]
    assert {source.label for source in sources} == set(CLASSES[form])
    by_id = {source.id: source.label for source in sources}
    assert by_id["train/000000"] == ("A" if form == "letters" else "0")
    assert by_id[f"train/{count - 1:06d}"] == {"letters": "Z", "balanced": "t", "byclass": "z"}[form]


def test_arrays_are_taken_as_they_stand(raw: Path, tmp_path: Path) -> None:
    (x_train, y_train), (x_test, y_test) = read_emnist(raw, "letters")
    np.savez(tmp_path / "emnist_letters.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    for part, given in zip(read_emnist(tmp_path, "letters"), ((x_train, y_train), (x_test, y_test)), strict=True):
        np.testing.assert_array_equal(part[0], given[0])
        np.testing.assert_array_equal(part[1], given[1])


def test_sites_of_unequal_size_share_all_images(raw: Path, tmp_path: Path) -> None:
    folders = write_pictures(plan(raw, sites_count=24, skew=0.8), tmp_path)
    manifests = [read_manifest(folder) for folder in folders]
    assert len({p.sha256 for m in manifests for p in m.pictures}) == sum(len(m.pictures) for m in manifests) == 416
    trained = np.array([len(m.by_split("train")) + len(m.by_split("val")) for m in manifests])
    assert trained.sum() == 312 and trained.min() >= 4 and trained.std() > 4
    assert sum(len(m.by_split("test")) for m in manifests) == 104
    arrays = open_images(folders[5], size=28, channels=1)
    first = manifests[5].pictures[0]
    np.testing.assert_array_equal(arrays.images[0, 0], letters(312)[int(first.id.split("/")[1])])
    assert len(str(manifests[0].preparation["split_rule"])) <= 64
    assert [f.sentence() for f in check(tmp_path) if f.level == "error"] == []


# --- writers ------------------------------------------------------------------------------------------

SIZES = {f"f{k:04d}_{k:02d}": 10 + 3 * k for k in range(12)} | {"f0900_01": 9, "f0901_01": 0}


def test_writers_are_sites(tmp_path: Path) -> None:
    half = len(SIZES) // 2
    write_leaf(tmp_path / "all_data_0_niid_05_keep_0.json", dict(list(SIZES.items())[:half]))
    write_leaf(tmp_path / "all_data_1_niid_05_keep_0.json", dict(list(SIZES.items())[half:]), seed=1)
    planned = plan(tmp_path, writers=8)
    assert planned.picture_set.dataset == "femnist_writers" and list(planned.by_site)[7] == "site_007"
    folders = write_pictures(planned, tmp_path / "out")
    writers = []
    for folder in folders:
        manifest = read_manifest(folder)
        names = {picture.id.split("/")[0] for picture in manifest.pictures}
        writers += names
        n = SIZES[names.pop()]
        tenth = max(1, n // 10)
        assert [len(manifest.by_split(part)) for part in PARTS] == [n - 2 * tenth, tenth, tenth]
        label = next(p.label for p in manifest.pictures if p.id.endswith("/000003"))
        assert manifest.classes == CLASSES["byclass"] and label == "L", "class 21"
    assert len(set(writers)) == 8 and not {"f0900_01", "f0901_01"} & set(writers)
    images = open_images(folders[0], size=28, channels=1).images
    assert images[:, 0, 2:5, 4:24].min() == 255 and images[:, 0, 10:].max() <= 30, "white on black"
    again, other = (
        [{s.id for s in site} for site in plan(tmp_path, writers=8, seed=seed).by_site.values()] for seed in (0, 1)
    )
    assert again == [{s.id for s in site} for site in planned.by_site.values()] != other


def test_white_on_black_stays(tmp_path: Path) -> None:
    write_leaf(tmp_path / "all_data_0.json", {"a": 12, "b": 12}, paper=0.0)
    folders = write_pictures(plan(tmp_path, writers=2), tmp_path / "out")
    images = open_images(folders[0], size=28, channels=1).images
    assert images[:, 0, 2:5, 4:24].min() == 255 and images[:, 0, 10:].max() <= 30


def test_leafs_own_test_part_is_kept(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train" / "all_data_0_niid_05_keep_0_train_9.json", {"a": 30, "b": 20, "c": 10})
    write_leaf(tmp_path / "test" / "all_data_0_niid_05_keep_0_test_9.json", {"a": 4, "b": 3}, seed=1)
    folders = write_pictures(plan(tmp_path, writers=2), tmp_path / "out")
    manifests = [read_manifest(folder) for folder in folders]
    assert [[len(m.by_split(part)) for part in PARTS] for m in manifests] == [[27, 3, 4], [18, 2, 3]]
    assert str(manifests[0].preparation["split_rule"]) == "writers, seed 0; LEAF's test part; val 1/10"


def test_the_training_part_of_leafs_split_by_user_can_be_given_alone(tmp_path: Path) -> None:
    split_by_user(tmp_path)
    assert len(write_pictures(plan(tmp_path / "train", writers=2), tmp_path / "out")) == 2


def test_fewer_writers_do_not_leave_others_beside_them(tmp_path: Path) -> None:
    write_leaf(tmp_path / "all_data_0.json", {"a": 12, "b": 12, "c": 12})
    write_pictures(plan(tmp_path, writers=3), tmp_path / "out")
    with pytest.raises(DataError, match=r"femnist_writers holds .*site_002"):
        write_pictures(plan(tmp_path, writers=2), tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"form": "byclass"}, ("options-clash", "--writers")),
        ({"sites_count": 200}, ("options-clash", "--sites-count")),
        ({"skew": 0.0, "form": "letters"}, ("options-clash", "--writers")),
    ],
    ids=str,
)
def test_options_that_writers_have_no_use_for(options: dict[str, Any], words: tuple[str, str], tmp_path: Path) -> None:
    with raises(words[0], naming=words[1]):
        plan(tmp_path, writers=2, **options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not in the form of LEAF's FEMNIST"),
        ("[1]", "is not in the form of LEAF's FEMNIST"),
        ('{"users": ["a"]}', r"is not in the form of LEAF's FEMNIST \('user_data'\)"),
        ({"a": {"x": [[0.5] * 783], "y": [1]}}, r"images \(1, 783\) are not 1 rows of 784"),
        ({"a": {"x": [[0.5] * 784], "y": [1, 2]}}, r"images \(1, 784\) are not 2 rows of 784"),
        ({"a": {"x": [[255] * 784], "y": [1]}}, "are not 1 rows of 784 numbers from 0 to 1"),
        ({"a": {"x": [[float("nan")] * 784], "y": [1]}}, "are not 1 rows of 784 numbers from 0 to 1"),
        ({"a": {"x": [[0.5] * 784], "y": [62]}}, "classes are not numbers from 0 to 61"),
        ({"a": {"x": [[0.5] * 784], "y": ["a"]}}, "classes are not numbers from 0 to 61"),
        ({"a": {"x": [[0.5] * 784, [1]], "y": [1, 2]}}, "is not in the form of LEAF's FEMNIST"),
        ({"a": {"x": "abc", "y": [1]}}, "is not in the form of LEAF's FEMNIST"),
    ],
)
def test_writers_in_another_form_are_described(content: Any, message: str, tmp_path: Path) -> None:
    text = content if isinstance(content, str) else json.dumps({"user_data": content})
    (tmp_path / "all_data_0.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message) as raised:
        plan(tmp_path, writers=1)
    assert str(tmp_path / "all_data_0.json") in str(raised.value) and "\n" not in str(raised.value)


def split_by_user(folder: Path) -> None:
    """As LEAF's ``-t user`` divides: nobody of the training part is in the test part."""
    write_leaf(folder / "train" / "all_data_0_niid_05_keep_0_train_9.json", {"a": 30, "b": 20})
    write_leaf(folder / "test" / "all_data_0_niid_05_keep_0_test_9.json", {"c": 14}, seed=1)


def two_of_three_tested(folder: Path) -> None:
    write_leaf(folder / "train" / "all_data_0.json", {"a": 30, "b": 20, "c": 10})
    write_leaf(folder / "test" / "all_data_0.json", {"a": 4, "b": 3}, seed=1)


def a_writer_twice(folder: Path) -> None:
    for number in range(2):
        write_leaf(folder / f"all_data_{number}.json", {"a": 12})


WRITERS: dict[str, tuple[Callable[[Path], object], int, type[Exception], str]] = {
    "no writer": (
        lambda folder: write_leaf(folder / "all_data_0.json", {}),
        1,
        DataError,
        "has 0 writers with 10 images or more, 0 in all",
    ),
    "one of two with images": (
        lambda folder: write_leaf(folder / "all_data_0.json", {"a": 12, "b": 3}),
        2,
        DataError,
        "has 1 writers with 10 images or more, 2 in all",
    ),
    "two of three in the test part": (two_of_three_tested, 3, DataError, "has 2 writers .*3 in all"),
    "split by user": (split_by_user, 1, DataError, "test has other writers than train .*train alone"),
    "a writer twice": (a_writer_twice, 1, DataError, r"all_data_1\.json repeats writer a "),
    "none asked for": (a_writer_twice, 0, ConfigError, "number of sites: 'count'"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fault", WRITERS)
def test_writers_that_make_no_sites(fault: str, tmp_path: Path) -> None:
    make, count, error, words = WRITERS[fault]
    make(tmp_path)
    with pytest.raises(error, match=words):
        plan(tmp_path, writers=count)


# --- what else can be wrong ---------------------------------------------------------------------------


def other_names(folder: Path) -> None:
    (folder / "gzip.zip").touch()
    (folder / "gr\udcfcn").touch()  # a name that is not UTF-8


LAYOUTS: dict[str, tuple[Callable[[Path], object], dict[str, Any], str]] = {
    "other names": (other_names, {}, r"holds 'gr\\udcfcn', 'gzip\.zip'"),
    "writers": (a_writer_twice, {}, r"holds 'all_data_0\.json', 'all_data_1\.json'"),
    "no writers": (other_names, {"writers": 4}, r"expected .*all_data_\*\.json of LEAF"),
    "another form": (write_idx, {"form": "byclass"}, r"expected emnist-byclass-train-images-idx3-ubyte\.gz"),
}


@pytest.mark.parametrize("fault", LAYOUTS)
def test_another_layout_is_described(fault: str, tmp_path: Path) -> None:
    make, options, words = LAYOUTS[fault]
    make(tmp_path)
    with pytest.raises(DataError, match=words) as raised:
        plan(tmp_path, **options)
    str(raised.value).encode()


def labelled(count: int, first: int) -> bytes:
    wrong = (np.arange(count) % 26 + 1).astype(np.uint8)
    wrong[0] = first
    return gzip.compress(idx(wrong))


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("labels-idx1", labelled(312, 0), ("arrays-form", "labels-idx1-ubyte.gz")),
        ("labels-idx1", labelled(312, 27), ("arrays-form", "312")),
        ("labels-idx1", labelled(311, 5), ("arrays-form", "312")),
        ("labels-idx1", labelled(312, 1)[:-20], ("file-damaged", "labels-idx1-ubyte")),
        ("labels-idx1", None, ("file-missing", "labels-idx1-ubyte")),
        ("images-idx3", b"<html>", ("file-form", "images-idx3-ubyte")),
    ],
    ids=["label 0", "label 27", "a label less", "cut short", "no labels", "a web page"],
)
def test_damaged_files_are_named(kind: str, content: bytes | None, words: tuple[str, str], tmp_path: Path) -> None:
    path = write_idx(tmp_path) / f"emnist-letters-train-{kind}-ubyte.gz"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with raises(words[0], naming=words[1]):
        plan(tmp_path)


def test_copies_are_at_one_site(raw: Path, tmp_path: Path) -> None:
    (x_train, y_train), (x_test, y_test) = read_emnist(raw, "letters")
    x_train = x_train.copy()
    x_train[3], x_train[4] = x_test[9], x_train[5]
    np.savez(tmp_path / "emnist_letters.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    planned = plan(tmp_path, sites_count=5)
    assert planned.dealing.notes["copies_left_out"] == 2
    ids = {source.id for site in planned.by_site.values() for source in site}
    assert len(ids) == 414 and "test/000009" in ids and not {"train/000003", "train/000005"} & ids


def test_the_command(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["data", "prepare", "emnist", "--source", str(raw), "--out", str(tmp_path)]
    assert cli.main([*command, "--sites-count", "30", "--skew", "1"]) == 0
    assert f"30 sites, 416 pictures, in {tmp_path / 'emnist_letters'}" in capsys.readouterr().out
    manifest = read_manifest(tmp_path / "emnist_letters" / "site_029")
    assert manifest.preparation["split_rule"].startswith("log-normal sizes 1, seed 0")
    assert cli.main([*command, "--sites-count", "400"]) == 2
    error = capsys.readouterr().err
    assert "312" in error and "400 sites" in error


def test_the_task_and_its_protocols() -> None:
    job = resolve("emnist", "fedfa")
    assert len(job.task.sites) == 200 and job.task.classes == CLASSES["letters"]
    assert job.federation.sites_per_round == 10
    for protocol, dataset, form, sites, batch in (
        ("fedfa", "femnist_writers", "byclass", 200, 10),
        ("fedfa_table9", "femnist_writers", "byclass", 100, 64),
        ("fedfa_letters", "emnist_letters", "letters", 200, 10),
        ("fedfa_byclass", "emnist_byclass", "byclass", 200, 10),
        ("fedfa_balanced", "emnist_balanced", "balanced", 200, 10),
    ):
        job = resolve("emnist", "fedfa", protocol=protocol)
        assert (job.task.dataset, job.task.classes) == (dataset, CLASSES[form])
        schedule = job.task.schedule
        assert (len(job.task.sites), schedule.rounds, schedule.local_epochs) == (sites, 200, 10)
        assert schedule.batch_size == batch and job.task.optimizer.lr == 0.1
        assert job.methods["fedavg"]["weights"] == "uniform"


def test_real_letters(shared_data: Path) -> None:
    if not (shared_data / "emnist").is_dir():
        pytest.skip("no emnist among the real data")
    by_site = plan(shared_data / "emnist").by_site
    trained = np.array([sum(source.id.startswith("train") for source in site) for site in by_site.values()])
    assert len(by_site) == 200 and trained.sum() == 2600 and trained.min() >= 4 and trained.std() > 3
    assert sum(map(len, by_site.values())) == 3640
