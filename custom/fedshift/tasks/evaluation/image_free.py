"""The image-free guess: where a structure usually is, said of a scan that nobody has looked at.

What a method adds to a network can only be seen in scores above it. For each class, of the training masks alone::

    plane(y, x)    mean over masks of the mean over the slices with the structure
    profile(z)     mean over masks of a slice's area, as a part of the mask's largest
    guess          where profile(z) * plane(y, x) is at least t

Places are relative: z is the height in the stack, y and x are parts of a slice's sides. Of `LEVELS` thresholds t is the
one with the highest mean Dice over the same training masks. Where classes overlap, the one furthest above its own
threshold is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedshift.runtime.grids import resize_axis

HEIGHTS, SIDE = 32, 64
"""The grid on which training masks are averaged: heights in the stack, and pixels along each side of a slice."""
LEVELS = 50
"""Equal steps of the threshold, up to the largest value of profile times plane."""


@dataclass(frozen=True)
class MaskStack:
    """A training mask, or those of its slices that are trained on.

    ``heights`` (n,) are the slices' places in the scan's stack, from 0 to 1, ``thickness`` (n,) their parts of the
    stack, and ``labels`` (n, y, x) their classes; ``outlined`` are the numbers of the classes that the mask outlines.
    """

    heights: np.ndarray
    thickness: np.ndarray
    labels: np.ndarray
    outlined: Sequence[int]


class ImageFreeGuess:
    """Learned from training masks, and from nothing else."""

    def __init__(self, stacks: Callable[[], Iterator[MaskStack]], *, n_classes: int) -> None:
        """Learn.

        Args:
            stacks: gives the training masks, anew with each of two calls, so that only one is in memory.
            n_classes: with the background.
        """
        self._classes = range(1, n_classes)
        self._profile = np.zeros((n_classes, HEIGHTS))
        self._plane = np.zeros((n_classes, SIDE, SIDE), np.float32)
        self._threshold = np.full(n_classes, np.inf)
        self._average(stacks())
        self._choose(stacks())

    def classes(self, heights: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """The guessed classes (n, y, x) int64 of slices at these heights, each of ``shape`` (y, x)."""
        result = np.zeros((len(heights), *shape), np.int64)
        most = np.ones(result.shape, np.float32)
        for number in self._classes:
            if not np.isfinite(self._threshold[number]):
                continue
            plane = _in_plane(self._plane[number][None], shape)[0]
            above = self._along(number, heights)[:, None, None] * (plane / self._threshold[number])
            higher = above >= most
            result[higher], most[higher] = number, above[higher]
        return result

    def _along(self, number: int, heights: np.ndarray) -> np.ndarray:
        """The profile of a class at some heights, (n,) float32."""
        centres = (np.arange(HEIGHTS) + 0.5) / HEIGHTS
        along: np.ndarray = np.interp(heights, centres, self._profile[number]).astype(np.float32)
        return along

    def _average(self, stacks: Iterator[MaskStack]) -> None:
        covered = np.zeros_like(self._profile)
        with_structure = np.zeros(len(self._profile))
        for stack in stacks:
            cover = _cover(stack)
            for number in stack.outlined:
                covered[number] += cover.sum(axis=1)
                planes = _in_plane((stack.labels == number).astype(np.float32), (SIDE, SIDE))
                area = planes.sum(axis=(1, 2))
                if not area.any():
                    continue
                self._profile[number] += cover @ (area / area.max())
                self._plane[number] += planes[area > 0].mean(axis=0)
                with_structure[number] += 1
        for number in self._classes:
            heights = np.flatnonzero(covered[number])
            if with_structure[number]:
                self._plane[number] /= with_structure[number]
                means = self._profile[number, heights] / covered[number, heights]
                self._profile[number] = np.interp(np.arange(HEIGHTS), heights, means)

    def _choose(self, stacks: Iterator[MaskStack]) -> None:
        """Choose each class's threshold, by the mean Dice over masks at every level."""
        top = self._profile.max(axis=1) * self._plane.max(axis=(1, 2))
        scores = np.zeros((len(top), LEVELS))
        for stack in stacks:
            for number in stack.outlined:
                if not top[number]:
                    continue
                mask = _in_plane((stack.labels == number).astype(np.float32), (SIDE, SIDE)) >= 0.5
                values = self._along(number, stack.heights)[:, None, None] * self._plane[number]
                level = np.minimum((values * (LEVELS / top[number])).astype(np.int64), LEVELS - 1)
                guessed, overlap = (
                    np.bincount(which.ravel(), minlength=LEVELS)[::-1].cumsum()[::-1] for which in (level, level[mask])
                )
                scores[number] += 2 * overlap / (guessed + np.count_nonzero(mask))
        for number in np.flatnonzero(top).tolist():
            best = 1 + int(scores[number, 1:].argmax())  # level 0 would take every voxel
            self._threshold[number] = best * top[number] / LEVELS


def _cover(stack: MaskStack) -> np.ndarray:
    """Which part of each of the `HEIGHTS` a slice covers, (HEIGHTS, n)."""
    low, high = (stack.heights + side * stack.thickness / 2 for side in (-1, 1))
    start = np.arange(HEIGHTS)[:, None]
    covered: np.ndarray = np.clip(np.minimum(start + 1, HEIGHTS * high) - np.maximum(start, HEIGHTS * low), 0, 1)
    return covered


def _in_plane(planes: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Slices (n, y, x) float32 with another number of pixels along their sides."""
    for axis, after in enumerate(shape, start=1):
        if planes.shape[axis] != after:
            planes = resize_axis(planes, axis, after)
    return planes
