"""Segmentation of volumes: slices (``data.matrix``) or patches (``data.patch``)."""

from __future__ import annotations

from typing import cast

from fedshift.schema.job import JobSpec
from fedshift.tasks.base import Task
from fedshift.tasks.segmentation import patch_task, slices


def build(job: JobSpec) -> Task:
    task = patch_task.Task(job) if "patch" in job.task.data else slices.Task(job)
    return cast(Task, task)  # each takes its own kind of data
