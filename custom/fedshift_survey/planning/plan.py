"""Spacing, patch, batch and network from the sum of all sites' fingerprints, by nnU-Net v2's published rules.

Isensee et al., Nature Methods 2021, with the released planner (``ExperimentPlanner``). Four things differ. Nobody sees
the cases, so medians are of rounded numbers, and the median shape after resampling is the median extent by the spacing.
Volumes are not cropped to what is not 0. Memory is counted for the network itself
(`fedshift_survey.planning.network`), where nnU-Net compares with a reference network on a GPU. And a batch is
limited by a mean site's voxels, since it comes from one site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from fedshift.data.tallies import medians, quantile, worded
from fedshift.schema.errors import ConfigError
from fedshift.schema.fingerprint import Fingerprint
from fedshift_survey.planning.network import GIGA, LEAST_EDGE, NetworkShape, topology_for

ANISOTROPY = 3.0
"""An axis is of low resolution if its voxels are so many times longer, and fewer, than those of the others."""
LOW = 0.1
"""Quantile of the spacing of such an axis that becomes the plan's."""
LARGEST = {2: 2048**2, 3: 256**3}
"""Voxels of the patch that the search begins with."""
LEAST_BATCH = 2
LEAST_DEPTH = 3
"""Stages of MONAI's DynUNet."""
COVERED = 0.05
"""Part of a mean site's voxels that a batch may have."""
SMALL = 1 / 8
"""Part of the median volume below which a patch often lacks a class."""
LEAST_SAMPLES, MOST_SAMPLES = 4, 16
MEMORY = 8.0
"""Gigabytes, nnU-Net's default."""
Spacing = tuple[float | None, float, float]
"""In mm, of slices, rows and columns; None between slices where volumes keep their own."""


@dataclass(frozen=True)
class Plan:
    """What was decided, and why: ``reasons`` has a sentence for each key of the task file that it decides.

    ``spacing`` is None if no case has a voxel size, and so is that between slices in 2D. ``shape`` is the median volume
    at that spacing, in voxels. ``batch_dice``: whether the loss takes Dice over the batch. ``need`` is the estimated
    memory of a training step, in gigabytes. ``pictures``: whether the cases are pictures, which are planned in 2D at
    their own size.
    """

    dims: int
    spacing: Spacing | None
    shape: tuple[int, int, int]
    patch: tuple[int, ...]
    batch: int
    batch_dice: bool
    network: NetworkShape
    samples: int
    need: float
    reasons: dict[str, str]
    pictures: bool = False


def make_plan(
    pooled: Fingerprint,
    *,
    sites: int,
    dims: int = 3,
    memory: float = MEMORY,
    patch: Sequence[int] | None = None,
    outputs: int | None = None,
) -> Plan:
    """Plan a network for the data of all sites together.

    Args:
        pooled: the sum of the sites' fingerprints.
        sites: how many sites told of their cases.
        dims: 3, or 2 for slices; pictures have 2.
        memory: gigabytes that a training step may take.
        patch: a patch of one's own, in voxels.
        outputs: channels of what the network gives, of regions their number; default one for each class.
    """
    if pooled.geometry is None:
        raise ConfigError(
            "nothing-to-plan",
            "no site told the size of its voxels and volumes, so nothing can be planned: "
            + (pooled.withheld or "their policies put noise on statistics"),
        )
    pictures = pooled.of_pictures
    if not pictures and any(number == 1 for number, _ in pooled.geometry.voxels[0]):
        raise ConfigError("kind-of-data", "some of the sites have pictures and others volumes: name sites of one kind")
    dims = 2 if pictures else dims
    if patch is not None:
        check_patch(patch, dims)
    reasons: dict[str, str] = {}
    spacing = None if pictures else _spacing(pooled, dims, reasons)
    shape = _shape(pooled, spacing, reasons)
    lengths, edges = [mm or 1.0 for mm in spacing or (None,) * 3][3 - dims :], shape[3 - dims :]
    search = _Search(
        lengths, edges, channels=len(pooled.channels), classes=outputs or len(pooled.classes), limit=memory * GIGA
    )
    if patch is None:
        fitted, network = search.fitting()
        reasons["patch"] = search.why
    else:
        fitted, network = search.asked(patch)
        reasons["patch"] = "as asked for" + ("" if tuple(patch) == fitted else ", padded to what the halvings divide")
    batch = _batch(network, fitted, edges, memory, cases=pooled.surveyed / sites, slices=shape[0], reasons=reasons)
    batch_dice = _batch_dice(fitted, shape, reasons)
    samples = min(MOST_SAMPLES, max(LEAST_SAMPLES, ceil(prod(shape) / prod(fitted))))
    reasons["samples_per_case"] = (
        f"as many patches as have the voxels of the median volume; at least {LEAST_SAMPLES}, since a round would else "
        f"have few steps, and at most {MOST_SAMPLES}"
    )
    _network_reasons(network, reasons)
    need = network.bytes_of_step(fitted, batch) / GIGA
    if pictures:
        reasons = {key: worded(reason, pictures=True) for key, reason in reasons.items()}
        reasons["shape"] = f"the median picture has {shape[1]} x {shape[2]} pixels (rows x columns)"
    reasons["memory"] = f"a training step takes about {need:.1f} of {memory:g} GB in fp32, about half in bf16"
    return Plan(dims, spacing, shape, fitted, batch, batch_dice, network, samples, need, reasons, pictures)


