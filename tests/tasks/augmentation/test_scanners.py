"""The presets for other scanners: masks stay, seeds decide, and what each change promises of mean, norm and order."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from errors import raises
from torch import Tensor

from fedshift.tasks.augmentation import acquisition, geometry, make_augmentation, tissue
from fedshift.tasks.augmentation.presets import ALL, SCANNERS, Moves, ScannerPreset, parts, selected
from fedshift.tasks.augmentation.scanners import ScannerBatches

SPATIAL = (*Moves.PARTS, "deform")
INTENSITY = tuple(part for part in ScannerPreset.PARTS if part not in SPATIAL)
OFF: dict[str, Any] = dict.fromkeys(ScannerPreset.PARTS, 0.0)
NOTHING = replace(SCANNERS["scanner"], **OFF)
PATCHES = [(24, 32), (12, 16, 16), (4, 16, 20)]
"""In a plane, of a volume, and of a volume with few slices."""


def only(patch: tuple[int, ...], *, sequences: int = 1, **change: Any) -> ScannerBatches:
    axes = tuple(range(len(patch)))
    return ScannerBatches(replace(NOTHING, **change), patch=patch, sequences=sequences, mirror=axes, nonzero=False)


def smooth(count: int, size: tuple[int, ...], *, channels: int = 1) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    coarse = torch.randn(count, channels, *[max(side // 4, 2) for side in size], generator=rng)
    return torch.nn.functional.interpolate(coarse, size, mode="bilinear" if len(size) == 2 else "trilinear")


def seeds(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.int64) * 7919


def normals(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def moments(rows: Tensor) -> Tensor:
    return torch.stack(torch.std_mean(rows.flatten(1), 1))


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("part", INTENSITY)
def test_a_change_leaves_the_mask_and_neighbouring_slices_change_alike(part: str, patch: tuple[int, ...]) -> None:
    images = smooth(6, patch).repeat(1, 3, *[1] * len(patch))
    labels = (images[:, 0] > 0).long()
    change: dict[str, Any] = {part: 1.0}
    changed, same = only(patch, **change)(images, labels, seeds=seeds(6))
    assert torch.equal(same, labels) and torch.isfinite(changed).all()
    assert ((changed - images).flatten(1).abs().amax(1) > 1e-3).float().mean() > 0.8, "a zoom may be nearly 1"
    if part != "noise":
        torch.testing.assert_close(changed[:, 0], changed[:, 2])


@pytest.mark.parametrize("part", INTENSITY)
def test_sequences_change_each_by_itself(part: str) -> None:
    images = smooth(16, (16, 16)).repeat(1, 2, 1, 1)
    change: dict[str, Any] = {part: 1.0}
    x, _ = only((16, 16), sequences=2, **change)(images, images[:, 0].long(), seeds=seeds(16))
    assert part == "negative" or not torch.allclose(x[:, 0], x[:, 1], atol=1e-3)


def test_chances_are_the_presets() -> None:
    """Each chance belongs to its own change, in the order of the parts."""
    count = 1500
    images = smooth(1, (8, 8)).expand(count, 1, 8, 8).contiguous()
    labels = torch.zeros(count, 8, 8, dtype=torch.uint8)
    for part in INTENSITY:
        change: dict[str, Any] = {part: 0.3}
        x, _ = only((8, 8), **change)(images, labels, seeds=seeds(count))
        assert float((x != images).flatten(1).any(1).float().mean()) == pytest.approx(0.3, abs=0.05), part
    assert len(INTENSITY) == ScannerBatches.CHANGES


def test_every_part_is_a_chance_of_its_preset() -> None:
    for name, preset in ALL.items():
        chances = {field.name for field in fields(preset)}
        assert set(preset.PARTS) <= chances and parts(preset), name
        assert all(0 <= getattr(preset, part) <= 1 for part in preset.PARTS), name


# --- tissue ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("patch", [(16, 20), (6, 16, 16)])
def test_random_networks_keep_the_norm_and_a_share_of_0_is_the_image(patch: tuple[int, ...], flat: bool) -> None:
    flat = flat and len(patch) == 3
    rows, points = smooth(4, patch, channels=2) + 1, torch.tensor([[True, False, True, False]]).repeat(4, 1)
    numbers = normals(4, tissue.numbers_of_a_network(len(patch), flat=flat))
    convolved = tissue.convolved(rows, numbers, points, torch.tensor([0.0, 0.3, 0.7, 1.0]), flat=flat)
    norms = [torch.linalg.vector_norm(each.flatten(1), dim=1) for each in (rows, convolved)]
    torch.testing.assert_close(norms[1], norms[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(convolved[0], rows[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(convolved[1:], rows[1:], atol=1e-2)


def test_a_network_of_points_maps_equal_intensities_to_equal_ones() -> None:
    """And one of flat kernels does not look at other slices."""
    rows = torch.randint(3, (2, 1, 8, 8), generator=torch.Generator().manual_seed(0)).float()
    numbers = normals(2, tissue.numbers_of_a_network(2))
    convolved = tissue.convolved(rows, numbers, torch.ones(2, 4, dtype=torch.bool), torch.ones(2))
    for row, image in zip(convolved, rows, strict=True):
        assert all(torch.unique(row[image == value].round(decimals=4)).numel() == 1 for value in range(3))
    rows = torch.arange(4.0)[:, None, None].expand(1, 1, 4, 8, 8).contiguous()
    changed = rows.clone()
    changed[:, :, 3] = 7
    numbers = normals(1, tissue.numbers_of_a_network(3, flat=True))
    both = [
        tissue.convolved(each, numbers, torch.zeros(1, 4, dtype=torch.bool), torch.ones(1), flat=True)[0, 0, 0]
        for each in (rows, changed)
    ]
    torch.testing.assert_close(both[0] / both[0].norm(), both[1] / both[1].norm())


def test_tone_curves_keep_the_order_and_negatives_turn_it() -> None:
    rows = torch.linspace(-4, 6, 400).reshape(1, 1, 20, 20).repeat(5, 1, 1, 1) * 3
    curved = tissue.toned(rows, normals(5, tissue.PIECES))
    assert (curved.flatten(1).diff(dim=1) > 0).all() and not torch.allclose(curved, rows, atol=0.1)
    torch.testing.assert_close(moments(curved), moments(rows), rtol=1e-4, atol=1e-4)
    straight = tissue.toned(rows, torch.full((5, tissue.PIECES), 0.7))
    torch.testing.assert_close(straight, rows, rtol=1e-4, atol=1e-3)
    turned = tissue.negative(rows)
    assert (turned.flatten(1).diff(dim=1) < 0).all()
    torch.testing.assert_close(moments(turned), moments(rows), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("patch", "flat"), [((16, 18), False), ((12, 16, 10), False), ((4, 16, 16), True)])
def test_spectra_change_in_amplitude_and_not_in_phase(patch: tuple[int, ...], flat: bool) -> None:
    rows, axes = smooth(3, patch, channels=2), len(patch) - flat
    recoloured = tissue.recoloured(rows, normals(3, tissue.LOWEST**axes), torch.tensor([0.0, 0.4, 0.4]), flat=flat)
    torch.testing.assert_close(recoloured[0], rows[0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(recoloured[1], rows[1], atol=1e-2)
    torch.testing.assert_close(moments(recoloured), moments(rows), rtol=1e-4, atol=1e-4)
    before, after = (torch.fft.fftn(each, dim=tuple(range(-axes, 0))) for each in (rows, recoloured))
    before.flatten(-axes)[..., 0] = 0  # a slice's mean is a number that is added
    turned = (after * before.conj())[before.abs() > 1]
    assert turned.angle().abs().max() < 1e-2


# --- acquisition ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("patch", PATCHES)
def test_a_field_is_smooth_and_one_of_degree_0_changes_nothing(patch: tuple[int, ...]) -> None:
    """As the mean and deviation stay, a factor for the whole image is no change."""
    rows = smooth(3, patch, channels=2)
    numbers = normals(3, (acquisition.DEGREE + 1) ** len(patch))
    biased = acquisition.biased(rows, numbers, torch.tensor([0.0, 0.3, 0.3]))
    torch.testing.assert_close(biased[0], rows[0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(biased[1], rows[1], atol=1e-2)
    torch.testing.assert_close(moments(biased), moments(rows), rtol=1e-4, atol=1e-4)
    numbers[:, 1:] = 0
    torch.testing.assert_close(acquisition.biased(rows, numbers, torch.full((3,), 0.3)), rows, rtol=1e-4, atol=1e-4)


def test_a_field_of_a_known_polynomial() -> None:
    """exp(c y x) over what is above the lowest, before mean and deviation are as they were."""
    rows = torch.rand(1, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    numbers = torch.zeros(1, 4, 4)
    numbers[0, 1, 1] = 2
    y, x = torch.meshgrid(torch.linspace(-1, 1, 9), torch.linspace(-1, 1, 9), indexing="ij")
    expected = tissue.kept((rows - rows.min()) * torch.exp(0.5 * 2 * y * x), rows)
    biased = acquisition.biased(rows, numbers.flatten(1), torch.tensor([0.5]))
    torch.testing.assert_close(biased, expected, rtol=1e-4, atol=1e-4)


def test_it_is_brightest_at_the_coil() -> None:
    rows = torch.ones(1, 1, 11, 11)
    rows[0, 0, 0, 0] = 0
    shaded = acquisition.near_a_coil(rows, torch.tensor([4.0]), torch.tensor([[0.3, 0.8]]), torch.tensor([0.2]))
    assert divmod(int(shaded.argmax()), 11) == (3, 8)
    shaded = acquisition.near_a_coil(rows, torch.zeros(1), torch.tensor([[0.3, 0.8]]), torch.tensor([0.2]))
    torch.testing.assert_close(shaded, rows, rtol=1e-4, atol=1e-4)


def test_a_ghost_is_a_copy_half_the_field_away() -> None:
    """With every second line damped by a half, a quarter of the image moves by half the axis; the mean stays."""
    rows = torch.zeros(1, 1, 16, 16)
    rows[0, 0, 3, 5] = 1
    ghosted = acquisition.ghosted(rows, torch.tensor([0.5]), torch.tensor([0.0]), torch.tensor([0.9]))
    expected = rows - 0.25 * (rows + rows.roll(8, 3))
    expected[0, 0, 3] += 0.5 / 16  # the line in the middle is not damped
    torch.testing.assert_close(ghosted, expected, rtol=1e-4, atol=1e-5)
    along_rows = acquisition.ghosted(rows, torch.tensor([0.5]), torch.tensor([0.0]), torch.tensor([0.1]))
    torch.testing.assert_close(along_rows.mT[0, 0, 5], ghosted[0, 0, 3].roll(-2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("patch", "flat"), [((16, 18), False), ((12, 16, 10), False), ((4, 16, 16), True)])
def test_ringing_leaves_out_high_frequencies_alone(patch: tuple[int, ...], flat: bool) -> None:
    rows = normals(2, 1, *patch)
    rung = acquisition.ringing(rows, torch.tensor([1.0, 0.5]), flat=flat)
    torch.testing.assert_close(rung[0], rows[0], rtol=1e-4, atol=1e-5)
    axes = len(patch) - flat
    spectrum = torch.fft.fftn(rung[1], dim=tuple(range(-axes, 0))).abs()
    waves = torch.fft.fftfreq(patch[-1]).abs()
    assert spectrum[..., waves > 0.26].max() < 1e-3 < spectrum[..., waves < 0.24].mean()


def test_rician_noise_is_that_of_a_magnitude() -> None:
    """Where there is no signal it has Rayleigh's mean, and where there is much it is Gaussian."""
    rows = torch.zeros(1, 1, 200, 200)
    rows[..., 100:, :] = 50
    noisy = acquisition.noisy(rows, normals(1, 2 * 40000), torch.tensor([1.0]), rician=True)
    assert noisy.min() >= 0
    assert float(noisy[..., :100, :].mean()) == pytest.approx((torch.pi / 2) ** 0.5, abs=0.02)
    assert float(noisy[..., 100:, :].std()) == pytest.approx(1, abs=0.02)
    plain = acquisition.noisy(rows, normals(1, 40000), torch.tensor([0.5]), rician=False)
    assert float((plain - rows).std()) == pytest.approx(0.5, abs=0.01)


