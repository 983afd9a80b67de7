"""The presets: by seed alone, geometry that moves labels with images, the same distributions as MONAI's transforms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from errors import raises
from monai.transforms import Affine
from scipy.stats import ks_2samp
from torch import Tensor

from fedshift.tasks.augmentation import geometry, make_augmentation
from fedshift.tasks.augmentation.presets import PRESETS, SCANNERS, Preset
from fedshift.tasks.augmentation.whole_batches import WholeBatches

STRONG = PRESETS["strong"]
CHANCES = ("rotate", "scale", "shift", "noise", "blur", "brightness", "contrast", "low", "inverted", "gamma", "mirror")
NOTHING = replace(STRONG, **dict.fromkeys(CHANCES, 0.0), part=1.0)


def only(
    patch: tuple[int, ...],
    *,
    preset: Preset = NOTHING,
    sequences: int = 1,
    axes: tuple[int, ...] = (0, 1, 2),
    nonzero: bool = False,
    **change: Any,
) -> WholeBatches:
    axes = tuple(axis for axis in axes if axis < len(patch))
    return WholeBatches(replace(preset, **change), patch=patch, sequences=sequences, mirror=axes, nonzero=nonzero)


def smooth(count: int, size: tuple[int, ...], *, channels: int = 1, seed: int = 0) -> Tensor:
    """Images with structure of several voxels."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, channels, *[max(side // 4, 2) for side in size], generator=rng)
    return torch.nn.functional.interpolate(coarse, size, mode="bilinear" if len(size) == 2 else "trilinear")


def numbered(count: int, start: int = 0) -> Tensor:
    return torch.arange(start, start + count, dtype=torch.int64) * 7919


@pytest.mark.parametrize("name", [*PRESETS, *SCANNERS])
@pytest.mark.parametrize("patch", [(16, 24), (8, 12, 10)])
def test_a_sample_depends_on_its_seed_alone(name: str, patch: tuple[int, ...]) -> None:
    augment = make_augmentation(name, dims=len(patch), patch=patch, sequences=2)
    assert augment is not None and all(side % 2 == 0 for side in augment.margin)
    size = tuple(side + more for side, more in zip(patch, augment.margin, strict=True))
    images = smooth(24, size, channels=4)
    labels = torch.randint(3, (24, *size), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    kept, marked = images.clone(), labels.clone()
    torch.manual_seed(0)
    x, y = augment(images, labels, seeds=numbered(24))
    assert torch.equal(images, kept) and torch.equal(labels, marked), "what was given must stay as it was"
    assert x.shape == (24, 4, *patch) and y.shape == (24, *patch) and y.dtype == torch.uint8
    torch.manual_seed(1)
    again, label = augment(images.flip(0), labels.flip(0), seeds=numbered(24).flip(0))
    assert torch.equal(again.flip(0), x) and torch.equal(label.flip(0), y)
    alone, label = augment(images[5:6], labels[5:6], seeds=numbered(24)[5:6])
    torch.testing.assert_close(alone, x[5:6], rtol=1e-5, atol=1e-6)
    assert torch.equal(label, y[5:6])
    assert not torch.equal(augment(images, labels, seeds=numbered(24, 100))[0], x)


def test_none_is_nothing() -> None:
    assert make_augmentation("none", dims=3, patch=(8, 8, 8)) is None


@pytest.mark.parametrize(
    ("dims", "mirror", "code", "names"), [(3, None, "patch-size", "data.dims"), (2, [2], "invalid-value", "[2]")]
)
def test_a_wrong_size_is_named(dims: int, mirror: list[int] | None, code: str, names: str) -> None:
    with raises(code, naming=names):
        make_augmentation("strong", dims=dims, patch=(8, 8), mirror=mirror)


@pytest.mark.parametrize("patch", [(16, 24), (8, 12, 10)])
def test_without_chances_a_patch_is_the_centre(patch: tuple[int, ...]) -> None:
    augment = only(patch)
    assert augment.margin == (0,) * len(patch)
    images = smooth(2, tuple(side + 4 for side in patch))
    x, _ = augment(images, images[:, 0].long(), seeds=numbered(2))
    assert torch.equal(x, geometry.centre(images, patch))


@pytest.mark.parametrize("patch", [(16, 24), (8, 12, 10)])
def test_a_map_that_moves_nothing_gives_the_centre(patch: tuple[int, ...]) -> None:
    dims = len(patch)
    images = smooth(1, tuple(side + 6 for side in patch))
    labels = (images[:, 0] * 2).round().long()
    for flips in (torch.ones(1, dims), -torch.ones(1, dims)):
        maps = geometry.matrices(torch.zeros(1, len(geometry.planes(patch))), torch.ones(1), flips, patch)
        x, y = geometry.resample(images, labels, maps, patch)
        axes = [axis - dims for axis in range(dims)] if flips[0, 0] < 0 else []
        torch.testing.assert_close(x, geometry.centre(images, patch).flip(axes), rtol=1e-4, atol=1e-5)
        assert torch.equal(y, geometry.centre(labels, patch).flip(axes))


@pytest.mark.parametrize("patch", [(32, 32), (16, 24), (12, 12, 12), (4, 16, 16)])
def test_labels_move_with_images(patch: tuple[int, ...]) -> None:
    augment = only(patch, rotate=1.0, scale=1.0, mirror=0.5)
    size = tuple(side + more for side, more in zip(patch, augment.margin, strict=True))
    images = smooth(8, size)
    x, y = augment(images, (images[:, 0] > 0).long(), seeds=numbered(8))
    clear = x[:, 0].abs() > 0.2
    assert ((x[:, 0] > 0) == y.bool())[clear].float().mean() > 0.97


def test_a_quarter_turn_is_a_quarter_turn() -> None:
    images = smooth(1, (20, 20))
    maps = geometry.matrices(torch.tensor([[torch.pi / 2]]), torch.ones(1), torch.ones(1, 2), (16, 16))
    x, _ = geometry.resample(images, images[:, 0].long(), maps, (16, 16))
    expected = geometry.centre(images, (16, 16)).rot90(-1, (2, 3))
    torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-5)


