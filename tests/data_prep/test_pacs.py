"""PACS: four sites of seven classes, split by content."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from picturefiles import write_tree

from data_prep.pacs import PACS, plan
from data_prep.pictures import write_pictures
from fedshift import cli
from fedshift.cli import data as data_command
from fedshift.data.check import check
from fedshift.data.images import open_images
from fedshift.federation.resolve import resolve
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.base import build_task


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "raw", PACS.sites, PACS.classes, each=4)


def test_four_sites_of_seven_classes(raw: Path, tmp_path: Path) -> None:
    folders = write_pictures(plan(raw), tmp_path / "out", sizes=[8])
    assert [folder.name for folder in folders] == ["art_painting", "cartoon", "photo", "sketch"]
    for folder in folders:
        manifest = read_manifest(folder)
        assert (manifest.dataset, manifest.site, manifest.kind) == ("pacs", folder.name, "images")
        assert [len(manifest.by_split(part)) for part in ("train", "val", "test")] == [14, 7, 7]
        assert sorted(set(open_images(folder, size=8, channels=3).labels)) == list(range(7))
    assert check(tmp_path / "out") == []


def test_a_folder_too_far_up_is_recognised(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    raw.rename(tmp_path / "up" / "PACS")
    with pytest.raises(
        DataError, match=r"it holds PACS: did you mean .*up/PACS\? expected PACS as folders art_painting"
    ):
        plan(tmp_path / "up")


def test_the_command(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(["data", "prepare", "pacs", "--source", str(raw), "--out", str(tmp_path / "out"), "--size", "8"]) == 0
    )
    assert "sketch: 28 picture(s) (14 train, 7 val, 7 test)" in capsys.readouterr().out


def test_of_many_sites_the_pictures_that_were_written_are_counted(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_command, "MOST_TOLD", 3)
    (raw / "photo" / "dog" / "frame_0001.png").write_bytes(b"damaged")
    command = ["data", "prepare", "pacs", "--source", str(raw), "--out", str(tmp_path / "out"), "--size", "8"]
    assert cli.main([*command, "--skip-damaged"]) == 0
    assert "4 sites, 111 pictures, in " in capsys.readouterr().out


def test_the_task_opens_what_was_prepared(raw: Path, tmp_path: Path) -> None:
    folders = write_pictures(plan(raw), tmp_path / "out", sizes=[32])
    job = resolve("pacs", "fedavg", options=["data.size=32"])
    data = build_task(job).open(folders[0], "art_painting")
    x, _ = next(data.chunks())
    assert x.shape == (14, 3, 32, 32) and x.min() < 0 < x.max(), "normalised as ImageNet is"
    fraug = resolve("pacs", "fraug", protocol="fraug")
    assert fraug.task.schedule.local_steps == 5 and fraug.task.data["fraction"] == 0.1
    assert fraug.methods["fraug"]["rtnet_distance"] == "l2"
    assert "sketch" not in resolve("pacs", "afl+fedrdn", protocol="augmentation").task.sites


# --- sub-sites ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough pictures to be divided."""
    return write_tree(tmp_path_factory.mktemp("wide"), PACS.sites, PACS.classes, each=20)


def test_domains_are_divided_and_sketch_stays_whole(wide: Path, tmp_path: Path) -> None:
    folders = write_pictures(plan(wide, subsites=4), tmp_path, sizes=[8])
    domains = ("art_painting", "cartoon", "photo")
    expected = [f"{domain}_{k}" for domain in domains for k in (1, 2, 3, 4)]
    assert [folder.name for folder in folders] == [*expected, "sketch"]
    manifests = {folder.name: read_manifest(folder) for folder in folders}
    assert {manifest.dataset for manifest in manifests.values()} == {"pacs_subsites"}
    sketch = manifests.pop("sketch")
    assert [len(sketch.by_split(part)) for part in ("train", "val", "test")] == [84, 28, 28], "by content"
    for domain in domains:
        parts = [manifest for name, manifest in manifests.items() if name.startswith(domain)]
        ids = [picture.id for manifest in parts for picture in manifest.pictures]
        assert len(set(ids)) == len(ids) == 140, "every picture is at one of the sub-sites"
        counts = np.array([[len(m.by_split(part)) for part in ("train", "val", "test")] for m in parts])
        assert counts.sum(0)[1] == 14, "a tenth"
        assert 60 < counts.sum(0)[0] <= 126 and counts[:, 0].std() > 0, "about four fifths of the rest"
        assert counts[:, 1].max() - counts[:, 1].min() <= 9
    assert [f.sentence() for f in check(tmp_path) if f.level == "error"] == []
    assert manifests["photo_4"].preparation["split_rule"] == "4 sub-sites a domain, seed 0, sketch whole by content"


def test_sub_sites_depend_on_the_seed_and_domains_differ(wide: Path) -> None:
    def ids(**options: int) -> list[list[str]]:
        return [[source.id for source in sources] for sources in plan(wide, subsites=4, **options).found.values()]

    assert ids() == ids(seed=0) != ids(seed=1)
    assert ids()[0] != ids()[4], "each domain is divided on its own"


