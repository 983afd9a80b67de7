"""Processes of jobs in a Slurm queue, by NVFlare's own launcher.

NVFlare 2.9's launcher submits, watches and cancels. What it lacks: the site's own GPUs, cores and memory (only a job
may ask for them), the queue's state when it has ended a process (the site says "infrastructure error"), and jobs in the
queue that a killed site has left.
"""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobReturnCode
from nvflare.app_opt.job_launcher.slurm import ClientSlurmJobLauncher
from nvflare.fuel.common.exit_codes import ProcessExitCode

from fedshift.flare.launchers.starter import require_no_orders
from fedshift.schema.launcher import Slurm
from flare_armour.restart import Kill

log = logging.getLogger(__name__)

LOOK = 5.0
"""Seconds between two looks at the queue, which asks the cluster's controller."""
ANSWER = 30.0
"""Seconds for one of Slurm's commands."""
LEAVE = 60.0
"""Seconds in which jobs that were cancelled have left the queue."""
NAME_LENGTH = 32
"""Characters of the site's name in that of a Slurm job, as NVFlare names them."""


class SlurmStarter:
    """For `fedshift.flare.guard.SiteJobLauncher`."""

    def __init__(self, kit: Path, settings: Slurm) -> None:
        self._kit, self._settings = kit.resolve(), settings
        self._launcher = ClientSlurmJobLauncher(**launcher_options(self._kit, settings))
        self._started: list[Any] = []

    def begin(self, fl_ctx: FLContext) -> None:
        """Cancel what a former process of this site has left in the queue, then check the queue."""
        end_orphans(self._kit, fl_ctx.get_identity_name())
        self._launcher.handle_event(EventType.SYSTEM_BOOTSTRAP, fl_ctx)

    def start(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        require_no_orders(job_meta)
        site = fl_ctx.get_identity_name()
        wanted = {JobMetaKey.JOB_LAUNCHER_SPEC.value: {site: {"slurm": job_options(self._settings)}}}
        handle = self._launcher.launch_job({**job_meta, **wanted}, fl_ctx)
        self._started.append(handle)
        log.info("the job process waits in Slurm's queue as job %s", handle.job_id)
        return handle

    def killed(self, process: Any) -> Kill | None:
        waited_too_long = process.cancel_requested and not process.user_abort
        if waited_too_long:
            how = f"Slurm job {process.job_id} has waited in the queue longer than {self._settings.wait_hours:g} hours"
            return Kill(how, again=False)
        return killed_by_queue(process.job_id, process.poll(), self._kit / process.nvflare_job_id)

    def close(self) -> None:
        self._launcher.handle_event(EventType.SYSTEM_END, FLContext())
        for handle in self._started:
            handle.terminate()


def launcher_options(kit: Path, settings: Slurm) -> dict[str, Any]:
    """What NVFlare's launcher is made with."""
    chosen = {name: getattr(settings, name) for name in ("partition", "account", "qos", "constraint", "reservation")}
    chosen["time"] = settings.time
    return {
        "workspace_path": str(kit),
        "sandbox": "none",
        "python_path": settings.python or sys.executable,
        "executables": {},
        "internal_port": settings.port,
        "parent_host": settings.host,
        "sbatch_directives": {name: value for name, value in chosen.items() if value is not None},
        "setup": settings.setup,
        "submit_timeout": ANSWER,
        "query_timeout": ANSWER,
        "cancel_timeout": ANSWER,
        "poll_interval": LOOK,
        "pending_timeout": settings.wait_hours * 3600,
    }


def job_options(settings: Slurm) -> dict[str, Any]:
    """What NVFlare lets a job ask for, and here the site says."""
    memory = None if settings.memory_gb is None else settings.memory_gb * 1024
    wanted = {"gpus_per_node": settings.gpus, "cpus_per_node": settings.cpus, "mem_per_node": memory}
    return {"nodes": 1} | {name: value for name, value in wanted.items() if value is not None}


def killed_by_queue(job: str, code: int | str, run_folder: Path) -> Kill | None:
    """That the queue ended a job, or its process was killed on its node, in Slurm's words; None if it ended by itself.

    Args:
        job: Slurm's number.
        code: what NVFlare makes of its end.
        run_folder: where Slurm writes what the process prints.
    """
    row = _ask("sacct", "-X", "-n", "-P", f"--jobs={job}", "--format=State,ExitCode,Elapsed,NodeList")
    if row is None or row.count("|") != 3:
        lost = code == ProcessExitCode.INFRASTRUCTURE_ERROR
        return Kill(f"Slurm job {job}, of which sacct tells nothing any more") if lost else None
    state, exit_code, elapsed, nodes = row.strip().split("|")
    how = f"Slurm job {job}: {state} after {elapsed}" + ("" if nodes == "None assigned" else f" on {nodes}")
    name = state.partition(" ")[0].removesuffix("+")
    if name == "CANCELLED":
        return Kill(f"{how}, not by this site", again=False)
    if name not in ("COMPLETED", "FAILED"):
        return Kill(how)
    status, _, signal = exit_code.partition(":")
    if signal not in ("", "0") and code != JobReturnCode.ABORTED:
        return Kill(f"{how} by signal {signal}")
    if status != "0":
        log.error("%s with exit code %s: see %s", how, status, run_folder / f"slurm-{job}.out")
    return None


def end_orphans(kit: Path, site: str) -> None:
    """Cancel jobs in the queue that a former process of this site has left, and remove their files.

    Raises:
        UnsafeComponentError: they do not leave the queue.
    """
    orphans = {folder: f"nvfl-{site[:NAME_LENGTH]}-{folder.name[:8]}" for folder in _job_folders(kit)}
    for name in orphans.values():
        log.warning("a former process of this site has left %s in Slurm's queue: it is cancelled", name)
        _ask("scancel", "-Q", "--me", f"--name={name}")
    end = time.monotonic() + LEAVE
    for folder, name in orphans.items():
        while _ask("squeue", "-h", "--me", f"--name={name}", "--format=%i") != "":
            if time.monotonic() > end:
                raise UnsafeComponentError(
                    f"Slurm still runs {name} of a former process of this site, or does not answer: see 'squeue --me'"
                )
            time.sleep(0.5)
        shutil.rmtree(folder)


def _job_folders(kit: Path) -> Iterator[Path]:
    """NVFlare has one for each of its jobs in the queue, named by a digest."""
    folder = kit / ".nvflare_slurm" / "jobs"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink() and re.fullmatch(r"[0-9a-f]{64}", path.name):
            yield path


def _ask(*command: str) -> str | None:
    """What one of Slurm's commands prints, without the last line's end; None if it fails."""
    try:
        result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=ANSWER, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("%s gives no answer: %s", command[0], error)
        return None
    return result.stdout.rstrip("\n")
