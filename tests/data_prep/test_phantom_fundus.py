"""The fundus phantom: nested classes, cameras that differ, and a label that says what it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from errors import raises
from scipy.ndimage import label

from data_prep.phantom_fundus import CAMERAS, CUP, RIM, SIDE, draw, make_fundus
from fedshift import cli
from fedshift.data.check import check
from fedshift.federation.resolve import resolve
from fedshift.reporting.report.repeat import _phantom_commands
from fedshift.schema.manifest import Manifest, read_manifest
from fedshift.tasks.kinds import build_task


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fundus(tmp_path_factory.mktemp("phantom"), cases=3, seed=2)


@pytest.mark.parametrize("camera", CAMERAS)
def test_a_cup_is_within_its_disc(camera: str) -> None:
    for seed in range(4):
        picture, classes = draw(CAMERAS[camera], np.random.default_rng(seed))
        assert picture.shape == (SIDE, SIDE, 3) and picture.dtype == classes.dtype == np.uint8
        disc, cup = classes > 0, classes == CUP
        assert label(disc)[1] == label(cup)[1] == 1
        assert 0.06 < cup.sum() / disc.sum() < 0.8 and (classes == RIM).any()
        touched = cup & ~np.roll(disc, 1, 0) | cup & ~np.roll(disc, -1, 0)
        assert not touched.any(), "the rim is around all of the cup"
        inside_out = [np.quantile(picture[where].mean(1), 0.7) for where in (cup, classes == RIM, ~disc)]
        assert inside_out == sorted(inside_out, reverse=True), "between the vessels the cup is palest"


def test_cameras_differ_more_than_their_eyes() -> None:
    means = np.array(
        [[draw(camera, np.random.default_rng(seed))[0][96:160, 96:160].mean((0, 1)) for seed in range(5)]
         for camera in CAMERAS.values()]
    )  # fmt: skip
    between, within = means.mean(1).std(0), means.std(1).mean(0)
    assert (between > within).all()


@pytest.mark.slow
def test_a_picture_does_not_depend_on_the_others(home: Path, tmp_path: Path) -> None:
    make_fundus(tmp_path, cases=1, seed=2, sites=["NEW_A"])
    file = Path("fundus") / "NEW_A" / "volumes" / "Eye00.png"
    assert (tmp_path / file).read_bytes() == (home / file).read_bytes()
    make_fundus(tmp_path, cases=1, seed=3, sites=["NEW_A"])
    assert (tmp_path / file).read_bytes() != (home / file).read_bytes()


def test_everything_says_that_it_is_simulated(home: Path) -> None:
    assert "NOT PATIENTS" in (home / "PHANTOM.txt").read_text(encoding="utf-8")
    manifests = [read_manifest(folder) for folder in sorted((home / "fundus").iterdir())]
    assert [manifest.site for manifest in manifests] == sorted(CAMERAS)
    assert {manifest.kind for manifest in manifests} == {"phantom"}
    assert not [finding for finding in check(home) if finding.level == "error"]


def test_the_task_trains_on_it(home: Path, tmp_path: Path) -> None:
    job = resolve("fundus", "fedavg", options=["network.options.features=[4,4,4,4,4,4]", "schedule.precision=fp32"])
    assert set(job.task.sites) < set(CAMERAS)
    shutil.copytree(home / "fundus" / "DRISHTI", tmp_path / "DRISHTI")
    x, y = next(build_task(job).open(tmp_path / "DRISHTI", "DRISHTI").chunks())
    assert x.shape[1:] == (3, 128, 128) and set(y.unique().tolist()) == {0, 1, 2}


def test_the_command_that_made_it_is_on_record(home: Path, tmp_path: Path) -> None:
    manifest: Manifest = read_manifest(home / "fundus" / "NEW_B")
    (command,) = _phantom_commands({"NEW_B": manifest.phantom})
    assert cli.main([*command.split()[1:], "--out", str(tmp_path)]) == 0
    again = read_manifest(tmp_path / "fundus" / "NEW_B")
    assert [case.sha256_image for case in again.cases] == [case.sha256_image for case in manifest.cases]


@pytest.mark.parametrize("options", [["--zones"], ["--sequences", "2"], ["--matrix", "96"]])
def test_options_of_the_other_phantom_are_refused(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["data", "phantom", "--task", "fundus", "--out", str(tmp_path), *options]) == 2
    assert options[0] in capsys.readouterr().err


def test_an_unknown_camera_is_named(tmp_path: Path) -> None:
    with raises("site-unknown", naming="BIDMC"):
        make_fundus(tmp_path, sites=["BIDMC"])
