"""From the voxels of one scan to its classes, with the same steps as in training and evaluation.

How a model segments is a `Spec`: by slices (one class, in 2D) or by patches (any classes and sequences, in 2D or 3D).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from .bias_field import BiasField
from .grids import (
    CLIP_ABOVE_QUANTILE,
    Normalise,
    network_volume,
    radiological,
    resize_images,
    resized,
    restore,
    shape_at,
    summed,
    taps,
    to_uint8,
)
from .windows import AT_ONCE, sliding, sliding_by_slices

if TYPE_CHECKING:
    from .nnunet import Placement

Convention = Literal["fedshift", "nnunet"]
Precision = Literal["fp32", "bf16", "auto"]
Network = Callable[[Tensor], Tensor]
"""Images (B, C, *spatial) on the CPU to logits (B, K, *spatial) on any device."""
OnScan = Callable[[int, slice, np.ndarray], None]
"""Gets the place of a class or region in what the network gives, some slices of the scan, and its probabilities there,
(slices, y, x) float32 on the scan's grid."""
BATCH_SIZE = 32
"""Slices per batch, as in evaluation."""


@dataclass(frozen=True)
class SliceSpec:
    """Segmentation slice by slice: one foreground class, on slices of a square matrix.

    Probabilities are thresholded on the scan's grid, so the mask's edge does not show the network's coarser pixels.
    """

    matrix: int
    """Side of the network's slices, in pixels."""
    context: int
    """Neighbouring slices as channels."""
    scale: float
    """The largest input intensity."""
    clip_above_quantile: float = CLIP_ABOVE_QUANTILE
    """Intensities are clipped above this quantile of the scan."""


@dataclass(frozen=True)
class PatchSpec:
    """Segmentation by a sliding window; on the scan's grid, the most probable class or all probable regions."""

    dims: int
    """2 or 3."""
    patch: Sequence[int]
    """Size of the window."""
    spacing: Sequence[float | None] | None
    """mm along z, y, x to which volumes are resampled."""
    matrix: int | None
    """Voxels along the longer side of a slice, see `shape_at`."""
    context: int
    """Neighbouring slices as channels, in 2D."""
    normalise: Normalise
    """See `normalised`, as the next two."""
    nonzero: bool
    fixed: tuple[float, float, float, float] | None
    overlap: float
    """Of windows, as a part of one."""
    mirror: Sequence[int] = ()
    """Axes of a window whose mirror images are averaged."""
    largest_component: Sequence[int] = ()
    """Numbers, from 1, of the classes or regions of which only the largest part is kept."""
    written: Sequence[int] = ()
    """Of regions, which may overlap, the class of each set of them (`written_as_classes`); empty for classes."""
    bias_field: BiasField = "none"
    """Whether sequences are corrected before they are normalised."""
    convention: Convention = "fedshift"
    """How volumes are cropped, resampled and covered with windows; ``nnunet``: see `fedshift.runtime.nnunet`."""

    @property
    def regions(self) -> int:
        """How many regions the network gives; 0 if it gives classes."""
        return max(len(self.written).bit_length() - 1, 0)

    @property
    def resamples_by_matrix(self) -> bool:
        """Whether scans without a voxel size are resampled by ``matrix`` and all others by ``spacing``."""
        return None not in (self.spacing, self.matrix)


Spec = SliceSpec | PatchSpec


def regions_of(spec: Spec) -> int:
    """How many regions a model gives, which may overlap; 0 if it gives classes."""
    return spec.regions if isinstance(spec, PatchSpec) else 0


def written_as_classes(volume: np.ndarray, spec: Spec) -> np.ndarray:
    """What `segment` gives as classes, uint8 of the same shape."""
    if not regions_of(spec):
        return volume
    assert isinstance(spec, PatchSpec)
    return np.asarray(np.array(spec.written, np.uint8)[volume])


