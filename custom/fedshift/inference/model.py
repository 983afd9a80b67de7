"""What a model file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedshift.federation.model_files import ADAPTED, Header, header_of, read_model_file
from fedshift.runtime.segmentation import PatchSpec, Spec
from fedshift.schema.errors import ConfigError
from fedshift.schema.messages import MethodArrays
from fedshift.tasks.base import Task
from fedshift.tasks.classification.task import Task as ClassifyingTask
from fedshift.tasks.kinds import build_task
from fedshift.tasks.segmentation.patch_task import Task as PatchTask
from fedshift.tasks.segmentation.slices import Task as SliceTask


@dataclass(frozen=True)
class Model:
    """The content of a model file."""

    path: Path
    header: Header
    task: Task
    weights: dict[str, Tensor]
    arrays: MethodArrays
    adapter_weights: dict[str, Tensor] = field(default_factory=dict)
    """Adapters that are merged into the weights."""

    @property
    def spec(self) -> Spec | None:
        """How it segments scans; None if it classifies pictures."""
        return self.task.spec if isinstance(self.task, PatchTask | SliceTask) else None

    @property
    def classifies_volumes(self) -> bool:
        return isinstance(self.task, ClassifyingTask) and self.task.volumes

    @property
    def is_segmentation(self) -> bool:
        return self.spec is not None

    @property
    def structures(self) -> tuple[str, ...]:
        """What it segments: the foreground classes, or regions."""
        return self.header.job.task.structures

    @property
    def about(self) -> dict[str, Any]:
        """What the record of predictions says of it."""
        job = self.header.job
        facts = {"task": job.task.name, "methods": list(job.methods), "round": self.header.round}
        adaptation = self.header.adaptation
        adapted = {} if adaptation is None else {"adaptation": adaptation.model_dump(mode="json")}
        return {"model": {"file": self.path.name, **facts, "trained_on": self.header.kind, **adapted}}

    @property
    def uses_spacing(self) -> bool:
        """Whether it takes scans at a voxel size, or would if they had one."""
        return isinstance(self.spec, PatchSpec)

    @property
    def sequences(self) -> tuple[str, ...]:
        """Names of the sequences that a case must have; empty for a single one without a name."""
        return self.task.sequences if isinstance(self.task, PatchTask | ClassifyingTask) else ()

    @property
    def of_pictures(self) -> bool:
        """Whether it segments pictures, and not volumes."""
        return isinstance(self.task, PatchTask) and self.task.of_pictures

    @property
    def resamples_by_matrix(self) -> bool:
        """Whether scans without a voxel size are resampled by ``data.matrix`` and all others by ``data.spacing``."""
        return isinstance(self.spec, PatchSpec) and self.spec.resamples_by_matrix

    @property
    def data(self) -> dict[str, Any]:
        """How the training images were prepared: `fedshift.tasks.base.Task.preparation`."""
        return self.header.preparation


def open_model(path: Path) -> Model:
    """Read a model file.

    Raises:
        ConfigError: as `read_model_file`; or the file is encrypted, or its images were prepared differently.
    """
    return model_of(read_model_file(path), path)


def model_of(content: Mapping[str, Any], path: Path) -> Model:
    """The model that a file's content is; raises as `open_model`."""
    header = header_of(dict(content), where=str(path))
    if header.encrypted:
        message = f"{path} is encrypted: open it with 'fedshift site decrypt' at a site first"
        raise ConfigError("model-encrypted", message)
    task = build_task(header.job)
    if header.preparation != task.preparation():
        message = f"was trained on images prepared differently from this version: use fedshift {header.fedshift}"
        raise ConfigError("other-version", f"{path} {message}")
    arrays = {name: {key: value.numpy() for key, value in a.items()} for name, a in content["methods"].items()}
    return Model(path, header, task, content["weights"], arrays, content.get(ADAPTED, {}))
