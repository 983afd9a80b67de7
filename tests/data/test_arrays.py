from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk
from errors import raises
from scanfiles import IDENTITY, rotation, volume, write_dicom, write_pair

from data_prep.prostate import GLAND
from data_prep.volumes import CaseFiles, SitePlan, deal_splits, write_site
from fedshift.data import arrays
from fedshift.data.arrays import SliceArrays, open_arrays
from fedshift.data.splits import subject_of
from fedshift.runtime import grids
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Split, read_manifest


def site_of(pairs: list[tuple[Path, Path]], root: Path) -> Path:
    cases = tuple(CaseFiles(image.name.split(".")[0], (image,), mask) for image, mask in pairs)
    plan = SitePlan(site="A", cases=cases, source="tests", licence="none", citation="none")
    return write_site(plan, root, dataset="prostate", labels=GLAND)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    pairs = [write_pair(tmp_path / "raw", f"Case{k:02d}", seed=k) for k in range(3)]
    return site_of(pairs, tmp_path / "out")


DIRECTIONS = {
    "as DICOM": IDENTITY,
    "as NIfTI": (-1.0, 0, 0, 0, -1.0, 0, 0, 0, 1.0),
    "head first": (1.0, 0, 0, 0, 1.0, 0, 0, 0, -1.0),
    "mirrored": (-1.0, 0, 0, 0, 1.0, 0, 0, 0, 1.0),
    "axes swapped": (0, 1.0, 0, 1.0, 0, 0, 0, 0, 1.0),
    "coronal file": (1.0, 0, 0, 0, 0, 1.0, 0, -1.0, 0),
    "oblique": rotation(20, 0),
    "turned in plane": rotation(-15, 2),
}


@pytest.mark.parametrize("suffix", [".nii.gz", ".nrrd", ".mhd", "dicom"])
@pytest.mark.parametrize("name", DIRECTIONS)
def test_ball_lands_where_the_patient_has_it(tmp_path: Path, name: str, suffix: str) -> None:
    """8 mm to the left, 7 mm to the front, 6 mm to the head must be right, up and late in the stack."""
    where = {"size": (30, 26, 11), "spacing": (1.3, 1.5, 2.6), "target": (8.0, -7.0, 6.0), "radius": 5.5}
    where["direction"] = DIRECTIONS[name]
    if suffix == "dicom":
        image, mask = volume(**where)  # type: ignore[arg-type]
        write_dicom(tmp_path / "raw" / "Case00", image)
        sitk.WriteImage(mask, str(tmp_path / "mask.nii.gz"))
        pair = tmp_path / "raw" / "Case00", tmp_path / "mask.nii.gz"
    else:
        pair = write_pair(tmp_path / "raw", "Case00", suffix=suffix, **where)
    folder = site_of([pair], tmp_path / "out")
    case = read_manifest(folder).cases[0]

    written = nibabel.load(folder / "volumes" / "Case00.nii.gz")
    assert nibabel.aff2axcodes(written.affine) == ("R", "A", "S")
    mask = nibabel.load(folder / "volumes" / "Case00_mask.nii.gz").get_fdata()
    world = written.affine @ np.append(np.argwhere(mask > 0).mean(axis=0), 1)
    # the centre (10, -20, 30) and the target count left and back; NIfTI's world counts right and front
    np.testing.assert_allclose(world[:3], (-18, 27, 36), atol=0.8)

    side = max(case.shape[1:])
    slices = open_arrays(folder, matrix=side)
    z, row, column = np.argwhere(slices.labels).mean(axis=0)
    assert slices.images[slices.labels > 0].min() > 200 > slices.images[slices.labels == 0].max()
    assert z > (case.shape[0] - 1) / 2 + 1 and row < side / 2 - 2 and column > side / 2 + 2


def test_another_quantile_has_arrays_of_its_own(site: Path) -> None:
    default = open_arrays(site, matrix=16)
    (other, same) = (open_arrays(site, matrix=16, clip_above_quantile=q) for q in (0.9, 0.99))
    assert other.images.mean() > default.images.mean(), "more is clipped, so the rest is brighter"
    np.testing.assert_array_equal(same.images, default.images)
    np.testing.assert_array_equal(other.labels, default.labels)
    cached = {folder.name: (matrix, q) for folder, matrix, q in arrays.cached_arrays(site)}
    assert cached["16"] == (16, 0.99) and cached["16_clip0.9"] == (16, 0.9)
    (site / "arrays" / "16_clip0.9" / "images.npy").write_bytes(b"")
    with pytest.raises(DataError, match=r"16_clip0\.9/images\.npy is truncated"):
        open_arrays(site, matrix=16, clip_above_quantile=0.9)


