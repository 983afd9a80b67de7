"""How a job's process that runs elsewhere talks with its site: ``local/comm_config.json``.

Everything that it says goes to the site, which passes it on to the server over its one connection: so nodes need no way
out. Over a network both sides show the site's certificate; in files, the folder's permissions say who may write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from nvflare.apis.job_launcher_spec import JobProcessArgs

from fedshift.flare.kit import read_json
from fedshift.schema.errors import ConfigError
from fedshift.schema.launcher import Launcher

COMM_CONFIG = "comm_config.json"
FILES = "connection"
"""Folder in the kit, of NVFlare's shared-file transport."""
SITES_ONLY = 1
"""Of NVFlare's ``backbone_conn_gen``: the site's own process is connected to the server, those of its jobs are not."""


def comm_config(kit: Path, launcher: Launcher | None) -> dict[str, Any] | None:
    """What ``comm_config.json`` must hold; None if the launcher needs none: its processes are on the site's machine."""
    if launcher is None or launcher.docker is not None:
        return None
    if launcher.slurm is not None and launcher.slurm.connection == "files":
        where: dict[str, Any] = {"root_dir": str(kit.absolute() / FILES), "dir_mode": "0o700", "file_mode": "0o600"}
        internal = {"scheme": "shared-file", "resources": where | {"connection_security": "clear"}}
    else:
        port = launcher.slurm.port if launcher.slurm else launcher.k8s.port if launcher.k8s else 0
        listens = {"host": "0.0.0.0", "port": port, "connection_security": "mtls"}
        internal = {"scheme": "tcp", "resources": listens}
    return {"allow_adhoc_conns": False, "backbone_conn_gen": SITES_ONLY, "internal": internal}


def connection_fault(kit: Path, launcher: Launcher | None) -> str | None:
    """Why the kit's connection is not the launcher's; None if it is.

    Raises:
        ConfigError: the file cannot be read.
    """
    path, expected = kit / "local" / COMM_CONFIG, comm_config(kit, launcher)
    written = read_json(path) if path.is_file() else None
    if written == expected:
        return None
    if expected is None:
        return f"{path} opens this site for processes on other machines, and its launcher has none there: delete it"
    return (
        f"{path} {'is missing' if written is None else 'is not of these settings'}: run 'fedshift site init' with "
        "--launcher and --force again (it keeps the former files as .old)"
    )


def require_connection(kit: Path, launcher: Launcher) -> None:
    """Refuse a kit whose connection is not the launcher's.

    Raises:
        ConfigError: it is another.
    """
    fault = connection_fault(kit, launcher)
    if fault is not None:
        raise ConfigError("wrong-launcher", fault)


def to_host(job_args: dict[str, Any], host: str) -> dict[str, Any]:
    """NVFlare's arguments of a job's process, with the site's address as another machine sees it."""
    option, url = job_args[JobProcessArgs.PARENT_URL]
    parts = urlsplit(str(url))
    address = urlunsplit(parts._replace(netloc=f"{host}:{parts.port}"))
    return {**job_args, JobProcessArgs.PARENT_URL: (option, address)}
