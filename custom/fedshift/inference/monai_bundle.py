"""Segment with a MONAI bundle that others made: its network and its transforms, but without its code.

A bundle is a folder with ``configs/inference.json``, ``configs/metadata.json`` and ``models/model.pt``. What it names
is made from lists of MONAI's classes with plain options (`fedshift.inference.monai_config`), so that the masks are
those of ``monai.bundle run``, while neither expressions nor ``scripts/`` run and only tensors are loaded. Scans are
read by fedshift, with all its checks and formats, in place of ``LoadImaged``; handlers and data loaders are not used.

Five things differ from ``monai.bundle run``: everything is computed in float32 (``amp`` is ignored); where a bundle
puts classes back on the scan's grid by interpolating their numbers, the nearest voxel's class is taken; of connected
parts that are equally large all are kept; structures that overlap, each a sigmoid with a threshold, stay apart where
the bundle would put them into one mask by an expression; and what the network returns is copied, because MONAI's
sliding window multiplies it by its weights in place, and with it the scan where it is a view of a window.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # loads ndimage when it is used
import torch
from torch import Tensor, nn

from fedshift.data.scans import Scan
from fedshift.inference.geometry import as_stored, from_stored, stored_affine
from fedshift.inference.monai_config import OTHER, BundleConfig, Component
from fedshift.runtime.components import largest_parts
from fedshift.runtime.regions import MOST_REGIONS
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.names import one_line
from fedshift.schema.strict import nearest
from fedshift.tasks import monai_networks, pretrained
from fedshift.tasks.device import choose_device
from fedshift.tasks.monai_networks import without_second_names
from fedshift.tasks.out_of_memory import is_out_of_memory
from fedshift.tasks.precision import prepare

IMAGE, PRED = "image", "pred"
READING = ("LoadImaged", "EnsureChannelFirstd", "AddChanneld")
"""What fedshift's own reading of scans stands in for."""
BEFORE = (
    *("Orientationd", "Spacingd", "ScaleIntensityd", "ScaleIntensityRanged", "ScaleIntensityRangePercentilesd"),
    *("NormalizeIntensityd", "ThresholdIntensityd", "ClipIntensityPercentilesd"),
    *("CropForegroundd", "CenterSpatialCropd"),
    *("SpatialPadd", "DivisiblePadd", "BorderPadd", "Resized", "ResizeWithPadOrCropd", "EnsureTyped", "CastToTyped"),
)
"""Transforms before the network that may be used."""
AFTER = (
    *("Activationsd", "Invertd", "AsDiscreted", "KeepLargestConnectedComponentd", "RemoveSmallObjectsd", "FillHolesd"),
    *("EnsureTyped", "CastToTyped"),
)
"""Transforms after the network that may be used."""
NEED_SCIKIT_IMAGE = ("RemoveSmallObjectsd",)
"""Of ``AFTER``, those that MONAI makes without scikit-image but cannot run."""
LARGEST = "KeepLargestConnectedComponentd"
AFTER_OVERLAPPING = ("Invertd", "EnsureTyped", "CastToTyped")
"""Of ``AFTER``, those that take several structures of a voxel."""
AS_ONE_MASK = "Lambdad"
"""The last step of bundles that put overlapping structures into one mask by an expression; left out."""
UNUSED = ("SaveImaged",)
INFERERS = ("SlidingWindowInferer", "SimpleInferer")
PLACES = ("device", "sw_device", "allow_missing_keys", "progress", "cache_roi_weight_map", "cpu_thresh")
"""Options that say where or how loudly something is computed, not what; left out."""
NETWORK = "network_def"
CT = ("ct", "hounsfield")
FAULTS = (TypeError, ValueError, AttributeError, AssertionError, KeyError, IndexError, RuntimeError)
"""What MONAI's classes raise where options or a scan do not fit."""

