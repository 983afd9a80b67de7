"""Domains divided into sub-sites, one of them left as it is to be held out: PACS and OfficeHome."""

from __future__ import annotations

import functools
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from picturefiles import write_officehome, write_tree

from data_prep import officehome, pacs
from data_prep.pacs import PACS
from data_prep.pictures import Plan, write_pictures
from fedshift import cli
from fedshift.data.check import check
from fedshift.federation.resolve import resolve
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.kinds import build_task

PLANS: dict[str, Callable[..., Plan]] = {"pacs": pacs.plan, "officehome": officehome.plan}
DOMAINS = {"pacs": ("art_painting", "cartoon", "photo"), "officehome": ("Art", "Product", "Real_World")}
"""Those that are divided."""
HELD_OUT = {"pacs": "sketch", "officehome": "Clipart"}
CLASSES = {"pacs": 7, "officehome": 65}
EACH = {"pacs": 20, "officehome": 6}
"""Pictures of a class of a domain: enough to be divided."""


def write(name: str, root: Path, *, each: int) -> Path:
    if name == "officehome":
        return write_officehome(root, each=each)
    return write_tree(root, PACS.sites, PACS.classes, each=each)


@pytest.fixture(scope="session")
def wide_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return functools.cache(lambda name: write(name, tmp_path_factory.mktemp(name), each=EACH[name]))


@pytest.fixture(params=PLANS)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def wide(name: str, wide_of: Callable[[str], Path]) -> Path:
    return wide_of(name)


