"""What happens to a scan or picture before a network sees it, as a model file states it.

A statement, not instructions: the code is in `fedshift.data.arrays` and `data_prep.decode`. A model whose statement is
not that of this version was trained on images prepared otherwise, and is refused.
"""

from __future__ import annotations

from typing import Any

from fedshift.data.arrays import PERCENTILE
from fedshift.job import JobSpec
from fedshift.tasks import classification, segmentation


def preparation_of(job: JobSpec) -> dict[str, Any]:
    """The statement for a job, of plain values.

    Raises:
        ConfigError: ``task.data`` does not fit the job's kind.
    """
    where = f"task {job.task.name}: data"
    if job.task.kind == "segmentation":
        slices = segmentation.DataSpec.parse(job.task.data, where=where)
        return {
            "orientation": "RAS",
            "slices": "axial, anterior at the top, the patient's right on the left",
            "clip_above_quantile": PERCENTILE,
            "intensity": "per volume: min-max, times 255, floor",
            "square": "padded with 0 on both sides",
            "resampling": "area where it shrinks, linear where it grows, rounded",
            "matrix": slices.matrix,
            "context": slices.context,
            "scale": slices.scale,
        }
    if job.task.kind == "classification":
        pictures = classification.DataSpec.parse(job.task.data, where=where)
        return {
            "size": pictures.size,
            "channels": pictures.channels,
            "resampling": "bilinear, antialiased",
            "intensity": "divided by 255",
            "mean": list(pictures.mean),
            "std": list(pictures.std),
        }
    return dict(job.task.data)
