"""DomainNet: ten classes from zips or folders, the official test part, FedBN's lists, and what wrong downloads get."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from errors import raises
from picklefiles import calling
from picturefiles import domainnet_name as name_of
from picturefiles import write_domainnet, write_picture, write_zip

from data_prep import domainnet
from data_prep.dealing import BY_CONTENT
from data_prep.domainnet import DOMAINNET, OFFICIAL_RULE, PAPERS_RULE, papers, plan
from data_prep.pictures import Plan, Source, write_pictures
from fedshift import cli
from fedshift.data.arrays import open_images
from fedshift.data.check import check
from fedshift.data.decode import picture_sha256
from fedshift.federation.resolve import resolve
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.kinds import build_task

PARTS = ("train", "val", "test")
EACH = 5


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_domainnet(tmp_path_factory.mktemp("domainnet"), each=EACH)


@pytest.fixture
def folders(unpacked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(unpacked, tmp_path / "DomainNet"))


@pytest.fixture(scope="session")
def zipped(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("zips")
    for site in DOMAINNET.sites:
        write_zip(root / f"{site}.zip", unpacked / site, inside=site)
    return root


@pytest.fixture
def zips(zipped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(zipped, tmp_path / "zips"))


def add_official(root: Path) -> Path:
    """Of every class numbers 3 and 4 are for testing."""
    for site in DOMAINNET.sites:
        for part, numbers in (("train", range(3)), ("test", range(3, EACH))):
            lines = [f"{site}/aircraft_carrier/{site}_001_000001.jpg 0"]
            for c, label in enumerate(DOMAINNET.classes):
                lines += [f"{site}/{label}/{name_of(site, label, k)} {c + 29}" for k in numbers]
            (root / f"{site}_{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


def fedbn_list(site: str, numbers: Any) -> tuple[list[str], list[str]]:
    paths, labels = [], []
    for k in numbers:
        for label in DOMAINNET.classes:
            paths.append(f"DomainNet/{site}/{label}/{name_of(site, label, k)}")
            labels.append(label)
    return paths, labels


def add_fedbn(root: Path, form: Callable[[Any], Any] = lambda lists: lists, *, protocol: int = 4) -> Path:
    """Of every class number 4 is for testing; of the training list the last 20 % are eight of number 0."""
    for site in DOMAINNET.sites:
        for part, numbers in (("train", (3, 2, 1, 0)), ("test", (4,))):
            value = form(fedbn_list(site, numbers))
            (root / f"{site}_{part}.pkl").write_bytes(pickle.dumps(value, protocol))
    return root


def counts(folders: list[Path]) -> dict[str, list[int]]:
    return {folder.name: [len(read_manifest(folder).by_split(part)) for part in PARTS] for folder in folders}


def pictures(source: Path) -> dict[str, list[tuple[str, str]]]:
    """Id and content of all pictures by site."""
    return {site: [(p.id, picture_sha256(p.read())) for p in found] for site, found in plan(source).by_site.items()}


def splits(folder: Path) -> dict[str, str]:
    return {picture.id: picture.split for picture in read_manifest(folder).pictures}


def test_zips_beside_each_other(zips: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepared = write_pictures(plan(zips), tmp_path / "out", sizes=[8])
    assert counts(prepared) == {site: [30, 10, 10] for site in DOMAINNET.sites}
    assert read_manifest(prepared[3]).preparation["split_rule"] == BY_CONTENT.rule
    assert "tiger/4500000000000502.png" in splits(prepared[3])
    assert sorted(set(open_images(prepared[0], size=8, channels=3).labels)) == list(range(10))
    assert check(tmp_path / "out") == [] and not caplog.text, "335 other classes are no news"


def test_folders_and_a_mixture_give_the_same(folders: Path, zips: Path) -> None:
    expected = pictures(zips)
    assert pictures(folders) == expected
    for site in DOMAINNET.sites[::2]:
        shutil.rmtree(folders / site)
        (zips / f"{site}.zip").rename(folders / f"{site}.zip")
    assert pictures(folders) == expected


def test_the_official_test_part_stays(zips: Path, tmp_path: Path) -> None:
    for folder in write_pictures(plan(add_official(zips)), tmp_path / "out", sizes=[8]):
        manifest, site = read_manifest(folder), folder.name
        assert manifest.preparation["split_rule"] == OFFICIAL_RULE
        for label in DOMAINNET.classes:
            split = [splits(folder)[f"{label}/{name_of(site, label, k)}"] for k in range(EACH)]
            assert split[3:] == ["test", "test"] and sorted(split[:3]) == ["train", "train", "val"]


def test_a_copy_of_a_test_picture_is_test(folders: Path, tmp_path: Path) -> None:
    tiger = folders / "real" / "tiger"
    shutil.copy(tiger / name_of("real", "tiger", 4), tiger / name_of("real", "tiger", 0))
    real = write_pictures(plan(add_official(folders)), tmp_path / "out", sizes=[8])[4]
    of_tigers = [splits(real)[f"tiger/{name_of('real', 'tiger', k)}"] for k in range(EACH)]
    assert of_tigers == ["test", "train", "train", "test", "test"]
    assert read_manifest(real).preparation["pictures_straddling"] == 0


def test_pictures_that_cleaning_took_out_are_passed_over(folders: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_picture(folders / "clipart" / "bird" / "clipart_030_000999.jpg", 1)
    assert len(plan(add_official(folders)).by_site["clipart"]) == 50
    assert "clipart: 1 picture(s) that are in no list are skipped" in caplog.text


def test_the_papers_counts() -> None:
    sizes = {"clipart": 2103, "infograph": 2626, "painting": 2472, "quickdraw": 4000, "real": 4864, "sketch": 2213}
    split = [papers({"train": [str(k) for k in range(n)], "test": []}) for n in sizes.values()]
    assert [len(parts["train"]) for parts in split] == [1682, 2100, 1977, 3200, 3891, 1770]
    assert [len(parts["val"]) for parts in split] == [420, 525, 494, 800, 972, 442]
    for parts, n in zip(split, sizes.values(), strict=True):
        assert parts["train"][0] == "0" and parts["val"][-1] == str(n - 1) and not {*parts["train"]} & {*parts["val"]}
    assert papers({"train": ["a"], "test": []})["val"] == []


# --- by seed from the zips alone ----------------------------------------------------------------------

IN_THE_ZIPS = {"clipart": 2629, "infograph": 3283, "painting": 3091, "quickdraw": 5000, "real": 6081, "sketch": 2767}
"""Pictures of the ten classes, as many as in FedBN's lists together."""


