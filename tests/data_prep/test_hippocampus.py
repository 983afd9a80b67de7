from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from errors import raises
from scanfiles import write_described

from data_prep.hippocampus import SCANNERS, plan_volumes
from data_prep.scanners import Scanner, scan_again
from data_prep.volumes import write_volumes
from fedshift import cli
from fedshift.data.check import check
from fedshift.data.prepared import read_images, read_labels
from fedshift.data.scans import Scan
from fedshift.schema.manifest import read_manifest

CASES = 12


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_described(
        tmp_path_factory.mktemp("raw") / "Task04_Hippocampus", classes=("Anterior", "Posterior"), cases=CASES
    )


@pytest.fixture(scope="module")
def sites(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("out")
    return {folder.name: folder for folder in write_volumes(plan_volumes(source, simulate=True), out)}


def test_one_centre_without_an_option(source: Path, tmp_path: Path) -> None:
    assert cli.main(["data", "prepare", "hippocampus", "--source", str(source), "--out", str(tmp_path)]) == 0
    manifest = read_manifest(tmp_path / "hippocampus" / "MSD")
    assert len(manifest.cases) == CASES and manifest.simulated is None
    assert manifest.classes == ("background", "Anterior", "Posterior")


def test_simulated_sites_say_that_they_are(sites: dict[str, Path]) -> None:
    assert sorted(sites) == sorted(SCANNERS)
    for site, folder in sites.items():
        manifest = read_manifest(folder)
        assert (manifest.dataset, manifest.kind) == ("hippocampus_simulated", "patients")
        assert manifest.simulated == "sites and scanners" and "simulated" in manifest.preparation["source"]
        assert Scanner(**manifest.preparation["scanner_settings"]) == SCANNERS[site]
        assert manifest.preparation["scanner"] == f"simulated {site}"
    assert check(sites["sim_a"].parent) == []


def test_every_case_is_at_one_site(sites: dict[str, Path]) -> None:
    cases = [case.id for folder in sites.values() for case in read_manifest(folder).cases]
    assert len(cases) == len(set(cases)) == CASES
    assert {len(read_manifest(folder).cases) for folder in sites.values()} == {CASES // 4}


def test_only_intensities_change(source: Path, sites: dict[str, Path], tmp_path: Path) -> None:
    (one,) = write_volumes(plan_volumes(source), tmp_path)
    as_taken = {case.id: case for case in read_manifest(one).cases}
    for site, folder in sites.items():
        manifest = read_manifest(folder)
        for case in manifest.cases:
            before = as_taken[case.id]
            assert case.sha256_label == before.sha256_label and case.spacing == before.spacing
            assert (case.sha256_image == before.sha256_image) == (site == "sim_a"), "sim_a is as taken"
            image, labels = read_images(folder, manifest, case)[0], read_labels(folder, case)
            assert image[labels > 0].mean() > 2 * image[labels == 0].mean(), "the ball is still bright"


def test_the_seed_decides(source: Path, sites: dict[str, Path], tmp_path: Path) -> None:
    again = write_volumes(plan_volumes(source, simulate=True), tmp_path / "again")
    other = write_volumes(plan_volumes(source, simulate=True, seed=1), tmp_path / "other")
    for folder, unlike in zip(again, other, strict=True):
        assert (folder / "manifest.json").read_bytes() == (sites[folder.name] / "manifest.json").read_bytes()
        assert read_manifest(folder).cases != read_manifest(unlike).cases
    with raises("invalid-value", naming="--seed"):
        plan_volumes(source, simulate=True, seed=-1)


def test_another_task_is_refused(tmp_path: Path) -> None:
    folder = write_described(tmp_path / "spleen", classes=("spleen",))
    with raises("other-data", naming="data prepare msd"):
        plan_volumes(folder)


def test_what_a_scanner_does() -> None:
    rng = np.random.default_rng(0)
    voxels = np.linspace(0, 100, 12 * 10 * 8, dtype=np.float32).reshape(12, 10, 8)
    scan = Scan(voxels, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), tuple(np.eye(3).ravel()), "RAS", tuple(np.eye(3).ravel()))
    assert scan_again(scan, Scanner(), rng) is scan
    dark = scan_again(scan, Scanner(gamma=2.0), rng).voxels
    np.testing.assert_allclose(dark, 1000 * (voxels / np.percentile(voxels, 99)) ** 2, atol=1)
    stripes = np.zeros_like(voxels)
    stripes[::2] = 100
    thick = scan_again(Scan(stripes, *vars_of(scan)), Scanner(thickness=2.0), rng).voxels
    assert thick[1:-1].std() < 0.2 * stripes.std() / 100 * 1000, "neighbouring slices are averaged"
    biased = scan_again(Scan(np.full_like(voxels, 50) + stripes * 0.01, *vars_of(scan)), Scanner(bias=0.5), rng).voxels
    assert biased[0].std() > 20, "brightness changes over a slice"


def vars_of(scan: Scan) -> tuple[object, ...]:
    return scan.spacing, scan.origin, scan.direction, scan.stored, scan.stored_direction


@pytest.mark.parametrize("simulate", [False, True])
def test_real_volumes(shared_data: Path, tmp_path: Path, simulate: bool) -> None:
    source = shared_data / "hippocampus"
    if not source.is_dir():
        pytest.skip(f"no hippocampus volumes at {source}: set FEDSHIFT_SHARED_DATA to a folder with hippocampus/")
    plan = plan_volumes(source, simulate=simulate)
    assert plan.total == 200 and {len(site.cases) for site in plan.sites} == ({50} if simulate else {200})
    few = plan.sites[-1].cases[:6]
    chosen = type(plan.sites[-1])(**{**vars(plan.sites[-1]), "cases": few})
    (folder,) = write_volumes(type(plan)(**{**vars(plan), "sites": (chosen,)}), tmp_path)
    assert {case.spacing for case in read_manifest(folder).cases} == {(1.0, 1.0, 1.0)}
    assert not read_manifest(folder).has_unknown_spacing and check(folder) == []
