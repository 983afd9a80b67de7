"""Classification of pictures: see `fedshift.tasks.classification`."""

from __future__ import annotations

from fedshift.schema.job import JobSpec
from fedshift.tasks.classification.pictures import Images as Images
from fedshift.tasks.classification.spec import DataSpec as DataSpec
from fedshift.tasks.classification.task import Task as Task


def build(job: JobSpec) -> Task:
    return Task(job)
