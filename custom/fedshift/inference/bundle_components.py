"""A bundle's ``KeepLargestConnectedComponentd``, with fedshift's rule for parts that are equally large."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.ndimage import generate_binary_structure

from fedshift.tasks.evaluation.components import largest_parts

NAME = "KeepLargestConnectedComponentd"


class LargestComponents:
    """In place of MONAI's transform after ``AsDiscreted``: classes (1, *spatial).

    MONAI decides between parts of one size by the order of voxels, and needs scikit-image.
    """

    def __init__(self, step: Any, key: str) -> None:
        """Take the options of MONAI's transform."""
        self._key, options = key, step.converter
        self._labels: tuple[int, ...] | None = options.applied_labels
        self._apart: bool = options.independent
        self._connectivity: int | None = options.connectivity
        self._count: int = options.num_components

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Leave the largest parts of each class, or, if the bundle says so, of all of them together."""
        classes = data[self._key]
        found = classes.as_tensor()[0].numpy()
        labels = self._labels or tuple(np.unique(found[found != 0]).tolist())
        neighbours = generate_binary_structure(found.ndim, self._connectivity or found.ndim)
        for group in [[label] for label in labels] if self._apart else [labels]:
            mask = np.isin(found, group)
            lost = mask & ~largest_parts(mask, neighbours=neighbours, count=self._count)
            classes[0][torch.from_numpy(lost)] = 0
        return data
