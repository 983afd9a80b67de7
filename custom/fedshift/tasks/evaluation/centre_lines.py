"""Centre-line Dice of thin structures, such as vessels (clDice: Shit et al., CVPR 2021).

With V a mask and S its centre line, of prediction P and reference L::

    precision = |S_P ∩ V_L| / |S_P|
    sensitivity = |S_L ∩ V_P| / |S_L|
    clDice = 2 precision sensitivity / (precision + sensitivity)

Dice counts pixels, of which wide vessels have most; clDice counts lengths, and falls where a thin one is torn. Centre
lines are those of scikit-image, as in the authors' code: by Zhang and Suen in a picture, by Lee, Kashyap and Chu in a
volume. Other algorithms differ by several points: MONAI's soft one, made for losses, by up to nine on fundus vessels.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import cast

import numpy as np

from fedshift.schema.errors import ConfigError
from fedshift.tasks.evaluation.overlap import box_of


def check_installed() -> None:
    """Refuse a machine without scikit-image (`ConfigError`)."""
    if find_spec("skimage") is None:
        raise ConfigError(
            "not-installed",
            "evaluation.cldice needs scikit-image, which is not installed: pip install 'fedshift[centre-lines]' at "
            "every site, or leave evaluation.cldice out",
        )


def centre_line_dice(predicted: np.ndarray, reference: np.ndarray) -> float:
    """The clDice of two masks (z, y, x) bool; 0 if their lines have nothing in common, or one mask is empty."""
    inside = box_of(predicted | reference)
    masks = predicted[inside], reference[inside]
    if not all(mask.any() for mask in masks):
        return 0.0
    lines = [centre_line(mask) for mask in masks]
    precision, sensitivity = (
        float(np.count_nonzero(line & other) / np.count_nonzero(line))
        for line, other in zip(lines, reversed(masks), strict=True)
    )
    total = precision + sensitivity
    return 2 * precision * sensitivity / total if total else 0.0


def centre_line(mask: np.ndarray) -> np.ndarray:
    """The centre line of a mask (z, y, x) bool that is not empty; a mask that is thinned to nothing is its own."""
    from skimage.morphology import skeletonize

    flat = mask.shape[0] == 1
    line = cast(np.ndarray, skeletonize(mask[0] if flat else mask)).astype(bool).reshape(mask.shape)
    return line if line.any() else mask
