from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from errors import raises
from scanfiles import prepare_prostate, volume, write_liu, write_pair

from data_prep.prostate import PROMISE12_SITES, plan_volumes
from fedshift.cli import data
from fedshift.cli.arguments import Parser
from fedshift.data.arrays import open_arrays
from fedshift.data.check import check
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import read_manifest


def promise12(root: Path, *, parts: bool) -> Path:
    for k in (0, 12, 13, 24, 25, 37, 38, 49):
        write_pair(root / f"TrainingData_Part{1 + k // 17}" if parts else root, f"Case{k:02d}", seed=k, suffix=".mhd")
    return root


def msd(root: Path, *, modality: dict[str, str] | None = None) -> Path:
    """4D, T2 first; ADC is made unlike T2, so that taking it would show."""
    folder = root / "Task05_Prostate"
    for name in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / name).mkdir(parents=True)
    training = []
    for k in (0, 16, 40):
        t2, mask = volume(k, direction=(-1.0, 0, 0, 0, -1.0, 0, 0, 0, 1.0))
        adc = sitk.Cast(t2 * 0 + 5000 - t2, t2.GetPixelID())
        channels = [t2, adc] if (modality or {"0": "T2"})["0"] == "T2" else [adc, t2]
        sitk.WriteImage(sitk.JoinSeries(channels), str(folder / "imagesTr" / f"prostate_{k:02d}.nii.gz"))
        sitk.WriteImage(mask * (1 + k % 2), str(folder / "labelsTr" / f"prostate_{k:02d}.nii.gz"))
        (folder / "imagesTr" / f"._prostate_{k:02d}.nii.gz").write_bytes(b"Mac OS X")
        training.append(
            {"image": f"./imagesTr/prostate_{k:02d}.nii.gz", "label": f"./labelsTr/prostate_{k:02d}.nii.gz"}
        )
    sitk.WriteImage(sitk.JoinSeries([t2, adc]), str(folder / "imagesTs" / "prostate_03.nii.gz"))
    if modality:
        (folder / "dataset.json").write_text(json.dumps({"modality": modality, "training": training}), encoding="utf-8")
    return root


def test_liu_six_sites(tmp_path: Path) -> None:
    folders = prepare_prostate(write_liu(tmp_path / "raw"), tmp_path / "out")
    assert [folder.name for folder in folders] == ["BIDMC", "HK", "I2CVB", "BMC", "RUNMC", "UCL"]
    for folder in folders:
        manifest = read_manifest(folder)
        assert (manifest.dataset, manifest.site, manifest.kind) == ("prostate", folder.name, "patients")
        assert [case.id for case in manifest.cases] == ["Case00", "Case01", "Case02"]
        assert {case.split for case in manifest.cases} == {"train", "val", "test"}
        assert "MS-Net" in manifest.citation and "research" in manifest.licence
        assert str(tmp_path) not in (folder / "manifest.json").read_text(encoding="utf-8")
    assert set(np.unique(open_arrays(folders[4], matrix=24).labels)) == {0, 1}
    assert check(tmp_path / "out") == []


@pytest.mark.parametrize("spelling", ["bidmc", "BIDMC"])
def test_folder_names_in_any_case(tmp_path: Path, spelling: str) -> None:
    for k in range(3):
        write_pair(tmp_path / "raw" / spelling, f"Case{k:02d}", seed=k)
    assert [plan.site for plan in plan_volumes(tmp_path / "raw").sites] == ["BIDMC"]


@pytest.mark.parametrize("parts", [False, True])
def test_promise12(tmp_path: Path, parts: bool) -> None:
    raw = promise12(tmp_path / "raw", parts=parts)
    folders = prepare_prostate(raw, tmp_path / "out")
    cases = {folder.name: [case.id for case in read_manifest(folder).cases] for folder in folders}
    assert cases == {
        "BIDMC": ["Case00", "Case12"],
        "HK": ["Case38", "Case49"],
        "RUNMC": ["Case13", "Case24"],
        "UCL": ["Case25", "Case37"],
    }
    assert "PROMISE12" in read_manifest(folders[0]).citation


def test_promise12_test_cases_are_passed_over(tmp_path: Path) -> None:
    promise12(tmp_path / "raw" / "training_data", parts=False)
    for k in range(3):
        _, mask = write_pair(tmp_path / "raw" / "test_data", f"Case{k:02d}", seed=90 + k, suffix=".mhd")
        mask.unlink()
        mask.with_suffix(".raw").unlink()
    assert plan_volumes(tmp_path / "raw").total == 8


