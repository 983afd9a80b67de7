"""Segment scans one by one: read, preprocess, predict, resample back, write the mask."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.data.scans import Scan, ScanError, read_scan
from fedshift.inference.masks import mask_path, volume_ml, write_mask
from fedshift.inference.model import Choice, Images, Model, ReadyModel, make_ready
from fedshift.inference.plausible import check_positions, check_scan, check_volume, read_tags
from fedshift.inference.slicewise import segment, to_network
from fedshift.schema.errors import ConfigError, FedshiftError


@dataclass(frozen=True)
class Segmented:
    """The result for one scan. With an ``error``, no mask was written."""

    image: Path
    mask: Path
    overlay: Path | None = None
    voxels: int = 0
    volume_ml: float = 0.0
    remarks: tuple[str, ...] = ()
    error: str | None = None


def output_paths(
    images: Sequence[Path], out: Path, *, overlay: bool, replace: Collection[Path] = ()
) -> dict[Path, tuple[Path, Path | None]]:
    """The paths of each image's mask and overlay.

    Args:
        images: the scans.
        out: the folder for masks and overlays.
        overlay: whether overlays are drawn.
        replace: resolved paths of images whose outputs may be overwritten.

    Raises:
        ConfigError: two images would get the same output file, an output would overwrite an image, or it exists.
    """
    paths: dict[Path, tuple[Path, Path | None]] = {}
    given = {image.resolve() for image in images}
    for image in images:
        mask = mask_path(image, out)
        picture = mask.with_name(f"{mask.name.partition('_mask.')[0]}_overlay.png") if overlay else None
        files = {mask, *([picture] if picture else []), *(mask.with_suffix(end) for end in _data_suffixes(mask))}
        twin = next((other for other, made in paths.items() if files & set(made)), None)
        if twin is not None:
            raise ConfigError(
                f"the masks of {twin} and {image} would both become {mask.stem}…: predict them into different folders"
            )
        overwritten = next((path for path in sorted(files) if path.resolve() in given), None)
        if overwritten is not None:
            raise ConfigError(f"{overwritten} is one of the images: name another folder with --out")
        taken = next((path for path in sorted(files) if path.exists()), None)
        if taken is not None and image.resolve() not in replace:
            raise ConfigError(f"{taken} already exists: name another folder with --out, or replace it with --force")
        paths[image] = mask, picture
    return paths


def _data_suffixes(mask: Path) -> tuple[str, ...]:
    """Suffixes of the data files that ITK writes next to a MetaImage header."""
    return (".raw", ".zraw") if mask.suffix == ".mhd" else ()


def ready_for(model: Model, images: Sequence[Path], choice: Choice, *, device: str = "auto") -> ReadyModel:
    """Prepare a model for prediction. With ``choice.own``, statistics come from the scans that can be read.

    Raises:
        ConfigError: as `make_ready`.
        DataError: none of the scans can be read.
    """
    if not choice.own:
        return make_ready(model, choice, device=device)
    data, stacks, first_error = model.data, [], None
    for image in images:
        try:
            clip = data["clip_above_quantile"]
            stacks.append(to_network(_read(image).voxels, matrix=data["matrix"], clip_above_quantile=clip))
        except ScanError as error:  # `segment_scans` reports it for this scan
            first_error = first_error or error
    if not stacks and first_error is not None:
        raise first_error
    given = Images.of_scans(stacks, context=data["context"], scale=data["scale"])
    return make_ready(model, choice, images=given, device=device)


def segment_scans(
    model: Model,
    ready: ReadyModel,
    paths: dict[Path, tuple[Path, Path | None]],
    *,
    begin: Callable[[Path], None] = lambda image: None,
) -> Iterator[Segmented]:
    """Yield one result per scan, in order. A failed scan gives an error result and does not stop the rest.

    ``begin`` is called with each scan before it is read.
    """
    for image, (mask, overlay) in paths.items():
        begin(image)
        try:
            yield _segment_one(model, ready, image, mask, overlay)
        except FedshiftError as error:
            yield Segmented(image, mask, error=str(error))


def _segment_one(model: Model, ready: ReadyModel, image: Path, mask_file: Path, overlay: Path | None) -> Segmented:
    target = model.header.job.task.classes[1]
    scan = _read(image)
    remarks = [*check_positions(image), *check_scan(scan, read_tags(image), target=target)]
    mask = predict_mask(model, ready, scan)
    volume = volume_ml(mask, scan)
    remarks += check_volume(volume, target=target)
    write_mask(mask, scan, mask_file, source=image)
    if overlay is not None:
        from fedshift.inference.overlay import draw  # imported only if asked for: needs Pillow

        draw(scan, mask, overlay, title=f"{image.name}: {target} {volume:.1f} ml", kind=model.header.kind)
    return Segmented(image, mask_file, overlay, int(np.count_nonzero(mask)), volume, tuple(remarks))


def predict_mask(model: Model, ready: ReadyModel, scan: Scan) -> np.ndarray:
    """Predict the foreground mask of a scan: bool, same shape as ``scan.voxels``."""
    data = model.data
    return segment(
        scan.voxels,
        ready.predictor,
        matrix=data["matrix"],
        context=data["context"],
        scale=data["scale"],
        clip_above_quantile=data["clip_above_quantile"],
        precision=model.header.job.task.schedule.precision,
        device=ready.device,
    )


def _read(path: Path) -> Scan:
    scan = read_scan(path)
    if scan.voxels.min() == scan.voxels.max():
        raise ScanError(path, "has the same intensity everywhere", "export the scan again")
    return scan