@pytest.mark.slow
def test_domains_are_divided_and_the_protocol_trains_on_them(
    name: str, wide: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["data", "prepare", name, "--source", str(wide), "--out", str(tmp_path), "--size", "32"]
    assert cli.main([*command, "--subsites", "4", "--seed", "3"]) == 0
    n = CLASSES[name]
    train, val, test = {"pacs": (84, 28, 28), "officehome": (4 * n, n, n)}[name]
    held_out = f"{HELD_OUT[name]}: {train + val + test} picture(s) ({train} train, {val} val, {test} test)"
    assert held_out in capsys.readouterr().out, "split by content"
    folders = {folder.name: folder for folder in (tmp_path / f"{name}_subsites").iterdir() if folder.is_dir()}
    job = resolve(name, "vm+fedrdn", protocol="augmentation", options=["data.size=32"])
    assert job.task.dataset == f"{name}_subsites" and set(folders) == {*job.task.sites, HELD_OUT[name]}
    assert list(job.task.sites) == [f"{domain}_{k}" for domain in DOMAINS[name] for k in (1, 2, 3, 4)]
    of_domain = n * EACH[name]
    for domain in DOMAINS[name]:
        parts = [read_manifest(folders[f"{domain}_{k}"]) for k in (1, 2, 3, 4)]
        ids = [picture.id for manifest in parts for picture in manifest.pictures]
        assert len(set(ids)) == len(ids) and 0.97 * of_domain <= len(ids) <= of_domain, (
            "each is at one of the sub-sites"
        )
        counts = np.array([[len(m.by_split(part)) for part in ("train", "val", "test")] for m in parts])
        trained, validated, _ = counts.sum(0)
        tenth = n * round(EACH[name] / 10)
        assert 0.85 * tenth <= validated <= tenth
        assert 0.38 * of_domain < trained <= of_domain - tenth and counts[:, 0].min() > 0 and counts[:, 0].std() > 0
        assert {manifest.dataset for manifest in parts} == {f"{name}_subsites"}
        rule = f"4 sub-sites a domain, seed 3, {HELD_OUT[name]} whole by content"
        assert {manifest.preparation["split_rule"] for manifest in parts} == {rule}
    assert [finding.sentence() for finding in check(tmp_path) if finding.level == "error"] == []
    site = job.task.sites[-1]
    x, _ = next(build_task(job).open(folders[site], site).chunks())
    assert x.shape[1:] == (3, 32, 32)


def test_validation_is_a_tenth_and_shared_out_evenly(wide_of: Callable[[str], Path], tmp_path: Path) -> None:
    folders = write_pictures(pacs.plan(wide_of("pacs"), subsites=4), tmp_path, sizes=[8])
    for domain in DOMAINS["pacs"]:
        parts = [read_manifest(folder) for folder in folders if folder.name.startswith(domain)]
        counts = np.array([[len(m.by_split(part)) for part in ("train", "val", "test")] for m in parts])
        assert sum(map(sum, counts)) == 140 and counts.sum(0)[1] == 14
        assert 60 < counts.sum(0)[0] <= 126, "about four fifths of the rest"
        assert counts[:, 1].max() - counts[:, 1].min() <= 9


def test_sub_sites_depend_on_the_seed_and_domains_differ(name: str, wide: Path) -> None:
    def ids(**options: int) -> list[list[str]]:
        found = PLANS[name](wide, subsites=4, **options).by_site
        return [[source.id for source in sources] for sources in found.values()]

    assert ids() == ids(seed=0) != ids(seed=1)
    sites = list(PLANS[name](wide, subsites=4).by_site)
    first, second = (sites.index(f"{domain}_1") for domain in DOMAINS[name][:2])
    assert ids()[first] != ids()[second], "each domain is divided on its own"


@pytest.mark.parametrize(
    ("name", "whole", "expected"),
    [
        ("pacs", "photo", "art_painting_1 art_painting_2 cartoon_1 cartoon_2 photo sketch_1 sketch_2"),
        ("officehome", "Real_World", "Art_1 Art_2 Clipart_1 Clipart_2 Product_1 Product_2 Real_World"),
    ],
)
def test_another_domain_may_be_held_out(name: str, whole: str, expected: str, wide_of: Callable[[str], Path]) -> None:
    assert list(PLANS[name](wide_of(name), subsites=2, whole=whole).by_site) == expected.split()


def test_copies_in_a_sub_site_stay_together(tmp_path: Path) -> None:
    raw = write("pacs", tmp_path / "raw", each=20)
    for k in range(2, 21):
        shutil.copy(raw / "photo" / "dog" / "frame_0001.png", raw / "photo" / "dog" / f"frame_{k:04d}.png")
    folders = write_pictures(pacs.plan(raw, subsites=4), tmp_path / "out", sizes=[8])
    copies = Counter((m.site, p.split) for m in map(read_manifest, folders) for p in m.pictures if p.label == "dog")
    assert sum(site.startswith("photo") for site, _ in copies) == 1, "one sub-site, one split"
    assert [finding.sentence() for finding in check(tmp_path / "out") if finding.level == "error"] == []


def test_more_sub_sites_than_a_domain_has_pictures_for(name: str, wide: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{PACS.sites[0] if name == 'pacs' else 'Art'}: 6 sub-sites"):
        PLANS[name](wide, subsites=6)
    if name == "pacs":
        few = write(name, tmp_path / "few", each=3)
        with pytest.raises(DataError, match="art_painting: 21 pictures"):
            PLANS[name](few, subsites=5)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["--subsites", "0"], "0 sites"),
        (["--whole", "{held_out}"], "--subsites"),
        (["--seed", "0"], "--subsites"),
    ],
)
def test_options_of_sub_sites_that_cannot_be(
    options: list[str], key: str, name: str, wide: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["data", "prepare", name, "--source", str(wide), "--out", str(tmp_path / "out"), "--size", "8"]
    assert cli.main([*command, *(option.format(held_out=HELD_OUT[name]) for option in options)]) == 2
    assert key in capsys.readouterr().err


def test_sub_sites_of_another_number_are_not_left_beside_the_new_ones(
    wide_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["data", "prepare", "pacs", "--source", str(wide_of("pacs")), "--out", str(tmp_path), "--size", "8"]
    assert cli.main([*command, "--subsites", "3", "--whole", "cartoon"]) == 0
    assert "cartoon: 140 picture(s) (84 train, 28 val, 28 test)" in capsys.readouterr().out
    assert cli.main([*command, "--subsites", "2", "--whole", "cartoon"]) == 2
    assert "art_painting_3" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", ["augmentation", "augmentation_domains"])
def test_the_augmentation_papers_protocols(name: str, protocol: str) -> None:
    domains = DOMAINS[name]
    sites = domains if protocol.endswith("domains") else [f"{domain}_{k}" for domain in domains for k in (1, 2, 3, 4)]
    dataset = name if protocol.endswith("domains") else f"{name}_subsites"
    job = resolve(
        name, "afl+augmentation+fedrdn", protocol=protocol, options=["augmentation.level=moderate", "data.size=96"]
    )
    assert (job.task.dataset, list(job.task.sites), job.task.held_out) == (dataset, list(sites), (HELD_OUT[name],))
    wanted = [(d,) for d in domains] if protocol.endswith("domains") else list(zip(*[iter(sites)] * 4, strict=True))
    assert list(job.task.groups) == wanted, "centralised references train on three domains"
    schedule = job.task.schedule
    assert (schedule.rounds, schedule.local_steps, schedule.batch_size, job.task.optimizer.lr) == (80, 200, 32, 5e-5)
    assert job.task.data["mean"] == [0] and job.task.network.options["norm"] == "group"
    assert job.methods["fedrdn"]["mode"] == "fixed" and job.methods["fedrdn"]["fixed_mean"] == [0.485, 0.456, 0.406]
    assert list(job.methods).index("augmentation") < list(job.methods).index("fedrdn"), "normalised at the end"
    assert resolve(name, "vm+fedrdn", protocol=protocol).methods["vm"]["beta"] == 0.5