def test_promise12_ranges_cover_fifty_cases_once() -> None:
    assert sorted(k for numbers in PROMISE12_SITES.values() for k in numbers) == list(range(50))


@pytest.mark.parametrize("modality", [None, {"0": "T2", "1": "ADC"}, {"0": "ADC", "1": "T2"}])
def test_msd(tmp_path: Path, modality: dict[str, str] | None) -> None:
    raw = msd(tmp_path / "raw", modality=modality)
    assert check(raw) == []
    (folder,) = prepare_prostate(raw, tmp_path / "out", matrices=[24])
    manifest = read_manifest(folder)
    assert [case.id for case in manifest.cases] == ["prostate_00", "prostate_16", "prostate_40"]
    assert (manifest.site, manifest.licence) == ("MSD", "CC-BY-SA 4.0")
    slices = open_arrays(folder, matrix=24)
    assert slices.images[slices.labels == 1].min() > 200  # the ball is bright in T2, dark in ADC
    assert set(np.unique(slices.labels)) == {0, 1}


def test_only_some_sites(tmp_path: Path) -> None:
    raw = write_liu(tmp_path / "raw")
    folders = prepare_prostate(raw, tmp_path / "out", sites=["UCL", "BIDMC"])
    assert [folder.name for folder in folders] == ["BIDMC", "UCL"]


def test_same_download_same_bytes(tmp_path: Path) -> None:
    """Whatever was there before: splits, manifest and arrays depend on the download only."""
    raw = write_liu(tmp_path / "raw")
    write_pair(tmp_path / "part" / "HK", "Case01", seed=11, ending="_Segmentation")
    prepare_prostate(tmp_path / "part", tmp_path / "one")
    for root in ("one", "two"):
        prepare_prostate(raw, tmp_path / root, sites=["HK"], matrices=[16])
    files = [
        {f.relative_to(tmp_path / root): f.read_bytes() for f in (tmp_path / root).rglob("*") if f.is_file()}
        for root in ("one", "two")
    ]
    assert files[0] == files[1] and len(files[0]) == 10


def promise12_twice(raw: Path) -> None:
    promise12(raw, parts=True)
    write_pair(raw / "TrainingData_Part2", "Case00", seed=77, suffix=".mhd")


def msd_of_ct(raw: Path) -> None:
    msd(raw, modality={"0": "T2", "1": "ADC"})
    (raw / "Task05_Prostate" / "dataset.json").write_text(json.dumps({"modality": {"0": "CT"}}), encoding="utf-8")


def msd_without_a_case(raw: Path) -> None:
    msd(raw, modality={"0": "T2", "1": "ADC"})
    for name in ("imagesTr", "labelsTr"):
        (raw / "Task05_Prostate" / name / "prostate_16.nii.gz").unlink()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (promise12_twice, r"Part2/Case00\.mhd has the id Case00, as has .*Part1/Case00\.mhd"),
        (msd_of_ct, "channels ct, not T2"),
        (msd_without_a_case, r"prostate_16\.nii\.gz is listed in dataset\.json but not there"),
        (lambda d: (d / "prostate.zip").write_bytes(b"PK"), "found prostate.zip.*expected CaseXX"),
        (lambda d: write_pair(d, "Patient7"), "raw/ with 1 case.*expected site folders.*prepare own"),
        (lambda d: write_pair(d, "Case50", suffix=".mhd"), "raw/ with 1 case.*Case00 to Case49"),
        (lambda d: None, "it is empty"),
        (lambda d: (write_liu(d), shutil.copytree(d / "ISBI", d / "RUNMC")), "RUNMC twice, as ISBI and RUNMC"),
        (lambda d: (write_liu(d), (d / "UCL").rename(d / "ULC")), r"ULC holds scans but is no known site.*'UCL'"),
        (
            lambda d: (write_liu(d), (d / "HK" / "Case01_Segmentation.nii.gz").unlink()),
            r"HK was not prepared.*\n.*HK/Case01\.nii\.gz has no mask: add Case01_segmentation",
        ),
        (
            lambda d: (write_liu(d), [f.unlink() for f in (d / "HK").glob("*Seg*")]),
            r"HK/Case02\.nii\.gz has no mask",
        ),
    ],
)
def test_other_layouts_get_a_sentence(tmp_path: Path, make: object, words: str) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    make(raw)  # type: ignore[operator]
    with pytest.raises(DataError, match=f"(?s){words}"):
        prepare_prostate(raw, tmp_path / "out")
    assert not list(tmp_path.glob("out/*/*"))