def test_papers_preparation_without_resampling(site: Path, tmp_path: Path) -> None:
    """At the volume's own square matrix the arrays are the papers' formula, bit for bit."""
    pair = write_pair(tmp_path / "raw2", "Square", seed=7, size=(24, 24, 9))
    folder = site_of([pair], tmp_path / "square")
    voxels = sitk.GetArrayFromImage(sitk.ReadImage(str(pair[0])))
    high, low = np.quantile(voxels, 0.99), voxels.min()
    expected = (np.where(voxels > high, high, voxels) - low) / (high - low) * 255
    np.testing.assert_array_equal(open_arrays(folder, matrix=24).images, expected.astype(np.uint8))


@pytest.mark.parametrize("matrix", [8, 16, 20, 24, 48])
def test_every_size_keeps_mass_and_place(site: Path, matrix: int) -> None:
    slices = open_arrays(site, matrix=matrix)
    reference = open_arrays(site, matrix=24)
    assert slices.images.shape == slices.labels.shape == (27, matrix, matrix)
    assert set(np.unique(slices.labels)) == {0, 1}
    scale = matrix / 24
    # brightness of the ball's slice and its centre scale with the matrix
    assert slices.images.mean() == pytest.approx(reference.images.mean(), rel=0.03)
    centre, expected = (np.argwhere(s.labels).mean(axis=0) for s in (slices, reference))
    np.testing.assert_allclose((centre[1:] + 0.5) / scale, expected[1:] + 0.5, atol=0.6)


def test_offsets_follow_the_manifest(site: Path) -> None:
    slices = open_arrays(site, matrix=24)
    for case in slices.manifest.cases:
        mask = nibabel.load(site / "volumes" / f"{case.id}_mask.nii.gz").get_fdata()
        part = slices.labels[case.offset : case.offset + case.shape[0]]
        np.testing.assert_array_equal(part.any(axis=(1, 2)), mask.any(axis=(0, 1)))