def segment(
    voxels: np.ndarray,
    spacing: Sequence[float] | None,
    network: Network,
    spec: Spec,
    *,
    certainty: np.ndarray | None = None,
    see: Callable[[np.ndarray], None] | None = None,
    on_scan: OnScan | None = None,
) -> np.ndarray:
    """Classes, or sets of regions (`fedshift.runtime.regions`), of a scan on its own grid, (z, y, x) uint8.

    Args:
        voxels: sequences (S, z, y, x) in RAS orientation, intensities as stored.
        spacing: mm along z, y, x; None if it is not known.
        network: in evaluation mode.
        spec: how the model segments.
        certainty: float32 of the scan's shape, filled in with the probability of each foreground voxel's class; of
            regions (R, z, y, x), with that of each.
        see: called with the probabilities (K, slices, y, x) float32 on the network's grid, with each slice once.
        on_scan: called with all probabilities on the scan's grid, of slices with the foreground alone.

    Raises:
        ValueError: intensities that the normalisation cannot take.
    """
    with torch.inference_mode():
        if isinstance(spec, SliceSpec):
            return _by_slices(voxels[0], network, spec, certainty, see, on_scan)
        return _by_patches(voxels, spacing, network, spec, certainty, see, on_scan)


def network_images(voxels: np.ndarray, spacing: Sequence[float] | None, spec: Spec) -> list[Tensor]:
    """A scan as images of the size of training, side by side, in batches; arguments as of `segment`."""
    if isinstance(spec, SliceSpec):
        return list(slice_batches(network_slices(voxels[0], spec), spec))
    images: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        images.append(x.clone())
        return x[:, :1]

    volume = as_images(_network_volume(voxels, spacing, spec), dims=spec.dims, context=spec.context)
    sliding(keep, volume, patch=spec.patch, overlap=0)
    return images


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast, or nothing for fp32. Parameters and optimiser state stay float32 in both."""
    if uses_bf16(precision, device):
        return torch.autocast(device_type=device.type, dtype=torch.bfloat16)
    return nullcontext()


def uses_bf16(precision: Precision, device: torch.device) -> bool:
    """Whether forward passes run in bf16 on a device.

    ``auto`` uses bf16 only where the hardware computes it natively: NVIDIA GPUs since Ampere, processors with AVX-512
    BF16 or AMX. Elsewhere bf16 is emulated and slower than fp32.
    """
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    has: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in older versions of torch
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


# --- slices -----------------------------------------------------------------------------------------------


def network_slices(voxels: np.ndarray, spec: SliceSpec) -> np.ndarray:
    """RAS voxels (z, y, x) as the network's slices, uint8 (S, matrix, matrix), anterior at the top."""
    return resize_images(to_uint8(radiological(voxels), spec.clip_above_quantile), spec.matrix)


def slice_batches(slices: np.ndarray, spec: SliceSpec) -> Iterator[Tensor]:
    """Slices with their neighbours as channels, (B, context, M, M) float32 in [0, scale]."""
    window = neighbours(np.arange(len(slices)), spec.context, len(slices))
    for start in range(0, len(slices), BATCH_SIZE):
        yield torch.from_numpy(slices[window[start : start + BATCH_SIZE]]).float().mul_(spec.scale / 255)


def _by_slices(
    voxels: np.ndarray,
    network: Network,
    spec: SliceSpec,
    certainty: np.ndarray | None,
    see: Callable[[np.ndarray], None] | None,
    on_scan: OnScan | None,
) -> np.ndarray:
    batches = slice_batches(network_slices(voxels, spec), spec)
    foreground = np.concatenate([network(x).float().softmax(1)[:, 1].cpu().numpy() for x in batches])
    if see is not None:
        see(np.stack([1 - foreground, foreground]))
    probability = radiological(restore(foreground, *voxels.shape[1:]))
    if certainty is not None:
        certainty[...] = probability
    if on_scan is not None:
        on_scan(1, slice(None), probability)
    return (probability > 0.5).astype(np.uint8)


# --- patches ----------------------------------------------------------------------------------------------


def as_images(volume: np.ndarray, *, dims: int, context: int, part: slice = slice(None)) -> Tensor:
    """A volume (sequences, z, y, x) as images: (1, C, z, y, x), or in 2D its slices (z, C, y, x); float32.

    In 2D the channels are ``context`` neighbouring slices of each sequence. ``part``: which slices are wanted.
    """
    if dims == 3:
        return torch.from_numpy(np.asarray(volume[:, part], np.float32))[None]
    depth = volume.shape[1]
    chosen = neighbours(np.arange(depth)[part], context, depth)
    return torch.from_numpy(np.asarray(volume[:, chosen], np.float32)).movedim(1, 0).flatten(1, 2)


def neighbours(slices: np.ndarray, context: int, depth: int) -> np.ndarray:
    """Numbers of slices and of those around each, (n, context); at the ends the outermost is repeated."""
    reach = context // 2
    around: np.ndarray = np.clip(slices[:, None] + np.arange(-reach, reach + 1), 0, depth - 1)
    return around


