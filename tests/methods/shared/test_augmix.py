"""AugMix: each change against a library's or a plain calculation, and what a mixture keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy import ndimage
from torch import Tensor

from fedshift.methods.shared import augmix


def smooth(*shape: int, seed: int = 0) -> np.ndarray:
    """An image from 0 to 1."""
    image = ndimage.gaussian_filter(np.random.default_rng(seed).random(shape), 2)
    return np.asarray((image - image.min()) / np.ptp(image), np.float32)


def change(name: str, image: np.ndarray, strength: float = 0.0, sign: float = 1.0) -> np.ndarray:
    """One image (rows, columns), changed among others."""
    x = torch.from_numpy(np.stack([image[::-1].copy(), image]))[:, None]
    changed: Tensor = getattr(augmix, name)(x, torch.tensor([0.9, strength]), torch.tensor([-sign, sign]))
    return changed[1, 0].numpy()


def eight_bits(image: np.ndarray) -> Image.Image:
    return Image.fromarray((image * 255).round().astype(np.uint8))


def test_tones_are_pillows() -> None:
    image = smooth(400, 500)
    np.testing.assert_allclose(change("autocontrast", 0.2 + 0.5 * image), image, atol=1e-6)
    equalised = np.asarray(ImageOps.equalize(eight_bits(image)), float) / 255
    np.testing.assert_allclose(change("equalised", image), equalised, atol=0.02, err_msg="Pillow rounds its steps")
    levels = image.copy()
    levels[levels > 0.99] = 0.99
    for strength, bits in ((0.0, 4), (0.3, 3)):
        kept = np.asarray(ImageOps.posterize(eight_bits(levels), bits)) >> (8 - bits)
        found = change("posterised", levels, strength) * (2**bits - 1)
        assert (np.abs(found - kept) < 1e-4).mean() > 0.97, "all but where 8 bits round across a step"
    np.testing.assert_array_equal(change("solarised", image, 0.3), np.where(image >= 0.7, 1 - image, image))


def test_even_channels_stay() -> None:
    even = np.full((8, 8), 0.3, np.float32)
    for name in ("autocontrast", "equalised"):
        np.testing.assert_allclose(change(name, even), even, err_msg=name)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_moves_are_scipys(sign: float) -> None:
    image = smooth(60, 40)
    inside = slice(20, 40), slice(14, 26)
    turned = ndimage.rotate(image, sign * 15, reshape=False, order=1)
    np.testing.assert_allclose(change("turned", image, 0.5, sign)[inside], turned[inside], atol=2e-3)
    for axis, by in ((0, (0, 40 / 6)), (1, (60 / 6, 0))):
        moved = augmix.shifted(axis)(torch.from_numpy(image)[None, None], torch.tensor([0.5]), torch.tensor([sign]))
        plain = ndimage.shift(image, [-sign * each for each in by], order=1)
        np.testing.assert_allclose(moved[0, 0].numpy()[inside], plain[inside], atol=2e-3)
        sheared = augmix.sheared(axis)(torch.from_numpy(image)[None, None], torch.ones(1), torch.tensor([sign]))
        amount = 0.3 * sign
        matrix = np.array([[1, 0], [amount, 1]]) if axis == 0 else np.array([[1, amount], [0, 1]])
        centre = (np.array(image.shape) - 1) / 2
        plain = ndimage.affine_transform(image, matrix, offset=centre - matrix @ centre, order=1)
        np.testing.assert_allclose(sheared[0, 0].numpy()[inside], plain[inside], atol=2e-3)


def test_a_mixture_stays_within_the_images_range_and_depends_on_the_image_alone() -> None:
    x = torch.from_numpy(np.stack([smooth(2, 24, 20, seed=seed) for seed in range(64)]))
    x = 300 * x - torch.arange(64.0).view(-1, 1, 1, 1)
    mixed = augmix.augmix(x, torch.Generator().manual_seed(0), severity=3, moves=True)
    for one, other in zip(x, mixed, strict=True):
        assert float(one.min()) - 1e-3 <= float(other.min()) and float(other.max()) <= float(one.max()) + 1e-3
    assert sum(torch.allclose(one, other, atol=1) for one, other in zip(x, mixed, strict=True)) < 10
    x[1:] = 0
    alone = augmix.augmix(x, torch.Generator().manual_seed(0), severity=3, moves=True)
    torch.testing.assert_close(alone[0], mixed[0], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 20, 24), (1, 6, 20, 24)])
def test_without_moves_the_mask_still_fits(shape: tuple[int, ...]) -> None:
    """Pixels that were alike are alike: nothing has changed its place."""
    x = torch.randint(0, 5, (32, *shape), generator=torch.Generator().manual_seed(0)).float()
    mixed = augmix.augmix(x, torch.Generator().manual_seed(0), severity=10, moves=False)
    spread = [float(new[old == level].std()) for old, new in zip(x, mixed, strict=True) for level in range(5)]
    assert max(spread) < 1e-4
    moved = augmix.augmix(x, torch.Generator().manual_seed(0), severity=10, moves=True)
    assert float(moved[x == 4].std()) > 0.1


def test_a_stronger_one_is_further_away() -> None:
    x = torch.from_numpy(np.stack([smooth(1, 24, 24, seed=seed) for seed in range(200)]))

    def far(severity: float) -> float:
        rng = torch.Generator().manual_seed(0)
        return float((augmix.augmix(x, rng, severity=severity, moves=True) - x).abs().mean())

    assert far(1) < far(4) < far(10)
