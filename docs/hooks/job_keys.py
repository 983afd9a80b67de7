"""The reference of all keys of a job and a task, from the models that check them."""

from __future__ import annotations

from pydantic import BaseModel

from fedshift.schema import job, optimizer, task
from fedshift.schema.settings import Setting, settings
from fedshift.tasks.kinds import classification
from fedshift.tasks.segmentation import patches, slices

SECTIONS: dict[str, tuple[type[BaseModel], str]] = {
    "task": (task.TaskSpec, ""),
    "patches": (patches.DataSpec, "data."),
    "slices": (slices.DataSpec, "data."),
    "pictures": (classification.DataSpec, "data."),
    "federation": (job.FederationSpec, "federation."),
    "evaluation": (job.EvaluationSpec, "evaluation."),
}


def table(section: str) -> str:
    """The keys of a section, as ``--set`` names them."""
    model, prefix = SECTIONS[section]
    lines = ["| key | values | default | meaning |", "|---|---|---|---|"]
    lines += [_row(setting) for setting in settings(model, prefix)]
    return "\n".join(lines)


def curves() -> str:
    """The formulas of the learning rate's curves."""
    text = (optimizer.LearningRateSpec.__doc__ or "").partition("::\n\n")[2].partition("\n\n    ``")[0]
    return f"```text\n{text}\n```"


def _row(setting: Setting) -> str:
    default = "required" if setting.default is None else f"`{setting.default}`"
    cells = (f"`{setting.key}`", setting.type, default, setting.meaning)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