def as_volume(batch: Tensor, dims: int) -> np.ndarray:
    """Probabilities of a case, (1, K, z, y, x) or slice after slice, as (K, z, y, x) float32."""
    return (batch[0] if dims == 3 else batch.movedim(1, 0)).contiguous().numpy()


def softmax_in_place(logits: Tensor) -> Tensor:
    """Probabilities of the classes (B, K, *spatial), in the memory of the logits: for many classes that is the most."""
    axis = 0 if logits.dim() == 4 else 2
    for number in range(logits.shape[axis]):
        plane = logits.narrow(axis, number, 1)
        plane.copy_(plane.softmax(1))
    return logits


def classes_of(
    probability: np.ndarray,
    shape: Sequence[int],
    *,
    largest_component: Sequence[int] = (),
    certainty: np.ndarray | None = None,
    regions: bool = False,
    placement: Placement | None = None,
) -> np.ndarray:
    """Classes (z, y, x) uint8 on a grid of ``shape``, from probabilities (K, z, y, x) on another of the same extent.

    With ``regions`` sets of those that are more probable than not. ``certainty`` is filled in as by `segment`.
    ``placement``: where the other grid lies in nnU-Net's convention.
    """
    labels = np.zeros(tuple(shape), np.uint8)
    _take(planes_of(probability, shape, regions=regions, placement=placement), labels, certainty, regions=regions)
    return _largest(labels, largest_component, regions=regions)


def planes_of(
    probability: np.ndarray, shape: Sequence[int], *, regions: bool, placement: Placement | None
) -> Iterator[np.ndarray]:
    """Probabilities (K, z, y, x) on a grid of ``shape``, one class or region after the other; as `classes_of`."""
    if placement is None:
        return (resized(plane, shape) for plane in probability)
    from .nnunet import logits_of

    return placement.on_scan(logits_of(probability, regions=regions), regions=regions)


def _by_patches(
    voxels: np.ndarray,
    spacing: Sequence[float] | None,
    network: Network,
    spec: PatchSpec,
    certainty: np.ndarray | None,
    see: Callable[[np.ndarray], None] | None,
    on_scan: OnScan | None,
) -> np.ndarray:
    if spec.convention == "nnunet":
        return _as_nnunet(voxels, spacing, network, spec, certainty, see, on_scan)
    scan = voxels.shape[1:]
    volume = _network_volume(voxels, spacing, spec)
    first, weights = taps(volume.shape[1], scan[0])
    classes = np.zeros(scan, np.uint8)
    start = finished = (
        0  # the slice of the network's grid with which `held` begins, and how many of the scan's are ready
    )
    held: np.ndarray | None = None
    for probability in _probabilities(volume, network, spec):
        if see is not None:
            see(probability)
        held = probability if held is None else np.concatenate([held, probability], axis=1)
        end = start + held.shape[1]
        ready = int(np.searchsorted(first, end - weights.shape[1], side="right"))
        part = slice(finished, ready)
        slab = classes[part]
        planes = (resized(summed(plane, 0, first[part] - start, weights[part]), slab.shape) for plane in held)
        _take(
            planes if on_scan is None else _shown(planes, part, on_scan),
            slab,
            None if certainty is None else certainty[..., part, :, :],
            regions=bool(spec.regions),
        )
        following = int(first[ready]) if ready < len(first) else end
        held = held[:, following - start :].copy() if following < end else None
        start, finished = following, ready
    return _largest(classes, spec.largest_component, regions=bool(spec.regions))


def _as_nnunet(
    voxels: np.ndarray,
    spacing: Sequence[float] | None,
    network: Network,
    spec: PatchSpec,
    certainty: np.ndarray | None,
    see: Callable[[np.ndarray], None] | None,
    on_scan: OnScan | None,
) -> np.ndarray:
    """The same in nnU-Net's convention, whose resampling needs the logits of the whole volume."""
    from .nnunet import placed, probable

    volume, placement = _network_volume(voxels, spacing, spec), placed(voxels, spacing, spec.spacing)
    logits, regions = _nnunet_logits(volume, network, spec), bool(spec.regions)
    if see is not None:
        see(probable(logits, regions=regions))
    planes = placement.on_scan(logits, regions=regions)
    classes = np.zeros(placement.scan, np.uint8)
    shown = planes if on_scan is None else _shown(planes, slice(None), on_scan)
    _take(shown, classes, certainty, regions=regions)
    return _largest(classes, spec.largest_component, regions=regions)


