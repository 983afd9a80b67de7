"""The reference of prepared sites on this machine, for a model file that has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedshift.data.fingerprint import case_fingerprints, fingerprint
from fedshift.data.prepared import image_files
from fedshift.data.resampled import Preparation
from fedshift.data.scans import read_scan
from fedshift.data.splits import case_splits
from fedshift.federation.reference import reference_of
from fedshift.inference.model import Model, ReadyModel
from fedshift.inference.segment import outline
from fedshift.schema.errors import ConfigError
from fedshift.schema.fingerprint import Reference
from fedshift.schema.manifest import read_manifest


def folder_reference(model: Model, ready: ReadyModel, folder: Path) -> Reference:
    """What a site with this prepared folder would tell of its scans for this model.

    Raises:
        ConfigError: it is of another data set, or of other classes.
        DataError: it cannot be read, or lacks a sequence.
    """
    manifest, task = read_manifest(folder), model.header.job.task
    if (manifest.dataset, manifest.classes) != (task.dataset, tuple(task.classes)):
        raise ConfigError(
            "other-data",
            f"{folder} is of data set {manifest.dataset} with the classes {', '.join(manifest.classes)}, and "
            f"{model.path} was trained on {task.dataset} with {', '.join(task.classes)}: name one of its sites",
        )
    sequences = Preparation(sequences=model.sequences).numbers(manifest, folder)
    splits = case_splits(manifest.cases, site=manifest.site, fold=task.data.get("fold"))
    confidences = []
    for case, split in zip(manifest.cases, splits, strict=True):
        if split == "val":
            scans = [read_scan(path) for path in image_files(folder, manifest, case.id)]
            voxels = np.stack([scans[number].voxels for number in sequences])
            confidences.append(outline(ready, voxels, manifest.known_spacing(case))[1])
    return reference_of(fingerprint(folder), list(case_fingerprints(folder)), confidences, least=1)