# --- shape ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patch", [(48, 48), (24, 28, 28), (4, 32, 32)])
def test_labels_bend_with_images(patch: tuple[int, ...]) -> None:
    images = smooth(6, patch)
    x, y = only(patch, deform=1.0, bends=(3.0, 3.0))(images, (images[:, 0] > 0).long(), seeds=seeds(6))
    clear = x[:, 0].abs() > 0.25
    assert ((x[:, 0] > 0) == y.bool())[clear].float().mean() > 0.97 and not torch.allclose(x, images, atol=0.1)


def test_shifts_have_the_deviation_that_was_asked_for() -> None:
    place = torch.arange(64.0).expand(64, 1, 64, 64).contiguous()
    count = geometry.numbers_of_a_bend((64, 64))
    bent, _ = geometry.bend(place, place[:, 0].long(), normals(64, count), torch.full((64,), 2.0))
    assert float((bent - place)[..., 16:-16, 16:-16].std()) == pytest.approx(2, abs=0.3)


def test_a_flat_volume_bends_in_its_planes_only() -> None:
    images = torch.arange(4.0)[:, None, None].expand(3, 1, 4, 16, 16).contiguous()
    x, _ = only((4, 16, 16), deform=1.0)(images, images[:, 0].long(), seeds=seeds(3))
    torch.testing.assert_close(x, images, rtol=0, atol=1e-4)


