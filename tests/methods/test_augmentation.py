"""Augmentation: geometry, colours, and what a model learns from rotations."""

from __future__ import annotations

import colorsys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_context
from errors import raises
from torch import Tensor, nn
from torch.nn import functional
from volumesites import blob_job

from fedshift.methods import augmentation, base


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every available device."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device: run it on a machine with one")
    return torch.device(request.param)


def augmented(
    x: Tensor, y: Tensor | None = None, *, seed: int = 0, slices: bool = False, **options: object
) -> base.Batch:
    ctx = make_context("augmentation", seed=seed, dense=slices)
    y = torch.zeros(len(x), dtype=torch.int64) if y is None else y
    return augmentation.Client(augmentation.Config(**options)).augment(base.Batch(x, y), ctx)


def ramps(count: int, size: int) -> Tensor:
    """Images whose two channels hold each pixel's x and y, from -1 to 1 at the outline."""
    at = (torch.arange(size) + 0.5) / size * 2 - 1
    return torch.stack([at.expand(size, size), at[:, None].expand(size, size)])[None].repeat(count, 1, 1, 1)


# --- what is refused of patches -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("augmentation.level=moderate", "data.normalise"),
        ("augmentation.level=none augmentation.rotation=30 data.normalise=volume", "data.normalise"),
        ("augmentation.level=weak data.mirror=[0]", "augmentation.flip=0"),
    ],
)
def test_what_does_not_fit_volumes_is_refused(options: str, words: str, tmp_path: Path) -> None:
    with raises("method-needs", naming=words):
        blob_job(tmp_path, *options.split(), methods="augmentation")
    mended = [option.replace("mirror=[0]", "mirror=[0,1]") for option in options.split() if "normalise" not in option]
    assert "augmentation" in blob_job(tmp_path, *mended, "data.normalise=percentile", methods="augmentation").methods


# --- identities ---------------------------------------------------------------------------------------


