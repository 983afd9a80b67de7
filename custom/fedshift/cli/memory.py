"""Whether a run in this process fits into memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedshift.schema.job import JobSpec


def check_memory(job: JobSpec, data: Mapping[str, Path]) -> None:
    """Check that a run in this process will fit into memory; print a note if it will be tight."""
    from fedshift.federation.footprint import measure
    from fedshift.federation.memory import choose_workers, needs_in_process
    from fedshift.methods import method_set

    pooled = method_set.pooled_reference(job.methods) is not None
    needs = needs_in_process(job, data, measure(job), together=len(job.task.sites) if pooled else 1)
    note = choose_workers(needs, wanted=1, asked=False)[1]
    if note:
        print(note, flush=True)