Transform = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Bundle:
    """A bundle that can segment: an `fedshift.inference.segment.Segmenter`.

    ``classes`` are its foreground classes by number from 1, ``notes`` remarks for users. ``overlapping``: whether a
    voxel may have several of them, or none: then they are regions (`fedshift.runtime.regions`).
    """

    path: Path
    name: str
    version: str
    weights: Path
    classes: tuple[str, ...]
    sequences: tuple[str, ...]
    signed: bool
    notes: tuple[str, ...]
    device: torch.device
    net: nn.Module
    inferer: Callable[..., Tensor]
    before: Any
    after: tuple[tuple[str, Transform], ...]
    overlapping: bool

    kind = "unknown"
    statistics = "the bundle's own"
    resamples_by_matrix = False
    of_pictures = False

    @property
    def structures(self) -> tuple[str, ...]:
        return self.classes

    @property
    def written(self) -> tuple[int, ...]:
        """The last structure of each set of those that overlap, as which no mask is written; empty for classes."""
        return tuple(map(int.bit_length, range(1 << len(self.classes)))) if self.overlapping else ()

    @property
    def about(self) -> dict[str, Any]:
        return {"bundle": {"name": self.name, "version": self.version}}

    def mask(
        self, scan: Scan, voxels: np.ndarray, certainty: np.ndarray, *, spacing: Sequence[float] | None
    ) -> np.ndarray:
        """Classes of a scan's voxels, or sets of regions, see `fedshift.inference.segment.Segmenter`.

        ``spacing`` is not used: the bundle's own steps go by the header, as with ``monai.bundle run``.

        Raises:
            DataError: a step of the bundle fails on the scan, or the bundle does not put its result back on the scan's
                grid, or gives other than its classes.
        """
        from monai.data import MetaTensor

        grids, images = zip(*(as_stored(sequence, scan) for sequence in voxels), strict=True)
        stored = images[0]
        image = MetaTensor(torch.from_numpy(np.stack(grids)), affine=torch.from_numpy(stored_affine(stored)))
        shape = image.shape[1:]
        try:
            data = self.before({IMAGE: image})
        except FAULTS as error:
            # Compose names the step that failed by its text.
            failed = (type(step).__name__ for step in self.before.transforms if str(step) in str(error))
            raise self._failure(next(failed, "preprocessing"), scan, error) from None
        sure, name = None, type(self.inferer).__name__
        try:
            with torch.no_grad():
                logits = self.logits(data[IMAGE][None].to(self.device))[0].float().cpu()
            data[PRED] = MetaTensor(logits)
            for name, step in self.after:
                if name == "AsDiscreted" and data[PRED].shape[1:] == shape:
                    sure = data[PRED].as_tensor()
                    sure = sure.clone() if self.overlapping else sure.amax(0)
                data = step(data)
        except FAULTS as error:
            if isinstance(error, RuntimeError) and is_out_of_memory(error):
                raise
            raise self._failure(name, scan, error) from None
        structures = data[PRED].as_tensor()
        if structures.shape[1:] != shape:
            message = f"{self.path} does not put its result back on the scan's grid: take a bundle that has Invertd"
            raise DataError("bundle-grid", message)
        count, most = (len(self.classes), 1) if self.overlapping else (1, len(self.classes))
        if (
            len(structures) != count
            or not torch.equal(structures, structures.round())
            or not 0 <= structures.min() <= structures.max() <= most
        ):
            message = f"{self.path} gives other values than one of its {len(self.classes)} classes for a voxel"
            raise DataError("bundle-classes", message)
        if sure is None or not 0 <= sure.min() <= sure.max() <= 1:
            certainty[...] = np.nan
        elif self.overlapping:
            certainty[...] = [from_stored(each.numpy().astype(np.float32), stored) for each in sure]
        else:
            certainty[...] = from_stored(sure.numpy().astype(np.float32), stored)
        bits = structures.numpy().astype(np.uint8) << np.arange(count, dtype=np.uint8)[:, None, None, None]
        return from_stored(np.bitwise_or.reduce(bits), stored)

    def logits(self, image: Tensor) -> Tensor:
        """The network's output of an image (1, S, *spatial), by the bundle's inferer."""

        def copied(window: Tensor) -> Any:
            logits = self.net(window)
            return logits.clone() if isinstance(logits, Tensor) else logits

        return self.inferer(image, copied)

    def _failure(self, step: str, scan: Scan, error: BaseException) -> DataError:
        """The error that names a step; the reason is that of the first error of a chain."""
        while error.__cause__ is not None:
            error = error.__cause__
        size = " x ".join(map(str, scan.voxels.shape[::-1]))
        spacing = " x ".join(f"{mm:.3g}" for mm in scan.spacing)
        fault = f"{self.path}: {step} fails on a scan of {size} voxels of {spacing} mm ({_reason(error)})"
        return DataError("bundle-step", f"{fault}: check the scan, or take another bundle")


def open_bundle(folder: Path, *, device: str = "auto") -> Bundle:
    """Read a bundle and make its network. No code of it runs.

    Raises:
        ConfigError: it is no bundle for segmentation of volumes, it needs code or a class that is not in the lists, or
            its weights do not fit its network.
    """
    config, weights = BundleConfig(folder), pretrained.file_of(folder)
    return bundle_of(config, pretrained.read(weights), weights, device=device)