def check_patch(patch: Sequence[int], dims: int) -> None:
    """See that a patch of one's own can be one."""
    if len(patch) != dims or min(patch) < 1:
        raise ConfigError("patch-size", f"--patch needs {dims} numbers of voxels from 1, not {shown(patch)}")


def _spacing(pooled: Fingerprint, dims: int, reasons: dict[str, str]) -> Spacing | None:
    geometry = pooled.geometry
    assert geometry is not None
    if not geometry.cases:
        reasons["spacing"] = "each volume keeps its own: no case has a voxel size (their headers hold placeholders)"
        return None
    typical = medians(geometry.spacing)
    voxels = medians(geometry.voxels)
    worst = max(range(3), key=lambda axis: typical[axis])
    others = [axis for axis in range(3) if axis != worst]
    coarse = typical[worst] > ANISOTROPY * max(typical[axis] for axis in others)
    few = voxels[worst] * ANISOTROPY < min(voxels[axis] for axis in others)
    reasons["spacing"] = f"median of {geometry.cases} cases at all sites"
    if coarse and few and worst in range(3 - dims, 3):
        median, low = typical[worst], quantile(geometry.spacing[worst], LOW)
        typical[worst] = max(low, *(typical[axis] for axis in others))
        reasons["spacing"] += (
            f"; {_AXES[worst]} 10th percentile instead of the median {median:g}, since its voxels are more than "
            f"{ANISOTROPY:g} times longer and fewer than the others' (nnU-Net's rule for anisotropy)"
        )
    elif dims == 3:
        reasons["spacing"] += f" along each axis (nnU-Net's rule; no axis is {ANISOTROPY:g} times coarser)"
    if dims == 2:
        reasons["spacing"] += (
            "; slices keep their own distance, since a network in 2D does not look across them (nnU-Net's rule)"
        )
    if geometry.cases < pooled.surveyed:
        reasons["spacing"] += f"; of {pooled.surveyed - geometry.cases} cases it is not known"
    first, second, third = (float(f"{mm:.4g}") for mm in typical)
    return first if dims == 3 else None, second, third


_AXES = ("between slices:", "between rows:", "between columns:")


def _shape(pooled: Fingerprint, spacing: Spacing | None, reasons: dict[str, str]) -> tuple[int, int, int]:
    """The median volume at the plan's spacing."""
    geometry = pooled.geometry
    assert geometry is not None
    edges = medians(geometry.voxels)
    if spacing is not None:
        known = zip(edges, medians(geometry.extent), spacing, strict=True)
        edges = [edge if step is None else mm / step for edge, mm, step in known]
    first, second, third = (max(1, round(edge)) for edge in edges)
    reasons["shape"] = f"the median volume then has {first} x {second} x {third} voxels"
    return first, second, third


