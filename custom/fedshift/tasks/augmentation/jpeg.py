"""What JPEG at a quality leaves of a batch of pictures, without writing a file.

The transform, the colours and the tables are those of ITU-T T.81 (annexes A and K) and of JFIF; a quality from 1 to 100
scales the tables as the Independent JPEG Group's library does. Colours have a quarter of the pixels (4:2:0), which grow
again linearly, as there. Entropy coding loses nothing and is left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 8
LUMA = (0.299, 0.587, 0.114)
"""Parts of red, green and blue in grey (ITU-R BT.601)."""
TO_YCC = (LUMA, (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
TO_RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136, -0.714136), (1.0, 1.772, 0.0))
OF_LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
"""Table K.1."""
OF_CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
"""Table K.2."""


def jpeg(pictures: Tensor, qualities: Tensor, *, coloured: bool) -> Tensor:
    """Pictures (n, C, rows, columns) from 0 to 1, each at its quality (n,), from 1 to 100.

    ``coloured``: the channels are red, green and blue; otherwise each is a grey picture.
    """
    levels = pictures * 255
    if not coloured:
        return (_planes(levels - 128, _tables(OF_LUMA, qualities)) + 128).div_(255).clamp_(0, 1)
    planes = _mixed(levels, TO_YCC)
    grey, chroma = planes[:, :1], planes[:, 1:]
    rows, columns = pictures.shape[2:]
    colours = functional.avg_pool2d(_padded(chroma, 2), 2)
    colours = _planes(colours, _tables(OF_CHROMA, qualities))
    colours = functional.interpolate(colours, scale_factor=2, mode="bilinear", align_corners=False)
    grey = _planes(grey - 128, _tables(OF_LUMA, qualities)) + 128
    return _mixed(torch.cat([grey, colours[..., :rows, :columns]], 1), TO_RGB).div_(255).clamp_(0, 1)


def _planes(planes: Tensor, tables: Tensor) -> Tensor:
    """Planes (n, C, rows, columns) whose frequencies are rounded to multiples of a table (n, 8, 8)."""
    rows, columns = planes.shape[2:]
    wave = _waves().to(planes)
    padded = _padded(planes, BLOCK)
    count, channels, down, along = padded.shape
    split = (count, channels, down // BLOCK, BLOCK, along // BLOCK, BLOCK)
    blocks = padded.reshape(split).transpose(3, 4)
    step = tables.to(planes)[:, None, None, None]
    kept = (wave @ blocks @ wave.T).div_(step).round_().mul_(step)
    back: Tensor = wave.T @ kept @ wave
    return back.transpose(3, 4).reshape(padded.shape)[..., :rows, :columns]


def _waves() -> Tensor:
    """The cosine transform of eight values, (8, 8), orthonormal."""
    order, place = torch.arange(BLOCK)[:, None], torch.arange(BLOCK)
    waves = (math.pi * (2 * place + 1) * order / (2 * BLOCK)).cos() / 2
    waves[0] /= math.sqrt(2)
    return waves


def _tables(table: tuple[tuple[int, ...], ...], qualities: Tensor) -> Tensor:
    """A table at each quality, (n, 8, 8), of whole numbers from 1 to 255."""
    quality = qualities.round().clamp(1, 100)
    percent = torch.where(quality < 50, (5000 / quality).floor(), 200 - 2 * quality)
    return ((torch.tensor(table) * percent[:, None, None] + 50) / 100).floor().clamp(1, 255)


def _padded(planes: Tensor, unit: int) -> Tensor:
    """Planes whose sides are multiples of a unit, the last row and column repeated."""
    down, along = (-side % unit for side in planes.shape[2:])
    return functional.pad(planes, (0, along, 0, down), mode="replicate") if down or along else planes


def _mixed(colours: Tensor, weights: tuple[tuple[float, ...], ...]) -> Tensor:
    return torch.einsum("ij,njyx->niyx", colours.new_tensor(weights), colours)
