"""How tissue would look with another sequence: random networks, curves and spectra, for rows as in `intensity`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedshift.tasks.augmentation.intensity import EPSILON, column

LAYERS = ((1, 2), (2, 2), (2, 2), (2, 1))
"""Channels that each layer of a random network takes and gives (the paper's four layers)."""
REACH = 2.5
"""A tone curve has its pieces within so many deviations of the mean; beyond, the last ones go on."""
PIECES = 8
LOWEST = 8
"""Frequencies along each axis, from 0, whose amplitudes are changed: whole waves in a patch."""


def kept(rows: Tensor, before: Tensor) -> Tensor:
    """Rows with the mean and the deviation that they had, as a scan that is normalised again."""
    deviation, mean = torch.std_mean(before.flatten(1), 1)
    new_deviation, middle = torch.std_mean(rows.flatten(1), 1)
    factor = deviation / (new_deviation + EPSILON)
    return rows.mul_(column(factor, rows)).add_(column(mean - middle * factor, rows))


def numbers_of_a_network(dims: int, *, flat: bool = False) -> int:
    """How many normal numbers `convolved` needs for a row."""
    return sum((inputs * 3 ** (dims - flat) + 1) * outputs for inputs, outputs in LAYERS)


def convolved(rows: Tensor, normals: Tensor, points: Tensor, mixes: Tensor, *, flat: bool = False) -> Tensor:
    """A random shallow network of each row mixed into it, with the Frobenius norm that the row had.

    Global intensity non-linear augmentation (Ouyang et al., "Causality-inspired single-source domain generalization for
    medical image segmentation", TMI 2023, equation 4): four convolutions with weights and offsets of deviation 1, leaky
    ReLU between them. The channels of a row, neighbouring slices, are convolved alike, each by itself.

    Args:
        rows: (n, c, *spatial).
        normals: (n, `numbers_of_a_network`).
        points: (n, layers) bool: whether a layer's kernel is a single voxel, else 3 along each axis.
        mixes: (n,), the share of the network, from 0 to 1.
        flat: kernels within the slices only.
    """
    number, dims = len(rows), rows.dim() - 2
    sides = [1 if flat and axis == 0 else 3 for axis in range(dims)]
    centre = torch.zeros(sides)
    centre[tuple(side // 2 for side in sides)] = 1
    convolve = functional.conv2d if dims == 2 else functional.conv3d
    features, start = rows.transpose(0, 1), 0
    for layer, (inputs, outputs) in enumerate(LAYERS):
        size = inputs * outputs * centre.numel()
        weights = normals[:, start : start + size].reshape(number, -1, *sides)
        weights = torch.where(column(points[:, layer], weights) > 0, weights * centre, weights)
        offsets = normals[:, start + size : start + size + outputs]
        start += size + outputs
        if layer:
            features = functional.leaky_relu_(features)
        weights = weights.reshape(number * outputs, inputs, *sides).to(rows)
        padding = tuple(side // 2 for side in sides)
        features = convolve(features, weights, offsets.reshape(-1).to(rows), padding=padding, groups=number)
    mixed = rows.lerp(features.transpose(0, 1), column(mixes, rows))
    norm, new_norm = (torch.linalg.vector_norm(each.flatten(1), dim=1) for each in (rows, mixed))
    return mixed.mul_(column(norm / (new_norm + EPSILON), rows))


def toned(rows: Tensor, slopes: Tensor) -> Tensor:
    """A rising curve of straight pieces with the logarithms of their slopes (n, `PIECES`); mean and deviation stay."""
    deviation, mean = torch.std_mean(rows.flatten(1), 1)
    piece = 2 * REACH / PIECES
    place = (rows - column(mean, rows)).div_(column(deviation * piece + EPSILON, rows)).add_(PIECES / 2)
    number = place.floor().clamp_(0, PIECES - 1)
    steep = slopes.to(rows).exp()
    start = steep.cumsum(1) - steep
    index = number.long().flatten(1)
    curve = start.gather(1, index) + steep.gather(1, index) * (place - number).flatten(1)
    return kept(curve.view_as(rows), rows)


def negative(rows: Tensor) -> Tensor:
    """Bright where it was dark, around the mean."""
    return 2 * column(rows.flatten(1).mean(1), rows) - rows


def recoloured(rows: Tensor, normals: Tensor, deviations: Tensor, *, flat: bool = False) -> Tensor:
    """Other amplitudes of low frequencies, with their phases; mean and deviation stay.

    Amplitudes carry the style, as in Fourier-based augmentation (Xu et al., CVPR 2021) and FedDG (Liu et al., CVPR
    2021), which mix in those of other images; here each is multiplied by a random factor that fades out towards
    `LOWEST`.

    Args:
        rows: (n, c, *spatial).
        normals: (n, `LOWEST` ** axes), the factors' logarithms before their deviation.
        deviations: (n,).
        flat: within the slices only.
    """
    axes = tuple(range(3 if flat else 2, rows.dim()))
    fading = 1 - torch.arange(LOWEST) / LOWEST
    table = normals.reshape(-1, *[LOWEST] * len(axes)) * column(deviations, normals.reshape(-1, *[1] * len(axes)))
    for axis in range(len(axes)):
        table = table * fading.reshape(-1, *[1] * (len(axes) - 1 - axis))
    table = functional.pad(table, (0, 1) * len(axes))
    table.flatten(1)[:, 0] = 0  # of the mean
    places = [frequencies(rows.shape[axis], half=axis == axes[-1]).abs().clamp_(max=LOWEST).long() for axis in axes]
    everywhere: tuple[slice | Tensor, ...] = (slice(None), *torch.meshgrid(*places, indexing="ij"))
    factors = table[everywhere].exp()
    return kept(in_frequencies(rows, factors, axes), rows)


def frequencies(side: int, *, half: bool) -> Tensor:
    """Waves along an axis, in the order of the discrete Fourier transform; ``half``: of a real one, from 0 on."""
    waves: Tensor = torch.fft.rfftfreq(side) if half else torch.fft.fftfreq(side)
    return waves.mul_(side).round_()


def in_frequencies(rows: Tensor, factors: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Rows whose Fourier transform along the axes is multiplied by factors (n, *frequencies)."""
    spectrum = torch.fft.rfftn(rows, dim=axes)
    spectrum *= factors.reshape(len(factors), *[1] * (axes[0] - 1), *factors.shape[1:]).to(rows)
    back: Tensor = torch.fft.irfftn(spectrum, s=[rows.shape[axis] for axis in axes], dim=axes)
    return back
