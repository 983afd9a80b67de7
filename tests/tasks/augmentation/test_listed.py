"""Lists of MONAI's transforms: made from plain options, by seed, labels moved with images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from errors import raises

from fedshift.tasks.augmentation import make_augmentation
from fedshift.tasks.augmentation.listed import CHANGING, MOVING, available

NEEDED: dict[str, dict[str, Any]] = {
    "Rand2DElastic": {"spacing": [4, 4], "magnitude_range": [1, 2]},
    "Rand3DElastic": {"sigma_range": [1, 2], "magnitude_range": [10, 20]},
    "RandAffine": {"rotate_range": 0.5, "scale_range": [[-0.3, 0.4]]},
    "RandRotate": {"range_x": 0.5},
    "RandZoom": {"min_zoom": 0.6, "max_zoom": 0.7},
    "RandFlip": {"spatial_axis": 0},
    "RandCoarseDropout": {"holes": 2, "spatial_size": 3},
    "RandCoarseShuffle": {"holes": 2, "spatial_size": 3},
    "RandScaleIntensity": {"factors": 0.25},
    "RandScaleIntensityFixedMean": {"factors": 0.25},
    "RandShiftIntensity": {"offsets": 0.25},
    "RandStdShiftIntensity": {"factors": 0.25},
    "RandGibbsNoise": {"alpha": [0.5, 1.0]},
    "RandHistogramShift": {"num_control_points": 5},
    "RandSimulateLowResolution": {"zoom_range": [0.5, 0.8]},
    "RandBiasField": {"coeff_range": [0.1, 0.2]},
}
SEEDS = torch.tensor([3, 2**62 + 5])


def one(name: str, **options: Any) -> list[dict[str, Any]]:
    return [{"name": f"monai.{name}", "options": {"prob": 1.0, **NEEDED.get(name, {}), **options}}]


def sample(dims: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(2, 2, *[12, 16, 20][:dims], generator=rng)
    return images, torch.randint(3, (2, *images.shape[2:]), generator=rng)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("name", [*MOVING, *CHANGING])
def test_each_transform_changes_a_sample_by_its_seed_alone(name: str, dims: int) -> None:
    if name == f"Rand{5 - dims}DElastic":
        with raises("transform-unfit", naming="data.dims"):
            make_augmentation(one(name), dims=dims, patch=(12, 16, 20)[:dims])
        return
    if name == "RandRotate90":
        with raises("transform-unfit", naming="12 x 16"):
            make_augmentation(one(name), dims=dims, patch=(12, 16, 20)[:dims])
        return
    augment = make_augmentation(one(name), dims=dims, patch=(12, 16, 20)[:dims])
    assert augment is not None and augment.margin == (0,) * dims
    images, labels = sample(dims)
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    x, y = augment(images, labels, seeds=SEEDS)
    assert torch.equal(state, torch.random.get_rng_state())
    assert x.shape == images.shape and x.dtype == torch.float32 and type(x) is torch.Tensor
    assert y.shape == labels.shape and y.dtype == labels.dtype and y.min() >= 0 and y.max() <= 2
    assert torch.equal(y, labels) == (name in CHANGING)
    assert not torch.equal(x[0], images[0])
    last, label = augment(images[1:], labels[1:], seeds=SEEDS[1:])
    assert torch.equal(last, x[1:]) and torch.equal(label, y[1:])


@pytest.mark.parametrize("name", ["RandAffine", "RandFlip", "RandRotate90", "RandZoom"])
def test_labels_move_with_images(name: str) -> None:
    images = torch.zeros(1, 1, 16, 16)
    images[..., 2:6, 3:9] = 1
    augment = make_augmentation(one(name), dims=2, patch=(16, 16))
    assert augment is not None
    x, y = augment(images, images[:, 0].long(), seeds=torch.tensor([7]))
    assert ((x[:, 0] > 0.5) == y.bool()).float().mean() > 0.97


@pytest.mark.parametrize(
    ("spec", "code", "names"),
    [
        (one("RandGausianNoise"), "unknown-transform", "'monai.RandGaussianNoise'"),
        ([{"name": "monai.Lambda", "options": {}}], "unknown-transform", "'monai.Lambda'"),
        (one("RandGaussianNoise", sdt=1), "unknown-option", "'std'"),
        (one("RandAffine", spatial_size=[3, 3]), "option-fixed", "spatial_size"),
        (one("RandFlip", keys=["image"]), "option-fixed", "keys"),
        (one("RandFlip", spatial_axis=5), "transform-unfit", "spatial_axis"),
        (one("RandAdjustContrast", gamma=-1), "transform-unfit", "gamma"),
        ([{"name": "monai.RandFlip", "option": {}}], "invalid-value", "'option'"),
        (["monai.RandFlip"], "invalid-value", "monai.RandFlip"),
        ("storng", "unknown-transform", "'strong'"),
    ],
)
def test_what_is_refused(spec: Any, code: str, names: str) -> None:
    with raises(code, naming=names):
        make_augmentation(spec, dims=2, patch=(16, 16))


@pytest.mark.parametrize("patch", [(512, 496), (64, 62), (62, 64, 63), (4, 5), (500, 4, 5), (512, 496, 496)])
def test_sides_that_hardly_differ_are_not_equal(patch: tuple[int, ...]) -> None:
    with raises("transform-unfit", naming=" x ".join(map(str, patch))):
        make_augmentation(one("RandRotate90"), dims=len(patch), patch=patch)


def test_quarter_turns_are_between_equal_sides() -> None:
    planes = one("RandRotate90", spatial_axes=[1, 2])
    assert make_augmentation(planes, dims=3, patch=(62, 64, 64)) is not None
    with raises("transform-unfit", naming="64 x 64 x 62"):
        make_augmentation(planes, dims=3, patch=(64, 64, 62))


def test_all_names_are_of_the_installed_monai() -> None:
    assert len(available()) == len(set(available())) == len(MOVING) + len(CHANGING)
