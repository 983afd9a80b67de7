"""Never overwrite a run by accident: commands that write a run look for an earlier one in the folder first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedshift.flare.run_folders import RunFolders
from fedshift.flare.simulator_state import aside_of
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import FILE_NAME, Results, read_results


@dataclass(frozen=True)
class EarlierRun:
    """A run that a folder holds."""

    in_process: bool
    results: Results | None
    """None if the file cannot be read."""

    @property
    def has_finished(self) -> bool:
        """Whether it has final scores."""
        return self.results is not None and self.results.final is not None

    @property
    def says(self) -> str:
        """What it is, as a part of a sentence."""
        if self.results is None:
            return f"a run whose {FILE_NAME} cannot be read"
        job = self.results.job
        what = f"{'+'.join(method.name for method in job.methods)} on {job.task}"
        if self.has_finished:
            return f"a finished run ({what}, {job.rounds} rounds)"
        return f"a run that stopped after round {len(self.results.rounds)} of {job.rounds} ({what})"


def find_run(workspace: Path) -> EarlierRun | None:
    """The run in a workspace, if at least one of its rounds has ended."""
    places = ((workspace, True), (RunFolders(workspace).server, False), (aside_of(workspace) / "server", False))
    for folder, in_process in places:
        if not (folder / FILE_NAME).is_file():
            continue
        try:
            results = read_results(folder)
        except ConfigError:
            return EarlierRun(in_process, None)
        if results.rounds:
            return EarlierRun(in_process, results)
    return None


def require_free(workspace: Path, *, resume: bool, force: bool, in_process: bool) -> None:
    """See that a run may begin in a workspace, or go on there.

    Raises:
        ConfigError: there is an earlier run and neither ``resume`` nor ``force``; or ``resume`` is asked for the
            other way of running.
    """
    run = find_run(workspace)
    if run is None or force:
        return
    if not resume:
        raise ConfigError(
            f"{workspace} holds {run.says}: use --resume to go on with it, --force to replace it, or another "
            "--workspace"
        )
    if run.in_process != in_process:
        how = "in one process: add --in-process" if run.in_process else "under FLARE: leave out --in-process"
        raise ConfigError(f"{workspace} holds {run.says}, made {how}")


def require_no_run_inside(job_folder: Path, *, force: bool) -> None:
    """See that replacing a job folder destroys no run.

    Raises:
        ConfigError: there is a run somewhere in it and not ``force``.
    """
    found = next(iter(sorted(job_folder.rglob(FILE_NAME))), None)
    if found is not None and not force:
        raise ConfigError(
            f"{job_folder} holds a run ({found.parent}): move that away, give another --name or --out, or use --force "
            "to replace both"
        )