@pytest.mark.parametrize(
    ("site", "words"), [("RUNCM", ("site-unknown", "'RUNMC'")), ("MSD", ("site-unknown", "BIDMC, HK"))]
)
def test_a_site_that_is_not_in_the_download(site: str, words: tuple[str, str], tmp_path: Path) -> None:
    for name in ("BIDMC", "HK"):
        write_pair(tmp_path / "raw" / name, "Case00")
    with raises(words[0], naming=words[1]):
        prepare_prostate(tmp_path / "raw", tmp_path / "out", sites=[site])


def test_header_of_mask_wrong(tmp_path: Path) -> None:
    """Refused, with the way out named; the way out takes the mask voxel by voxel."""
    raw = write_liu(tmp_path / "raw")
    for file in raw.glob("HK/*Segmentation*"):
        mask = sitk.ReadImage(str(file))
        bare = sitk.GetImageFromArray(sitk.GetArrayFromImage(mask))
        bare.SetDirection((-1, 0, 0, 0, -1, 0, 0, 0, 1))
        sitk.WriteImage(bare, str(file))
    with raises("scans-damaged", naming=("spacing", "--trust-voxels")):
        prepare_prostate(raw, tmp_path / "out", sites=["HK"])
    (trusted,) = prepare_prostate(raw, tmp_path / "out", sites=["HK"], trust_voxels=True)
    slices = open_arrays(trusted, matrix=24)
    assert slices.images[slices.labels == 1].min() > 200


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    parser = Parser()
    data.add_arguments(parser)
    raw = write_liu(tmp_path / "raw")
    args = parser.parse_args(f"prepare prostate --source {raw} --sites HK,BMC --matrix 24,16".split())
    assert args.func(args) == 0
    assert "HK: 3 case(s) (1 train, 1 val, 1 test) in " in capsys.readouterr().out
    for site in ("HK", "BMC"):
        arrays = tmp_path / "data" / "prostate" / site / "arrays"
        assert sorted(folder.name for folder in arrays.iterdir()) == ["16", "24"]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FEDSHIFT_DATA": "/a"}, Path("/a")),
        ({"XDG_DATA_HOME": "/b"}, Path("/b/fedshift")),
        ({"HOME": "/c"}, Path("/c/.local/share/fedshift")),
    ],
)
def test_default_root(environment: dict[str, str], expected: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEDSHIFT_DATA", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert data.default_root() == expected


@pytest.mark.slow
def test_real_scans(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "prostate_mri"
    if not source.is_dir():
        pytest.skip(f"no real prostate scans at {source}: set FEDSHIFT_SHARED_DATA to a folder with prostate_mri/")
    (folder,) = prepare_prostate(source, tmp_path, sites=["RUNMC"], matrices=[160])
    slices = open_arrays(folder, matrix=160)
    assert [case.id for case in slices.manifest.cases] == [f"Case{k}" for k in (13, 14, 15, 16, 17, 18, 23, 24)]
    assert "PROMISE12" in slices.manifest.citation
    assert int(slices.labels.sum()) == 8419 + 12748 + 7405 + 7586 + 2651 + 22309 + 56060 + 5793
    case = slices.manifest.cases[0]
    gland = slices.labels[case.offset : case.offset + case.shape[0]].any(axis=(1, 2))
    assert case.shape == (15, 160, 160) and gland.sum() == 14
    # the header's orientation is DICOM's own, so the arrays are the papers' preparation of the file as it is
    raw = sitk.GetArrayFromImage(sitk.ReadImage(str(source / "RUNMC" / "Case13.nii.gz"))).astype(float)
    high = np.quantile(raw, 0.99)
    expected = ((np.minimum(raw, high) - raw.min()) / (high - raw.min()) * 255).astype(np.uint8)
    np.testing.assert_array_equal(slices.images[: case.shape[0]], expected)
    assert {finding.level for finding in check(folder)} == {"warning"}
