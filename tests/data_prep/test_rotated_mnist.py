"""Rotated MNIST: disjoint images at six angles, turned as the papers' loaders turn them."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from conftest import golden
from digitfiles import MNIST, digits, idx, write_mnist
from PIL import Image

from data_prep.pictures import write_pictures
from data_prep.rotated_mnist import ANGLES, plan, turn
from fedshift import cli
from fedshift.data.arrays import open_images
from fedshift.data.check import check
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.kinds import build_task

PARTS = ("train", "val", "test")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """MNIST of 245 and 60 images."""
    return write_mnist(tmp_path / "raw", train=245, test=60)


@pytest.mark.parametrize("angle", ANGLES.values())
def test_an_image_is_turned_as_torchvision_turns_it(angle: int) -> None:
    arrays = golden("rotated_mnist_rotation")
    turned = np.asarray(turn(Image.fromarray(arrays["image_uint8"]), angle))
    assert np.abs(turned / 255 - arrays[f"rot{angle}_bilinear_float"]).max() < 1e-6
    assert (turned != arrays["image_uint8"]).any() == bool(angle)


def test_sites_share_out_all_images_of_both_parts(raw: Path) -> None:
    found = plan(raw).by_site
    assert list(found) == ["deg00", "deg15", "deg30", "deg45", "deg60", "deg75"]
    assert [len(sources) for sources in found.values()] == [51, 51, 51, 51, 51, 50]
    ids = [source.id for sources in found.values() for source in sources]
    assert len(set(ids)) == 305 and ids != sorted(ids)
    assert {id.split("/")[0] for id in (s.id for s in found["deg30"])} == {"train", "test"}


def test_each_site_has_its_own_angle(raw: Path) -> None:
    images = {"train": digits(245, 28, 28, seed=1), "test": digits(60, 28, 28, seed=2)}
    for site, sources in plan(raw).by_site.items():
        part, _, number = sources[5].id.partition("/")
        pixels, labels = images[part]
        wanted = turn(Image.fromarray(pixels[int(number)]), ANGLES[site])
        assert sources[5].read() == wanted and sources[5].label == str(labels[int(number)])


def test_the_seed_decides_who_has_what(raw: Path) -> None:
    def dealt(seed: int) -> list[str]:
        return [source.id for source in plan(raw, seed=seed).by_site["deg00"]]

    assert dealt(0) == dealt(0) != dealt(1)
    assert plan(raw, seed=4).dealing.notes == {"seed": 4, "copies_left_out": 0}


def test_training_sites_are_split_and_the_held_out_one_only_tests(raw: Path, tmp_path: Path) -> None:
    folders = write_pictures(plan(raw), tmp_path / "out")
    for folder in folders:
        manifest = read_manifest(folder)
        train, val, test = (len(manifest.by_split(part)) for part in PARTS)
        if folder.name == "deg75":
            assert (train, val, test) == (0, 0, 50)
        else:
            assert train >= 0.6 * 51 and 5 <= val == test <= 10
        arrays = open_images(folder, size=28, channels=1)
        assert arrays.images.shape[1:] == (1, 28, 28) and sorted(set(arrays.labels)) == list(range(10))
        rule = manifest.preparation["split_rule"]
        assert rule == "by content 80/10/10, all of deg75 test; paper: 90/10, no test" and len(str(rule)) <= 64
    assert check(tmp_path / "out") == [], "nothing is missing at the site that is to be held out"


def test_another_site_or_none_may_be_held_out(raw: Path, tmp_path: Path) -> None:
    for held_out in ("deg30", "none"):
        for folder in write_pictures(plan(raw, held_out=held_out), tmp_path / held_out, sizes=[8]):
            manifest = read_manifest(folder)
            assert (len(manifest.by_split("train")) == 0) == (folder.name == held_out)
    assert manifest.preparation["split_rule"] == "by content 80/10/10; paper: 90/10, no test"


def test_the_same_image_counts_once(raw: Path) -> None:
    images = digits(60, 28, 28, seed=2)[0]
    images[7] = images[8] = digits(245, 28, 28, seed=1)[0][3]
    (raw / f"{MNIST[2]}.gz").write_bytes(gzip.compress(idx(images)))
    planned = plan(raw)
    assert planned.dealing.notes["copies_left_out"] == 2
    ids = {source.id for sources in planned.by_site.values() for source in sources}
    assert len(ids) == 303 and "train/000003" in ids and not {"test/000007", "test/000008"} & ids


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: [path.unlink() for path in r.iterdir()], r"raw has no mnist, it holds nothing: .* or mnist\.npz; "),
        (lambda r: (r / f"{MNIST[2]}.gz").unlink(), f"{MNIST[2]}.gz does not exist, but {MNIST[0]}.gz does"),
        (lambda r: (r / f"{MNIST[0]}.gz").write_bytes(b"<html>"), "is not an idx file"),
        (lambda r: (r / f"{MNIST[0]}.gz").write_bytes(idx(digits(9, 28, 28)[0])), "train: 9 images have labels"),
        (lambda r: write_mnist(r, train=6, test=6), "MNIST has no picture of class 6, 7, 8, 9"),
    ],
)
def test_what_is_wrong_is_said(raw: Path, spoil: object, message: str) -> None:
    spoil(raw)  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        plan(raw)


def test_the_command(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["data", "prepare", "rotated_mnist", "--source", str(raw), "--out", str(tmp_path / "out")]
    command += ["--size", "8"]
    assert cli.main(command) == 0
    assert cli.main([*command, "--seed", "3", "--held-out", "none"]) == 0
    assert read_manifest(tmp_path / "out" / "rotated_mnist" / "deg00").preparation["seed"] == 3
    with pytest.raises(SystemExit):
        cli.main([*command, "--held-out", "deg90"])


def test_the_protocol_is_the_papers() -> None:
    job = resolve("rotated_mnist", "vm+augmentation", protocol="augmentation", options=["augmentation.rotation=45"])
    assert job.task.held_out == ("deg75",) and job.task.sites == tuple(ANGLES)[:5]
    schedule, optimizer = job.task.schedule, job.task.optimizer
    assert (schedule.rounds, schedule.local_steps, schedule.batch_size, schedule.precision) == (80, 200, 64, "fp32")
    assert (optimizer.name, optimizer.lr, optimizer.keep) == ("adam", 0.001, True)
    assert job.methods["vm"]["beta"] == 10 and job.methods["augmentation"]["level"] == "none"
    assert sum(p.numel() for p in build_task(job).network().parameters()) == 28_938


def test_five_sites_train_and_one_is_held_out(raw: Path, tmp_path: Path) -> None:
    folders = write_pictures(plan(raw), tmp_path / "out")
    options = ["schedule.rounds=2", "schedule.local_steps=2", "augmentation.level=none", "augmentation.rotation=30"]
    job = resolve("rotated_mnist", "fedavg+augmentation", options=options)
    outcome = run_in_process(job, {folder.name: folder for folder in folders}, tmp_path / "run")
    assert outcome.results.final is not None
    last = outcome.results.final.last
    assert list(last.sites) == list(job.task.sites) and list(last.held_out) == ["deg75"]


def test_real_mnist(shared_data: Path, tmp_path: Path) -> None:
    if not (shared_data / "digits" / "mnist.npz").is_file():
        pytest.skip("no digits/mnist.npz among the real data")
    folders = write_pictures(plan(shared_data / "digits"), tmp_path)
    assert [len(read_manifest(folder).pictures) for folder in folders] == [500] * 6
