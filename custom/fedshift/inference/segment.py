"""Masks of scans: read, prepare, predict, bring back, write, one scan after another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.data.scans import Scan, ScanError, read_scan
from fedshift.inference.masks import mask_path, volume_ml, write_mask
from fedshift.inference.model import Choice, Images, Model, Ready, make_ready
from fedshift.inference.plausible import about_positions, about_scan, about_volume, tags_of
from fedshift.inference.slicewise import segment, to_network
from fedshift.schema.errors import ConfigError, FedshiftError


@dataclass(frozen=True)
class Segmented:
    """What was found in a scan; with an ``error`` nothing was, and nothing was written."""

    image: Path
    mask: Path
    overlay: Path | None = None
    voxels: int = 0
    volume_ml: float = 0.0
    remarks: tuple[str, ...] = ()
    error: str | None = None


def outputs(
    images: Sequence[Path], out: Path, *, overlay: bool, replace: Collection[Path] = ()
) -> dict[Path, tuple[Path, Path | None]]:
    """Where mask and overlay of each image go.

    Args:
        images: scans.
        out: the folder for both.
        overlay: whether there are overlays.
        replace: images, as resolved paths, whose files may be overwritten.

    Raises:
        ConfigError: two images would share a file, an image would be overwritten, or a file already exists.
    """
    places: dict[Path, tuple[Path, Path | None]] = {}
    given = {image.resolve() for image in images}
    for image in images:
        mask = mask_path(image, out)
        picture = mask.with_name(f"{mask.name.partition('_mask.')[0]}_overlay.png") if overlay else None
        files = {mask, *([picture] if picture else []), *(mask.with_suffix(end) for end in _beside(mask))}
        twin = next((other for other, made in places.items() if files & set(made)), None)
        if twin is not None:
            raise ConfigError(
                f"{twin} and {image} would both become {mask.stem}…: predict them into folders of their own"
            )
        own = next((path for path in sorted(files) if path.resolve() in given), None)
        if own is not None:
            raise ConfigError(f"{own} is one of the images: name another folder with --out")
        taken = next((path for path in sorted(files) if path.exists()), None)
        if taken is not None and image.resolve() not in replace:
            raise ConfigError(f"{taken} already exists: name another folder with --out, or replace it with --force")
        places[image] = mask, picture
    return places


def _beside(mask: Path) -> tuple[str, ...]:
    """What ITK writes next to a MetaImage's header."""
    return (".raw", ".zraw") if mask.suffix == ".mhd" else ()


def ready_for(model: Model, images: Sequence[Path], choice: Choice, *, device: str = "auto") -> Ready:
    """Make a model ready; with ``choice.own`` from those of the scans that can be read.

    Raises:
        ConfigError: as `make_ready`.
        DataError: none of the scans can be read.
    """
    if not choice.own:
        return make_ready(model, choice, device=device)
    data, stacks, fault = model.data, [], None
    for image in images:
        try:
            clip = data["clip_above_quantile"]
            stacks.append(to_network(_read(image).voxels, matrix=data["matrix"], clip_above_quantile=clip))
        except ScanError as error:  # is told when its turn comes
            fault = fault or error
    if not stacks and fault is not None:
        raise fault
    given = Images.of_scans(stacks, context=data["context"], scale=data["scale"])
    return make_ready(model, choice, images=given, device=device)


def segment_scans(
    model: Model,
    ready: Ready,
    places: dict[Path, tuple[Path, Path | None]],
    *,
    begin: Callable[[Path], None] = lambda image: None,
) -> Iterator[Segmented]:
    """One result for each scan, in order; a scan that cannot be used does not keep the others from being done."""
    for image, (mask, overlay) in places.items():
        begin(image)
        try:
            yield _one(model, ready, image, mask, overlay)
        except FedshiftError as error:
            yield Segmented(image, mask, error=str(error))


def _one(model: Model, ready: Ready, image: Path, mask: Path, overlay: Path | None) -> Segmented:
    target = model.header.job.task.classes[1]
    scan = _read(image)
    remarks = [*about_positions(image), *about_scan(scan, tags_of(image), target=target)]
    found = find(model, ready, scan)
    volume = volume_ml(found, scan)
    remarks += about_volume(volume, target=target)
    write_mask(found, scan, mask, source=image)
    if overlay is not None:
        from fedshift.inference.overlay import draw  # pictures only on request

        draw(scan, found, overlay, title=f"{image.name}: {target} {volume:.1f} ml", kind=model.header.kind)
    return Segmented(image, mask, overlay, int(np.count_nonzero(found)), volume, tuple(remarks))


def find(model: Model, ready: Ready, scan: Scan) -> np.ndarray:
    """The foreground of a scan: bool, as ``scan.voxels``."""
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
        raise ScanError(path, "has the same intensity everywhere", "export it again, it shows nothing")
    return scan
