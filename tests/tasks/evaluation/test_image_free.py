"""The image-free guess: where the training masks are, by relative place, whatever the grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from fedshift.tasks.evaluation.image_free import ImageFreeGuess, MaskStack


def stack(labels: np.ndarray, outlined: Sequence[int] = (1,)) -> MaskStack:
    """A whole mask (z, y, x)."""
    depth = len(labels)
    return MaskStack((np.arange(depth) + 0.5) / depth, np.full(depth, 1 / depth), labels, outlined)


def box(shape: tuple[int, int, int], z: tuple[float, float], yx: tuple[float, float], number: int = 1) -> np.ndarray:
    """A box that fills a relative range of the stack, and of each side of its slices."""
    labels = np.zeros(shape, np.int64)
    depth, rows, columns = shape
    y, x = (slice(round(yx[0] * side), round(yx[1] * side)) for side in (rows, columns))
    labels[round(z[0] * depth) : round(z[1] * depth), y, x] = number
    return labels


def learned(*stacks: MaskStack, n_classes: int = 2) -> ImageFreeGuess:
    def give() -> Iterator[MaskStack]:
        return iter(stacks)

    again: Callable[[], Iterator[MaskStack]] = give
    return ImageFreeGuess(again, n_classes=n_classes)


def heights(depth: int) -> np.ndarray:
    return np.asarray((np.arange(depth) + 0.5) / depth)


def dice(a: np.ndarray, b: np.ndarray) -> float:
    return float(2 * (a & b).sum() / (a.sum() + b.sum()))


@pytest.mark.parametrize("shape", [(16, 64, 64), (32, 128, 96), (8, 40, 80)])
def test_masks_that_agree_are_guessed_on_any_grid(shape: tuple[int, int, int]) -> None:
    """Training masks are of two other grids."""
    guess = learned(
        stack(box((16, 64, 64), (0.25, 0.75), (0.25, 0.5))), stack(box((32, 32, 96), (0.25, 0.75), (0.25, 0.5)))
    )
    found = guess.classes(heights(shape[0]), shape[1:])
    assert dice(found == 1, box(shape, (0.25, 0.75), (0.25, 0.5)) == 1) > 0.9


def test_the_threshold_is_the_best_on_the_training_masks() -> None:
    """Nine masks at one place and one at another: the place of the nine, and not both."""
    common, rare = box((16, 64, 64), (0.25, 0.75), (0.0, 0.5)), box((16, 64, 64), (0.25, 0.75), (0.5, 1.0))
    predicted = learned(*[stack(common)] * 9, stack(rare)).classes(heights(16), (64, 64))
    assert dice(predicted == 1, common == 1) > 0.95 and not (predicted[:, 40:, 40:] == 1).any()


def test_classes_have_thresholds_of_their_own() -> None:
    labels = box((16, 64, 64), (0.0, 1.0), (0.0, 0.25)) + box((16, 64, 64), (0.25, 0.5), (0.5, 1.0), number=2)
    predicted = learned(stack(labels, (1, 2)), n_classes=3).classes(heights(16), (64, 64))
    assert dice(predicted == 1, labels == 1) > 0.95 and dice(predicted == 2, labels == 2) > 0.85


def test_a_mask_that_does_not_outline_a_class_says_nothing_of_it() -> None:
    both = box((16, 64, 64), (0.0, 1.0), (0.0, 0.25)) + box((16, 64, 64), (0.25, 0.5), (0.5, 1.0), number=2)
    one = np.where(both == 2, 0, both)
    predicted = learned(stack(both, (1, 2)), *[stack(one, (1,))] * 5, n_classes=3).classes(heights(16), (64, 64))
    assert dice(predicted == 2, both == 2) > 0.85
    assert not (learned(stack(one, (1,)), n_classes=3).classes(heights(16), (64, 64)) == 2).any()


def test_masks_without_the_structure_lower_the_guess_and_break_nothing() -> None:
    empty = np.zeros((16, 64, 64), np.int64)
    assert not learned(stack(empty)).classes(heights(4), (8, 8)).any()
    common = box((16, 64, 64), (0.25, 0.75), (0.25, 0.75))
    assert learned(stack(common), stack(empty)).classes(heights(16), (64, 64)).any()


def test_a_stack_of_which_some_slices_are_known_is_placed_by_its_heights() -> None:
    """As with slices that were dealt out: the others may be test slices."""
    labels = box((16, 64, 64), (0.25, 0.75), (0.25, 0.5))
    whole = stack(labels)
    some = np.arange(0, 16, 3)
    part = MaskStack(whole.heights[some], whole.thickness[some], labels[some], (1,))
    assert dice(learned(part).classes(heights(16), (64, 64)) == 1, labels == 1) > 0.75