def test_another_domain_may_stay_whole(wide: Path) -> None:
    found = plan(wide, subsites=2, whole="photo").found
    assert list(found) == [
        "art_painting_1",
        "art_painting_2",
        "cartoon_1",
        "cartoon_2",
        "photo",
        "sketch_1",
        "sketch_2",
    ]


def test_copies_in_a_sub_site_stay_together(tmp_path: Path) -> None:
    raw = write_tree(tmp_path / "raw", PACS.sites, PACS.classes, each=20)
    for k in range(2, 21):
        shutil.copy(raw / "photo" / "dog" / "frame_0001.png", raw / "photo" / "dog" / f"frame_{k:04d}.png")
    folders = write_pictures(plan(raw, subsites=4), tmp_path / "out", sizes=[8])
    copies = Counter((m.site, p.split) for m in map(read_manifest, folders) for p in m.pictures if p.label == "dog")
    assert sum(site.startswith("photo") for site, _ in copies) == 1, "one sub-site, one split"
    assert [f.sentence() for f in check(tmp_path / "out") if f.level == "error"] == []


def test_sub_sites_that_cannot_be(wide: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    few = write_tree(tmp_path / "few", PACS.sites, PACS.classes, each=3)
    with pytest.raises(DataError, match=r"art_painting: 21 pictures are too few for 5 sites of at least 5: ask for"):
        plan(few, subsites=5)
    with pytest.raises(DataError, match="art_painting: 6 sub-sites of a fifth of a domain each need more than the domain"):
        plan(wide, subsites=6)
    command = ["data", "prepare", "pacs", "--source", str(wide), "--out", str(tmp_path / "out"), "--size", "8"]
    assert cli.main([*command, "--subsites", "0"]) == 2
    assert "0 sites are not possible" in capsys.readouterr().err
    for option in (["--whole", "photo"], ["--seed", "0"]):
        assert cli.main([*command, *option]) == 2
        assert "--whole and --seed only apply to sub-sites: add --subsites" in capsys.readouterr().err
    assert cli.main([*command, "--subsites", "3", "--seed", "-1"]) == 2
    assert "seed must be 0 or more, not -1" in capsys.readouterr().err
    assert cli.main([*command, "--subsites", "3", "--whole", "cartoon"]) == 0
    assert "cartoon: 140 picture(s) (84 train, 28 val, 28 test)" in capsys.readouterr().out
    assert cli.main([*command, "--subsites", "2", "--whole", "cartoon"]) == 2
    assert "holds 3 sites of another partition, such as art_painting_3: delete" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("protocol", "dataset", "count"), [("augmentation", "pacs_subsites", 12), ("augmentation_domains", "pacs", 3)]
)
def test_the_augmentation_papers_protocols(protocol: str, dataset: str, count: int) -> None:
    job = resolve(
        "pacs", "afl+augmentation+fedrdn", protocol=protocol, options=["augmentation.level=moderate", "data.size=96"]
    )
    assert (job.task.dataset, len(job.task.sites), job.task.held_out) == (dataset, count, ("sketch",))
    assert job.task.schedule.rounds == 80 and job.task.schedule.local_steps == 200 and job.task.optimizer.lr == 5e-5
    assert job.task.data["mean"] == [0] and job.task.network.options == {"norm": "group"}
    assert job.methods["fedrdn"]["mode"] == "fixed" and job.methods["fedrdn"]["fixed_mean"] == [0.485, 0.456, 0.406]
    assert list(job.methods).index("augmentation") < list(job.methods).index("fedrdn"), "normalised at the end"
    assert resolve("pacs", "vm+fedrdn", protocol=protocol).methods["vm"]["beta"] == 0.5


def test_the_tasks_own_normalisation_does_not_go_with_moderate_augmentation() -> None:
    with pytest.raises(ConfigError, match=r"with fedrdn\.mode=fixed"):
        resolve("pacs", "fedavg+augmentation", options=["augmentation.level=moderate"])


def test_real_sub_sites(shared_data: Path) -> None:
    if not (shared_data / "pacs").is_dir():
        pytest.skip("no pacs among the real data")
    found = plan(shared_data / "pacs", subsites=4).found
    assert len(found) == 13 and len(found["sketch"]) == 252
    assert sum(map(len, found.values())) == 1008


def test_real_pictures(shared_data: Path, tmp_path: Path) -> None:
    if not (shared_data / "pacs").is_dir():
        pytest.skip("no pacs among the real data")
    for folder in write_pictures(plan(shared_data / "pacs"), tmp_path, sizes=[32]):
        manifest = read_manifest(folder)
        assert len(manifest.pictures) == 252 and len({picture.sha256 for picture in manifest.pictures}) == 252
        for label in PACS.classes:
            splits = [picture.split for picture in manifest.pictures if picture.label == label]
            assert [splits.count(part) for part in ("train", "val", "test")] == [22, 7, 7]
