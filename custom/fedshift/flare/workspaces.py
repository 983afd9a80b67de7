"""What a workspace holds: a run under FLARE, a run in one process, or something that no run may replace.

Reading this module does not import nvflare.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedshift.flare.run_folders import RunFolders
from fedshift.flare.simulator_state import aside_of
from fedshift.reporting.progress import read_progress
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import FILE_NAME, Results, read_results

KEPT = ("local", "startup")
"""Folders that FLARE's simulator keeps from run to run."""


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


@dataclass(frozen=True)
class Former:
    """What an earlier run of either kind has left in a workspace, also if none of its rounds has ended."""

    paths: list[Path]
    """All that the workspace holds but `KEPT`."""
    in_process: bool

    def remove(self) -> None:
        """Remove it."""
        for path in self.paths:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def find_run(workspace: Path) -> EarlierRun | None:
    """The run in a workspace, if at least one of its rounds has ended."""
    places = ((workspace, True), (RunFolders(workspace).server, False), (aside_of(workspace) / "server", False))
    for folder, in_process in places:
        if not (folder / FILE_NAME).is_file():
            continue
        try:
            results = read_results(folder)
        except ConfigError:
            if in_process and not _reads(read_progress, workspace):
                continue  # other programs call their files so, too
            return EarlierRun(in_process, None)
        if results.rounds:
            return EarlierRun(in_process, results)
    return None


def find_former(workspace: Path, *, in_process: bool, force: bool) -> Former:
    """What a new run replaces in its workspace, or goes on with.

    Args:
        workspace: of the new run.
        in_process: whether that is in one process.
        force: replace a run that was made the other way.

    Raises:
        ConfigError: the workspace is no folder, or holds something other than a run; or, without ``force``, a run that
            was made the other way.
    """
    if workspace.exists() and not workspace.is_dir():
        raise ConfigError("not-a-folder", f"{workspace} is not a folder: give another -w")
    paths = [path for path in workspace.glob("*") if path.name not in KEPT]
    simulated = RunFolders(workspace).server.is_dir() or aside_of(workspace).is_dir()
    here = _reads(read_results, workspace) or _reads(read_progress, workspace)
    if paths and not simulated and not here:
        raise ConfigError("folder-in-use", f"{workspace} holds something other than a run: give another -w")
    if paths and here != in_process and not force:
        how = "in one process" if here else "under FLARE"
        raise ConfigError(
            "run-exists", f"{workspace} holds a run that was made {how}: use --force to replace it, or give another -w"
        )
    return Former(paths, here)


def _reads(read: Callable[[Path], object], folder: Path) -> bool:
    """Whether a run's file is there, and of this version."""
    try:
        return read(folder) is not None
    except (ConfigError, ValueError):
        return False
