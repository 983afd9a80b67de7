"""``fedshift predict`` of a model that classifies pictures or volumes."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli import predict_pacs
from fedshift.cli.arguments import make_folder
from fedshift.cli.model_choice import choice
from fedshift.cli.predict_table import NOTE, Row
from fedshift.cli.scan_cases import scan_cases
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.cli.opened_model import OpenedModel
    from fedshift.data.depth import Depth
    from fedshift.inference.classify import Classified, Input, Thresholds
    from fedshift.inference.dicom_source import Origin
    from fedshift.inference.model import Model
    from fedshift.pacs.archive import Archive


def rows_of(
    opened: OpenedModel,
    images: Sequence[Path],
    args: argparse.Namespace,
    about: dict[str, Any],
    *,
    fetched: bool = False,
    archive: Archive | None = None,
) -> tuple[int, Iterator[Row]]:
    """How many images there are, and what is said of each.

    Args:
        opened: the model.
        images: files, or folders of series.
        args: the command line.
        about: what the record says of the model; gets the thresholds of a model of findings.
        fetched: whether the images are folders that a PACS gave.
        archive: where reports are stored too.
    """
    check(opened.classifier, args)
    inputs, depth = _inputs(opened.classifier, images, args, fetched=fetched)
    if archive is not None and not any(each.source for each in inputs):
        message = "--to stores DICOM reports, and none of the images is DICOM"
        raise ConfigError("no-effect", f"{message}: leave out --to, or name DICOM images")
    return len(inputs), _classify(opened, inputs, depth, args, about, archive)


def _inputs(
    model: Model, images: Sequence[Path], args: argparse.Namespace, *, fetched: bool
) -> tuple[list[Input], Depth | None]:
    """What is classified, and of pictures how deep the grey ones among them are."""
    from fedshift.inference import classify

    if model.classifies_volumes:
        cases = scan_cases(model, images, args)
        cases = predict_pacs.named_by_study(cases, args) if fetched else cases
        return classify.of_volumes(model, cases, true_spacing=args.true_spacing), None
    images = predict_pacs.pictures_in(images) if fetched else images
    depth = classify.depth_of(images, args.bits)
    inputs = classify.of_pictures(model, images, depth)
    if fetched:
        inputs = [replace(each, name=predict_pacs.name_of(each.image, args)) for each in inputs]
    return inputs, depth


def check(model: Model, args: argparse.Namespace) -> None:
    """Refuse options that have no effect on such a model (`ConfigError`)."""
    images = "volumes" if model.classifies_volumes else "pictures"
    for value, what, options in (
        ({*args.format} - {"sr"}, "of which no mask is written", "all of --format but sr"),
        (args.codes, "of which no mask is written", "--codes"),
        (args.volume and not model.classifies_volumes, "which have no volumes", "--volume"),
        (args.true_spacing and not model.classifies_volumes, "which have no voxel size", "--true-spacing"),
        (args.bits is not None and model.classifies_volumes, "whose values are taken as they are", "--bits"),
    ):
        if value:
            raise ConfigError("no-effect", f"{model.path} classifies {images}, {what}: leave out {options}")


def _classify(
    opened: OpenedModel,
    inputs: Sequence[Input],
    depth: Depth | None,
    args: argparse.Namespace,
    about: dict[str, Any],
    archive: Archive | None,
) -> Iterator[Row]:
    from fedshift.inference import classify
    from fedshift.inference import promise as promises

    model, promise = opened.classifier, opened.promise
    chosen = choice(args)
    thresholds = classify.thresholds_of(model, chosen) if model.task.findings else None
    chosen = classify.of_statistics(model, chosen, thresholds=model.header.thresholds)
    chosen = chosen if promise is None else promises.of_statistics(model, chosen)
    ready_for = partial(classify.ready_for, model, inputs, chosen, device=args.device)
    ready = opened.ready(ready_for, of_these_images=chosen.estimate)
    if promise is not None:
        promises.require_statistics(promise, ready)
    if thresholds is not None:
        print(f"thresholds: {thresholds.source}")
        about["thresholds"] = {"from": thresholds.source, "values": _rounded(thresholds.values)}
    make_folder(args.out)
    names: set[str] = set()
    origin = opened.origin(None) if "sr" in args.format or archive is not None else None
    by_image = {each.image: each for each in inputs}
    for classified in classify.classify(ready, inputs, saliency=args.overlay):
        row, entry = _label(classified) if thresholds is None else _findings(classified, thresholds, model)
        if promise is not None:
            label_set = promise.classes(classified.probabilities)
            row |= {"set": "" if classified.error else " | ".join(label_set)}
            entry["set"] = None if classified.error else label_set
            if classified.error is None:
                print(printable(f"  in the set: {', '.join(label_set) or 'none of them'}"))
        for warning in classified.warnings:
            print(f"  warning: {warning}")
        entry["warnings"] = list(classified.warnings)
        written: dict[str, Path] = {}
        if classified.saliency is not None:
            written["saliency"] = args.out / _unused(f"{classified.name}_saliency", ".png", names)
            _draw(classified, written["saliency"])
        error = classified.error
        if origin is not None and error is None:
            path = args.out / _unused(f"{classified.name}_sr", ".dcm", names)
            error = _report(classified, by_image[classified.image], origin, path, entry, thresholds)
            written |= {} if error else {"sr": path}
            error = error or predict_pacs.store_results(classified.image, written, archive)
        if written and error is None:
            entry["written"] = {name: path.name for name, path in written.items()}
        if classified.reading is not None:
            entry["reading"] = classified.reading.model_dump(exclude_defaults=True)
        entry |= {"statistics": ready.statistics, "error": error}
        warnings = " | ".join(classified.warnings)
        yield row | {"statistics": ready.statistics, "warnings": warnings, "error": error or ""}, entry
    if depth is not None and depth.description is not None:  # known when all are read
        print(f"pictures: {depth.description}{' (--bits says otherwise)' if depth.settled_together else ''}")


def _report(
    classified: Classified,
    image: Input,
    origin: Origin,
    path: Path,
    entry: Mapping[str, Any],
    thresholds: Thresholds | None,
) -> str | None:
    """Write an image's DICOM report; why not, if none can be made of it."""
    from fedshift.inference.dicom_classes import write_classes

    if image.source is None:
        return f"{classified.image} is no DICOM, of which no report can be made: leave out --format sr and --to"
    remarks = [] if thresholds is None else [f"thresholds: {thresholds.source}"]
    remarks += [] if classified.reading is None else classified.reading.remarks
    try:
        write_classes(
            path,
            source=image.source(),
            origin=origin,
            probabilities=classified.probabilities,
            present=[classified.label] if thresholds is None else entry["findings"],
            exclusive=thresholds is None,
            remarks=remarks,
        )
    except DataError as error:
        return str(error)
    return None


