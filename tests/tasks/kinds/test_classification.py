"""Classification: images from the cache, accuracy, and what is wrong with a site in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_image_site, make_site, small_image_job
from errors import raises
from torch.nn import functional

from fedshift.data.arrays import open_arrays
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import LISTED, ORDER
from fedshift.tasks.kinds import build_task
from fedshift.tasks.kinds.classification import Images, Task


def task(*options: str) -> Task:
    built = build_task(small_image_job("fedavg", *options))
    assert isinstance(built, Task)
    return built


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_image_site(tmp_path, "A")


def test_images_are_scaled_and_normalised_and_come_with_their_labels(site: Path) -> None:
    stored = np.load(site / "arrays" / "16" / "images.npy")
    labels = np.load(site / "arrays" / "16" / "labels.npy")
    plain, normalised = task().open(site, "A"), task("data.mean=[0.5, 0.4, 0.3]", "data.std=[0.2]").open(site, "A")
    assert [plain.count(split) for split in ("train", "val", "test")] == [36, 6, 6]
    index = plain.members("train")[np.array([5, 0, 30])]
    x, y = plain.train_samples(np.array([5, 0, 30]))
    np.testing.assert_allclose(x.numpy(), stored[index] / 255, rtol=1e-6)
    np.testing.assert_array_equal(y.numpy(), labels[index])
    expected = (stored[index] / 255 - np.array([0.5, 0.4, 0.3])[:, None, None]) / 0.2
    np.testing.assert_allclose(
        normalised.train_samples(np.array([5, 0, 30]))[0].numpy(), expected, rtol=1e-4, atol=1e-6
    )


def drawn(*options: str, seed: int = 0, folder: Path) -> list[int]:
    data = build_task(small_image_job("fedavg", *options, seed=seed)).open(folder, "A")
    assert isinstance(data, Images)
    return list(data.members("train"))


@pytest.mark.parametrize("portion", ["data.fraction=0.25", "data.images=9"])
def test_a_portion_of_the_training_images_is_drawn_by_a_seed_of_its_own(site: Path, portion: str) -> None:
    first = drawn(portion, folder=site)
    assert len(first) == 9 and set(first) <= set(task().open(site, "A").members("train"))
    assert drawn(portion, seed=1, folder=site) == first, "another seed of the job, but the same images"
    assert drawn(portion, "data.seed=1", folder=site) != first


def test_a_fraction_of_the_site_counts_all_its_images_and_cuts_validation(site: Path) -> None:
    """48 images: 36 for training, 6 for validation, 6 for testing."""

    def counts(*options: str) -> list[int]:
        data = task("data.fraction_of=site", *options).open(site, "A")
        return [data.count(split) for split in ("train", "val", "test")]

    assert counts("data.fraction=0.5") == [24, 3, 6], "half of 48, not of 36"
    assert counts("data.fraction=0.1") == [5, 1, 6] and counts("data.fraction=0.01") == [1, 1, 6]
    assert counts() == [36, 6, 6] and counts("data.fraction=0.9") == [36, 5, 6], "no more than there are"
    data = task("data.fraction_of=site", "data.fraction=0.5").open(site, "A")
    assert set(data.members("val")) <= set(task().open(site, "A").members("val"))


def test_a_job_can_divide_a_site_by_other_shares(site: Path) -> None:
    data = task("data.shares=[0.5, 0.25, 0.25]").open(site, "A")
    assert [data.count(split) for split in ("train", "val", "test")] == [24, 12, 12]
    assert data.split_rule == "the job's: by content 50/25/25"
    index = np.concatenate([data.members(split) for split in ("train", "val", "test")])
    assert sorted(index) == list(range(48))


def test_at_most_so_many_training_images(site: Path) -> None:
    assert len(drawn("data.images=7", folder=site)) == 7 and len(drawn("data.images=99", folder=site)) == 36
    quarter = drawn("data.fraction=0.25", folder=site)
    assert drawn("data.images=20", "data.fraction=0.25", folder=site) == quarter, "both hold"
    assert len(drawn("data.images=5", "data.fraction=0.25", folder=site)) == 5


def test_the_first_images_of_a_list_need_a_list(site: Path) -> None:
    with raises("order-missing", naming="data.choose=first"):
        drawn("data.choose=first", "data.images=5", folder=site)
    path = site / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["preparation"][ORDER] = LISTED
    path.write_text(json.dumps(manifest), encoding="utf-8")
    every = list(task().open(site, "A").members("train"))
    assert drawn("data.choose=first", "data.images=5", "data.seed=3", folder=site) == every[:5]


def test_accuracy_counts_right_answers(site: Path) -> None:
    data = task().open(site, "A")
    right = data.labels(data.members("val")).to(torch.uint8)
    wrong = right.clone()
    wrong[:2] = (wrong[:2] + 1) % 3
    assert task().scores(iter([right]), data, "val") == {"accuracy": 1.0}
    assert task().scores(iter([wrong[:4], wrong[4:]]), data, "val")["accuracy"] == pytest.approx(4 / 6)


def test_the_loss_takes_soft_targets() -> None:
    logits, y = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    torch.testing.assert_close(task().loss(logits, y), task().loss(logits, functional.one_hot(y, 3).float()))


@pytest.mark.parametrize(
    ("options", "code", "names"),
    [
        (["loss=dice"], "loss-unfit", "'dice'"),
        (["data.mean=[0.1, 0.2]"], "invalid-value", "data.mean"),
        (["data.std=[0]"], "invalid-value", "data.std"),
        (["data.sise=32"], "unknown-key", "'size'"),
        (["data.channels=2"], "invalid-value", "channels"),
        (["data.images=0"], "invalid-value", "images"),
        (["data.shares=[0.8, 0.1, 0.2]"], "invalid-value", "shares"),
        (["data.shares=[0, 0.5, 0.5]"], "invalid-value", "shares"),
    ],
)
def test_bad_options_are_named(options: list[str], code: str, names: str) -> None:
    with raises(code, naming=names):
        task(*options)


def labels(values: Callable[[Path], np.ndarray]) -> Callable[[Path], None]:
    return lambda site: np.save(site / "arrays" / "16" / "labels.npy", values(site))


def backwards(site: Path) -> np.ndarray:
    return np.asarray(np.load(site / "arrays" / "16" / "labels.npy")[::-1])


def images(site: Path) -> Path:
    return site / "arrays" / "16" / "images.npy"


def all_for_validation(site: Path) -> None:
    manifest = json.loads((site / "manifest.json").read_text(encoding="utf-8"))
    for picture in manifest["pictures"]:
        picture["split"] = "val"
    (site / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "options", "name", "words"),
    [
        (None, ("data.size=32", "network.options.size=32"), "A", r"32 .*\[16\]"),
        (None, (), "B", "site A.* B"),
        (labels(backwards), (), "A", "bar .*0000.* disc"),
        (labels(lambda site: np.full(48, 3, np.uint8)), (), "A", "class 3"),
        (lambda site: np.save(images(site), np.zeros((47, 3, 16, 16), np.uint8)), (), "A", r"images\.npy .*47"),
        (lambda site: images(site).write_bytes(b"not an array"), (), "A", r"images\.npy"),
        (lambda site: images(site).unlink(), (), "A", r"images\.npy"),
        (all_for_validation, (), "A", "site A"),
    ],
    ids=["size", "site", "labels", "classes", "count", "damaged", "missing", "no training"],
)
def test_what_is_wrong_with_a_site_is_said(
    spoil: Callable[[Path], object] | None, options: tuple[str, ...], name: str, words: str, site: Path
) -> None:
    if spoil:
        spoil(site)
    with pytest.raises(DataError, match=words):
        task(*options).open(site, name)


def test_volumes_and_pictures_are_not_taken_for_each_other(site: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="volumes"):
        task().open(make_site(tmp_path, "A"), "A")
    with pytest.raises(DataError, match="pictures"):
        open_arrays(site, matrix=16)