def listed(site: str, n: int) -> list[Source]:
    """Names only."""
    classes = [DOMAINNET.classes[k % 10] for k in range(n)]
    return [Source(f"{label}/{site}_{k:06d}.jpg", label, lambda: None) for k, label in enumerate(classes)]  # type: ignore[arg-type,return-value]


def seeded(sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch, *, seed: int) -> Plan:
    found = {site: listed(site, n) for site, n in sizes.items()}
    monkeypatch.setattr(domainnet.Tree, "__init__", lambda self, source, of: setattr(self, "top", source))
    monkeypatch.setattr(domainnet.Tree, "pictures", lambda self, some_classes: found)
    return plan(Path("zips"), split="seeded", seed=seed)


def test_by_seed_there_are_the_papers_counts_and_copies_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the true sizes; every 20th picture is a copy of the one before, and every 50th is at all sites."""

    def content(site: str, source: Source) -> str:
        k = int(source.id[-10:-4])
        return f"everywhere {k}" if k % 50 == 7 else f"{site} {k - (k % 20 == 19)}"

    def deal(seed: int) -> dict[str, dict[str, str]]:
        planned = seeded(IN_THE_ZIPS, monkeypatch, seed=seed)
        return {
            site: dict(planned.dealing.deal(site, [(source, content(site, source)) for source in sources]))
            for site, sources in planned.by_site.items()
        }

    first = deal(0)
    sizes = {part: [sum(of == part for of in splits.values()) for splits in first.values()] for part in PARTS}
    assert sizes["train"] == [1682, 2100, 1977, 3200, 3891, 1770]
    assert sizes["val"] == [420, 525, 494, 800, 972, 442]
    assert sizes["test"] == [526, 657, 619, 1000, 1217, 554]
    splits_of: dict[str, set[str]] = {}
    for site, splits in first.items():
        for source in listed(site, IN_THE_ZIPS[site]):
            if source.id in splits:
                splits_of.setdefault(content(site, source), set()).add(splits[source.id])
    assert {len(splits) for splits in splits_of.values()} == {1}, "nothing straddles, in a site or between sites"
    by_class = [
        [splits[i] for i in splits if i.startswith(label)] for splits in first.values() for label in ("bird", "zebra")
    ]
    assert all(0.5 < of_class.count("train") / len(of_class) < 0.75 for of_class in by_class), "not in their order"
    assert deal(0) == first and deal(1) != first
    assert deal(1)["quickdraw"].keys() == first["quickdraw"].keys(), "all are needed there"


def test_more_pictures_than_the_papers_have_are_cut_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {site: 2 * n for site, n in IN_THE_ZIPS.items()}
    one, other = (seeded(more, monkeypatch, seed=seed).by_site["clipart"] for seed in (0, 1))
    assert len(one) == len(other) == 1682 + 420 + 526 and one != other
    assert [source.id[-10:] for source in one] == sorted(source.id[-10:] for source in one), "in the download's order"


def test_too_few_pictures_for_the_papers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises("too-few-items", naming="zips/real"):
        seeded({**IN_THE_ZIPS, "real": 6079}, monkeypatch, seed=0)
    planned = seeded(IN_THE_ZIPS, monkeypatch, seed=0)
    damaged = [(source, source.id) for source in planned.by_site["sketch"][1:]]
    with raises("split-counts", naming="zips/sketch"):
        planned.dealing.deal("sketch", damaged)


def test_the_seeded_split_is_written(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small lists: 40 and 10 pictures of a site's 50."""
    monkeypatch.setattr(domainnet, "FEDBN", {site: {"train": 40, "test": 10} for site in DOMAINNET.sites})
    whale, zebra = folders / "sketch" / "whale", folders / "clipart" / "zebra" / name_of("clipart", "zebra", 0)
    for k in (0, 2, 3, 4):
        shutil.copy(whale / name_of("sketch", "whale", 1), whale / name_of("sketch", "whale", k))
    shutil.copy(zebra, folders / "real" / "zebra" / name_of("real", "zebra", 0))
    command = ["data", "prepare", "domainnet", "--source", str(folders), "--out", str(tmp_path / "out"), "--size", "64"]
    assert cli.main([*command, "--split", "seeded", "--seed", "5"]) == 0
    prepared = [tmp_path / "out" / "domainnet_seeded" / site for site in DOMAINNET.sites]
    assert counts(prepared) == {site: [32, 8, 10] for site in DOMAINNET.sites}
    preparation = read_manifest(prepared[0]).preparation
    assert preparation["split_seed"] == 5 and str(preparation["split_rule"]).startswith(
        "the papers' counts, by seed 5:"
    )
    whales = {splits(prepared[5])[f"whale/{name_of('sketch', 'whale', k)}"] for k in range(EACH)}
    assert len(whales) == 1
    assert splits(prepared[0])[f"zebra/{zebra.name}"] == splits(prepared[4])[f"zebra/{name_of('real', 'zebra', 0)}"]
    job = resolve(
        "domainnet",
        "fedavg",
        protocol="fedfa",
        options=["dataset=domainnet_seeded", "data.choose=random", "data.size=64"],
    )
    x, _ = next(build_task(job).open(prepared[2], "painting").chunks())
    assert x.shape == (13, 3, 64, 64), "0.4 of 32"