def test_the_seed_decides_and_every_image_and_batch_is_drawn_anew() -> None:
    x = torch.rand(1, 3, 16, 16).repeat(6, 1, 1, 1)
    options = {"level": "moderate", "rotation": 20, "blur": 0.5}
    one = augmented(x, **options).x
    assert torch.equal(one, augmented(x, **options).x)
    assert not torch.equal(one, augmented(x, seed=1, **options).x)
    assert all(not torch.equal(one[0], other) for other in one[1:])
    ctx = make_context("augmentation")
    client = augmentation.Client(augmentation.Config(**options))
    batch = base.Batch(x, torch.zeros(6, dtype=torch.int64))
    assert not torch.equal(client.augment(batch, ctx).x, client.augment(batch, ctx).x)


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("level", ["none", "weak", "moderate"])
def test_a_device_changes_no_draw(level: str, slices: bool, device: torch.device) -> None:
    """Equal to the CPU up to rounding: a GPU may blur with reduced precision."""
    coarse = torch.rand(32, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    x = functional.interpolate(coarse, size=(48, 48), mode="bilinear")
    masks = (x[:, 0] > 0.5).long()
    options = {"level": level, "rotation": 20, "flip": 0.3, "blur": 0.5}
    expected = augmented(x, masks, slices=slices, **options)
    found = augmented(x.to(device), masks.to(device), slices=slices, **options)
    assert found.x.device.type == found.y.device.type == device.type
    torch.testing.assert_close(found.x.cpu(), expected.x, atol=2e-3, rtol=0)
    assert (found.y.cpu() != expected.y).double().mean() < 1e-3, "except for pixels halfway between two others"
    assert (expected.x != x).double().mean() > 0.5


# --- where pixels come from ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_quarter_turn_is_counter_clockwise_and_exact(turns: int, mode: str, device: torch.device) -> None:
    x = torch.rand(2, 3, 7, 7).to(device)
    matrices = torch.cat([augmentation.turned(torch.tensor([90.0 * turns] * 2)), torch.zeros(2, 2, 1)], 2)
    torch.testing.assert_close(augmentation.sample(x, matrices, mode), torch.rot90(x, turns, (-2, -1)))


def test_a_rotation_turns_about_the_middle_and_fills_with_0() -> None:
    """Bilinear sampling is exact on a ramp, so every pixel inside shows its source position."""
    x = ramps(1, 32)
    angle = 30.0
    matrices = torch.cat([augmentation.turned(torch.tensor([angle])), torch.zeros(1, 2, 1)], 2)
    y = augmentation.sample(x, matrices, "bilinear")[0]
    cos, sin = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
    from_x, from_y = cos * x[0, 0] - sin * x[0, 1], sin * x[0, 0] + cos * x[0, 1]  # y grows downwards
    inside = (from_x.abs() < 31 / 32) & (from_y.abs() < 31 / 32)
    torch.testing.assert_close(y[0][inside], from_x[inside], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(y[1][inside], from_y[inside], atol=1e-5, rtol=1e-5)
    outside = (from_x.abs() > 1) | (from_y.abs() > 1)
    assert outside.sum() > 50 and (y[:, outside] == 0).all()
    ones = augmented(torch.ones(16, 1, 32, 32), level="none", rotation=45).x
    assert ones.min() == 0 and torch.allclose(ones, ones.round()), "edge pixels are not interpolated with the fill"


def test_rotations_go_both_ways_as_far_as_asked() -> None:
    y = augmented(ramps(400, 9), level="none", rotation=30).x
    down_right = y[:, :, 4, 6] / ramps(1, 9)[0, 0, 4, 6]
    degrees = torch.rad2deg(torch.atan2(down_right[:, 1], down_right[:, 0]))
    assert -30 <= degrees.min() < -28 and 28 < degrees.max() <= 30.001
    assert abs(float(degrees.mean())) < 3


def test_crops_have_the_papers_area_and_aspect_and_lie_inside() -> None:
    boxes = augmentation.crops(2000, torch.Generator().manual_seed(0))
    width, height, centre = boxes[:, 0], boxes[:, 1], boxes[:, 2:]
    area, aspect = width * height, width / height
    assert 0.7 <= area.min() < 0.71 and 0.98 < area.max() <= 1
    assert 0.75 <= aspect.min() < 0.76 and 1.32 < aspect.max() <= 4 / 3 + 1e-6
    assert ((centre.abs() + boxes[:, :2]) <= 1 + 1e-6).all()
    assert centre.std(0).min() > 0.03


def test_weak_crops_and_flips_half_of_the_images() -> None:
    y = augmented(ramps(400, 16)).x
    slope = (y[:, 0, 8, 12] - y[:, 0, 8, 4]) / (ramps(1, 16)[0, 0, 8, 12] - ramps(1, 16)[0, 0, 8, 4])
    assert 160 < int((slope < 0).sum()) < 240
    assert slope.abs().min() > 0.7 and slope.abs().max() <= 1.0001
    upright = y[:, 1, 12, 8] - y[:, 1, 4, 8]
    assert (upright > 0).all(), "no image is flipped vertically"
    assert (y[:, 0].amax((1, 2)) <= 1).all() and (y[:, 0].amin((1, 2)) >= -1).all()


def test_flips_alone_mirror_images_exactly_and_as_often_as_asked() -> None:
    x = torch.rand(400, 3, 8, 8)
    y = augmented(x, level="none", flip=0.25).x
    mirrored = (y - x.flip(3)).abs().amax((1, 2, 3)) < 1e-6
    assert torch.equal(y[~mirrored], x[~mirrored]) and 0.2 < mirrored.float().mean() < 0.3


def test_a_given_flip_wins_over_the_level_s_own() -> None:
    x = ramps(400, 16)

    def mirrored(level: str, **options: object) -> Tensor:
        y = augmented(x, level=level, **options).x
        return y[:, 0, 8, 12] < y[:, 0, 8, 4]

    assert not mirrored("weak", flip=0).any() and mirrored("weak", flip=1).all()
    assert 70 < int(mirrored("weak", flip=0.25).sum()) < 130
    assert not torch.equal(augmented(x, flip=0).x, x), "the crop does not depend on flip"
    for level, own in {"none": 0.0, "weak": 0.5, "moderate": 0.5}.items():
        assert torch.equal(augmented(x, level=level, flip=own).x, augmented(x, level=level).x)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_masks_move_with_their_images(interpolation: str, device: torch.device) -> None:
    at = ramps(8, 48).to(device)
    y = (((at[:, 0] - 0.3) ** 2 / 0.2 + (at[:, 1] + 0.2) ** 2 / 0.05) < 1).long()
    x = y[:, None].float().repeat(1, 3, 1, 1)
    out = augmented(x, y, slices=True, level="weak", rotation=90, interpolation=interpolation)
    assert out.y.dtype == torch.int64 and out.y.shape == y.shape and out.y.device == out.x.device == y.device
    assert set(out.y.unique().tolist()) == {0, 1}
    assert (out.y != y).float().mean() > 0.05
    if interpolation == "nearest":
        assert torch.equal(out.x[:, 0], out.y.float())
    else:
        assert ((out.x[:, 0] > 0.5) == (out.y == 1)).float().mean() > 0.98
    assert torch.equal(augmented(x, torch.arange(8), rotation=10).y, torch.arange(8)), "labels do not change"


# --- colours and blur ---------------------------------------------------------------------------------


def test_hue_is_turned_as_the_standard_library_does(device: torch.device) -> None:
    x = torch.rand(4, 3, 3, 5, dtype=torch.float64)
    x[0, :, 0, 0] = 0.4  # grey
    x[0, :, 0, 1] = 0  # black
    x[0, :, 0, 2] = torch.tensor([0.7, 0.7, 0.1])  # a tie
    turns = torch.tensor([0.0, 0.25, -0.3, 0.1], dtype=torch.float64)
    y = augmentation.turn_hue(x.to(device), turns[:, None, None].to(device)).cpu()
    for i, r, c in np.ndindex(4, 3, 5):
        h, s, v = colorsys.rgb_to_hsv(*x[i, :, r, c].tolist())
        expected = colorsys.hsv_to_rgb((h + float(turns[i])) % 1, s, v)
        np.testing.assert_allclose(y[i, :, r, c].numpy(), expected, atol=1e-12)


def test_jitter_is_brightness_contrast_saturation_hue_in_that_order(device: torch.device) -> None:
    x = 0.2 + 0.3 * torch.rand(2, 3, 4, 4, dtype=torch.float64)
    x[0, :, 0, 0], x[0, :, 0, 1] = 0, 1  # room, so that nothing is cut off
    factors = torch.tensor([[0.9, 1.1], [1.2, 0.8], [0.75, 1.25]], dtype=torch.float64).reshape(3, 2, 1, 1, 1)
    luma = np.array([0.299, 0.587, 0.114])
    still = torch.zeros(2, 1, 1, dtype=torch.float64)
    y = augmentation.jitter(x.to(device), factors.to(device), still.to(device)).cpu().numpy()
    for i in range(2):
        brightness, contrast, saturation = factors[:, i].flatten().tolist()
        image = np.clip(x[i].numpy() * brightness, 0, 1)
        image = np.clip((1 - contrast) * np.tensordot(luma, image, 1).mean() + contrast * image, 0, 1)
        image = np.clip((1 - saturation) * np.tensordot(luma, image, 1) + saturation * image, 0, 1)
        np.testing.assert_allclose(y[i], image, atol=1e-12)


def test_colours_do_not_depend_on_the_scale_of_intensities() -> None:
    x = torch.rand(6, 3, 8, 8)
    small, large = augmented(x, level="moderate").x, augmented(255 * x, level="moderate").x
    torch.testing.assert_close(large / 255, small, atol=1e-5, rtol=1e-5)
    assert small.min() >= x.min() and small.max() <= x.max() + 1e-6


def test_moderate_turns_a_tenth_of_the_pictures_grey() -> None:
    y = augmented(torch.rand(1, 3, 8, 8).repeat(500, 1, 1, 1), level="moderate").x
    share = float(((y - y[:, :1]).abs().amax((1, 2, 3)) < 1e-6).float().mean())
    assert 0.06 < share < 0.15


def test_slices_and_grey_images_get_brightness_and_contrast_only() -> None:
    x = torch.rand(1, 1, 8, 8).repeat(8, 3, 1, 1)
    slices = augmented(x, torch.zeros(8, 8, 8, dtype=torch.int64), slices=True, level="moderate").x
    torch.testing.assert_close(slices, slices[:, :1].repeat(1, 3, 1, 1))
    channels = torch.rand(3, 3, 8, 8)
    channels[:, 0, 0, 0] = 0  # room, so that nothing is cut off
    y = augmentation.jitter(channels, torch.full((3, 3, 1, 1, 1), 0.9), None)
    torch.testing.assert_close(y, 0.81 * channels + 0.09 * channels.mean((1, 2, 3), keepdim=True))
    grey = augmented(torch.rand(8, 1, 8, 8), level="moderate").x
    assert grey.shape == (8, 1, 8, 8) and torch.isfinite(grey).all()


def test_blur_is_a_normalised_gaussian_of_five_pixels(device: torch.device) -> None:
    x = torch.zeros(2, 3, 11, 11, dtype=torch.float64)
    x[:, 1, 5, 5] = 1
    sigma = torch.tensor([0.5, 1.7], dtype=torch.float64)
    y = augmentation.gaussian_blur(x.to(device), sigma.to(device)).cpu().numpy()
    for i in range(2):
        line = np.exp(-0.5 * (np.arange(-2, 3) / float(sigma[i])) ** 2)
        line /= line.sum()
        expected = np.zeros((11, 11))
        expected[3:8, 3:8] = np.outer(line, line)
        np.testing.assert_allclose(y[i, 1], expected, atol=1e-14)
        assert not y[i, 0].any() and not y[i, 2].any()
    flat = torch.full((1, 2, 6, 6), 3.0)
    torch.testing.assert_close(augmentation.gaussian_blur(flat, torch.ones(1)), flat)


def test_blur_comes_with_its_probability_and_leaves_the_rest_alone() -> None:
    x = torch.rand(300, 1, 8, 8)
    y = augmented(x, level="none", blur=0.3).x
    same = (y == x).flatten(1).all(1)
    assert 180 < int(same.sum()) < 240
    assert not torch.equal(augmented(x, level="none", blur=True).x, x)


# --- whole runs, learning, refusals -------------------------------------------------------------------


def bars(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """One long or two short horizontal bars on noise."""
    images = rng.normal(0, 0.1, (count, 1, 15, 15)).astype(np.float32)
    labels = np.arange(count) % 2
    for image, label in zip(images, labels, strict=True):
        if label:
            image[0, 7, 2:13] += 1
        else:
            image[0, 5:10:4, 4:11] += 1
    return torch.from_numpy(images), torch.from_numpy(labels)


def accuracy_on_turned(rotation: float, seed: int) -> float:
    """Trained on horizontal bars, tested on vertical ones (rotated by torch, not by this module)."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    x, y = bars(64, rng)
    net = nn.Sequential(nn.Flatten(), nn.Linear(225, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    ctx = make_context("augmentation", net, seed=seed)
    client = augmentation.Client(augmentation.Config(level="none", rotation=rotation))
    for _ in range(200):
        batch = client.augment(base.Batch(x, y), ctx)
        optimizer.zero_grad()
        functional.cross_entropy(net(batch.x), batch.y).backward()
        optimizer.step()
    tested, labels = bars(100, rng)
    with torch.no_grad():
        return float((net(torch.rot90(tested, 1, (-2, -1))).argmax(1) == labels).float().mean())


@pytest.mark.slow
def test_rotations_in_training_raise_accuracy_on_turned_images() -> None:
    turned, plain = ([accuracy_on_turned(rotation, seed) for seed in range(3)] for rotation in (90, 0))
    assert min(turned) > 0.9 and np.mean(turned) > np.mean(plain) + 0.3