# --- learning -------------------------------------------------------------------------------------------


def discs(count: int, seed: int, side: int) -> tuple[Tensor, Tensor]:
    """Bright discs in noise, normalised, and their masks."""
    rng = torch.Generator().manual_seed(seed)
    y, x = torch.rand(2, count, 1, 1, generator=rng) * (side - 16) + 8
    along = torch.arange(side).float()
    labels = (
        torch.hypot(along[None, :, None] - y, along[None, None] - x) < torch.rand(count, 1, 1, generator=rng) * 3 + 4
    )
    images = labels[:, None].float() + 0.3 * torch.randn(count, 1, side, side, generator=rng)
    std, mean = torch.std_mean(images, (1, 2, 3), keepdim=True)
    return (images - mean) / std, labels.long()


@pytest.mark.slow
def test_what_is_learned_holds_better_under_a_coil_that_was_not_seen() -> None:
    """A small network segments discs; the same scans as with a surface coil are another scanner's."""
    images, labels = discs(64, 99, 32)
    rng = torch.Generator().manual_seed(100)
    places = torch.rand(64, 2, generator=rng)
    elsewhere = acquisition.near_a_coil(images, torch.full((64,), 6.0), places, torch.full((64,), 0.25))
    scores = {}
    for name in ("strong", "scanner"):
        augment = make_augmentation(name, dims=2, patch=(32, 32))
        assert augment is not None
        torch.manual_seed(0)
        layers = [
            torch.nn.Conv2d(8 if layer else 1, 8, 5, padding="same", dilation=1 + (layer > 0)) for layer in range(3)
        ]
        net = torch.nn.Sequential(
            *(each for layer in layers for each in (layer, torch.nn.ReLU())), torch.nn.Conv2d(8, 2, 1)
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
        shown, masks = discs(64, 0, 32 + augment.margin[0])
        for step in range(200):
            part = slice(16 * (step % 4), 16 * (step % 4) + 16)
            x, y = augment(shown[part], masks[part], seeds=torch.arange(16) + 100 * step)
            torch.nn.functional.cross_entropy(net(x), y, weight=torch.tensor([1.0, 4.0])).backward()
            optimizer.step()
            optimizer.zero_grad()
        found = net(elsewhere).argmax(1)
        scores[name] = float(2 * (found * labels).sum() / (found.sum() + labels.sum()))
    assert scores["scanner"] > scores["strong"] + 0.08


# --- parts ----------------------------------------------------------------------------------------------


def test_parts_are_taken_alone_or_left_out() -> None:
    images = smooth(32, (16, 16))
    mask = (images[:, 0] > 0).long()
    every = parts(SCANNERS["scanner"])
    none = make_augmentation("scanner", dims=2, patch=(16, 16), without=every)
    assert none is not None and torch.equal(none(images, mask, seeds=seeds(32))[0], images)
    alone = make_augmentation("scanner", dims=2, patch=(16, 16), only=["tone"])
    left = make_augmentation("scanner", dims=2, patch=(16, 16), without=[part for part in every if part != "tone"])
    assert alone is not None and left is not None
    x, y = (each(images, mask, seeds=seeds(32))[0] for each in (alone, left))
    assert torch.equal(x, y) and not torch.equal(x, images)


def test_moves_are_those_of_the_preset_scanner_and_change_no_intensity() -> None:
    moves = parts(SCANNERS["moves"])
    assert set(moves) == {"rotate", "scale", "shift", "mirror"}
    assert selected(SCANNERS["scanner"], "scanner", only=moves, without=()) == SCANNERS["moves"]
    images = smooth(32, (16, 16))
    mask = (images[:, 0] > 0).long()
    preset = make_augmentation("moves", dims=2, patch=(16, 16), mirror=[1])
    alone = make_augmentation("scanner", dims=2, patch=(16, 16), mirror=[1], only=moves)
    assert preset is not None and alone is not None
    x, y = (each(images, mask, seeds=seeds(32)) for each in (preset, alone))
    assert torch.equal(x[0], y[0]) and torch.equal(x[1], y[1]) and not torch.equal(x[1], mask)
    assert x[0].min() >= images.min() and x[0].max() <= images.max()


@pytest.mark.parametrize(
    ("spec", "given", "code", "naming"),
    [
        ("scanner", {"without": ["bais"]}, "unknown-option", ("data.augmentation_without", "'bais'", "'bias'")),
        ("strong", {"only": ["gama"]}, "unknown-option", ("data.augmentation_only", "'gamma'")),
        ("bigaug", {"only": ["bias"]}, "unknown-option", "'bias'"),
        ("none", {"only": ["gamma"]}, "options-clash", "data.augmentation_only"),
        ([{"name": "monai.RandFlip"}], {"without": ["bias"]}, "options-clash", "data.augmentation_without"),
        ("strong", {"only": ["gamma"], "without": ["blur"]}, "options-clash", "data.augmentation_only"),
        ("scaner", {}, "unknown-transform", "'scanner'"),
    ],
)
def test_a_wrong_part_is_refused(spec: Any, given: dict[str, Any], code: str, naming: Any) -> None:
    with raises(code, naming=naming):
        make_augmentation(spec, dims=2, patch=(16, 16), **given)