def bundle_of(config: BundleConfig, state: dict[str, Tensor], weights: Path, *, device: str = "auto") -> Bundle:
    """The bundle of a configuration and the weights of a file; raises as `open_bundle`."""
    folder = config.folder
    torch_device, notes = choose_device(device), []
    net, out_channels, in_channels = _network(config)
    try:
        net.load_state_dict(without_second_names(net, state))
    except RuntimeError as error:
        first = next((line.strip() for line in str(error).splitlines()[1:]), "")
        message = f"{weights} does not fit the network of {config.file} ({first}): download it again"
        raise ConfigError("weights-misfit", message) from None
    before, invertible = _before(config)
    after = _after(config, before, out_channels=out_channels)
    if after.interpolated:
        notes.append(
            "the bundle would interpolate the numbers of classes on the scan's grid; the nearest voxel's class is taken"
        )
    if after.as_one_mask:
        notes.append("its structures overlap; the expression that makes one mask of them is not run")
    if invertible and "Invertd" not in (name for name, _ in after.steps):
        raise config.refusal("postprocessing", "has no Invertd, so that masks would not lie on the scans' grid", OTHER)
    if any((folder / "scripts").glob("*.py")):
        notes.append("the code in its scripts/ is not run")
    image = _metadata(config, "inputs", IMAGE)
    background = int(out_channels > 1 and not after.overlapping)
    return Bundle(
        path=folder,
        name=one_line(str(config.metadata.get("name") or folder.resolve().name)),
        version=one_line(str(config.metadata.get("version") or "unknown")),
        weights=weights,
        classes=_names(config, "outputs", PRED, out_channels, "class", first=1 - background)[background:],
        sequences=_names(config, "inputs", IMAGE, in_channels, "sequence", first=0) if in_channels > 1 else (),
        signed=any(str(image.get(key, "")).lower() in CT for key in ("modality", "format")),
        notes=tuple(notes),
        device=torch_device,
        net=prepare(net, "fp32", torch_device).eval(),
        inferer=_instance(config, config.component("inferer"), INFERERS, {}, module="monai.inferers"),
        before=before,
        after=after.steps,
        overlapping=after.overlapping,
    )


def _network(config: BundleConfig) -> tuple[nn.Module, int, int]:
    """The network with its numbers of output and input channels."""
    component = config.component(NETWORK)
    arguments = {key: config.value(node, f"{NETWORK}.{key}") for key, node in component.options.items()}
    net = monai_networks.as_given(component.name, arguments, where=f"{config.file}: {NETWORK}")
    options = {**monai_networks.defaults(component.name), **arguments}
    if options.get("spatial_dims") != 3:
        raise config.refusal(NETWORK, "is not for volumes (spatial_dims: 3)", OTHER)
    return net, int(options["out_channels"]), int(options["in_channels"])


def _before(config: BundleConfig) -> tuple[Any, bool]:
    """What is done to a scan, and whether that moves voxels."""
    from monai.transforms import Compose
    from monai.transforms.inverse import InvertibleTransform

    parts = [part for part in config.components("preprocessing") if part.name not in READING]
    steps = [_instance(config, part, BEFORE, {"keys": IMAGE}) for part in parts]
    return Compose(steps), any(isinstance(step, InvertibleTransform) for step in steps)


@dataclass(frozen=True)
class _After:
    """What is done to the network's output.

    Attributes:
        steps: with the name of each.
        overlapping: whether a voxel may have several structures, or none.
        interpolated: whether numbers of classes would have been interpolated.
        as_one_mask: whether an expression that puts overlapping structures into one mask is left out.
    """

    steps: tuple[tuple[str, Transform], ...]
    overlapping: bool
    interpolated: bool
    as_one_mask: bool