def test_opening_needs_no_image_library(site: Path) -> None:
    """A worker that trains imports neither SimpleITK nor nibabel when the arrays are there."""
    open_arrays(site, matrix=16)
    code = (
        "import sys; from pathlib import Path; from fedshift.data.arrays import open_arrays;"
        f"open_arrays(Path({str(site)!r}), matrix=16);"
        "print([name for name in ('SimpleITK', 'nibabel', 'monai', 'nvflare') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert result.stdout.strip() == "[]"


def test_opened_as_read_only_memory_map(site: Path) -> None:
    slices = open_arrays(site, matrix=16)
    assert isinstance(slices, SliceArrays) and isinstance(slices.images.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        slices.images[0] = 0


def test_second_opening_decodes_nothing(site: Path) -> None:
    first = open_arrays(site, matrix=16).images.copy()
    for file in (site / "volumes").iterdir():
        file.unlink()
    np.testing.assert_array_equal(open_arrays(site, matrix=16).images, first)


def test_losing_the_race_is_fine(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finishes the same arrays while this one is still at it."""
    manifest = read_manifest(site)
    resize = grids.resize_images

    def slow(slices: np.ndarray, matrix: int) -> np.ndarray:
        monkeypatch.setattr(arrays, "resize_images", resize)
        arrays.build_arrays(site, manifest, matrix)
        return resize(slices, matrix)

    monkeypatch.setattr(arrays, "resize_images", slow)
    assert open_arrays(site, matrix=16).images.any()
    assert [entry.name for entry in (site / "arrays").iterdir()] == ["16"]


def truncated(site: Path) -> None:
    file = site / "arrays" / "16" / "labels.npy"
    file.write_bytes(file.read_bytes()[:-100])


def of_another_manifest(site: Path) -> None:
    np.save(site / "arrays" / "16" / "images.npy", np.zeros((26, 16, 16), np.uint8))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (truncated, r"labels\.npy is truncated.*delete the folder"),
        (of_another_manifest, r"holds uint8 \(26, 16, 16\)"),
        (lambda site: (site / "manifest.json").unlink(), r"manifest\.json does not exist"),
    ],
    ids=["truncated", "of another manifest", "no manifest"],
)
def test_arrays_that_are_not_the_sites_are_named(spoil: Callable[[Path], object], words: str, site: Path) -> None:
    open_arrays(site, matrix=16)
    spoil(site)
    with pytest.raises(DataError, match=words):
        open_arrays(site, matrix=16)


def test_failed_building_leaves_nothing(site: Path) -> None:
    (site / "volumes" / "Case02.nii.gz").write_bytes(b"")
    with raises("file-empty", naming="Case02.nii.gz"):
        open_arrays(site, matrix=16)
    assert list((site / "arrays").iterdir()) == []


def test_volume_with_hardly_any_signal_is_not_divided_by_zero() -> None:
    flat = np.zeros((4, 10, 10), np.int16)
    flat[2, 3, 4] = 500
    assert grids.to_uint8(flat).max() == 255
    assert not grids.to_uint8(np.full((3, 4, 4), 7.0)).any()


@pytest.mark.parametrize(("before", "after"), [(256, 96), (160, 128), (9, 9), (5, 64), (3, 8)])
def test_resampling_equals_its_matrix(before: int, after: int) -> None:
    weights = grids.resize_weights(before, after)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    slices = np.random.default_rng(0).random((2, before, before))
    np.testing.assert_allclose(grids.resample(slices, after), weights @ slices @ weights.T)


def deal(
    ids: Iterable[str], *, site: str = "s", dataset: str = "d", fixed: Mapping[str, Split] = MappingProxyType({})
) -> dict[str, Split]:
    return deal_splits({case: subject_of(case) for case in ids}, dataset=dataset, site=site, fixed=fixed)


@pytest.mark.parametrize(
    ("n", "counts"),
    [(1, (1, 0, 0)), (2, (2, 0, 0)), (3, (1, 1, 1)), (6, (4, 1, 1)), (8, (4, 2, 2)), (10, (6, 2, 2)), (30, (18, 6, 6))],
)
def test_splits(n: int, counts: tuple[int, int, int]) -> None:
    ids = [f"Case{k:02d}" for k in range(n)]
    dealt = deal(ids, dataset="prostate", site="HK")
    assert tuple(list(dealt.values()).count(split) for split in ("train", "val", "test")) == counts
    assert dealt == deal(ids[::-1], dataset="prostate", site="HK")
    if n == 30:
        assert dealt != deal(ids, dataset="prostate", site="UCL")


def test_added_cases_leave_the_others_in_their_split() -> None:
    before = deal(list("abcdef"))
    after = deal(list("abcdefghij"), fixed=before)
    assert {case: after[case] for case in before} == before
    assert [list(after.values()).count(split) for split in ("train", "val", "test")] == [6, 2, 2]


def test_a_case_without_a_session_has_the_split_it_always_had() -> None:
    dealt = deal([f"Case{k:02d}" for k in range(10)], dataset="prostate", site="HK")
    held_out = {case: split for case, split in dealt.items() if split != "train"}
    assert held_out == {"Case01": "val", "Case04": "val", "Case07": "test", "Case09": "test"}


def of_subjects(dealt: dict[str, str]) -> dict[str, set[str]]:
    """Subject -> the splits that its cases are in."""
    found: dict[str, set[str]] = {}
    for case, split in dealt.items():
        found.setdefault(case.split("_")[0], set()).add(split)
    return found


def test_sessions_of_a_subject_are_in_one_split() -> None:
    ids = [f"sub-{k:02d}_ses-{session}" for k in range(8) for session in (1, 2, 3)[: 1 + k % 3]]
    dealt = deal(ids)
    assert all(len(splits) == 1 for splits in of_subjects(dealt).values())
    assert sorted(split for (split,) in of_subjects(dealt).values()) == ["test"] * 2 + ["train"] * 4 + ["val"] * 2
    assert dealt == deal(ids[::-1])
    two = deal([f"sub-{k}_ses-{n}" for k in (1, 2) for n in (1, 2, 3)])
    assert set(two.values()) == {"train"}, "two subjects are as two cases"


def test_a_later_session_joins_its_subject() -> None:
    before = deal([f"sub-{k:02d}" for k in range(6)])
    later = [f"sub-{k:02d}_ses-2" for k in range(6)]
    after = deal([*later, *before], fixed=before)
    assert {case: after[case] for case in before} == before
    assert {after[case] for case in later} == {"train", "val", "test"}
    assert all(len(splits) == 1 for splits in of_subjects(after).values())


def test_a_divided_subject_keeps_its_splits_and_a_later_session_is_for_training() -> None:
    before: dict[str, Split] = {"sub-1_ses-1": "test", "sub-1_ses-2": "train", "sub-2_ses-1": "test", "sub-3": "val"}
    after = deal([*before, "sub-1_ses-3", "sub-2_ses-2"], fixed=before)
    assert after == {**before, "sub-1_ses-3": "train", "sub-2_ses-2": "test"}