def text_array(lists: Any) -> np.ndarray:
    return np.array(lists)


def object_arrays(lists: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.array(lists[0], object), np.array(lists[1], object)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("form", [lambda lists: lists, list, text_array, object_arrays, lambda x: np.array(x, object)])
def test_fedbn_s_lists(unpacked: Path, zips: Path, form: Callable[[Any], Any], protocol: int) -> None:
    found = plan(add_fedbn(zips, form, protocol=protocol), split="papers")
    for site in DOMAINNET.sites:
        split = found.dealing.deal(site, [])
        for label in DOMAINNET.classes:
            numbered = [split[f"{label}/{name_of(site, label, k)}"] for k in range(EACH)]
            last = "val" if label not in DOMAINNET.classes[:2] else "train"
            assert numbered == [last, "train", "train", "train", "test"]


def test_fedbn_s_split_is_written_with_its_copies(folders: Path, tmp_path: Path) -> None:
    whale = folders / "sketch" / "whale"
    for k in (3, 4):  # for training, and for testing
        shutil.copy(whale / name_of("sketch", "whale", 1), whale / name_of("sketch", "whale", k))
    zebra = folders / "clipart" / "zebra" / name_of("clipart", "zebra", 0)
    shutil.copy(zebra, folders / "real" / "zebra" / name_of("real", "zebra", 0))
    prepared = write_pictures(plan(add_fedbn(folders), split="papers"), tmp_path / "out", sizes=[8])
    assert counts(prepared) == {site: [32, 8, 10] for site in DOMAINNET.sites}
    assert read_manifest(prepared[5]).preparation["split_rule"] == PAPERS_RULE
    straddling = [read_manifest(folder).preparation["pictures_straddling"] for folder in prepared]
    assert straddling[4:] == [1, 3] and straddling[1:4] == [0, 0, 0]


def dump(name: str, value: Any) -> Callable[[Path], object]:
    return lambda root: (add_fedbn(root) / name).write_bytes(pickle.dumps(value))


def another(path: str, label: str) -> Callable[[Path], object]:
    """One entry of clipart's test list changed."""
    paths, labels = fedbn_list("clipart", [4])
    return dump("clipart_test.pkl", ([*paths[:-1], path], [*labels[:-1], label]))


NOT_A_LIST = r"real_train\.pkl is not one of FedBN's lists, a pickle of paths ending in real/<class>/<file>"


FEDBN_LISTS: list[tuple[Callable[[Path], object], str]] = [
    (lambda r: None, r"has no clipart_train\.pkl, the papers' split needs FedBN's lists"),
    (dump("real_train.pkl", [1, 2, 3]), NOT_A_LIST),
    (dump("real_train.pkl", (["a"], [])), NOT_A_LIST),
    (dump("real_train.pkl", {"paths": []}), NOT_A_LIST),
    (dump("real_train.pkl", ([1], [2])), NOT_A_LIST),
    (dump("real_train.pkl", np.float32(2)), NOT_A_LIST),
    (another("DomainNet/real/zebra/a.jpg", "zebra"), "real/zebra/a.jpg is listed for clipart"),
    (another("clipart_039_000004.jpg", "zebra"), "clipart_039_000004.jpg is listed for clipart"),
    (another("DomainNet/clipart/zebra/a.jpg", "bird"), "clipart/zebra/a.jpg is listed as bird"),
    (
        another("DomainNet/clipart/zebra/a.jpg", "zebra"),
        "clipart/zebra/a.jpg is named in FedBN's lists but does not exist, nor do 0 others: .* or use --split hash",
    ),
    (
        another(f"DomainNet/clipart/bird/{name_of('clipart', 'bird', 0)}", "bird"),
        "FedBN's lists: clipart/bird/clipart_030_000000.jpg is listed twice",
    ),
    (
        lambda r: (add_fedbn(r) / "real_test.pkl").write_bytes(b"\x80\x04"),
        r"real_test\.pkl is damaged or no pickle",
    ),
    (
        lambda r: (add_fedbn(r) / "real_test.pkl").write_bytes(calling("os", "system", "touch ran")),
        r"real_test\.pkl asks for os\.system",
    ),
]


def add_to_official(name: str, line: str) -> Callable[[Path], object]:
    def add(root: Path) -> None:
        path = add_official(root) / name
        path.write_text(f"{path.read_text(encoding='utf-8')}{line}\n", encoding="utf-8")

    return add


def write_official(name: str, line: bytes) -> Callable[[Path], object]:
    return lambda root: (add_official(root) / name).write_bytes(line)


DOWNLOADS: list[tuple[Callable[[Path], object], str]] = [
    (
        lambda r: (add_official(r) / "real_test.txt").unlink(),
        r"has official lists, but no real_test\.txt: download these too \(the download is described at http",
    ),
    (add_to_official("real_test.txt", "real/zebra/no.jpg 344"), "real/zebra/no.jpg is named in the official lists"),
    (
        write_official("real_test.txt", b""),
        r"real_test\.txt lists no picture of bird, feather, .*: download it again",
    ),
    (write_official("real_train.txt", b"real/bird/a.jpg 29"), r"real_train\.txt lists no picture of feather, "),
    (write_official("real_test.txt", b"sketch/zebra/no.jpg 344"), "sketch/zebra/no.jpg is listed for real, but"),
    (write_official("real_test.txt", b"real/zebra/caf\xe9.jpg 344"), r"real_test\.txt is not text in UTF-8"),
    (write_official("real_test.txt", b"<html>"), "<html> is listed for real"),
    (lambda r: (r / "quickdraw.zip").unlink(), r"has no folder quickdraw, it holds clipart\.zip, infograph\.zip"),
    (lambda r: (r / "real.zip").write_bytes(b"PK"), r"real\.zip is damaged or no zip"),
]


@pytest.mark.parametrize(
    ("spoil", "options", "words"),
    [
        *((spoil, {"split": "papers"}, words) for spoil, words in FEDBN_LISTS),
        *((spoil, {}, words) for spoil, words in DOWNLOADS),
        (lambda r: None, {"seed": 1}, "--seed .*--split seeded"),
    ],
)
def test_what_is_wrong_is_said_and_no_code_in_a_list_is_run(
    zips: Path, spoil: Callable[[Path], object], options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(zips)
    spoil(zips)
    with pytest.raises(DataError, match=words):
        plan(zips, **options)
    assert not (zips / "ran").exists()


def test_a_class_that_is_missing_at_a_site(folders: Path) -> None:
    shutil.rmtree(folders / "real" / "teapot")
    with pytest.raises(DataError, match=r"real/teapot: .*aircraft_carrier, bird"):
        plan(folders)


def test_the_command_prepares_what_the_task_opens(
    zips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["data", "prepare", "domainnet", "--source", str(add_fedbn(zips)), "--out", str(tmp_path / "out")]
    assert cli.main([*command, "--size", "64", "--split", "papers"]) == 0
    printed = capsys.readouterr().out
    assert "quickdraw: 50 picture(s) (32 train, 8 val, 10 test)" in printed and printed.count("montage.png") == 6
    job = resolve("domainnet", "fedavg", protocol="fedfa", options=["data.size=64", "data.images=7", "data.fraction=1"])
    x, _ = next(build_task(job).open(tmp_path / "out" / "domainnet_papers" / "painting", "painting").chunks())
    assert x.shape == (7, 3, 64, 64) and 0 <= x.min() < x.max() <= 1, "only scaled"
    (zips / "real_train.pkl").unlink()
    assert cli.main([*command, "--split", "papers"]) == 2
    assert "has no real_train.pkl" in capsys.readouterr().err


def test_the_tasks_protocols_are_the_papers() -> None:
    fedfa = resolve("domainnet", "fedfa+augmentation", protocol="fedfa")
    assert fedfa.task.optimizer.model_dump() == {
        "name": "sgd",
        "lr": 0.01,
        "weight_decay": 0.0005,
        "momentum": 0.9,
        "keep": True,
    }
    assert fedfa.task.schedule.rounds == 400 and fedfa.task.schedule.local_steps is None
    assert fedfa.task.data["fraction"] == 0.4 and fedfa.task.data["size"] == 256
    assert fedfa.methods["augmentation"]["flip"] == 0.5 and fedfa.methods["augmentation"]["rotation"] == 30
    fedrdn = resolve("domainnet", "fedrdn", protocol="fedrdn").task
    assert (fedrdn.schedule.rounds, fedrdn.schedule.local_epochs, fedrdn.optimizer.weight_decay) == (100, 5, 1e-5)
    assert fedrdn.data["images"] == int(0.05 * 2103) and fedrdn.network.options["hidden"] == 4096
    fedbn = resolve("domainnet", "fedbn", protocol="fedbn").task
    assert (fedbn.schedule.rounds, fedbn.schedule.local_epochs, fedbn.optimizer.momentum) == (300, 1, 0)
    assert not fedbn.optimizer.keep and not fedbn.schedule.drop_last
    for task in (fedfa.task, fedrdn, fedbn):
        assert task.sites == DOMAINNET.sites and task.classes == DOMAINNET.classes and task.network.name == "alexnet"
