"""Which launcher a site's settings name. Only that one is imported."""

from __future__ import annotations

from pathlib import Path

from fedshift.data.locate import read_settings
from fedshift.flare.launchers.connection import require_connection
from fedshift.flare.launchers.starter import Starter


def starter(kit: Path) -> Starter | None:
    """What the settings in a kit name; None if processes of jobs run beside the site's own.

    Raises:
        ConfigError: the settings cannot be read, or the kit is not prepared for this launcher.
    """
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
