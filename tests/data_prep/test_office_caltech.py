"""Office-Caltech 10: the papers' split from FedBN's lists, the split by content, and what a wrong download gets."""

from __future__ import annotations

import json
import pickle
import shutil
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from picklefiles import calling
from picturefiles import write_office

from data_prep.dealing import BY_CONTENT
from data_prep.office_caltech import LISTS, OFFICE_CALTECH, plan
from data_prep.pictures import write_pictures
from fedshift import cli
from fedshift.data.arrays import open_images
from fedshift.federation.resolve import resolve
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Picture, read_manifest
from fedshift.tasks.kinds import build_task
from fedshift.tasks.kinds.classification import Images

PARTS = ("train", "val", "test")


@pytest.fixture
def office(tmp_path: Path) -> Path:
    return write_office(tmp_path / "office")


def change_lists(root: Path, site: str, part: str, names: list[str]) -> None:
    lists = json.loads((root / LISTS).read_text(encoding="utf-8"))
    lists[site][part] = names
    (root / LISTS).write_text(json.dumps(lists), encoding="utf-8")


def counts(folders: list[Path]) -> dict[str, list[int]]:
    return {folder.name: [len(read_manifest(folder).by_split(part)) for part in PARTS] for folder in folders}


def groups_of_copies(folders: list[Path]) -> list[list[tuple[str, Picture]]]:
    """Pictures with their sites that have the same content, of every content that several have."""
    found = defaultdict(list)
    for folder in folders:
        for picture in read_manifest(folder).pictures:
            found[picture.sha256].append((folder.name, picture))
    return sorted(
        (group for group in found.values() if len(group) > 1), key=lambda group: (group[0][0], group[0][1].sha256)
    )


def test_the_first_three_fifths_of_the_training_list_are_trained_on(office: Path, tmp_path: Path) -> None:
    folders = write_pictures(plan(office, split="papers"), tmp_path / "out", sizes=[8])
    assert counts(folders) == {site: [24, 16, 10] for site in OFFICE_CALTECH.sites}
    manifest = read_manifest(folders[2])
    split_of = {picture.id: picture.split for picture in manifest.pictures}
    # 40 names, ten classes in turn: 24 are all of number 4 and 3 and four classes of number 2
    assert split_of["back_pack/frame_0004.jpg"] == split_of["headphones/frame_0002.jpg"] == "train"
    assert split_of["keyboard/frame_0002.jpg"] == split_of["back_pack/frame_0001.jpg"] == "val"
    assert split_of["mug/frame_0005.jpg"] == "test"
    assert str(manifest.preparation["split_rule"]).startswith("papers")
    assert manifest.preparation["pictures_straddling"] == 0


def test_without_asking_for_it_the_split_goes_by_content(office: Path, tmp_path: Path) -> None:
    (office / LISTS).unlink()
    folders = write_pictures(plan(office), tmp_path / "out", sizes=[8])
    assert counts(folders) == {site: [30, 10, 10] for site in OFFICE_CALTECH.sites}
    assert read_manifest(folders[0]).preparation["split_rule"] == BY_CONTENT.rule


def test_fedbn_s_own_lists_give_the_same_split(office: Path) -> None:
    expected = plan(office, split="papers")
    lists = json.loads((office / LISTS).read_text(encoding="utf-8"))
    (office / LISTS).unlink()
    for site, parts in lists.items():
        for part, names in parts.items():
            paths = np.array([f"office_caltech_10/{name}" for name in names], object)
            labels = [name.split("/")[1] for name in names]
            (office / f"{site}_{part}.pkl").write_bytes(pickle.dumps((paths, np.array(labels)), protocol=2))
    again = plan(office, split="papers")
    for site in OFFICE_CALTECH.sites:
        assert [picture.id for picture in again.by_site[site]] == [picture.id for picture in expected.by_site[site]]
        assert again.dealing.deal(site, []) == expected.dealing.deal(site, [])
    assert again.dealing.keep_copies


