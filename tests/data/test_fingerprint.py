"""A site's fingerprint: its sums are those of its voxels, and it names no case."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from surveysites import CLASSES, SHAPE, survey_site, voxels

from fedshift.data.fingerprint import bins, counts_only, fingerprint, rounded
from fedshift.data.tallies import quantile, spread
from fedshift.schema.errors import DataError
from fedshift.schema.fingerprint import ALL, BINS, INSIDE, OUTSIDE, PLACES, Volumes

SEEDS = (1, 2, 3, 4)


def test_sums_are_those_of_the_voxels(tmp_path: Path) -> None:
    told = fingerprint(survey_site(tmp_path, "A", SEEDS))
    assert (told.surveyed, told.cases, told.classes) == (4, {"train": 4}, CLASSES)
    cases = [voxels(seed) for seed in SEEDS]
    everything = np.array([image for image, _ in cases], np.float64)
    whole = spread(told.intensities["image"][ALL])
    assert whole.mean == pytest.approx(everything.mean())
    assert whole.deviation == pytest.approx(everything.std()), "within and between cases"
    assert whole.between == pytest.approx(everything.mean((1, 2, 3)).std())
    core = told.intensities["image"]["core"]
    inside = [image[labels == 1].astype(np.float64) for image, labels in cases]
    assert core.mean == pytest.approx(sum(values.mean() for values in inside))
    assert core.square == pytest.approx(sum((values**2).mean() for values in inside))
    z = [(image - image.mean()) / image.std() for image, _ in cases]
    expected = sum(one[labels == 1].mean() for one, (_, labels) in zip(z, cases, strict=True))
    assert core.normalised_mean == pytest.approx(expected, rel=1e-5)
    assert len(core.normalised) == BINS
    for place in told.intensities["image"].values():
        assert sum(place.normalised) == pytest.approx(4), "a case counts 1, however many voxels it has"
        assert sum(mass for _, mass in place.values) == pytest.approx(4)
    median = quantile(told.intensities["image"][OUTSIDE].values, 0.5)
    outside = np.concatenate([image[labels == 0] for image, labels in cases])
    assert median == pytest.approx(np.median(outside), rel=0.03)


def test_geometry_and_volumes(tmp_path: Path) -> None:
    told = fingerprint(survey_site(tmp_path, "A", SEEDS))
    assert told.geometry is not None
    assert told.geometry.spacing == (((3.0, 4.0),), ((0.8, 4.0),), ((0.8, 4.0),))
    assert [tally[0][0] for tally in told.geometry.voxels] == list(SHAPE)
    assert [tally[0][0] for tally in told.geometry.extent] == [18.0, 9.6, 8.0]
    labels = voxels(1)[-1]
    ml = 3.0 * 0.8 * 0.8 / 1000 * np.count_nonzero(labels == 1)
    core = told.volumes["core"]
    assert (core.cases, core.surveyed) == (4, 4)
    assert core.ml == pytest.approx(4 * ml)
    assert core.square == pytest.approx(4 * ml**2)
    assert core.values[0][0] == pytest.approx(ml, rel=0.2)


def test_a_placeholder_is_no_voxel_size(tmp_path: Path) -> None:
    told = fingerprint(survey_site(tmp_path, "A", SEEDS, spacing=(1.0, 1.0, 1.0)))
    assert told.geometry is not None and told.geometry.cases == 0
    assert told.geometry.spacing == ((), (), ()) and told.geometry.voxels[0] == ((6.0, 4.0),)
    assert told.volumes["core"].cases == 4 and told.volumes["core"].values == ()


def test_a_voxel_size_that_is_said_to_be_true_counts(tmp_path: Path) -> None:
    preparation = {"true_spacing": True, "simulated": "scanners", "scanner": {"gamma": 2, "noise": 0.1}}
    told = fingerprint(
        survey_site(tmp_path, "A", SEEDS, spacing=(1.0, 1.0, 1.0), preparation=preparation), scanners=True
    )
    assert told.geometry is not None and told.geometry.cases == 4 and told.geometry.spacing[0] == ((1.0, 4.0),)
    assert told.volumes["core"].ml > 0
    assert told.simulated == "scanners" and told.scanners == {"simulated: gamma 2, noise 0.1": 4}


def test_the_test_part_is_not_looked_at_and_no_case_is_named(tmp_path: Path) -> None:
    told = fingerprint(survey_site(tmp_path, "A", SEEDS, splits=["train", "train", "val", "test"]))
    assert told.surveyed == 3 and told.cases == {"test": 1, "train": 2, "val": 1}
    only = fingerprint(survey_site(tmp_path / "only", "A", SEEDS, splits=["test"] * 4))
    assert only.surveyed == 4, "a site that has nothing else is held out"
    text = told.model_dump_json()
    assert "Patient" not in text and str(tmp_path) not in text and "image-1" not in text


def test_a_class_of_few_cases_is_only_counted(tmp_path: Path) -> None:
    folder = survey_site(tmp_path, "A", SEEDS)
    told = fingerprint(folder, least=5)
    assert told.volumes["core"].cases == 4 and told.volumes["core"].values == () and told.volumes["core"].ml == 0
    assert set(told.intensities["image"]) == {ALL}, "the others would differ from it by these cases alone"


CORE, RIM = CLASSES[1:]


@pytest.mark.parametrize(
    ("lacking", "withheld"),
    [
        ({}, set()),
        ({1: [RIM], 2: [RIM], 3: [RIM]}, set()),
        ({seed: [RIM] for seed in (1, 2, 3, 4, 5)}, {RIM, INSIDE}),
        ({1: [CORE], 2: [CORE], 3: [CORE], 4: [RIM], 5: [RIM]}, {INSIDE}),
        ({seed: CLASSES for seed in (1, 2, 3, 4)}, {CORE, RIM, INSIDE, OUTSIDE}),
    ],
    ids=["all alike", "three and three", "one with both", "three, two and one", "two with labels"],
)
def test_no_two_sums_differ_by_fewer_cases(lacking: dict[int, list[str]], withheld: set[str], tmp_path: Path) -> None:
    told = fingerprint(survey_site(tmp_path, "A", range(1, 7), lacking=lacking), least=3)
    assert set(told.intensities["image"]) == {CORE, RIM, *PLACES} - withheld


def test_sizes_of_few_cases_are_as_if_they_were_not_known(tmp_path: Path) -> None:
    folder = survey_site(tmp_path, "A", SEEDS, placeholders=(1, 2))
    told = fingerprint(folder, least=3)
    assert told.geometry is not None and (told.geometry.cases, told.geometry.extent) == (0, ((), (), ()))
    assert told.volumes[CORE] == Volumes(cases=4, surveyed=4)
    two = fingerprint(folder, least=2)
    assert two.geometry is not None and two.geometry.cases == 2 and two.volumes[CORE].ml > 0


def test_classes_that_the_site_does_not_outline_and_sequences(tmp_path: Path) -> None:
    folder = survey_site(
        tmp_path, "A", SEEDS, sequences=("T2", "ADC"), annotated=("core",), preparation={"scanner": "Acme 3T"}
    )
    told = fingerprint(folder, scanners=True)
    assert set(told.volumes) == {"core"}, "of the others nobody knows where they are"
    assert set(told.intensities) == {"T2", "ADC"} and "rim" not in told.intensities["T2"]
    assert told.scanners == {"Acme 3T": 4}
    assert fingerprint(folder).scanners is None
    assert counts_only(folder, why="because").withheld == "because"


def test_a_missing_volume_is_named(tmp_path: Path) -> None:
    folder = survey_site(tmp_path, "A", SEEDS)
    (folder / "volumes" / "Patient002.nii.gz").unlink()
    with pytest.raises(DataError, match="Patient002"):
        fingerprint(folder)


@given(st.floats(1e-3, 1e5), st.sampled_from([0.01, 0.05, 0.2]))
def test_rounding_is_near_and_settled(value: float, share: float) -> None:
    result = rounded(value, share)
    assert abs(result - value) <= share * value / 2 * (1 + 1e-6)
    assert rounded(result, share) == pytest.approx(result, rel=share)
    assert rounded(value, share) == result


def test_usual_voxel_sizes_stay_as_they_are() -> None:
    for usual in (0.5, 0.625, 0.8, 1.0, 1.25, 1.5, 3.0, 3.6, 5.0, 160.0, 256.0, 320.0, 384.0):
        assert rounded(usual, 0.01) == usual


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50))
def test_bins_hold_their_numbers(values: list[float]) -> None:
    middles, counts = bins(np.array(values, np.float32))
    assert counts.sum() == len(values) and (np.diff(middles) > 0).all()
    for value in values:
        near = middles[np.abs(middles - value).argmin()]
        assert near == pytest.approx(value, rel=1 / 32, abs=2.0**-11)
