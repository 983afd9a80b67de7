"""Kinds of task, one module each. ``build(job)`` of a module gives its task; its name is what ``kind`` in a task file
says.
"""

from __future__ import annotations

import importlib
import pkgutil

from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import nearest
from fedshift.tasks.base import Task


def build_task(job: JobSpec) -> Task:
    """The task of a job; refuses an unknown kind or ``data`` key (`ConfigError`)."""
    kinds = [module.name for module in pkgutil.iter_modules(__path__)]
    kind = job.task.kind
    if kind not in kinds:
        raise ConfigError("unknown-kind", f"task {job.task.name}: there is no kind {kind!r}{nearest(kind, kinds)}")
    task: Task = importlib.import_module(f"fedshift.tasks.kinds.{kind}").build(job)
    return task