class _Search:
    """Looks for the largest patch that fits into memory."""

    def __init__(
        self, spacing: Sequence[float], shape: Sequence[int], *, channels: int, classes: int, limit: float
    ) -> None:
        self._spacing, self._shape, self._limit = spacing, shape, limit
        self._channels, self._classes = channels, classes
        self.why = ""

    def fitting(self) -> tuple[tuple[int, ...], NetworkShape]:
        """Shrink the largest sensible patch until two of it fit."""
        patch, network = self._with_network(self._first())
        whole, smaller = patch, 0
        while not self._fits(patch, network):
            less = self._smaller(patch, network)
            if less is None:
                raise ConfigError(
                    "no-memory",
                    f"no plan fits into {self._limit / GIGA:g} GB: the smallest, with patches of {shown(patch)}, needs "
                    f"{self._need(patch, network):.2g}: give at least that with --memory, or plan in 2D with --dims 2",
                )
            patch, network = less
            smaller += 1
        begun = "the median volume, padded to what the halvings divide" if not smaller else f"begun at {shown(whole)}"
        self.why = begun + (
            f", shrunk along the axis that is largest beside the median volume until {LEAST_BATCH} patches fit into "
            f"{self._limit / GIGA:g} GB"
            if smaller
            else f", of which {LEAST_BATCH} fit into {self._limit / GIGA:g} GB"
        )
        return patch, network

    def asked(self, patch: Sequence[int]) -> tuple[tuple[int, ...], NetworkShape]:
        """A patch of the user's own, with the smaller one that would fit in the error."""
        check_patch(patch, len(self._shape))
        fitted, network = self._with_network(patch)
        if self._fits(fitted, network):
            return fitted, network
        needs = self._need(fitted, network)
        fitting = self.fitting()[0]
        raise ConfigError(
            "no-memory",
            f"patches of {shown(fitted)} need {needs:.2g} GB, and there are {self._limit / GIGA:g}: --patch "
            f"{','.join(map(str, fitting))} fits, or give more with --memory",
        )

    def _first(self) -> list[int]:
        """Cubic in mm, as many voxels as nnU-Net begins with, no edge above the median volume's."""
        dense = [1 / mm for mm in self._spacing]
        scale = (LARGEST[len(dense)] / prod(dense)) ** (1 / len(dense))
        return [min(round(edge * scale), most) for edge, most in zip(dense, self._shape, strict=True)]

    def _with_network(self, patch: Sequence[int]) -> tuple[tuple[int, ...], NetworkShape]:
        """The network for a patch, which is padded to what the halvings divide, or more if it has too few of them."""
        topology = topology_for(patch, self._spacing)
        for edge in (4 * LEAST_EDGE, 6 * LEAST_EDGE):  # two halvings along the finest axes; more if it is one alone
            if topology.depth < LEAST_DEPTH:
                fine = [mm < 2 * min(self._spacing) for mm in self._spacing]
                patch = [max(wanted, edge) if finest else wanted for wanted, finest in zip(patch, fine, strict=True)]
                topology = topology_for(patch, self._spacing)
        return topology.padded(patch), NetworkShape(topology, self._channels, self._classes)

    def _smaller(self, patch: tuple[int, ...], network: NetworkShape) -> tuple[tuple[int, ...], NetworkShape] | None:
        """One step smaller along the axis that is largest beside the median volume; None if nothing is left.

        The step is that of the network for a patch which is smaller by this one's: 256 is followed by 224, whose edge
        is halved five times, and not by 192, though 256 is halved six times and so divided by 64.
        """
        ratios = [edge / median for edge, median in zip(patch, self._shape, strict=True)]
        for axis in sorted(range(len(patch)), key=lambda axis: (ratios[axis], axis), reverse=True):
            trial, edges = list(patch), list(patch)
            trial[axis] -= network.topology.divisor[axis]
            if trial[axis] < LEAST_EDGE:
                continue
            edges[axis] -= topology_for(trial, self._spacing).divisor[axis]
            less, smaller = self._with_network(edges)
            if prod(less) < prod(patch):
                return less, smaller
        return None

    def _need(self, patch: Sequence[int], network: NetworkShape) -> float:
        return network.bytes_of_step(patch, LEAST_BATCH) / GIGA

    def _fits(self, patch: Sequence[int], network: NetworkShape) -> bool:
        return self._need(patch, network) <= self._limit / GIGA


def _batch(
    network: NetworkShape,
    patch: Sequence[int],
    shape: Sequence[int],
    memory: float,
    *,
    cases: float,
    slices: int,
    reasons: dict[str, str],
) -> int:
    """As many patches as fit, but no more than a twentieth of a mean site's voxels, and at least two."""
    per_image = network.bytes_of_step(patch, 2) - network.bytes_of_step(patch, 1)
    room = int((memory * GIGA - network.bytes_of_step(patch, 0)) // per_image)
    voxels = cases * prod(shape) * (slices if len(patch) == 2 else 1)
    covered = round(COVERED * voxels / prod(patch))
    batch = max(LEAST_BATCH, min(room, covered))
    reasons["batch_size"] = (
        f"The smaller of what fits into memory, {room} patches, and of {COVERED:.0%} of a site's voxels, {covered} "
        f"(with the mean of {cases:.0f} cases); at least {LEAST_BATCH} (nnU-Net's rule)"
    )
    return batch


def _batch_dice(patch: Sequence[int], shape: Sequence[int], reasons: dict[str, str]) -> bool:
    """Whether patches often lack a class, so that Dice of each patch would be of nothing.

    nnU-Net's rule in 3D is whether it also plans at a low resolution, at which a patch has at least a quarter of the
    median volume, and which it drops if that volume is not reduced to less than half.
    """
    if len(patch) == 2:
        reasons["batch_dice"] = "many slices lack a class (nnU-Net's rule)"
        return True
    part = prod(patch) / prod(shape)
    few = part < SMALL
    reasons["batch_dice"] = (
        f"a patch has {min(part, 1):.0%} of the median volume, {'less' if few else 'not less'} than an eighth, below "
        "which many patches lack a class (after nnU-Net's rule)"
    )
    return few


def _network_reasons(network: NetworkShape, reasons: dict[str, str]) -> None:
    halvings = " x ".join(str(edge.bit_length() - 1) for edge in network.topology.divisor)
    reasons["depth"] = (
        f"{network.topology.depth} stages: axes are halved {halvings} times, as long as an edge has at least "
        f"{2 * LEAST_EDGE} voxels, and only with axes whose voxels are less than twice as long (nnU-Net's rule)"
    )
    reasons["kernel_size"] = "1 along an axis whose voxels are still twice as long as the shortest, else 3"
    most = max(network.filters)
    reasons["filters"] = (
        f"32 in the first stage, doubled in each further one; at most {320 if network.dims == 3 else 512}"
    )
    if most < (320 if network.dims == 3 else 512):
        reasons["filters"] += ", which this depth does not reach"
    reasons["deep_supervision"] = "the loss is also of the lower resolutions, except the lowest (nnU-Net)"


def shown(edges: Sequence[int]) -> str:
    """``64 x 128 x 128``."""
    return " x ".join(map(str, edges))
