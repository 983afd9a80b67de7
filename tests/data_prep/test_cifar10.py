"""CIFAR-10: the download in its three forms becomes many sites; test images are shared out, wrong files are named."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cifarfiles import batch, write_cifar, write_tar
from errors import raises
from picklefiles import calling, python2_pickle

from data_prep import cifar10
from data_prep.cifar10 import CIFAR10, FOLDER, NPZ, TAR, TEST, TRAIN, plan, read_cifar10
from data_prep.pictures import write_pictures
from fedshift import cli
from fedshift.data.arrays import open_images
from fedshift.data.check import check
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.kinds import build_task


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cifar(tmp_path_factory.mktemp("raw"))


def test_batches_are_rows_of_red_green_and_blue(raw: Path) -> None:
    (x_train, y_train), (x_test, y_test) = read_cifar10(raw)
    assert x_train.shape == (200, 32, 32, 3) and x_test.shape == (40, 32, 32, 3)
    stored = batch(1)[b"data"][7]
    np.testing.assert_array_equal(x_train[47, 5, 9], stored[[5 * 32 + 9, 1024 + 5 * 32 + 9, 2048 + 5 * 32 + 9]])
    assert list(y_train[40:50]) == list(y_test[:10]) == list(range(10))


def test_archive_folder_and_arrays_are_the_same(raw: Path, tmp_path: Path) -> None:
    expected = read_cifar10(raw)
    write_tar(tmp_path / "tar", raw)
    write_tar(tmp_path / "dotted", raw, "./")
    np.savez(
        tmp_path / NPZ,
        x_train=expected[0][0],
        y_train=expected[0][1],
        x_test=expected[1][0],
        y_test=expected[1][1].astype(np.uint8),
    )
    forms = (raw / FOLDER, tmp_path / "tar", tmp_path / "tar" / TAR, tmp_path / "dotted", tmp_path, tmp_path / NPZ)
    for source in forms:
        for part, given in zip(read_cifar10(source), expected, strict=True):
            np.testing.assert_array_equal(part[0], given[0])
            np.testing.assert_array_equal(part[1], given[1])


def test_many_sites_share_all_images(raw: Path, tmp_path: Path) -> None:
    folders = write_pictures(plan(raw, sites_count=25), tmp_path)
    assert folders[3] == tmp_path / "cifar10_dirichlet_0.6" / "site_003" and len(folders) == 25
    manifests = [read_manifest(folder) for folder in folders]
    seen = [picture for manifest in manifests for picture in manifest.pictures]
    assert len({picture.id for picture in seen}) == len({picture.sha256 for picture in seen}) == 240
    for manifest in manifests:
        for picture in manifest.pictures:
            assert picture.id.startswith("test/") == (picture.split == "test")
        trained = [p for p in manifest.pictures if p.split != "test"]
        assert len(trained) >= 2
        tested = [picture.label for picture in manifest.by_split("test")]
        for label in set(tested):
            assert any(picture.label == label for picture in trained), "classes are those of the training part"
        assert manifest.classes == CIFAR10.classes
        assert str(manifest.preparation["split_rule"]).startswith("Dirichlet 0.6, seed 0; official test")
        assert len(str(manifest.preparation["split_rule"])) <= 64, "results.json cuts off the rest"
    arrays = open_images(folders[0], size=32, channels=3)
    first = manifests[0].pictures[0]
    row = int(first.id.split("/")[1])
    stored = batch(row // 40)[b"data"][row % 40].reshape(3, 32, 32)
    np.testing.assert_array_equal(arrays.images[0], stored)
    assert first.label == CIFAR10.classes[row % 10]
    assert [f.sentence() for f in check(tmp_path) if f.level == "error"] == []
    assert (tmp_path / "cifar10_dirichlet_0.6" / "montage.png").is_file()
    assert not (folders[0] / "montage.png").exists()


def test_alpha_names_the_data_set_and_the_seed_changes_it(raw: Path) -> None:
    def members(**options: Any) -> list[set[str]]:
        return [{source.id for source in sources} for sources in plan(raw, sites_count=5, **options).by_site.values()]

    assert plan(raw, alpha=0.3, sites_count=5).picture_set.dataset == "cifar10_dirichlet_0.3"
    assert plan(raw, alpha=100.0, sites_count=5).picture_set.dataset == "cifar10_dirichlet_100"
    assert members() == members(seed=0) != members(seed=1)
    assert members() != members(alpha=0.3)


def test_copies_are_at_one_site_and_testing_comes_first(raw: Path, tmp_path: Path) -> None:
    first, tested = batch(0), batch(5)
    first[b"data"][3] = tested[b"data"][8]
    first[b"data"][4] = first[b"data"][5]
    source = write_cifar(tmp_path, data_batch_1=python2_pickle(first))
    planned = plan(source, sites_count=5)
    assert planned.dealing.notes["copies_left_out"] == 2
    ids = [source.id for sources in planned.by_site.values() for source in sources]
    assert len(ids) == 238 and "test/000008" in ids and "train/000004" in ids
    assert "train/000003" not in ids and "train/000005" not in ids


# --- what is refused ----------------------------------------------------------------------------------


def not_a_batch(**changes: Any) -> bytes:
    return python2_pickle({**batch(2), **{key.encode(): value for key, value in changes.items()}})


BATCHES: dict[str, tuple[dict[str, bytes], str]] = {
    "cut short": ({"data_batch_3": b"\x80\x02"}, r"data_batch_3 is damaged"),
    "no dictionary": ({"data_batch_3": python2_pickle([1])}, r"data_batch_3 .*'data' of bytes \(N, 3072\)"),
    "digits": ({"data_batch_3": not_a_batch(data=np.zeros((40, 784), np.uint8))}, r"'data' of bytes \(N, 3072\)"),
    "numbers": ({"data_batch_3": not_a_batch(data=np.zeros((40, 3072)))}, r"'data' of bytes \(N, 3072\)"),
    "two labels": ({"data_batch_3": not_a_batch(labels=[1, 2])}, r"'labels'.* 40 images"),
    "names as labels": ({"data_batch_3": not_a_batch(labels=["a"] * 40)}, r"'labels'.* 40 images"),
    "labels of CIFAR-100": ({"test_batch": not_a_batch(labels=[99] * 40)}, r"test: .* 99 to 99, expected 0 to 9"),
    "malicious": ({"data_batch_2": calling("os", "system", "touch ran")}, r"data_batch_2 .*os\.system"),
}


@pytest.mark.parametrize("fault", BATCHES)
def test_wrong_batches_are_named_and_nothing_in_them_is_run(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, words = BATCHES[fault]
    monkeypatch.chdir(tmp_path)
    source = write_cifar(tmp_path / "raw", **changes)
    for where in (source, write_tar(tmp_path / "tar", source)):
        with pytest.raises(DataError, match=words) as raised:
            plan(where, sites_count=5)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "ran").exists()


def other_names(folder: Path) -> Path:
    (folder / "cifar-10-matlab.tar.gz").touch()
    (folder / "gr\udcfcn").touch()  # a name that is not UTF-8
    return folder


def holding(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder if name == TAR else folder / name

    return make


def half_a_tar(folder: Path) -> Path:
    path = write_tar(folder, write_cifar(folder / "raw")) / TAR
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return folder


def cifar_100(folder: Path) -> Path:
    with tarfile.open(folder / TAR, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("cifar-100-python/train"), io.BytesIO())
    return folder


def without_batch_4(folder: Path) -> Path:
    (write_cifar(folder) / FOLDER / "data_batch_4").unlink()
    return folder


def one_array(folder: Path) -> Path:
    (write_cifar(folder) / FOLDER / TEST).unlink()
    np.savez(folder / NPZ, x_train=np.zeros(3))
    return folder


def not_a_file(kind: bytes) -> Callable[[Path], Path]:
    """An archive where something that is no file has the name of the test batch."""

    def make(folder: Path) -> Path:
        member = tarfile.TarInfo(f"{FOLDER}/{TEST}")
        member.type, member.linkname = kind, "/etc/passwd"
        with tarfile.open(folder / TAR, "w:gz") as archive:
            archive.addfile(member)
            for number, name in enumerate(TRAIN):
                content = python2_pickle(batch(number))
                file = tarfile.TarInfo(f"{FOLDER}/{name}")
                file.size = len(content)
                archive.addfile(file, io.BytesIO(content))
        return folder

    return make


DOWNLOADS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty": (lambda folder: folder, "holds nothing"),
    "other names": (other_names, r"holds 'cifar-10-matlab\.tar\.gz', 'gr\\udcfcn': expected"),
    "half a tar": (half_a_tar, r"cifar-10-python\.tar\.gz.* is damaged"),
    "a web page": (holding(TAR, b"<html>not found"), r"cifar-10-python\.tar\.gz is damaged"),
    "a zip": (holding("cifar.zip", b"PK"), r"cifar\.zip is damaged"),
    "CIFAR-100": (cifar_100, "has no cifar-10-batches-py/data_batch_1"),
    "a batch less": (without_batch_4, "data_batch_4 does not exist"),
    "an array alone": (one_array, "has no array y_train, x_test, y_test"),
    **{
        f"a test batch of type {kind.decode()}": (not_a_file(kind), "has no cifar-10-batches-py/test_batch")
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)
    },
}


@pytest.mark.parametrize("fault", DOWNLOADS)
def test_wrong_downloads_are_described(fault: str, tmp_path: Path) -> None:
    make, words = DOWNLOADS[fault]
    with pytest.raises(DataError, match=words) as raised:
        plan(make(tmp_path))
    str(raised.value).encode()
    assert "\n" not in str(raised.value)


def test_a_batch_beyond_all_measure_is_named(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "MOST_BYTES", 1000)
    with raises("too-large", naming="data_batch_1"):
        plan(write_tar(tmp_path / "tar", raw))


def test_sites_of_another_partition_are_not_left_beside_the_new_ones(raw: Path, tmp_path: Path) -> None:
    write_pictures(plan(raw, sites_count=8), tmp_path)
    content = {file: file.read_bytes() for file in tmp_path.rglob("*.*") if file.is_file()}
    (tmp_path / "cifar10_dirichlet_0.6" / ".site_009.partial-1").mkdir()
    told: list[str] = []
    with raises("folder-in-use", naming="cifar10_dirichlet_0.6"):
        write_pictures(plan(raw, sites_count=5, seed=1), tmp_path, progress=told.append)
    assert not told and content == {file: file.read_bytes() for file in content}
    write_pictures(plan(raw, sites_count=9), tmp_path)
    write_pictures(plan(raw, alpha=0.3, sites_count=5), tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sites_count": 300}, ("too-few-items", "200")),
        ({"alpha": -1.0}, ("invalid-value", "alpha")),
        ({"sites_count": 0}, ("invalid-value", "0 sites")),
    ],
    ids=str,
)
def test_impossible_partitions_are_refused(options: dict[str, Any], words: tuple[str, str], raw: Path) -> None:
    with raises(words[0], naming=words[1]):
        plan(raw, **options)


def test_the_command(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["data", "prepare", "cifar10", "--source", str(raw), "--out", str(tmp_path), "--alpha", "0.3"]
    assert cli.main([*command, "--sites-count", "3", "--seed", "2"]) == 0
    assert "site_002: " in capsys.readouterr().out
    manifest = json.loads((tmp_path / "cifar10_dirichlet_0.3" / "site_001" / "manifest.json").read_text("utf-8"))
    assert manifest["preparation"]["partition"] == "each class over 3 sites by Dirichlet(0.3), seed 2"


def test_the_task_is_the_papers() -> None:
    job = resolve("cifar10", "fedfa", protocol="fedfa")
    assert len(job.task.sites) == 100 and job.task.sites[99] == "site_099"
    assert (job.federation.sites_per_round, job.federation.min_sites) == (10, 9)
    schedule = job.task.schedule
    assert (schedule.rounds, schedule.local_epochs, schedule.local_steps, schedule.batch_size) == (100, 10, None, 10)
    assert job.task.optimizer.lr == 0.1 and job.methods["fedavg"]["weights"] == "uniform"
    skewed = resolve("cifar10", "fedavg", protocol="fedfa_0.3")
    assert skewed.task.dataset == "cifar10_dirichlet_0.3" and skewed.task.schedule == schedule


def test_ten_of_the_sites_train_in_a_round(raw: Path, tmp_path: Path) -> None:
    write_pictures(plan(raw, sites_count=12), tmp_path)
    options = ["sites.count=12", "schedule.rounds=2", "schedule.local_steps=1", "network.name=lenet5"]
    job = resolve("cifar10", "fedavg", options=[*options, "network.options.size=32"])
    data = {site: tmp_path / job.task.dataset / site for site in job.task.sites}
    assert build_task(job).open(data["site_003"], "site_003").n_train >= 1
    results = run_in_process(job, data, tmp_path / "run").results
    assert [sum(site.steps > 0 for site in record.sites.values()) for record in results.rounds] == [10, 10]
    assert results.final is not None and len(results.final.last.sites) == 12


def test_real_pictures(shared_data: Path, tmp_path: Path) -> None:
    if not (shared_data / "cifar10").is_dir():
        pytest.skip("no cifar10 among the real data")
    by_site = plan(shared_data / "cifar10").by_site
    assert len(by_site) == 100 and sum(map(len, by_site.values())) == 2000
    assert min(sum(s.id.startswith("train") for s in sources) for sources in by_site.values()) >= 5
    assert sum(s.id.startswith("test") for sources in by_site.values() for s in sources) == 500