def _label(classified: Classified) -> tuple[dict[str, object], dict[str, object]]:
    """The most likely class of a picture."""
    row: dict[str, object] = {"file": classified.image, "class": "", "probability": ""}
    entry: dict[str, object] = {"file": str(classified.image), "class": None, "probability": None}
    if classified.error is None:
        entry |= {"class": classified.label, "probability": round(classified.probability, 4)}
        row |= {"class": classified.label, "probability": f"{classified.probability:.4f}"}
        print(printable(f"{classified.image}: {classified.label} ({classified.probability:.0%})"))
    return row, entry


def _findings(
    classified: Classified, thresholds: Thresholds, model: Model
) -> tuple[dict[str, object], dict[str, object]]:
    """What is said to be in a picture, and the probability of each finding."""
    classes = model.header.job.task.classes
    row: dict[str, object] = {
        "file": classified.image,
        "findings": "",
        **{f"probability {name}": "" for name in classes},
    }
    entry: dict[str, object] = {"file": str(classified.image), "findings": None, "probabilities": None}
    if classified.error is None:
        findings = thresholds.decided(classified.probabilities)
        entry |= {"findings": findings, "probabilities": _rounded(classified.probabilities)}
        row |= {"findings": " | ".join(findings)} | {
            f"probability {k}": f"{v:.4f}" for k, v in classified.probabilities.items()
        }
        print(
            printable(
                f"{classified.image}: "
                f"{', '.join(f'{k} ({classified.probabilities[k]:.0%})' for k in findings) or 'no finding'}"
            )
        )
    return row, entry


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def _draw(classified: Classified, path: Path) -> None:
    """The picture with the places that speak for its most likely class."""
    from fedshift.inference import saliency_picture

    assert classified.saliency is not None
    where = "and what speaks for it" if classified.saliency.places.any() else "and no place speaks for it"
    caption = f"{classified.image.name}: {classified.saliency.name} ({classified.probability:.0%}), {where} (Grad-CAM)"
    saliency_picture.write(path, classified.saliency.image, classified.saliency.places, [printable(caption), NOTE])


def _unused(stem: str, suffix: str, names: set[str]) -> str:
    """A file name that no earlier picture of this call has."""
    name = next(n for k in itertools.count(1) if (n := f"{stem}{'' if k == 1 else f'_{k}'}{suffix}") not in names)
    names.add(name)
    return name