def _shown(planes: Iterable[np.ndarray], part: slice, on_scan: OnScan) -> Iterator[np.ndarray]:
    for number, plane in enumerate(planes):
        on_scan(number, part, plane)
        yield plane


def _network_volume(voxels: np.ndarray, spacing: Sequence[float] | None, spec: PatchSpec) -> np.ndarray:
    if spec.convention == "nnunet":
        from . import nnunet

        how: dict[str, Any] = {"normalise": spec.normalise, "nonzero": spec.nonzero, "fixed": spec.fixed}
        return nnunet.network_volume(voxels, nnunet.placed(voxels, spacing, spec.spacing), **how)
    shape = shape_at(voxels.shape[1:], spacing, spec.spacing, spec.matrix)
    return network_volume(
        voxels,
        shape,
        normalise=spec.normalise,
        nonzero=spec.nonzero,
        fixed=spec.fixed,
        bias_field=spec.bias_field,
    )


def _probabilities(volume: np.ndarray, network: Network, spec: PatchSpec) -> Iterator[np.ndarray]:
    """Probabilities of the classes or regions (K, slices, y, x) float32, some slices of a volume after the others.

    ``volume``: normalised sequences (S, z, y, x) on the network's grid.
    """
    options: dict[str, Any] = {"patch": spec.patch, "overlap": spec.overlap, "mirror": spec.mirror}
    probable = Tensor.sigmoid_ if spec.regions else softmax_in_place
    if spec.dims == 3:
        for logits in sliding_by_slices(network, torch.from_numpy(volume)[None], **options):
            yield as_volume(probable(logits[None]).nan_to_num_(0), spec.dims)
        return
    for images in _slices(volume, spec):
        yield as_volume(probable(sliding(network, images, **options)).nan_to_num_(0), spec.dims)


def _nnunet_logits(volume: np.ndarray, network: Network, spec: PatchSpec) -> np.ndarray:
    """Logits of the classes or regions (K, z, y, x) float32 in nnU-Net's convention; 0 where any is not finite."""
    options: dict[str, Any] = {"patch": spec.patch, "overlap": spec.overlap, "mirror": spec.mirror, "nnunet": True}
    images = [torch.from_numpy(volume)[None]] if spec.dims == 3 else _slices(volume, spec)
    logits = np.concatenate([as_volume(sliding(network, each, **options), spec.dims) for each in images], axis=1)
    logits[:, ~np.isfinite(logits).all(axis=0)] = 0  # background, as of a probability that is not finite
    return logits


def _slices(volume: np.ndarray, spec: PatchSpec) -> Iterator[Tensor]:
    """A volume's slices as images, some after the others."""
    for start in range(0, volume.shape[1], AT_ONCE[2]):
        yield as_images(volume, dims=spec.dims, context=spec.context, part=slice(start, start + AT_ONCE[2]))


def _take(planes: Iterable[np.ndarray], labels: np.ndarray, certainty: np.ndarray | None, *, regions: bool) -> None:
    if regions:
        _take_probable(planes, labels, certainty)
    else:
        _take_most_probable(planes, labels, np.empty(labels.shape, np.float32) if certainty is None else certainty)


def _take_most_probable(planes: Iterable[np.ndarray], classes: np.ndarray, highest: np.ndarray) -> None:
    """Fill in, for each voxel, the number of the largest of several volumes, and its value; of equal ones the first."""
    highest.fill(-np.inf)
    for number, plane in enumerate(planes):
        larger = plane > highest
        classes[larger], highest[larger] = number, plane[larger]


def _take_probable(planes: Iterable[np.ndarray], sets: np.ndarray, certainty: np.ndarray | None) -> None:
    """Fill in the set of the volumes that are above a half, and the values of each."""
    for number, plane in enumerate(planes):
        sets[plane > 0.5] |= 1 << number
        if certainty is not None:
            certainty[number] = plane


def _largest(labels: np.ndarray, numbers: Sequence[int], *, regions: bool) -> np.ndarray:
    """Classes or sets of regions, in the same memory, of which these have only their largest part left."""
    if numbers:
        from .components import keep_largest  # needs SciPy, which slices do without

        keep_largest(labels, numbers, regions=regions)
    return labels
