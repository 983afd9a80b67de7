"""What starts the processes of jobs for `fedshift.flare.guard.SiteJobLauncher`, by the site's own settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec

from fedshift.data.locate import read_settings
from flare_armour.restart import Kill


class Starter(Protocol):
    """Starts processes elsewhere. A job decides nothing of it."""

    def begin(self, fl_ctx: FLContext) -> None:
        """Before the site is connected: end what a former process of this site has left behind.

        Raises:
            UnsafeComponentError: the launcher cannot work here; NVFlare then ends the site.
        """
        ...

    def start(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        """Start the process of a job."""
        ...

    def killed(self, process: Any) -> Kill | None:
        """Of what `start` returned, once it has ended: that it was killed, or None."""
        ...

    def close(self) -> None:
        """The site ends: nothing of it may go on elsewhere."""
        ...


def starter(kit: Path) -> Starter | None:
    """What the settings in a kit name; None if processes of jobs run beside the site's own.

    Raises:
        ConfigError: the settings cannot be read, or the kit is not prepared for this launcher.
    """
    from fedshift.flare.launchers.connection import require_connection

    settings = read_settings(kit / "local")
    chosen = settings.launcher
    if chosen is None:
        return None
    require_connection(kit, chosen)
    if chosen.slurm is not None:
        from fedshift.flare.launchers.slurm import SlurmStarter

        return SlurmStarter(kit, chosen.slurm)
    if chosen.docker is not None:
        from fedshift.flare.launchers.docker import DockerStarter

        return DockerStarter(kit, chosen.docker, folders=tuple(map(Path, settings.data.values())))
    assert chosen.k8s is not None
    from fedshift.flare.launchers.kubernetes import KubernetesStarter

    return KubernetesStarter(kit, chosen.k8s)
