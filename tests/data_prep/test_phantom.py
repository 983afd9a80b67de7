"""The phantom: reproducible, honest about what it is, and shaped like real scans."""

import argparse
import functools
import json
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

from data_prep.phantom import draw_case, make_phantom, write_scans
from data_prep.phantom_scanner import SCANNERS
from fedshift.cli.phantom import add_parser
from fedshift.data.arrays import open_arrays
from fedshift.data.check import check
from fedshift.data.prepared import read_images, read_labels
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.manifest import read_manifest


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A phantom of two sites: one with an endorectal coil, one stored from head to foot."""
    return make_phantom(tmp_path_factory.mktemp("phantom"), seed=3, sites=["HK", "I2CVB"], cases=3, matrices=(64,))


@dataclass(frozen=True)
class Drawn:
    """What tests want to know of a case of seed 0."""

    millilitres: float
    affine: NDArray[np.float64]
    contrast: float
    """Mean inside the gland in relation to the mean around it."""
    top: float


@functools.cache
def drawn(site: str, number: int) -> Drawn:
    """Drawn once for all tests."""
    scanner = SCANNERS[site]
    image, mask, affine = draw_case(site=site, seed=0, number=number)
    inside = np.flatnonzero(mask.any((1, 2)))
    rows = np.flatnonzero(mask.any((0, 2)))
    box = np.zeros(mask.shape, bool)
    box[inside[0] - 8 : inside[-1] + 9, rows[0] : rows[-1] + 1] = True
    box &= mask.any((0, 1))
    return Drawn(
        millilitres=float(mask.sum() * scanner.spacing**2 * scanner.thickness / 1000),
        affine=affine,
        contrast=float(image[mask == 1].mean() / image[box & (mask == 0)].mean()),
        top=float(image.max()),
    )


def _bytes(site: Path) -> dict[str, bytes]:
    return {str(p.relative_to(site)): p.read_bytes() for p in sorted(site.rglob("*")) if p.is_file()}


@pytest.mark.slow
def test_same_seed_gives_the_same_bytes(root: Path, tmp_path: Path) -> None:
    again = make_phantom(tmp_path / "again", seed=3, sites=["HK"], cases=3, matrices=(64,))
    first = _bytes(root / "prostate" / "HK")
    assert first == _bytes(again / "prostate" / "HK")
    assert "arrays/64/images.npy" in first
    other = make_phantom(tmp_path / "other", seed=4, sites=["HK"], cases=1, matrices=())
    hashes = [read_manifest(at / "prostate" / "HK").cases[0].sha256_image for at in (root, other)]
    assert hashes[0] != hashes[1]


def test_a_case_does_not_depend_on_how_many_are_made(root: Path, tmp_path: Path) -> None:
    few = read_manifest(make_phantom(tmp_path, seed=3, sites=["HK"], cases=1, matrices=()) / "prostate" / "HK")
    many = read_manifest(root / "prostate" / "HK")
    assert few.cases[0].sha256_image == many.cases[0].sha256_image


def test_is_labelled_as_a_phantom(root: Path) -> None:
    note = (root / "PHANTOM.txt").read_text(encoding="utf-8")
    assert "NOT PATIENTS" in note and "seed 3" in note
    for site in ("HK", "I2CVB"):
        manifest = read_manifest(root / "prostate" / site)
        assert manifest.kind == "phantom"
        assert "simulated" in manifest.licence
        assert {case.split for case in manifest.cases} == {"train", "val", "test"}


@pytest.mark.parametrize("site", sorted(SCANNERS))
def test_scans_have_real_geometry_and_a_plausible_gland(site: str, tmp_path: Path) -> None:
    scanner = SCANNERS[site]
    (case,) = write_scans(tmp_path, site=site, seed=0, cases=1)
    image, mask = nib.load(case.image), nib.load(case.mask)
    assert case.image.name == "Case00.nii.gz" and case.mask.name == "Case00_segmentation.nii.gz"
    assert image.shape == mask.shape == (scanner.matrix, scanner.matrix, scanner.slices)
    assert image.get_data_dtype() == np.dtype(scanner.dtype)
    np.testing.assert_allclose(image.header.get_zooms(), (scanner.spacing, scanner.spacing, scanner.thickness), 1e-5)
    np.testing.assert_array_equal(image.affine, mask.affine)
    # A quaternion near 180 degrees, as every scan stored left-posterior has, is exact to 1e-3 in single precision.
    np.testing.assert_allclose(image.get_sform(), image.get_qform(), atol=1e-3 * scanner.thickness)
    assert nib.aff2axcodes(image.affine) == ("L", "P", "I" if scanner.head_first else "S")
    assert np.any(image.affine[:3, 3] != 0)

    voxels, labels = np.asarray(image.dataobj), np.asarray(mask.dataobj)
    assert np.isfinite(voxels).all() and 0.7 * scanner.top < voxels.max() <= scanner.top
    assert set(np.unique(labels)) == {0, 1}
    filled = labels.any((0, 1))
    assert not filled[0] and not filled[-1] and filled.sum() >= 5
    assert np.all(np.diff(np.flatnonzero(filled)) == 1)


@pytest.mark.slow
def test_gland_volumes_are_those_of_men() -> None:
    for site in SCANNERS:
        volumes = [drawn(site, k).millilitres for k in range(3)]
        assert min(volumes) > 15 and max(volumes) < 120, (site, volumes)
        assert max(volumes) > 1.05 * min(volumes)  # patients differ


def test_some_stacks_are_oblique() -> None:
    off_axis = []
    for site in SCANNERS:
        affine = drawn(site, 0).affine[:3, :3]
        direction = affine / np.linalg.norm(affine, axis=0)
        np.testing.assert_allclose(direction.T @ direction, np.eye(3), atol=1e-9)
        off_axis.append(np.abs(np.abs(direction) - np.eye(3)).max())
    assert min(off_axis) == 0 and sum(value > 0.03 for value in off_axis) >= 3


def test_sites_look_different() -> None:
    """The gland is brighter than the tissue around it at some sites and darker at others; scales differ widely."""
    contrast, tops = {}, {}
    for site in SCANNERS:
        contrast[site] = float(np.mean([drawn(site, number).contrast for number in range(2)]))
        tops[site] = drawn(site, 1).top
    assert contrast["BMC"] > 1.25 and contrast["I2CVB"] < 0.85 and contrast["UCL"] < 0.85, contrast
    assert max(tops.values()) > 50 * min(tops.values())


def test_prepared_slices_stand_as_a_reader_expects(tmp_path: Path) -> None:
    """Whichever way the stack was stored, slices run from feet to head, rows to the back, columns to the left."""
    for site in ("HK", "I2CVB"):
        matrix = SCANNERS[site].matrix
        folder = make_phantom(tmp_path, sites=[site], cases=1, matrices=(matrix,)) / "prostate" / site
        image, mask, affine = draw_case(site=site, seed=0, number=0)
        feet_first = slice(None, None, 1 if affine[2, 2] > 0 else -1)
        arrays = open_arrays(folder, matrix=matrix)
        np.testing.assert_array_equal(arrays.labels, mask.T[feet_first])
        clipped = np.minimum(image.T[feet_first], np.percentile(image, 99)).astype(np.float64)
        np.testing.assert_allclose(arrays.images, clipped / clipped.max() * 255, atol=4)
        # Behind (below) the gland lies something dark: the coil's balloon, or gas.
        middle = int(np.argmax(mask.sum((0, 1))))
        rows, columns = np.flatnonzero(mask[:, :, middle].any(0)), np.flatnonzero(mask[:, :, middle].any(1))
        below = image[columns[0] : columns[-1], rows[-1] + 1 : rows[-1] + 30, middle]
        assert np.percentile(below, 5) < 0.4 * image[mask == 1].mean()


def test_refuses_to_lie_beside_patients(root: Path, tmp_path: Path) -> None:
    source = root / "prostate" / "HK" / "manifest.json"
    folder = tmp_path / "prostate" / "RUNMC"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(source.read_text(encoding="utf-8").replace('"phantom"', '"patients"'))
    with pytest.raises(DataError, match=r"RUNMC.*no phantom"):
        make_phantom(tmp_path, sites=["HK"], cases=1)
    assert not (tmp_path / "PHANTOM.txt").exists() and not (tmp_path / "prostate" / "HK").exists()


def test_zones_and_a_second_sequence_beside_the_same_t2(root: Path, tmp_path: Path) -> None:
    make_phantom(tmp_path, seed=3, sites=["HK", "I2CVB"], cases=1, zones=True, sequences=2)
    for site in ("HK", "I2CVB"):  # with an endorectal coil; stored from head to foot
        folder, known = tmp_path / "prostate_zones_sequences" / site, root / "prostate" / site
        manifest, plain = read_manifest(folder), read_manifest(known)
        assert manifest.kind == "phantom" and manifest.sequences == ("T2", "ADC")
        assert manifest.classes == ("background", "peripheral zone", "transition zone")
        for case, single in zip(manifest.cases, plain.cases, strict=False):
            t2, adc = read_images(folder, manifest, case)
            zones, gland = read_labels(folder, case), read_labels(known, single)
            np.testing.assert_array_equal(t2, read_images(known, plain, single)[0])
            np.testing.assert_array_equal(zones > 0, gland > 0)
            shares = np.bincount(zones.ravel(), minlength=3)[1:] / (zones > 0).sum()
            assert shares.min() > 0.1, "both zones are there"
            stands_out = [image[gland > 0].mean() / image[gland == 0].mean() for image in (t2, adc)]
            assert stands_out[1] > 1.4 * stands_out[0], "fat is dark in ADC"
        assert {finding.code for finding in check(folder)} == {"split-empty"}
    make_phantom(tmp_path, seed=3, sites=["HK"], cases=1, sequences=2, matrices=(32,))
    assert (tmp_path / "prostate_sequences" / "HK" / "arrays" / "32").is_dir(), "slices of the first sequence"


@pytest.mark.parametrize(
    ("options", "hint"),
    [({"sites": ["RUMNC"]}, "RUNMC"), ({"cases": 0}, "cases >= 1"), ({"sequences": 3}, "1 or 2 sequences")],
)
def test_wrong_options_name_the_mend(options: dict[str, object], hint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=hint):
        make_phantom(tmp_path, **options)  # type: ignore[arg-type]


def _cli(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(words)
    return int(args.func(args))


def test_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert _cli("phantom", "--sites", "UCL", "--cases", "1", "--matrix", "32,48") == 0
    site = tmp_path / "fedshift" / "phantom" / "prostate" / "UCL"
    assert read_manifest(site).kind == "phantom"
    assert sorted(p.name for p in (site / "arrays").iterdir()) == ["32", "48"]
    assert "1 cases" in capsys.readouterr().out
    assert _cli("phantom", "--out", str(tmp_path / "here"), "--sites", "UCL", "--cases", "1") == 0
    assert (tmp_path / "here" / "prostate" / "UCL" / "manifest.json").is_file()
    assert _cli("phantom", "--out", str(tmp_path / "here"), "--sites", "UCL", "--cases", "1", "--zones") == 0
    assert (tmp_path / "here" / "prostate_zones" / "UCL" / "manifest.json").is_file()
    with pytest.raises(ConfigError, match="--matrix"):
        _cli("phantom", "--matrix", "big")


CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_measured_shift_bites() -> None:
    result = json.loads((CHECKOUT / "benchmarks" / "results" / "phantom_shift.json").read_text(encoding="utf-8"))
    assert result["kind"] == "phantom" and sorted(result["single"]) == sorted(SCANNERS)
    for rows in (result["single"], result["threshold"]):
        for trained_at, row in rows.items():
            assert np.mean([dice for site, dice in row.items() if site != trained_at]) < 0.80, trained_at
    assert max(result["threshold_bound"].values()) < 0.80
    assert np.mean(list(result["pooled"].values())) > 0.80
