"""Which frames are one volume, and whether they lie in a box with right angles and even distances.

A series may hold several volumes at the same places: time points, echoes, b-values. And a scanner may tilt its gantry,
or leave uneven distances: what counts is how far a voxel lies from where the box has it, over the whole stack.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.data.dicom import LARGEST, SMALLEST, DicomFault
from fedshift.data.dicom_frames import MARKS, NO_MARK, UNMIXED, Frame, Mark, digest_of_pixels

OFF = 0.1  # of a voxel: how far one may lie from where the box has it
ONE_PLACE = 0.01  # of a pixel's size: within that, slices are at one place
MISSING = 1.5  # times the usual distance: where two slices are farther apart, one is missing between them
TOLERANCE = 1e-3  # of a direction cosine between slices of one volume, and relative of a pixel spacing
MOST_SHOWN = 12  # volumes of a series that a message tells of


@dataclass(frozen=True)
class Stack:
    """The frames of one volume, in order along their normal; ``chosen`` says which of several it is."""

    frames: tuple[Frame, ...]
    chosen: str | None = None


@dataclass(frozen=True)
class Box:
    """Where the voxels of a stack are, in ITK's order; ``shift`` and ``uneven``: how far slices lie beside it, mm."""

    spacing: tuple[float, float, float]
    origin: tuple[float, float, float]
    direction: tuple[float, ...]
    shift: float
    uneven: float


def stack_of(frames: Sequence[Frame], volume: int | None) -> Stack:
    """The frames of one volume, of a series or an enhanced image.

    ``volume``: which is wanted, from 1, where there are several; None if nobody says it.
    """
    frames = _without_copies(frames)
    if _is_stack(frames):
        _refuse_mixed(frames)
        return Stack(_ordered(frames))
    names, groups = _partition(frames)
    if not groups:
        _refuse_differing(frames)
        if 1 < (each := _evenly_many(frames)) < len(frames):
            what = f"has {each} slices at each of {len(frames) // each} places, and nothing says which are one volume"
            raise DicomFault("volumes-unclear", what)
        return Stack(_ordered(frames))  # whose distances are uneven
    by = f"by {' and '.join(names)}"
    if volume is None:
        words = " and ".join(dict.fromkeys(MARKS[name] for name in names))
        listed = [f"{number}: {shown(marks)}" for number, marks in enumerate(list(groups)[:MOST_SHOWN], start=1)]
        more = ", …" if len(groups) > MOST_SHOWN else ""
        what = f"holds {len(groups)} volumes, which are {words} ({by}: {', '.join(listed)}{more})"
        raise DicomFault("several-volumes", what)
    if volume > len(groups):
        raise DicomFault("volume-missing", f"has {len(groups)} volumes {by}, and no volume {volume}")
    marks, wanted = list(groups.items())[volume - 1]
    lacking = _lacking(wanted, frames)
    if lacking:
        raise DicomFault("slices-missing", f"has a volume {volume} that lacks {lacking} of the slices that others have")
    return Stack(_ordered(wanted), f"{volume} of {len(groups)}, {by} = {shown(marks)}")