def test_a_flat_volume_turns_in_its_planes_only() -> None:
    """Each slice of a volume whose slices are constant stays constant, and the slices keep their order."""
    augment = only((4, 16, 16), rotate=1.0, scale=1.0)
    images = torch.arange(6.0)[:, None, None].expand(2, 1, 6, 30, 30).contiguous()
    assert augment.margin[0] == 0
    x, _ = augment(images, images[:, 0].long(), seeds=numbered(2))
    torch.testing.assert_close(x, torch.arange(1.0, 5)[:, None, None].expand(2, 1, 4, 16, 16), rtol=0, atol=1e-4)


@pytest.mark.parametrize("patch", [(20, 20), (16, 16, 16), (4, 16, 16)])
def test_a_shift_moves_image_and_labels_alike_and_within_its_range(patch: tuple[int, ...]) -> None:
    """A ramp along each axis tells how far it went; flat volumes keep their slices."""
    axes = torch.meshgrid(*map(torch.arange, patch), indexing="ij")
    inner = tuple(side - 2 * (side // 4) for side in patch)
    for axis, ramp in enumerate(axes):
        images = ramp.float().expand(32, 1, *patch).contiguous()
        x, y = only(patch, shift=1.0)(images, images[:, 0].round().long(), seeds=numbered(32))
        away = (geometry.centre(x - images, inner)).flatten(1).mean(1)
        if geometry.flat(patch) and axis == 0:
            torch.testing.assert_close(x, images, rtol=0, atol=1e-4)
            continue
        largest = 0.15 * patch[axis]
        assert 0.5 * largest < away.abs().max() <= largest + 1e-3 and away.min() < 0 < away.max()
        assert (geometry.centre(x[:, 0] - y, inner)).abs().max() <= 0.5 + 1e-3


def test_margin_has_room_for_one_turn_and_the_scale() -> None:
    assert geometry.margin((32, 32), replace(STRONG, scale=0.0)) == (14, 14)  # 32 √2
    assert geometry.margin((32, 32), replace(STRONG, scale=0.0, rotate=0.0)) == (0, 0)
    assert geometry.margin((40, 40, 40), replace(STRONG, rotate=0.0)) == (8, 8, 8)  # 40 / 0.85
    assert geometry.margin((4, 40, 40), STRONG)[0] == 0


def test_only_the_axes_named_are_mirrored() -> None:
    images = smooth(8, (8, 10))
    x, _ = only((8, 10), axes=(0,), mirror=1.0)(images, images[:, 0].long(), seeds=numbered(8))
    assert torch.equal(x, images.flip(2))


@pytest.mark.parametrize("patch", [(32, 32), (24, 24, 24)])
def test_low_resolution_does_not_move_the_image(patch: tuple[int, ...]) -> None:
    """Its mask stays where it is. Torch's ``nearest``, the first voxel of each group, moves it by 0.6 voxels."""
    images = torch.stack(torch.meshgrid(*map(torch.arange, patch), indexing="ij")).float().expand(64, -1, *patch)
    x, _ = only(patch, low=1.0)(images.contiguous(), images[:, 0].long(), seeds=numbered(64))
    inner = tuple(side - 8 for side in patch)
    moved = (geometry.centre(x, inner) - geometry.centre(images, inner)).mean()
    assert not torch.equal(x, images) and abs(moved) < 0.1


def test_low_resolution_of_a_flat_volume_stays_within_its_slices() -> None:
    images = torch.arange(4.0)[:, None, None].expand(8, 1, 4, 16, 16).contiguous()
    x, _ = only((4, 16, 16), low=1.0)(images, images[:, 0].long(), seeds=numbered(8))
    assert torch.equal(x, images)
    images = smooth(8, (4, 16, 16))
    assert not torch.equal(only((4, 16, 16), low=1.0)(images, images[:, 0].long(), seeds=numbered(8))[0], images)


@pytest.mark.parametrize("nonzero", [True, False])
def test_what_was_not_scanned_stays_0_if_the_task_leaves_it_out(nonzero: bool) -> None:
    images = smooth(64, (16, 16))
    images[..., :6, :] = 0
    augment = only((16, 16), preset=STRONG, axes=(1,), nonzero=nonzero, rotate=0.0, scale=0.0)
    x, _ = augment(images, images[:, 0].long(), seeds=numbered(64))
    assert (x[..., :6, :] == 0).all() == nonzero


def test_sequences_change_apart_and_neighbouring_slices_alike() -> None:
    images = torch.ones(16, 6, 8, 8)
    x, _ = only((8, 8), sequences=2, brightness=1.0)(images, images[:, 0].long(), seeds=numbered(16))
    assert torch.equal(x[:, 0], x[:, 2]) and torch.equal(x[:, 3], x[:, 5])
    assert not torch.isclose(x[:, 0, 0, 0], x[:, 3, 0, 0]).any()


def test_gamma_keeps_mean_and_deviation() -> None:
    images = smooth(8, (16, 16)) * 3 + 5
    for which in ("gamma", "inverted"):
        x, _ = only((16, 16), **{which: 1.0})(images, images[:, 0].long(), seeds=numbered(8))
        assert not torch.allclose(x, images, atol=0.05)
        torch.testing.assert_close(x.mean((1, 2, 3)), images.mean((1, 2, 3)), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(x.std((1, 2, 3)), images.std((1, 2, 3)), rtol=1e-3, atol=1e-4)


# --- beside MONAI ----------------------------------------------------------------------------------------

DRAWS = 300
FULL = {"prob": 1.0}
TURN_2D, TURN_3D = {"rotate_range": [float(np.pi)]}, {"rotate_range": [float(np.pi / 6)] * 3}
LOW = {"zoom_range": [0.5, 1.0], "downsample_mode": "nearest-exact"}
PAIRS: dict[str, tuple[dict[str, Any], Callable[[int], tuple[str, dict[str, Any]]]]] = {
    "rotate": ({"rotate": 1.0}, lambda dims: ("RandAffine", TURN_2D if dims == 2 else TURN_3D)),
    "noise": ({"noise": 1.0}, lambda _: ("RandGaussianNoise", {"std": 0.1})),
    "blur": ({"blur": 1.0}, lambda _: ("RandGaussianSmooth", {f"sigma_{axis}": [0.5, 1.0] for axis in "xyz"})),
    "brightness": ({"brightness": 1.0}, lambda _: ("RandScaleIntensity", {"factors": 0.25})),
    "contrast": (
        {"contrast": 1.0},
        lambda _: ("RandScaleIntensityFixedMean", {"factors": 0.25, "preserve_range": True}),
    ),
    "low": ({"low": 1.0}, lambda _: ("RandSimulateLowResolution", LOW)),
    "inverted": (
        {"inverted": 1.0},
        lambda _: ("RandAdjustContrast", {"gamma": [0.7, 1.5], "retain_stats": True, "invert_image": True}),
    ),
    "gamma": ({"gamma": 1.0}, lambda _: ("RandAdjustContrast", {"gamma": [0.7, 1.5], "retain_stats": True})),
}


def measures(x: Tensor, image: Tensor, patch: tuple[int, ...]) -> np.ndarray:
    """For each sample (n, 5), away from the edges: mean, deviation, skewness, roughness, distance from the original."""
    inner = tuple(side - 8 for side in patch)
    x, image = (geometry.centre(value, inner) for value in (x, image))
    flat = x.flatten(1)
    rough = sum(x.diff(dim=axis).square().flatten(1).mean(1) for axis in range(2, x.dim()))
    skew = ((flat - flat.mean(1, keepdim=True)) ** 3).mean(1) / flat.std(1) ** 3
    away = (x - image).square().flatten(1).mean(1).sqrt()
    values = torch.stack([flat.mean(1), flat.std(1), skew, torch.as_tensor(rough), away], 1).double()
    # Changes of few kinds have few values, which must not differ by rounding.
    return values.numpy().round(5)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("which", PAIRS)
def test_a_change_is_distributed_as_monais(which: str, dims: int) -> None:
    """Kolmogorov-Smirnov over many draws on one image."""
    patch = (40, 40) if dims == 2 else (18, 18, 18)
    change, transform = PAIRS[which]
    name, options = transform(dims)
    image = smooth(1, patch, seed=4)
    images = image.expand(DRAWS, *image.shape[1:]).contiguous()
    labels = torch.zeros(DRAWS, *patch, dtype=torch.uint8)
    ours, _ = only(patch, **change)(images, labels, seeds=numbered(DRAWS))
    listed = make_augmentation([{"name": f"monai.{name}", "options": {**FULL, **options}}], dims=dims, patch=patch)
    assert listed is not None
    theirs, _ = listed(images, labels, seeds=numbered(DRAWS, 5000))
    compare(ours, theirs, image, patch)


@pytest.mark.parametrize("dims", [2, 3])
def test_scaling_is_distributed_as_monais(dims: int) -> None:
    """MONAI draws a factor for each axis, nnU-Net and we one for all."""
    patch = (40, 40) if dims == 2 else (18, 18, 18)
    image = smooth(1, patch, seed=4)
    images = image.expand(DRAWS, *image.shape[1:]).contiguous()
    ours, _ = only(patch, scale=1.0)(images, images[:, 0].to(torch.uint8), seeds=numbered(DRAWS))
    factors = np.random.default_rng(0).uniform(0.7, 1.4, DRAWS).astype(np.float32)
    each = (Affine(scale_params=[float(factor)] * dims, padding_mode="border", image_only=True) for factor in factors)
    compare(ours, torch.stack([one(image[0]).as_tensor() for one in each]), image, patch)


def compare(ours: Tensor, theirs: Tensor, image: Tensor, patch: tuple[int, ...]) -> None:
    for number, (ours_measured, other) in enumerate(
        zip(measures(ours, image, patch).T, measures(theirs, image, patch).T, strict=True)
    ):
        if np.ptp(ours_measured) < 1e-3 and np.ptp(other) < 1e-3:
            np.testing.assert_allclose(ours_measured.mean(), other.mean(), atol=1e-3)  # unchanged by both
            continue
        figures = (
            f"measure {number}: {ours_measured.mean()} ± {ours_measured.std()}, MONAI's {other.mean()} ± {other.std()}"
        )
        assert ks_2samp(ours_measured, other).pvalue > 1e-3, figures


def test_chances_are_the_presets() -> None:
    """How often each change meets a sample, of many."""
    count = 2000
    images = smooth(1, (8, 8)).expand(count, 1, 8, 8).contiguous()
    labels = torch.zeros(count, 8, 8, dtype=torch.uint8)
    for name in CHANCES:
        share = getattr(STRONG, name)
        x, _ = only((8, 8), **{name: share, "part": 0.5})(images, labels, seeds=numbered(count))
        met = (x != images).flatten(1).any(1).float().mean()
        expected = 1 - (1 - share) ** 2 if name == "mirror" else share * (0.5 if name in ("blur", "low") else 1)
        assert float(met) == pytest.approx(expected, abs=0.04), name


def test_a_preset_has_a_chance_for_each_change() -> None:
    assert {field.name for field in fields(Preset)} > set(CHANCES)
