"""Never overwrite a run by accident: commands that write a run look for an earlier one in the folder first."""

from __future__ import annotations

from pathlib import Path

from fedshift.flare.workspaces import Former, find_former, find_run
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import FILE_NAME


def require_free(workspace: Path, *, resume: bool, force: bool, in_process: bool) -> Former:
    """See that a run may begin in a workspace, or go on there; what an earlier one has left there.

    Raises:
        ConfigError: there is an earlier run and neither ``resume`` nor ``force``; or ``resume`` is asked for the
            other way of running; or there is something other than a run.
    """
    run = find_run(workspace)
    if run is not None and not force:
        if not resume:
            raise ConfigError(
                "run-exists",
                f"{workspace} holds {run.says}: use --resume to go on with it, --force to replace it, or another "
                "--workspace",
            )
        if run.in_process != in_process:
            how = "in one process: add --in-process" if run.in_process else "under FLARE: leave out --in-process"
            raise ConfigError("run-exists", f"{workspace} holds {run.says}, made {how}")
    return find_former(workspace, in_process=in_process, force=force)


def require_no_run_inside(job_folder: Path, *, force: bool) -> None:
    """See that replacing a job folder destroys no run.

    Raises:
        ConfigError: there is a run somewhere in it and not ``force``.
    """
    found = next(iter(sorted(job_folder.rglob(FILE_NAME))), None)
    if found is not None and not force:
        raise ConfigError(
            "run-exists",
            f"{job_folder} holds a run ({found.parent}): move that away, give another --name or --out, or use --force "
            "to replace both",
        )
