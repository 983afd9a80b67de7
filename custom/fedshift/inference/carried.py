"""The models that a validation's job brings, opened: of fedshift, or MONAI bundles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from fedshift.data.cases import sequences_fault
from fedshift.federation.carried_model import SUFFIX, Source, read_carried, unpack_model
from fedshift.inference.carried_bundle import BUNDLE, unpack_bundle
from fedshift.inference.model import Model, model_of
from fedshift.inference.monai_bundle import Bundle
from fedshift.schema.manifest import Manifest
from fedshift.schema.packages import PackageSpec
from fedshift.schema.validation import ModelRef

Carried = Model | Bundle
"""What a job may bring: a model of fedshift, or a MONAI bundle."""
Listed = Mapping[str, PackageSpec] | None


def open_carried(
    folder: Path, ref: ModelRef, *, device: str = "auto", packages: Listed = None
) -> tuple[Carried, Source]:
    """A model of the job, in the folder of its models, and the file that it was made from.

    ``packages``: those that the site lets a model use; None for all that are installed.

    Raises:
        PolicyError: it needs a package that is not among them.
        ConfigError: it is missing, or is not what the job names.
    """
    path = folder / f"{ref.name}{SUFFIX}"
    header, arrays = read_carried(path, sha256=ref.sha256)
    if BUNDLE in header:
        return unpack_bundle(path, header, arrays, device=device)
    content, source = unpack_model(path, header, arrays, packages=packages)
    return model_of(content, path), source


def structures_of(model: Carried) -> tuple[str, ...]:
    """What a model segments, or the classes of a classifier."""
    return model.structures if segments(model) else cast(Model, model).header.job.task.classes


def segments(model: Carried) -> bool:
    """Whether it segments, and does not classify."""
    return isinstance(model, Bundle) or model.is_segmentation


def main_score(model: Carried) -> str:
    """The score that models are compared by."""
    return "dice" if isinstance(model, Bundle) else str(model.task.per_case[0])


def misfit(model: Carried, manifest: Manifest) -> str:
    """Why a model cannot be scored at a site, in words that may leave; empty if it can."""
    masks = manifest.has_masks and not manifest.pictures
    if segments(model) != masks:
        annotations = "masks" if masks else "labels"
        return f"it {'segments' if segments(model) else 'classifies'}, and the site's cases have {annotations}"
    classes = model.classes if isinstance(model, Bundle) else model.header.job.task.classes
    known = manifest.classes[1:] if isinstance(model, Bundle) else manifest.classes
    if classes != known:
        return f"its classes are {', '.join(classes)}, and the site was prepared with {', '.join(known)}"
    pictured = manifest.pictured if masks else not manifest.cases
    if pictured != (model.of_pictures if segments(model) else not cast(Model, model).classifies_volumes):
        return "it takes pictures and the site has volumes, or the other way round"
    fault = sequences_fault(manifest.sequences, model.sequences) if manifest.cases else None
    return "" if fault is None else f"the site {fault[0].replace('the task takes', 'the model takes')}"
