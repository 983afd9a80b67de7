"""A MONAI bundle as a job carries it: its configuration as JSON and its weights as arrays, and its scores at a site.

Nothing of it is code: what `fedshift.inference.monai_bundle` refuses is refused when the job is written, and again at
each site.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedshift.data.case_check import known_spacing
from fedshift.data.cases import CaseFiles
from fedshift.federation.carried_model import REMEDY, Source, sha256_of, write_carried
from fedshift.inference.monai_bundle import Bundle, bundle_of, open_bundle
from fedshift.inference.monai_config import BundleConfig
from fedshift.inference.scoring import Scored, decode
from fedshift.runtime.regions import IGNORED
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.tasks import pretrained
from fedshift.tasks.evaluation.by_class import scores_by_class
from fedshift.tasks.out_of_memory import prediction_out_of_memory

BUNDLE = "bundle"
"""What the header of such a file has in place of a model's."""


def pack_bundle(folder: Path, target: Path) -> str:
    """Write a bundle as a job carries it; returns the SHA-256 of what was written.

    Raises:
        ConfigError: as `fedshift.inference.monai_bundle.open_bundle`, its structures overlap, or its configuration is
            no plain data.
    """
    bundle = open_bundle(folder, device="cpu")
    if bundle.overlapping:
        raise ConfigError(
            "bundle-overlap",
            f"{folder} segments structures that overlap ({', '.join(bundle.classes)}), and sites score bundles of "
            "classes alone: take another bundle",
        )
    config = BundleConfig(folder)
    header = {
        BUNDLE: {"name": bundle.name, "inference": config.content, "metadata": config.metadata},
        "source": {"file": f"{folder.resolve().name}/{bundle.weights.name}", "sha256": sha256_of(bundle.weights)},
    }
    try:
        json.dumps(header)
    except (TypeError, ValueError):
        raise ConfigError(
            "bundle-config", f"{config.file} holds more than numbers, words, lists and mappings: take another bundle"
        ) from None
    arrays: dict[str, Tensor] = {f"weights/{key}": value for key, value in pretrained.read(bundle.weights).items()}
    return write_carried(target, header, arrays)


def unpack_bundle(
    path: Path, header: dict[str, Any], arrays: dict[str, Tensor], *, device: str = "auto"
) -> tuple[Bundle, Source]:
    """A carried bundle and its source, of what `read_carried` has read. Raises as `pack_bundle`."""
    try:
        content, named = header[BUNDLE], header["source"]
        config = BundleConfig.from_content(dict(content["inference"]), dict(content["metadata"]), Path(path.name))
        source = Source(str(named["file"]), str(named["sha256"]))
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            "file-damaged", f"{path.name} is no bundle that a job carries (its header): {REMEDY}"
        ) from None
    state = {name.removeprefix("weights/"): value for name, value in arrays.items()}
    return bundle_of(config, state, Path(path.name), device=device), source


def bundle_scores(
    bundle: Bundle, cases: Sequence[CaseFiles], *, tolerance: float, true_spacing: bool = False
) -> Iterator[Scored]:
    """Yield one result per case, as `fedshift.inference.scoring.score_cases` does for a model."""
    for case in cases:
        try:
            decoded, _ = decode(case)
            scan = decoded.image
            voxels = np.stack([image.voxels for image in decoded.images])
            with prediction_out_of_memory(case.image):
                certainty = np.zeros(scan.voxels.shape, np.float32)
                spacing = known_spacing(scan, true=true_spacing)
                predicted = bundle.mask(scan, voxels, certainty, spacing=spacing)
            assert case.labels is not None
            reference = decoded.mask.voxels
            predicted, reference = (np.where(reference == IGNORED, 0, each) for each in (predicted, reference))
            outlined = case.labels.annotated or case.labels.classes[1:]
            numbers = {name: case.labels.classes.index(name) for name in outlined}
            scores = scores_by_class(predicted, reference, numbers, scan.spacing[::-1], tolerance=tolerance)
            yield Scored(case.id, case.image, scores)
        except FedshiftError as error:
            yield Scored(case.id, case.image, {}, error=str(error))
