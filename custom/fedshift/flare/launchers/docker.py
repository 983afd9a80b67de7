"""Processes of jobs in containers of the site's machine.

The container gets the kit to write, the data to read, and the site's user; it shares the machine's network, as a job's
process without a container does. So the site listens on no port. NVFlare's own launcher would have the site itself in a
container that controls Docker, and the image named by the job.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import JobConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobProcessEnv
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle

from fedshift.flare.launchers.starter import require_no_orders
from fedshift.schema.launcher import Docker
from flare_armour.restart import Kill, killed_by_signal

log = logging.getLogger(__name__)

PREFIX = "fedshift-"
"""Of containers' names; then come the site's and the job's."""
ANSWER = 60.0
"""Seconds for Docker to list or to remove containers."""
SECRETS = (JobProcessEnv.AUTH_TOKEN, JobProcessEnv.TOKEN_SIGNATURE, JobProcessEnv.SSID)
"""Variables with credentials, whose values stay out of the command."""
KILLED = 137
"""Exit code of a container that was killed, as when its memory ran out."""


class ContainerHandle(ProcessHandle):
    """The process that waits for a container; whoever ends it ends the container."""

    def __init__(self, adapter: Any, remove: Sequence[str]) -> None:
        super().__init__(process_adapter=adapter)
        self._remove = remove

    def terminate(self) -> None:
        subprocess.run(self._remove, capture_output=True, timeout=ANSWER, check=False)
        super().terminate()


class DockerStarter(ClientProcessJobLauncher):
    """For `fedshift.flare.guard.SiteJobLauncher`."""

    def __init__(self, kit: Path, settings: Docker, *, folders: Sequence[Path]) -> None:
        """``folders``: the data's."""
        super().__init__()
        self._kit, self._settings, self._folders = kit.absolute(), settings, folders
        self._started: list[ContainerHandle] = []

    def begin(self, fl_ctx: FLContext) -> None:
        """Remove the containers that a former process of this site has left."""
        program, prefix = self._settings.program, f"{PREFIX}{fl_ctx.get_identity_name()}-"
        try:
            asked = [program, "ps", "--all", "--quiet", f"--filter=name=^{prefix}"]
            result = subprocess.run(asked, capture_output=True, encoding="utf-8", timeout=ANSWER, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise UnsafeComponentError(f"{program} gives no answer ({error}): see to it, and start the site") from None
        if containers := result.stdout.split():
            log.warning("a former process of this site has left containers %s*: they are removed", prefix)
            subprocess.run([program, "rm", "--force", *containers], capture_output=True, timeout=ANSWER, check=False)

    def start(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        require_no_orders(job_meta)
        remove = [self._settings.program, "rm", "--force", self._container_name(job_meta, fl_ctx)]
        subprocess.run(remove, capture_output=True, timeout=ANSWER, check=False)
        handle = ContainerHandle(self.launch_job(job_meta, fl_ctx).adapter, remove)
        self._started.append(handle)
        return handle

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        """NVFlare's command for a process, in a container."""
        _python, _, arguments = super().get_command(job_meta, fl_ctx).partition(" ")
        name = self._container_name(job_meta, fl_ctx)
        return f"{shlex.join(container(self._settings, self._kit, self._folders, name))} {arguments}"

    def killed(self, process: Any) -> Kill | None:
        if process.adapter.poll() == KILLED:
            return Kill(f"its container ended with {KILLED}, as when its memory runs out")
        return killed_by_signal(process)

    def close(self) -> None:
        for handle in self._started:
            handle.terminate()

    @staticmethod
    def _container_name(job_meta: Mapping[str, Any], fl_ctx: FLContext) -> str:
        return f"{PREFIX}{fl_ctx.get_identity_name()}-{job_meta[JobConstants.JOB_ID]}"


def container(settings: Docker, kit: Path, folders: Sequence[Path], name: str) -> list[str]:
    """The command that runs Python in a container, up to Python's own arguments."""
    command = [settings.program, "run", "--rm", "--init", f"--name={name}", "--network=host", "--pull=never"]
    command += [f"--user={os.getuid()}:{os.getgid()}", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    command += ["--read-only", "--tmpfs=/tmp", f"--shm-size={settings.shared_memory_gb}g"]
    command += [f"--volume={kit}:{kit}", f"--workdir={kit}"]
    command += [f"--volume={folder}:{folder}:ro" for folder in folders]
    for option, value in (("cpus", settings.cpus), ("memory", settings.memory_gb), ("gpus", settings.gpus)):
        if value is not None:
            command.append(f"--{option}={value}{'g' if option == 'memory' else ''}")
    command += [f"--env={name}={value}" for name, value in settings.environment.items()]
    command += [f"--env={name}" for name in SECRETS]
    return [*command, settings.image, "python3"]
