"""Cached volumes at a task's spacing: their intensities, labels and places, and that changes are noticed."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from errors import raises
from hypothesis import given
from hypothesis import strategies as st
from volumesites import make_volume_site

from fedshift.data.check import check
from fedshift.data.prepared import mask_file, read_images, read_labels
from fedshift.data.resampled import (
    MOST_PLACES,
    Fixed,
    Preparation,
    intensity_range,
    open_volumes,
    places,
    resized_labels,
    volumes_dir,
)
from fedshift.data.splits import about_counts
from fedshift.runtime.grids import Normalise, normalised, shape_at
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import TRUE_SPACING, read_manifest


def test_at_their_own_spacing_labels_are_the_masks_and_each_volume_has_mean_0_and_deviation_1(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", gain=7.0)
    opened = open_volumes(folder, Preparation())
    for number, case in enumerate(opened.manifest.cases):
        np.testing.assert_array_equal(opened.labels(number), read_labels(folder, case))
        voxels = opened.images(number).astype(np.float64)
        assert voxels.shape == (1, *case.shape)
        assert abs(voxels.mean()) < 1e-3 and abs(voxels.std() - 1) < 1e-3
        assert np.corrcoef(voxels.ravel(), read_images(folder, opened.manifest, case).ravel())[0, 1] > 0.999999


def test_resampled_volumes_keep_the_extent_and_the_volume_of_each_class(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", shape=(12, 20, 24), spacing=(2.0, 1.0, 1.0))
    opened = open_volumes(folder, Preparation(spacing=(1.0, 1.3, None)))
    assert opened.shapes[0].tolist() == [24, 15, 24]
    before = read_labels(folder, opened.manifest.cases[0])
    for number in (1, 2):
        assert (opened.labels(0) == number).mean() == pytest.approx((before == number).mean(), rel=0.15)


def test_without_a_voxel_size_slices_get_as_many_voxels_along_their_longer_side(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", shape=(12, 20, 24), spacing=(1.0, 1.0, 1.0))
    opened = open_volumes(folder, Preparation(matrix=36))
    assert opened.shapes[0].tolist() == [12, 30, 36]
    assert (
        shape_at((9, 256, 128), (1.0, 1.0, 1.0), None, 128) == shape_at((9, 256, 128), None, None, 128) == (9, 128, 64)
    )


def test_beside_a_spacing_the_number_of_voxels_is_for_scans_without_a_voxel_size(tmp_path: Path) -> None:
    both = Preparation(spacing=(None, 2.0, 2.0), matrix=36)
    known = make_volume_site(tmp_path, "A", shape=(12, 20, 24), spacing=(3.0, 1.0, 1.0))
    lost = make_volume_site(tmp_path, "B", shape=(12, 20, 24), spacing=(1.0, 1.0, 1.0))
    assert open_volumes(known, both).shapes[0].tolist() == [12, 10, 12]
    assert open_volumes(lost, both).shapes[0].tolist() == [12, 30, 36]
    data = {"patch": [8, 8], "spacing": both.spacing, "matrix": both.matrix}
    windows = [about_counts(read_manifest(site), data)["val"] for site in (known, lost)]
    assert windows[0] < windows[1], "estimates of time know it too"


@pytest.mark.parametrize(
    "settled", [{"preparation": {TRUE_SPACING: True}}, {"direction": (0.8, -0.6, 0, 0.6, 0.8, 0, 0, 0, 1)}]
)
def test_voxels_of_1_mm_that_are_no_placeholder_are_resampled_by_spacing(
    settled: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_volume_site(tmp_path, "A", shape=(12, 20, 24), spacing=(1.0, 1.0, 1.0))
    both = Preparation(spacing=(None, 2.0, 2.0), matrix=36)
    assert open_volumes(folder, both).shapes[0].tolist() == [12, 30, 36]
    manifest = read_manifest(folder)
    if "direction" in settled:
        settled = {"cases": tuple(case.model_copy(update=settled) for case in manifest.cases)}
    manifest.model_copy(update=settled).write(folder)
    assert open_volumes(folder, both).shapes[0].tolist() == [12, 10, 12]


def test_places_are_voxels_of_their_class(tmp_path: Path) -> None:
    opened = open_volumes(make_volume_site(tmp_path, "A"), Preparation(spacing=(3.0, 1.5, 1.5)))
    for case in range(len(opened.manifest.cases)):
        labels = opened.labels(case)
        chosen = np.random.default_rng(0).random((400, 2))
        voxels, known = opened.foreground(np.full(400, case), chosen)
        assert known.all()
        classes = labels[tuple(voxels.T)]
        assert (classes == np.where(chosen[:, 0] < 0.5, 1, 2)).all(), "each class equally often"
        for number in (1, 2):
            drawn = np.unique(voxels[classes == number], axis=0)
            assert 0.5 * min(100, (labels == number).sum()) < len(drawn)


def test_places_are_capped_and_drawn_by_their_seed() -> None:
    labels = np.ones((40, 40, 40), np.uint8)
    one, two, other = (places(labels == 1, most=MOST_PLACES, seed=seed) for seed in ((0, 1), (0, 1), (1, 1)))
    assert len(one) == MOST_PLACES and (one == two).all() and not (one == other).all()


def test_sequences_are_those_named_in_their_order(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", sequences=("T2", "ADC"))
    both, swapped, second = (
        open_volumes(folder, Preparation(sequences=names)) for names in (("T2", "ADC"), ("ADC", "T2"), ("ADC",))
    )
    np.testing.assert_array_equal(both.images(1)[::-1], swapped.images(1))
    np.testing.assert_array_equal(both.images(1)[1:], second.images(1))
    for names, words in ((("DWI",), "no sequence 'DWI'.* Known: ADC, T2"), ((), "T2, ADC, .*set data.sequences")):
        with pytest.raises(DataError, match=words):
            open_volumes(folder, Preparation(sequences=names))


def test_a_changed_byte_is_noticed_and_another_cohort_has_arrays_of_its_own(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A")
    preparation = Preparation()
    open_volumes(folder, preparation)
    manifest = volumes_dir(folder, read_manifest(folder), preparation)
    with (manifest / "labels.npy").open("r+b") as file:
        file.seek(300)
        file.write(b"\x01\x02\x02\x01")
    with raises("arrays-changed", naming="labels.npy"):
        open_volumes(folder, preparation)
    (finding,) = (one for one in check(folder) if one.level == "error" and one.file == manifest)
    assert "labels.npy" in finding.message
    content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    content["cases"] = content["cases"][:3]
    (folder / "manifest.json").write_text(json.dumps(content), encoding="utf-8")
    assert len(open_volumes(folder, preparation).shapes) == 3
    assert volumes_dir(folder, read_manifest(folder), replace(preparation, nonzero=True)) != manifest


def test_a_mask_with_a_value_that_is_no_class_is_refused(tmp_path: Path) -> None:
    from volumesites import write

    folder = make_volume_site(tmp_path, "A")
    write(mask_file(folder, "case01"), np.full((12, 20, 24), 3, np.uint8), (2.0, 1.0, 1.0))
    with raises("mask-values", naming="case01"):
        open_volumes(folder, Preparation())


def test_normalisations() -> None:
    rng = np.random.default_rng(0)
    ct = rng.normal(100, 300, (8, 9, 10))
    fixed = Fixed(low=-200, high=300, mean=50, std=100)
    image = normalised(ct, "fixed", nonzero=False, fixed=fixed.numbers)
    assert (image.min(), image.max()) == (-2.5, 2.5) == fixed.range
    scaled = normalised(ct, "percentile", nonzero=False, fixed=None)
    assert (scaled.min(), scaled.max()) == (0, 1)
    air = np.where(rng.random(ct.shape) < 0.5, 0, ct + 2000)
    inside = normalised(air, "volume", nonzero=True, fixed=None)
    assert abs(inside[air != 0].mean()) < 1e-5 and (inside[air == 0] == 0).all()
    assert (normalised(np.full((4, 4, 4), 7.0), "volume", nonzero=False, fixed=None) == 0).all(), "a constant volume"
    with pytest.raises(ValueError, match=r"data\.normalise to volume"):
        normalised(ct, "none", nonzero=False, fixed=None)


@given(
    low=st.floats(-1000, 1000),
    width=st.floats(1, 1000),
    mean=st.floats(-1500, 2500),
    nonzero=st.booleans(),
    voxels=st.lists(st.integers(-2000, 3000), min_size=8, max_size=8),
)
def test_all_that_the_network_sees_of_fixed_intensities_is_in_their_range(
    low: float, width: float, mean: float, nonzero: bool, voxels: list[int]
) -> None:
    """Also voxels that ``nonzero`` keeps at 0, and what surrounds a small volume, where the mean is out of bounds."""
    fixed = Fixed(low=low, high=low + width, mean=mean, std=100)
    seen = normalised(np.array([*voxels, 0.0]), "fixed", nonzero=nonzero, fixed=fixed.numbers)
    least, most = intensity_range("fixed", fixed)
    assert least - 1e-4 <= min(0.0, seen.min()) and max(0.0, seen.max()) <= most + 1e-4


@pytest.mark.parametrize("normalise", ["volume", "percentile", "none"])
def test_a_large_volume_is_normalised_in_little_memory_and_left_as_it_is(normalise: Normalise) -> None:
    stored = np.random.default_rng(0).normal(100, 20, (40, 50, 60)).astype(np.float32)[:, ::-1]
    before = stored.copy()
    tracemalloc.start()
    try:
        image = normalised(stored, normalise, nonzero=False, fixed=None)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(stored, before)
    if normalise == "volume":
        values = stored.astype(np.float64)
        expected = (values - values.ravel().mean()) / values.ravel().std()
        np.testing.assert_allclose(image, expected, rtol=1e-5, atol=1e-6)
    assert most < 3.2 * 8 * stored.size, "no more than three copies in float64"


def test_labels_are_resampled_by_the_class_that_covers_most() -> None:
    labels = np.repeat(np.array([0, 1, 1, 1, 2, 2, 0, 0], np.uint8), 4).reshape(8, 2, 2)
    np.testing.assert_array_equal(resized_labels(labels, (4, 2, 2))[:, 0, 0], [0, 1, 2, 0])
    grown = resized_labels(labels, (16, 2, 2))[:, 0, 0]
    np.testing.assert_array_equal(grown, np.repeat([0, 1, 1, 1, 2, 2, 0, 0], 2))
    assert shape_at((10, 10, 1), (3.0, 1.0, 1.0), (1.5, 3.0, 4.0)) == (20, 3, 1)