def _after(config: BundleConfig, before: Any, *, out_channels: int) -> _After:
    parts = [part for part in config.components("postprocessing") if part.name not in UNUSED]
    steps: list[tuple[str, Transform]] = []
    sigmoid = discrete = overlapping = interpolated = as_one_mask = False
    for part in parts:
        if overlapping and part is parts[-1] and part.name == AS_ONE_MASK:
            as_one_mask = True
            break
        step_options: dict[str, Any] = {"keys": PRED}
        if part.name == "Invertd":
            smooth = config.value(part.options.get("nearest_interp", True), f"{part.where}.nearest_interp") is False
            interpolated |= smooth and discrete
            kept = Component("Invertd", {}, part.where)
            step_options |= {"transform": before, "orig_keys": IMAGE, "nearest_interp": discrete or not smooth}
            steps.append(("Invertd", _instance(config, kept, AFTER, step_options)))
            continue
        step = _instance(config, part, AFTER_OVERLAPPING if overlapping else AFTER, step_options)
        if type(step).__name__ in NEED_SCIKIT_IMAGE and find_spec("skimage") is None:
            raise config.refusal(
                part.where, f"is {part.name}, which needs scikit-image", "install it (pip install scikit-image)"
            )
        if type(step).__name__ == LARGEST:
            if not discrete or step.converter.is_onehot:
                raise config.refusal(part.where, "is not of one class for each voxel, after AsDiscreted", OTHER)
            step = _LargestComponents(step, PRED)
        steps.append((part.name, step))
        if part.name == "Activationsd":
            sigmoid = config.value(part.options.get("sigmoid", False), f"{part.where}.sigmoid") is True
        if part.name == "AsDiscreted":
            discrete = True
            options = {
                key: config.value(part.options[key], f"{part.where}.{key}") for key in part.options if key != "keys"
            }
            if options.get("to_onehot") is not None or (out_channels > 1 and not options.get("argmax")):
                overlapping = _overlap(config, options, sigmoid=sigmoid, out_channels=out_channels)
                if not overlapping:
                    raise config.refusal(
                        part.where,
                        "lets a voxel have several classes or none (no argmax), and is no threshold of at most "
                        f"{MOST_REGIONS} sigmoids of structures",
                        OTHER,
                    )
    if not discrete:
        raise config.refusal("postprocessing", "has no AsDiscreted, which makes classes of the network's output", OTHER)
    return _After(tuple(steps), overlapping, interpolated, as_one_mask)


def _overlap(config: BundleConfig, options: Mapping[str, Any], *, sigmoid: bool, out_channels: int) -> bool:
    """Whether ``AsDiscreted`` with ``options`` makes structures of sigmoids, none of them the background."""
    first = _names(config, "outputs", PRED, out_channels, "class", first=1)[0]
    plain = options.get("to_onehot") is None and not options.get("argmax") and options.get("threshold") is not None
    return sigmoid and plain and out_channels <= MOST_REGIONS and first.lower() != "background"


def _instance(
    config: BundleConfig,
    component: Component,
    allowed: Sequence[str],
    replacements: dict[str, Any],
    *,
    module: str = "monai.transforms",
) -> Any:
    """An instance of a listed class of MONAI; ``replacements`` go before its options of the same names."""
    name = next((f"{component.name.removesuffix(end)}d" for end in ("Dict", "D") if component.name.endswith(end)), "")
    name = name if name in allowed else component.name
    if name not in allowed:
        raise config.refusal(component.where, f"is {name}, which is not in the list{nearest(name, allowed)}", OTHER)
    options = {
        key: config.value(node, f"{component.where}.{key}")
        for key, node in component.options.items()
        if key not in replacements and key not in PLACES and not key.endswith("meta_keys") and key != "meta_key_postfix"
    }
    try:
        with warnings.catch_warnings():  # of defaults that changed in MONAI, which nobody here can set
            warnings.simplefilter("ignore", FutureWarning)
            return getattr(importlib.import_module(module), name)(**options, **replacements)
    except FAULTS as error:
        why = f"cannot be made by the installed MONAI ({_reason(error)})"
        raise config.refusal(component.where, why, OTHER) from None


def _reason(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _names(config: BundleConfig, side: str, key: str, n: int, word: str, *, first: int) -> tuple[str, ...]:
    """Names of channels from the metadata; ``class 1`` and so on, from ``first``, if one is missing or there twice."""
    channels = _metadata(config, side, key, "channel_def")
    names = [one_line(str(channels.get(str(number), ""))).strip() for number in range(n)]
    good = all(names) and len(set(names)) == n
    return tuple(names if good else (f"{word} {number + first}" for number in range(n)))


def _metadata(config: BundleConfig, *keys: str) -> dict[str, Any]:
    """A part of what the metadata say of the network's data; empty where they say nothing."""
    node: Any = config.metadata
    for key in ("network_data_format", *keys):
        node = node.get(key) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


def describe_bundle(bundle: Bundle) -> Iterator[str]:
    """Lines that say what a bundle is."""
    yield f"bundle: {bundle.name} {bundle.version}, {', '.join(bundle.classes)}"
    yield "fedshift does not know on what it was trained: read its documentation"
    yield "research use only; not a medical device"
    for note in bundle.notes:
        yield f"  note: {note}"


class _LargestComponents:
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
        numbers = classes.as_tensor()[0].numpy()
        labels = self._labels or tuple(np.unique(numbers[numbers != 0]).tolist())
        neighbours = scipy.ndimage.generate_binary_structure(numbers.ndim, self._connectivity or numbers.ndim)
        for group in [[label] for label in labels] if self._apart else [labels]:
            mask = np.isin(numbers, group)
            lost = mask & ~largest_parts(mask, neighbours=neighbours, count=self._count)
            classes[0][torch.from_numpy(lost)] = 0
        return data