def box_of(frames: Sequence[Frame]) -> Box:
    """The box that a stack of at least two frames fills, which no voxel is further from than `OFF` of a voxel."""
    _refuse_differing(frames)
    first = frames[0]
    along = _normal(first)
    across = first.orientation[:3] / np.linalg.norm(first.orientation[:3])
    axes = np.stack([across, np.cross(along, across), along])
    places = np.array([frame.position for frame in frames])
    steps = np.diff(places, axis=0)
    gaps, apart = steps @ along, np.linalg.norm(steps, axis=1)
    usual = float(np.median(gaps))
    if apart.max() < SMALLEST or not usual <= LARGEST:
        raise DicomFault("slice-distance", f"has slices {apart.max():.3g} mm apart")
    if gaps.min() <= 0 or apart.max() > MISSING * usual:
        what = f"has slices {apart.min():.2f} to {apart.max():.2f} mm apart, so one is missing or duplicated"
        raise DicomFault("slices-missing", what)
    between_rows, between_columns = first.spacing
    spacing = np.array([between_columns, between_rows, gaps.mean()])
    offsets = (places - places[0]) @ axes.T
    offsets[:, 2] -= np.arange(len(frames)) * spacing[2]
    shift, uneven = float(np.linalg.norm(offsets[:, :2], axis=1).max()), float(np.abs(offsets[:, 2]).max())
    if uneven > OFF * spacing[2]:
        raise DicomFault(
            "slices-uneven",
            f"has slices {gaps.min():.2f} to {gaps.max():.2f} mm apart, up to {uneven:.2f} mm beside even distances, "
            f"of which at most {OFF:g} of a distance is read",
        )
    if (np.abs(offsets[:, :2]) > OFF * spacing[:2]).any():
        step = float(np.linalg.norm(steps @ axes[:2].T, axis=1).max())
        raise DicomFault(
            "slices-shifted",
            f"has slices shifted against each other by {step:.2f} mm, as with a tilted gantry, and by {shift:.2f} mm "
            f"over the whole scan, of which at most {OFF:g} of a pixel is read",
        )
    if (np.abs(_far_corners(frames) @ axes.T - _far_corners([first]) @ axes.T) > OFF * spacing).any():
        raise DicomFault("slices-turned", "has slices that are turned against each other")
    right_angle = np.array([(first.columns - 1) * spacing[0], (first.rows - 1) * spacing[1], 0])
    if (np.abs(_far_corners([first]) @ axes.T - right_angle) > OFF * spacing).any():
        raise DicomFault("orientation", "has an orientation that is not two directions at right angles")
    return Box(
        spacing=(float(spacing[0]), float(spacing[1]), float(spacing[2])),
        origin=(float(places[0][0]), float(places[0][1]), float(places[0][2])),
        direction=tuple(axes.T.ravel().tolist()),
        shift=shift,
        uneven=uneven,
    )


def same_places(first: Sequence[Frame], second: Sequence[Frame]) -> bool:
    """Whether two sets of frames lie at the same places, or do not lie in parallel."""
    if not _parallel([*first, *second]):
        return True
    return not _lacking(first, second) and not _lacking(second, first)


def shown(marks: Sequence[Mark]) -> str:
    return " and ".join(
        text or ("\\".join(f"{number:g}" for number in numbers) if numbers else "not said") for numbers, text in marks
    )


def _without_copies(frames: Sequence[Frame]) -> list[Frame]:
    """The frames of each instance once."""
    first: dict[bytes, Frame] = {}
    digests: dict[Path, bytes] = {}
    kept = []

    def content(frame: Frame) -> bytes:
        """A digest of what a frame shows; of an enhanced image that of all its frames, which is seldom asked for."""
        if not frame.content and frame.file not in digests:
            digests[frame.file] = digest_of_pixels(frame.file)
        return frame.content or digests[frame.file]

    for frame in frames:
        twin = first.setdefault(frame.instance, frame) if frame.instance else frame
        if twin is frame:
            kept.append(frame)
        elif not np.array_equal(twin.position, frame.position) or content(twin) != content(frame):
            what = f"has a slice {frame.file.name} with the UID of another slice and other content"
            raise DicomFault("slice-twice", what)
    return kept


def _normal(frame: Frame) -> np.ndarray:
    normal = np.cross(frame.orientation[:3], frame.orientation[3:])
    return np.asarray(normal / np.linalg.norm(normal))


def _parallel(frames: Sequence[Frame]) -> bool:
    orientations = np.array([frame.orientation for frame in frames])
    return bool((np.abs(orientations - orientations[0]) <= TOLERANCE).all())


def _alike(frames: Sequence[Frame]) -> bool:
    """Whether frames are of one size, pixel spacing and direction."""
    spacings = np.array([frame.spacing for frame in frames])
    same = len({(frame.rows, frame.columns) for frame in frames}) == 1
    return same and np.allclose(spacings, spacings[0], rtol=TOLERANCE, atol=0) and _parallel(frames)


