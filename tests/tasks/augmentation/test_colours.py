"""The presets of pictures: by seed alone, colours as their definitions say, JPEG as Pillow writes it."""

from __future__ import annotations

import colorsys
import io
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from errors import raises
from PIL import Image
from torch import Tensor

from fedshift.data.resampled import Fixed, black_and_white
from fedshift.tasks.augmentation import make_augmentation
from fedshift.tasks.augmentation.colours import PictureBatches
from fedshift.tasks.augmentation.jpeg import LUMA, jpeg
from fedshift.tasks.augmentation.presets import PICTURES, PicturePreset

CHANCES = ("rotate", "scale", "mirror", "colours", "blur", "noise", "jpeg")
SAME = dict.fromkeys(("factors", "contrasts", "saturations"), (1.0, 1.0))
NOTHING = replace(PICTURES["pictures-strong"], **dict.fromkeys(CHANCES, 0.0), **SAME, hues=(0.0, 0.0))


def only(*, coloured: bool = True, levels: tuple[float, float] = (0.0, 1.0), **change: Any) -> PictureBatches:
    preset = replace(NOTHING, **change)
    return PictureBatches(preset, patch=(32, 32), coloured=coloured, levels=levels, mirror=(0, 1), nonzero=False)


def pictures(count: int, *, channels: int = 3, size: tuple[int, int] = (32, 32)) -> Tensor:
    """Smooth pictures away from black and white."""
    rng = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, channels, *[side // 4 for side in size], generator=rng)
    return torch.nn.functional.interpolate(coarse, size, mode="bilinear") * 0.4 + 0.3


def numbered(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.int64) * 7919


def changed(augment: PictureBatches, images: Tensor) -> Tensor:
    return augment(images, images[:, 0].long(), seeds=numbered(len(images)))[0]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_depends_on_its_seed_alone(name: str, channels: int) -> None:
    augment = make_augmentation(
        name, dims=2, patch=(32, 32), sequences=channels, coloured=channels == 3, levels=(-1.0, 1.0)
    )
    assert augment is not None and augment.in_threads
    size = (32 + augment.margin[0], 32 + augment.margin[1])
    images = pictures(24, channels=channels, size=size) * 2 - 1
    labels = torch.randint(3, (24, *size), generator=torch.Generator().manual_seed(0))
    kept = images.clone()
    x, y = augment(images, labels, seeds=numbered(24))
    assert torch.equal(images, kept) and x.shape == (24, channels, 32, 32) and y.shape == (24, 32, 32)
    assert x.min() >= -1 and x.max() <= 1
    again, label = augment(images.flip(0), labels.flip(0), seeds=numbered(24).flip(0))
    torch.testing.assert_close(again.flip(0), x, rtol=1e-5, atol=1e-6)
    assert torch.equal(label.flip(0), y)
    assert not torch.equal(augment(images, labels, seeds=numbered(24) + 1)[0], x)


@pytest.mark.parametrize("name", CHANCES)
def test_each_chance_changes_pictures(name: str) -> None:
    images = pictures(64)
    change = {name: 1.0} | ({"factors": (0.6, 1.4)} if name == "colours" else {})
    assert torch.equal(changed(only(), images), images)
    assert not torch.isclose(changed(only(**change), images), images).all((1, 2, 3)).any() or name == "mirror"
    assert not torch.equal(changed(only(**change), images), images)
    assert {field.name for field in fields(PicturePreset)} > set(CHANCES)


def test_brightness_and_contrast_change_all_channels_alike() -> None:
    images = pictures(8)
    x = changed(only(colours=1.0, factors=(0.8, 0.8)), images)
    torch.testing.assert_close(x, images * 0.8)
    x = changed(only(colours=1.0, contrasts=(0.5, 0.5)), images)
    mean = (images.mean((2, 3)) * torch.tensor(LUMA)).sum(1)[:, None, None, None]
    torch.testing.assert_close(x, mean + (images - mean) * 0.5)
    x = changed(only(coloured=False, colours=1.0, contrasts=(0.5, 0.5)), images[:, :1])
    mean = images[:, :1].mean((2, 3), keepdim=True)
    torch.testing.assert_close(x, mean + (images[:, :1] - mean) * 0.5)


def test_saturation_and_hue_leave_grey() -> None:
    images = pictures(8)
    grey = torch.einsum("c,ncyx->nyx", torch.tensor(LUMA), images)
    for change in ({"saturations": (0.0, 0.0)}, {"hues": (0.1, 0.1)}):
        x = changed(only(colours=1.0, **change), images)
        torch.testing.assert_close(torch.einsum("c,ncyx->nyx", torch.tensor(LUMA), x), grey, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(x, images, atol=0.01)
    torch.testing.assert_close(changed(only(colours=1.0, saturations=(0.0, 0.0)), images), grey[:, None].expand_as(x))


def test_a_third_of_the_circle_makes_red_green() -> None:
    """The same way round as HSV's hue."""
    red = torch.tensor([0.6, 0.4, 0.4])[None, :, None, None].expand(1, 3, 32, 32).contiguous()
    x = changed(only(colours=1.0, hues=(1 / 3, 1 / 3)), red)[0, :, 0, 0].tolist()
    assert abs(colorsys.rgb_to_hsv(*x)[0] - 1 / 3) < 0.06


def test_the_levels_are_where_black_and_white_are() -> None:
    images = pictures(16)
    preset = {"colours": 1.0, "factors": (0.6, 1.4), "contrasts": (0.6, 1.4), "noise": 1.0, "jpeg": 1.0}
    x = changed(only(**preset), images)
    y = changed(only(levels=(-2.0, 3.0), **preset), images * 5 - 2)
    assert (y - (x * 5 - 2)).abs().mean() < 1e-3
    assert black_and_white("fixed", Fixed(low=0, high=255, mean=127.5, std=127.5)) == (-1.0, 1.0)


def compressed(levels: np.ndarray, quality: int) -> np.ndarray:
    stream = io.BytesIO()
    Image.fromarray(levels).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream)).astype(float)


@pytest.mark.parametrize("quality", [20, 50, 75, 95])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_what_pillow_writes(channels: int, quality: int) -> None:
    """Pillow rounds to whole numbers between steps, and halves to the other side."""
    picture = (pictures(1, channels=channels, size=(56, 76))[0] * 255).round()
    picture += 40 * torch.randn(1, 56, 76, generator=torch.Generator().manual_seed(1))
    levels = picture.clamp(0, 255).round().permute(1, 2, 0).numpy().astype(np.uint8)
    theirs = compressed(levels[..., 0] if channels == 1 else levels, quality).reshape(levels.shape)
    images = torch.from_numpy(levels).permute(2, 0, 1)[None].float() / 255
    ours = jpeg(images, torch.tensor([float(quality)]), coloured=channels == 3)[0].permute(1, 2, 0).numpy() * 255
    lost = np.abs(theirs - levels).mean()
    assert np.abs(ours - theirs).mean() < 0.1 * lost + 1
    assert np.abs(ours - levels).mean() == pytest.approx(lost, rel=0.02)


@pytest.mark.parametrize(
    ("change", "names"), [({"levels": None}, "data.normalise"), ({"dims": 3, "patch": (8, 8, 8)}, "data.dims")]
)
def test_what_is_refused(change: dict[str, Any], names: str) -> None:
    options = {"dims": 2, "patch": (32, 32), "sequences": 3, "coloured": True, "levels": (0.0, 1.0)} | change
    with raises("transform-unfit", naming=names):
        make_augmentation("pictures-strong", **options)
