"""What a workspace holds: a run in FLARE's simulator, a run in one process, or something that no run may replace.

The simulator empties its workspace whenever it starts. So an interrupted run goes on in three steps: `put_aside` moves
the states of server and sites out of the workspace; `VARIABLE` names their folder to the simulator's processes; and
there `take_server_back` and `take_site_back` copy them to where the server and whichever client a site now works in
look for them. The copies aside are kept until the run has finished, so that a run can be interrupted any number of
times, also while it starts. Reading this module does not import nvflare.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedshift.reporting.progress import read_progress
from fedshift.reporting.trackers import RUN_ID, STORE
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import FILE_NAME, UNMASKING, Results, read_results

JOB = "simulate_job"
"""The simulator's name for its only job, as in nvflare's ``SimulatorConstants.JOB_NAME``."""
SERVER = "server"
SITES = "sites"
"""In a client's job folder: a folder of state for each site that works in this client."""
KEPT = ("local", "startup")
"""Folders that FLARE's simulator keeps from run to run."""
VARIABLE = "FEDSHIFT_INTERRUPTED_RUN"


@dataclass(frozen=True)
class RunFolders:
    """The folders of a simulated run."""

    workspace: Path

    @property
    def server(self) -> Path:
        """The server's job folder: results, models, curves."""
        return self.workspace / SERVER / JOB

    @property
    def log(self) -> Path:
        """Everything that the simulator and its workers printed."""
        return self.workspace / "simulator.log"

    @property
    def site_states(self) -> list[Path]:
        """The folders of the sites' states, in those of the clients that they worked in."""
        return sorted(path for path in self.workspace.glob(f"*/{JOB}/{SITES}/*") if path.is_dir())


# --- what a workspace holds -----------------------------------------------------------------------------


@dataclass(frozen=True)
class EarlierRun:
    """A run that a folder holds; ``results`` is None if the file cannot be read."""

    in_process: bool
    results: Results | None

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
    """What an earlier run of either kind has left in a workspace: all ``paths`` but `KEPT`."""

    paths: list[Path]
    in_process: bool

    def remove(self) -> None:
        for path in self.paths:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def find_run(workspace: Path) -> EarlierRun | None:
    """The run in a workspace, if at least one of its rounds has ended."""
    places = ((workspace, True), (RunFolders(workspace).server, False), (aside_of(workspace) / SERVER, False))
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
    """What a new run, ``in_process`` or not, replaces in its workspace, or goes on with.

    Raises:
        ConfigError: the workspace is no folder, or holds something other than a run; or, without ``force``, a run that
            was made the other way.
    """
    if workspace.exists() and not workspace.is_dir():
        raise ConfigError("not-a-folder", f"{workspace} is not a folder: give another -w")
    paths = [path for path in workspace.glob("*") if path.name not in KEPT]
    simulated = RunFolders(workspace).server.is_dir() or aside_of(workspace).is_dir()
    ran_in_process = _reads(read_results, workspace) or _reads(read_progress, workspace)
    if paths and not simulated and not ran_in_process:
        raise ConfigError("folder-in-use", f"{workspace} holds something other than a run: give another -w")
    if paths and ran_in_process != in_process and not force:
        how = "in one process" if ran_in_process else "under FLARE"
        raise ConfigError(
            "run-exists", f"{workspace} holds a run that was made {how}: use --force to replace it, or give another -w"
        )
    return Former(paths, ran_in_process)


def _reads(read: Callable[[Path], object], folder: Path) -> bool:
    """Whether a run's file is there, and of this version."""
    try:
        return read(folder) is not None
    except (ConfigError, ValueError):
        return False


# --- an interrupted run ---------------------------------------------------------------------------------


def aside_of(workspace: Path) -> Path:
    """The folder next to a workspace that holds the states of its interrupted run."""
    workspace = workspace.absolute()
    return workspace.with_name(f".{workspace.name}.interrupted")


def put_aside(folders: RunFolders) -> Path:
    """Move the states of server and sites out of a workspace; returns `aside_of` it.

    What was put aside earlier stays where the workspace has nothing newer: the run was then interrupted again before
    its server or that site had written anything.
    """
    aside = aside_of(folders.workspace)
    if any(folders.server.glob("*server_state.pt")):
        _replace(aside / SERVER, folders.server)
    for state in folders.site_states:
        _replace(aside / SITES / state.name, state)
    return aside


def discard_aside(workspace: Path) -> None:
    """Remove what `put_aside` has kept."""
    shutil.rmtree(aside_of(workspace), ignore_errors=True)


def take_server_back(folder: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Copy the server's state, models, results and MLflow's store into its job folder, if it goes on with a run."""
    if VARIABLE in environ:
        aside = Path(environ[VARIABLE]) / SERVER
        for pattern in ("*.pt", FILE_NAME, UNMASKING, RUN_ID, f"{STORE}*"):
            for path in aside.glob(pattern):
                shutil.copyfile(path, folder / path.name)


def take_site_back(site: str, states: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Copy a site's state to ``states/<site>``, if this run goes on with another and the site has none there yet."""
    if VARIABLE not in environ or (states / site).exists():
        return
    source = Path(environ[VARIABLE]) / SITES / site
    if source.is_dir():
        states.mkdir(parents=True, exist_ok=True)
        partial = states / f".{site}.partial-{uuid.uuid4().hex[:8]}"
        shutil.copytree(source, partial)
        partial.rename(states / site)


def _replace(target: Path, source: Path) -> None:
    """Move a folder in place of an older one, which is removed last."""
    target.parent.mkdir(parents=True, exist_ok=True)
    former = target.with_name(f".{target.name}.former-{uuid.uuid4().hex[:8]}")
    if target.exists():
        target.rename(former)
    source.rename(target)
    shutil.rmtree(former, ignore_errors=True)