def test_pictures_in_no_list_are_passed_over(office: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_lists(office, "dslr", "test", ["dslr/mug/frame_0005.jpg"])
    assert len(plan(office, split="papers").by_site["dslr"]) == 41
    assert "dslr: 9 picture(s) that are in no list are skipped" in caplog.text
    assert len(plan(office).by_site["dslr"]) == 50


def malicious_list(office: Path) -> None:
    (office / LISTS).unlink()
    (office / "amazon_train.pkl").write_bytes(calling("os", "system", "touch ran"))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (malicious_list, r"amazon_train\.pkl asks for os\.system"),
        (
            lambda r: (r / LISTS).unlink(),
            r"has neither amazon_train\.pkl nor fedbn_split\.json, the papers' split needs FedBN's lists",
        ),
        (lambda r: (r / LISTS).write_text("[1]", encoding="utf-8"), "not in the form of FedBN's lists"),
        (lambda r: (r / LISTS).write_text("{", encoding="utf-8"), "not in the form of FedBN's lists"),
        (
            lambda r: (r / "webcam" / "bike" / "frame_0002.jpg").unlink(),
            r"webcam/bike/frame_0002\.jpg is named in fedbn_split\.json but does not exist",
        ),
        (
            lambda r: change_lists(r, "dslr", "test", ["dslr/mug/frame_0001.jpg"]),
            r"dslr/mug/frame_0001\.jpg is listed twice",
        ),
        (
            lambda r: change_lists(r, "dslr", "test", ["webcam/mug/frame_0005.jpg"]),
            r"webcam/mug/frame_0005\.jpg is listed for dslr",
        ),
        (lambda r: shutil.rmtree(r / "dslr" / "mug"), "dslr/mug: .*back_pack, bike"),
        (lambda r: shutil.rmtree(r / "amazon"), "no folder amazon.*caltech, dslr, webcam"),
    ],
)
def test_what_is_wrong_is_said_and_no_code_in_a_list_is_run(
    office: Path, spoil: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(office)
    spoil(office)  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        plan(office, split="papers")
    assert not (office / "ran").exists()


def test_the_command(office: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["data", "prepare", "office_caltech", "--source", str(office), "--out", str(tmp_path / "out")]
    assert cli.main([*command, "--size", "8,12", "--split", "papers"]) == 0
    printed = capsys.readouterr().out
    assert (
        f"webcam: 50 picture(s) (24 train, 16 val, 10 test) in {tmp_path / 'out' / 'office_caltech_papers' / 'webcam'}"
        in printed
    )
    assert "10 classes of 5 to 5 pictures; look at" in printed
    assert printed.count("montage.png") == printed.count("picture(s)") == 4
    assert (tmp_path / "out" / "office_caltech_papers" / "dslr" / "arrays" / "12").is_dir()
    shutil.rmtree(office / "amazon")
    assert cli.main(command) == 2
    assert "amazon" in capsys.readouterr().err


def test_the_tasks_protocols_are_the_papers(office: Path, tmp_path: Path) -> None:
    fedfa = resolve("office_caltech", "fedfa", protocol="fedfa").task
    assert (fedfa.schedule.rounds, fedfa.schedule.local_epochs, fedfa.optimizer.momentum) == (400, 1, 0)
    job = resolve("office_caltech", "fedrdn", protocol="fedrdn", options=["data.size=64", "data.images=7"])
    assert job.task.optimizer.weight_decay == 1e-5 and not job.task.optimizer.keep
    assert resolve("office_caltech", "fedrdn", protocol="fedrdn").task.data["images"] == 62
    fedbn = resolve("office_caltech", "fedbn+augmentation", protocol="fedbn")
    assert fedbn.task.dataset == "office_caltech_papers" and fedbn.task.data["images"] == 62
    assert fedbn.task.network.options == {"hidden": 4096} and fedbn.task.schedule.rounds == 300
    assert (fedbn.task.schedule.local_epochs, fedbn.task.schedule.batch_size) == (1, 32)
    assert fedbn.task.optimizer.momentum == 0 and not fedbn.task.optimizer.keep
    turning = fedbn.methods["augmentation"]
    assert (turning["level"], turning["flip"], turning["rotation"]) == ("none", 0.5, 30)
    assert fedbn.methods["fedavg"]["weights"] == "uniform"
    fedprox = resolve("office_caltech", "fedprox", protocol="fedbn")
    assert fedprox.methods["fedprox"]["mu"] == 0.001
    folders = write_pictures(plan(office, split="papers"), tmp_path / "out", sizes=[64])
    data = build_task(job).open(folders[0], "amazon")
    lists = json.loads((office / LISTS).read_text(encoding="utf-8"))
    first = [data.manifest.pictures[number].id for number in data.members("train")]
    assert first == [path.removeprefix("amazon/") for path in lists["amazon"]["train"][:7]]
    assert isinstance(data, Images) and data.count("train") == 7 and data.count("val") == 16
    assert data.split_rule.startswith("papers")


@pytest.mark.slow
def test_the_papers_counts_on_the_real_pictures(shared_data: Path, tmp_path: Path) -> None:
    if not (shared_data / "office_caltech_10").is_dir():
        pytest.skip("no office_caltech_10 among the real data")
    folders = write_pictures(plan(shared_data / "office_caltech_10", split="papers"), tmp_path, sizes=[32])
    assert counts(folders) == {
        "amazon": [459, 307, 192],
        "caltech": [538, 360, 225],
        "dslr": [75, 50, 32],
        "webcam": [141, 95, 59],
    }
    noted = [read_manifest(folder).preparation for folder in folders]
    assert [notes["pictures_same_as_another"] for notes in noted] == [25, 1, 0, 0]
    assert [notes["pictures_straddling"] for notes in noted] == [30, 2, 0, 0]
    copies = groups_of_copies(folders)
    assert len(copies) == 18 and sum(map(len, copies)) == 44
    assert Counter(site for group in copies for site, _ in group) == {"amazon": 42, "caltech": 2}
    assert all(len({(site, picture.label) for site, picture in group}) == 1 for group in copies)
    assert sum(len({picture.split for _, picture in group}) > 1 for group in copies) == 12
    amazon = open_images(folders[0], size=32, channels=3)
    assert len(amazon.images) == 958 and np.asarray(amazon.images).std() > 0
    assert np.bincount(amazon.labels).min() >= 82

    by_content = write_pictures(plan(shared_data / "office_caltech_10"), tmp_path, sizes=[32])
    together = groups_of_copies(by_content)
    assert [{picture.id for _, picture in group} for group in together] == [
        {picture.id for _, picture in group} for group in copies
    ], "the same copies, none left out"
    assert all(len({picture.split for _, picture in group}) == 1 for group in together)
    assert [read_manifest(folder).preparation["pictures_straddling"] for folder in by_content] == [0, 0, 0, 0]
    assert sum(map(sum, counts(by_content).values())) == 2533
    for train, val, test in counts(by_content).values():
        assert 0.55 < train / (train + val + test) < 0.65 and abs(val - test) <= 10
