"""Digits: MNIST, MNIST-M, SVHN and USPS in the forms of their downloads, and what is wrong with other folders."""

from __future__ import annotations

import bz2
import gzip
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from digitfiles import (
    MNIST,
    digits,
    idx,
    usps_text,
    write_mnist,
    write_mnistm,
    write_mnistm_pickle,
    write_npz,
    write_svhn,
    write_usps,
)
from errors import raises
from picturefiles import shown, write_16_bits
from PIL import Image

from data_prep.dealing import OFFICIAL
from data_prep.digits import DIGITS, plan
from data_prep.pictures import Source, write_pictures
from fedshift import cli
from fedshift.data.arrays import open_images
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.kinds import build_task

PARTS = ("train", "val", "test")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All four sets, each as published."""
    root = tmp_path_factory.mktemp("digits") / "raw"
    write_mnist(root / "MNIST" / "raw")
    write_mnistm(root / "mnist_m")
    write_svhn(root / "SVHN")
    write_usps(root)
    return root


@pytest.fixture
def downloads(published: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(published, tmp_path / "raw"))


def first(sources: list[Source], part: str) -> Source:
    return next(source for source in sources if source.id.startswith(part))


def test_four_sites_with_their_own_test_parts(downloads: Path, tmp_path: Path) -> None:
    for folder in write_pictures(plan(downloads), tmp_path / "out", sizes=[8]):
        manifest = read_manifest(folder)
        assert {picture.split for picture in manifest.pictures if picture.id.startswith("test/")} == {"test"}
        assert manifest.preparation["split_rule"] == OFFICIAL.rule


def test_pixels_and_labels_are_those_of_the_downloads(downloads: Path) -> None:
    by_site = plan(downloads).by_site
    for site, shape, train, test in (
        ("mnist", (28, 28), (50, 1), (20, 2)),
        ("mnistm", (32, 32, 3), (30, 3), (20, 4)),
        ("svhn", (32, 32, 3), (30, 5), (20, 6)),
        ("usps", (16, 16), (30, 7), (20, 8)),
    ):
        sources = by_site[site]
        start = 0
        for count, seed in (train, test):
            images, labels = digits(count, *shape, seed=seed)
            for row in (0, 3, 17):
                assert (np.asarray(sources[start + row].read()) == images[row]).all(), (site, row)
            assert [source.label for source in sources[start : start + count]] == [str(label) for label in labels]
            start += count
        assert start == len(sources)


def test_grey_digits_become_three_equal_channels(downloads: Path, tmp_path: Path) -> None:
    for folder in write_pictures(plan(downloads, sites=["mnist", "usps"]), tmp_path / "out", sizes=[16]):
        images = open_images(folder, size=16, channels=3).images
        assert images.shape[1:] == (3, 16, 16) and (images[:, :1] == images).all() and images.std() > 0


def test_files_may_be_unpacked_and_lie_in_one_folder(downloads: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    write_mnist(flat, packed=False)
    write_usps(flat / "usps", packed=False)
    for name in MNIST[:2]:  # as some mirrors name them
        (flat / name).rename(flat / name.replace("-idx", ".idx"))
    sites = ["mnist", "usps"]
    one, other = plan(flat, sites=sites).by_site, plan(downloads, sites=sites).by_site
    for site in sites:
        assert [source.id for source in one[site]] == [source.id for source in other[site]]
        assert first(one[site], "test").read() == first(other[site], "test").read()


@pytest.mark.parametrize("site", DIGITS.sites)
def test_every_set_may_come_as_npz(site: str, tmp_path: Path) -> None:
    write_npz(tmp_path / f"{site}.npz", 32, 32, 3)
    by_site = plan(tmp_path, sites=[site]).by_site
    assert list(by_site) == [site] and len(by_site[site]) == 50
    assert (np.asarray(by_site[site][4].read()) == digits(30, 32, 32, 3, seed=9)[0][4]).all()


def test_sites_come_in_the_order_of_the_data_set(downloads: Path) -> None:
    assert list(plan(downloads, sites=["usps", "mnist"]).by_site) == ["mnist", "usps"]
    with raises("site-unknown", naming="'mnistm'"):
        plan(downloads, sites=["mnist", "mnist-m"])


@pytest.mark.parametrize("name", ["mnistm_data.pkl", "keras_mnistm.pkl.gz"])
@pytest.mark.parametrize("valid", [0, 5])
def test_pickled_images_get_the_labels_of_mnist(name: str, valid: int, downloads: Path) -> None:
    shutil.rmtree(downloads / "mnist_m")
    train, test = digits(50, 28, 28, 3, seed=3)[0], digits(20, 28, 28, 3, seed=4)[0]
    parts = {"train": train[valid:], "test": test} | ({"valid": train[:valid]} if valid else {})
    write_mnistm_pickle(downloads / "MNIST-M" / name, **parts)
    pictures = plan(downloads, sites=["mnistm"]).by_site["mnistm"]
    assert [source.label for source in pictures[:12]] == list("012345678901") and len(pictures) == 70
    assert (np.asarray(pictures[7].read()) == train[7]).all() and (np.asarray(pictures[50].read()) == test[0]).all()


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.mkdir, (self.path,)


def test_a_malicious_pickle_is_refused_and_not_run(downloads: Path, tmp_path: Path) -> None:
    shutil.rmtree(downloads / "mnist_m")
    content = pickle.dumps({"train": Bomb(tmp_path / "ran")})
    (downloads / "keras_mnistm.pkl").write_bytes(content)
    with pytest.raises(DataError, match="refused"):
        plan(downloads)
    assert not (tmp_path / "ran").exists()
    pickle.loads(content)
    assert (tmp_path / "ran").exists(), "the pickle would have done it"


def drop(*names: str) -> Callable[[Path], object]:
    def spoil(root: Path) -> None:
        for name in names:
            shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()

    return spoil


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(content)


def change_list(root: Path, line: str) -> None:
    path = root / "mnist_m" / "mnist_m_train_labels.txt"
    path.write_text(path.read_text(encoding="utf-8") + line, encoding="utf-8")


def save_svhn(root: Path, images: np.ndarray, labels: np.ndarray) -> None:
    scipy.io.savemat(root / "SVHN" / "test_32x32.mat", {"X": images, "y": labels}, do_compression=True)


def pickled(root: Path, **parts: np.ndarray) -> None:
    shutil.rmtree(root / "mnist_m")
    write_mnistm_pickle(root / "mnistm_data.pkl", **parts)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            drop("SVHN"),
            r"raw has no svhn, it holds MNIST, mnist_m, usps\.bz2, usps\.t\.bz2: expected there or in a folder svhn "
            r"are train_32x32\.mat and the test part's, or svhn\.npz; .* leave it out with --sites mnist,mnistm,usps",
        ),
        (
            drop("MNIST"),
            r"has no mnist, .* train-images-idx3-ubyte\.gz and the three others, or mnist\.npz; .*--help`",
        ),
        (drop("mnist_m"), "has no mnistm, .*--sites mnist,svhn,usps"),
        (drop("usps.bz2", "usps.t.bz2"), "has no usps"),
        (drop("usps.t.bz2"), r"usps\.t\.bz2 does not exist, but usps\.bz2 does"),
        (drop("SVHN/train_32x32.mat"), r"train_32x32\.mat does not exist, but test_32x32\.mat does"),
        (drop(f"MNIST/raw/{MNIST[1]}.gz"), f"{MNIST[1]}.gz does not exist, but {MNIST[0]}.gz does"),
        (drop("mnist_m/mnist_m_test_labels.txt"), "mnist_m_test_labels.txt does not exist, but mnist_m_train_labels"),
        (write(f"MNIST/raw/{MNIST[0]}.gz", gzip.compress(idx(digits(50, 28, 28)[0]))[:-40]), "is damaged or cut short"),
        (
            write(f"MNIST/raw/{MNIST[0]}.gz", idx(digits(49, 28, 28)[0])),
            r"mnist: train: 49 images have labels uint8",
        ),
        (write(f"MNIST/raw/{MNIST[0]}.gz", idx(digits(50)[1])), r"mnist: train: images are uint8 \(50,\)"),
        (write(f"MNIST/raw/{MNIST[3]}.gz", idx(digits(20)[1] + 1)), "mnist: test: labels are 1 to 10, expected 0 to 9"),
        (write("usps.bz2", bz2.compress(b"1 257:1\n")), "line 1, is not .*indices 257 to 257, expected 1 to 256"),
        (write("usps.bz2", bz2.compress(b"1 1:255\n")), "holds intensities outside -1 to 1"),
        (write("usps.bz2", bz2.compress(b"0 1:1\n")), "usps: train: labels are -1 to -1"),
        (write("usps.t.bz2", usps_text(*digits(5, 16, 16))[:-9] + b"x"), "line 5, is not"),
        (
            lambda r: save_svhn(r, np.zeros((32, 32, 3, 2), np.uint8), np.array([[0], [9]])),
            r"labels \[0, 9\],",
        ),
        (lambda r: save_svhn(r, np.zeros((32, 32), np.uint8), np.array([[1]])), r"holds X \(32, 32\)"),
        (lambda r: save_svhn(r, np.zeros((32, 32, 3, 2)), np.array([[1], [2]])), "svhn: test: images are float64"),
        (
            lambda r: change_list(r, "../../secret.png 3\n"),
            r"line 31, is not .*, but '\.\./\.\./secret",
        ),
        (lambda r: change_list(r, "00000000.png 12\n"), "line 31, is not '<picture> <digit>'"),
        (lambda r: change_list(r, "00000000.png\n"), "line 31, is not '<picture> <digit>'"),
        (
            lambda r: (r / "mnist_m" / "mnist_m_test_labels.txt").write_bytes(b"caf\xe9.png 3\n"),
            r"mnist_m_test_labels\.txt is not text in UTF-8",
        ),
        (
            lambda r: pickled(r, train=digits(40, 28, 28, 3)[0], test=digits(20, 28, 28, 3)[0]),
            "holds 40 and 20 images, but MNIST, whose labels it uses, has 50",
        ),
        (
            lambda r: pickled(r, train=digits(50, 28, 28, 3)[0]),
            "holds train, expected .* with train and test",
        ),
        (
            lambda r: pickled(r, train=digits(50, 28, 28, 1)[0], test=digits(20, 28, 28, 1)[0]),
            r"mnistm: train: images are uint8 \(50, 28, 28, 1\)",
        ),
        (
            lambda r: (drop("SVHN")(r), write_npz(r / "svhn.npz", 32, 32, train=7, test=7)),
            "svhn has .* class 7, 8, 9",
        ),
        (lambda r: (drop("SVHN")(r), np.savez(r / "svhn.npz", x=[1])), "svhn.npz has no array x_train, y_train"),
    ],
)
def test_what_is_wrong_is_said(downloads: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(downloads)
    with pytest.raises(DataError, match=message):
        plan(downloads)


def test_some_of_the_sets(downloads: Path, tmp_path: Path) -> None:
    command = ["data", "prepare", "digits", "--source", str(downloads), "--out", str(tmp_path / "out"), "--size", "8"]
    assert cli.main([*command, "--sites", "mnist, usps"]) == 0
    assert sorted(entry.name for entry in (tmp_path / "out" / "digits").iterdir()) == ["mnist", "usps"]


def test_damaged_pictures_are_named_and_nothing_is_written(downloads: Path, tmp_path: Path) -> None:
    folder = downloads / "mnist_m" / "mnist_m_train"
    (folder / "00000002.png").unlink()
    (folder / "00000003.png").write_bytes((folder / "00000003.png").read_bytes()[:200])
    with raises("pictures-damaged", naming=("00000002.png", "00000003.png")):
        write_pictures(plan(downloads), tmp_path / "out", sizes=[8])
    assert not list((tmp_path / "out" / "digits").glob("*"))


def test_pictures_of_any_kind_become_rgb(downloads: Path, tmp_path: Path) -> None:
    folder = downloads / "mnist_m" / "mnist_m_train"
    grey = Image.fromarray(digits(1, 32, 32)[0][0])
    grey.save(folder / "00000000.png")
    Image.fromarray(np.asarray(grey).astype(np.uint16) * 257).save(folder / "00000001.png")
    grey.convert("P").save(folder / "00000002.png")
    rounded = write_16_bits(folder / "00000003.png", 5)
    folders = write_pictures(plan(downloads, sites=["mnistm"]), tmp_path / "out", sizes=[32])
    images = open_images(folders[0], size=32, channels=3).images
    assert (images[:3] == np.asarray(grey).astype(np.uint16) * 257).all(), "a site with 16 bits has them for all"
    read = shown(plan(downloads, sites=["mnistm"]).by_site["mnistm"])[3]
    np.testing.assert_array_equal(np.asarray(read), rounded)
    grey.convert("CMYK").save(folder / "00000000.png", format="JPEG")
    assert shown(plan(downloads, sites=["mnistm"]).by_site["mnistm"][:1])[0].mode == "RGB"


def test_a_file_in_no_list_of_mnistm_is_passed_over_whatever_its_name(downloads: Path) -> None:
    folder = downloads / "mnist_m" / "mnist_m_train"
    before = [picture.id for picture in plan(downloads, sites=["mnistm"]).by_site["mnistm"]]
    shutil.copy(folder / "00000000.png", folder / "other.png")
    with suppress(OSError):  # some file systems have UTF-8 names only
        (folder / "other.png").rename(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.png"))
    assert [picture.id for picture in plan(downloads, sites=["mnistm"]).by_site["mnistm"]] == before


def test_a_digit_in_both_parts_is_only_tested_on(downloads: Path, tmp_path: Path) -> None:
    train, test = digits(50, 28, 28, seed=1)[0], digits(20, 28, 28, seed=2)[0]
    train[10] = train[20] = test[0]
    (downloads / "MNIST" / "raw" / f"{MNIST[0]}.gz").write_bytes(gzip.compress(idx(train)))
    folder = write_pictures(plan(downloads, sites=["mnist"]), tmp_path / "out", sizes=[8])[0]
    split_of = {picture.id: picture.split for picture in read_manifest(folder).pictures}
    assert split_of["train/000010"] == split_of["train/000020"] == split_of["test/000000"] == "test"
    assert read_manifest(folder).preparation["pictures_straddling"] == 0


def test_the_command(downloads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["data", "prepare", "digits", "--source", str(downloads), "--out", str(tmp_path / "out")]
    assert cli.main([*command, "--size", "8"]) == 0
    assert "usps: 50 picture(s) (20 train, 10 val, 20 test)" in capsys.readouterr().out
    shutil.rmtree(downloads / "SVHN")
    assert cli.main([*command, "--size", "8"]) == 2
    assert "--sites mnist,mnistm,usps" in capsys.readouterr().err
    assert cli.main([*command, "--size", "8", "--sites", "mnist,mnistm,usps"]) == 0


def test_the_protocols_are_the_papers(downloads: Path, tmp_path: Path) -> None:
    fraug = resolve("digits", "fraug", protocol="fraug")
    schedule, options = fraug.task.schedule, fraug.methods["fraug"]
    assert (schedule.rounds, schedule.local_steps, schedule.batch_size) == (300, 20, 64)
    assert (
        fraug.task.data["fraction"] == 0.01
        and fraug.task.data["fraction_of"] == "site"
        and fraug.task.optimizer.momentum == 0.5
    )
    assert (options["variant"], options["generator_distance"], options["rtnet_distance"]) == ("paper", "mmd", "mmd")
    assert (options["interpolate"], options["schedule"], options["gamma_syn"]) == (True, True, None), "as in the paper"
    assert (options["lr_generator"], options["lr_rtnet"]) == (0.05, 0.05)
    assert sum(p.numel() for p in build_task(fraug).network().parameters()) == 18_151_370
    fedbn = resolve("digits", "fedbn", protocol="fedbn")
    assert (fedbn.task.schedule.rounds, fedbn.task.schedule.local_epochs) == (100, 1)
    assert fedbn.task.schedule.local_steps is None and fedbn.methods["fedavg"]["weights"] == "uniform"
    folders = write_pictures(plan(downloads, sites=["usps"]), tmp_path / "out")
    for job, side in ((fraug, 32), (fedbn, 28)):
        x, _ = next(build_task(job).open(folders[0], "usps").chunks())
        assert x.shape[1:] == (3, side, side) and x.min() < 0 < x.max()


def test_three_sites_train_together(downloads: Path, tmp_path: Path) -> None:
    folders = write_pictures(plan(downloads, sites=["mnist", "mnistm", "usps"]), tmp_path / "out", sizes=[8])
    small = ["data.size=8", "network.options={size: 8, width: 2}", "schedule.precision=fp32"]
    short = ["schedule.rounds=2", "schedule.local_steps=2", "schedule.batch_size=8"]
    job = resolve("digits", "fraug", sites=["mnist", "mnistm", "usps"], options=[*small, *short])
    outcome = run_in_process(job, {folder.name: folder for folder in folders}, tmp_path / "run")
    assert outcome.results.final is not None


def test_real_digits(shared_data: Path, tmp_path: Path) -> None:
    if not (shared_data / "digits").is_dir():
        pytest.skip("no digits among the real data")
    sites = ["mnist", "mnistm", "usps"]
    for folder in write_pictures(plan(shared_data / "digits", sites=sites), tmp_path, sizes=[32]):
        manifest = read_manifest(folder)
        assert len(manifest.by_split("test")) == 1000 and len(manifest.by_split("val")) == 201
        assert len({picture.sha256 for picture in manifest.pictures}) == 3000