def _heights(frames: Sequence[Frame], normal: np.ndarray) -> np.ndarray:
    """Where frames lie along a normal; equal where they lie at one place."""
    exact = np.array([float(frame.position @ normal) for frame in frames])
    order = np.argsort(exact, kind="stable")
    limit = ONE_PLACE * float(frames[0].spacing.min())
    jumps = np.diff(exact[order], prepend=exact[order[0]]) > limit
    heights = np.empty(len(frames), int)
    heights[order] = np.cumsum(jumps)
    return heights


def _is_stack(frames: Sequence[Frame]) -> bool:
    if not _alike(frames):
        return False
    return len(set(_heights(frames, _normal(frames[0])).tolist())) == len(frames)


def _ordered(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    normal = _normal(frames[0])
    return tuple(sorted(frames, key=lambda frame: float(frame.position @ normal)))


def _evenly_many(frames: Sequence[Frame]) -> int:
    """How many frames lie at each place; 0 if that differs."""
    counts = np.bincount(_heights(frames, _normal(frames[0])))
    return int(counts[0]) if (counts == counts[0]).all() else 0


def _partition(frames: Sequence[Frame]) -> tuple[tuple[str, ...], dict[tuple[Mark, ...], list[Frame]]]:
    """The marks that tell volumes apart, and the frames of each by the marks' values; the fewest volumes there can be.

    Nothing, if no marks do: then a place has two frames that say the same, or each volume is a single slice.
    """
    varying = [name for name in MARKS if len({frame.marks.get(name, NO_MARK) for frame in frames}) > 1]
    best: tuple[tuple[str, ...], dict[tuple[Mark, ...], list[Frame]]] = (), {}
    for count in (1, 2, 3):
        for names in itertools.combinations(varying, count):
            groups: dict[tuple[Mark, ...], list[Frame]] = {}
            for frame in frames:
                groups.setdefault(tuple(frame.marks.get(name, NO_MARK) for name in names), []).append(frame)
            fewer = not best[1] or len(groups) < len(best[1])
            if fewer and max(map(len, groups.values())) > 2 and all(map(_is_stack, groups.values())):
                best = names, groups
        if best[1]:
            break
    return best[0], dict(sorted(best[1].items()))


def _lacking(frames: Sequence[Frame], others: Sequence[Frame]) -> int:
    """At how many places of the ``others`` in the same direction there is none of ``frames``."""
    both = [frame for frame in [*frames, *others] if _parallel([frames[0], frame])]
    heights = _heights(both, _normal(frames[0]))
    return len(set(heights.tolist()) - set(heights[: len(frames)].tolist()))


def _refuse_mixed(frames: Sequence[Frame]) -> None:
    """Refuse slices of one volume that say they are of several."""
    for name in UNMIXED:
        values = sorted({frame.marks.get(name, NO_MARK) for frame in frames})
        if len(values) > 1:
            listed = ", ".join(shown([value]) for value in values[:MOST_SHOWN])
            what = f"has slices of {len(values)} {MARKS[name]} ({name}: {listed}) at different places"
            raise DicomFault("volumes-mixed", what)


def _refuse_differing(frames: Sequence[Frame]) -> None:
    """Refuse frames of several sizes or directions."""
    if _alike(frames):
        return
    first = frames[0]
    for frame in frames:
        if _alike([first, frame]):
            continue
        what = "with another orientation" if not _parallel([first, frame]) else "with another pixel spacing"
        if (frame.rows, frame.columns) != (first.rows, first.columns):
            what = "of another size"
        raise DicomFault("slices-differ", f"has a slice {frame.file.name} {what}")


def _far_corners(frames: Sequence[Frame]) -> np.ndarray:
    """From the first to the last pixel of frames, in mm: [frames, xyz]."""
    cosines = np.array([frame.orientation.reshape(2, 3) for frame in frames])
    cosines = cosines / np.linalg.norm(cosines, axis=2, keepdims=True)
    ends = [[(frame.columns - 1) * frame.spacing[1], (frame.rows - 1) * frame.spacing[0]] for frame in frames]
    return np.asarray(np.einsum("fd,fdx->fx", np.array(ends), cosines))
