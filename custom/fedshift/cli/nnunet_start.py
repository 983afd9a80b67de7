"""``fedshift job --init`` with a checkpoint of nnU-Net: its network as options, and what of its training differs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec

if TYPE_CHECKING:
    from fedshift.tasks.nnunet_checkpoint import Described


def network_of_plans(nnunet: Described, options: Sequence[str]) -> list[str]:
    """Options that set a job's network to that of a checkpoint's plans."""
    other = next((text for text in options if text.partition("=")[0].partition(".")[0].strip() == "network"), None)
    if other is not None:
        raise ConfigError(
            "options-clash", f"the network is that of the checkpoint's plans: leave out {other}, or --init"
        )
    return [f"network.name={nnunet.name}", f"network.options={in_a_line(nnunet.options)}"]


def as_planned(nnunet: Described) -> str:
    """How nnU-Net prepared what a checkpoint trained on, for people to compare."""
    parts = [f"patch {' x '.join(map(str, nnunet.patch))}"]
    if nnunet.spacing:
        parts.append(f"spacing {' x '.join(f'{mm:g}' for mm in nnunet.spacing)} mm")
    return ", ".join([*parts, *dict.fromkeys(nnunet.normalisation)])


def hints(nnunet: Described, job: JobSpec, spacing: Sequence[float | None] | None) -> Iterator[str]:
    """Sentences on axes, preparation and mirroring, where the job's are others than the checkpoint's."""
    yield from filter(None, (_axes_of(nnunet, spacing), _preparation_of(nnunet, job), _mirroring_of(nnunet, job)))


def _axes_of(nnunet: Described, spacing: Sequence[float | None] | None) -> str:
    """Why the network of a checkpoint may have learnt scans that lay otherwise; empty if they lay as all do here."""
    from fedshift.data.nnunet_plans import REORIENTING
    from fedshift.tasks.nnunet_checkpoint import other_axes

    sees = "the network sees other axes than those that it has learnt, until it has trained"
    if nnunet.other_slices:
        return f"its slices lie across another axis of files than the first: {sees}"
    if other_axes(nnunet, spacing):
        return f"its voxels are longest along another axis than the task's: {sees}"
    if nnunet.reader in REORIENTING:
        return ""
    return (
        "nnU-Net read its scans as they lie in their files, and here all are turned to RAS: if they lay otherwise, "
        "the network sees mirrored or turned ones, until it has trained"
    )


def _preparation_of(nnunet: Described, job: JobSpec) -> str:
    """Which settings prepare images as nnU-Net did for a checkpoint, if the task's are others."""
    from fedshift.data.nnunet_plans import AXES, SCHEMES
    from fedshift.tasks.nnunet_checkpoint import other_axes

    data = job.task.data
    if "patch" not in data or data.get("pictures"):
        return ""
    planned: dict[str, Any] = {"convention": "nnunet"}
    if nnunet.spacing and not nnunet.other_slices and not other_axes(nnunet, data.get("spacing")):
        planned["spacing"] = [None] * (AXES - nnunet.dims) + [*nnunet.spacing]
    schemes = set(nnunet.normalisation)
    if len(schemes) == 1 and (normalise := SCHEMES.get(schemes.pop())):
        planned["normalise"] = normalise
        if normalise == "volume":
            planned["nonzero"] = nnunet.nonzero
        if nnunet.fixed or normalise != "fixed":
            planned["fixed"] = dict(nnunet.fixed) or None
    usual = {"convention": "fedshift", "normalise": "volume", "nonzero": False}
    wanted = [
        shlex.quote(f"data.{key}={in_a_line(value)}".replace(", ", ","))
        for key, value in planned.items()
        if not _same(data.get(key, usual.get(key)), value)
    ]
    return f"nnU-Net prepared its images otherwise: for the same here, --set {' '.join(wanted)}" if wanted else ""


def _same(setting: Any, planned: Any) -> bool:
    """Whether a setting is the same; numbers may differ by 5 %."""
    if isinstance(planned, dict):
        return isinstance(setting, Mapping) and all(_same(setting.get(key), value) for key, value in planned.items())
    if isinstance(planned, list):
        return isinstance(setting, list | tuple) and len(setting) == len(planned) and all(map(_same, setting, planned))
    if isinstance(planned, float):
        return isinstance(setting, int | float) and math.isclose(setting, planned, rel_tol=0.05)
    return bool(setting == planned)


def _mirroring_of(nnunet: Described, job: JobSpec) -> str:
    """Which settings mirror patches as nnU-Net did in training and in prediction, if the task's are others."""
    data, learnt = job.task.data, list(nnunet.mirror)
    if "patch" not in data:
        return ""
    mirror = data.get("mirror")
    mirrored_axes = set(range(nnunet.dims) if mirror is None else mirror)
    mirrored = job.evaluation.mirror
    used = bool(learnt) or mirrored or data.get("augmentation", "none") != "none"
    wanted = [
        *([f"data.mirror={learnt}".replace(" ", "")] if used and mirrored_axes - {*learnt} else []),
        *([f"evaluation.mirror={str(not mirrored).lower()}"] if mirrored != bool(mirrored_axes & {*learnt}) else []),
    ]
    if not wanted:
        return ""
    along = f"the axes {', '.join(map(str, learnt))} of patches" if learnt else "no axis of patches"
    return f"nnU-Net mirrored {along} in training and in prediction: for the same here, --set {' '.join(wanted)}"


def in_a_line(value: Any) -> str:
    """A value as YAML without line breaks, which PyYAML writes inside of a list only."""
    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=float("inf")).strip()[1:-1]
