"""Write a job as the folder that FLARE's simulator, console and API accept, and read such a folder.

Normally a FLARE client is one site and has its name. In a job with ``federation.hosts``, which is for simulating many
sites on few cores, that many clients divide the sites among them; each does its sites' work one after another.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from fedshift.flare import codec
from fedshift.schema.errors import ConfigError
from fedshift.schema.identity import own_identity, own_packages
from fedshift.schema.job import FILE_NAME, JobSpec, read_job
from fedshift.schema.validation import KEY
from fedshift.schema.yaml_file import read_yaml

APP = "app"
SPEC = Path(APP) / "config" / FILE_NAME

HEADER = """\
# The whole job, resolved to the last key: server and sites read this and nothing else of fedshift's.
# Written by 'fedshift job'. Make a new one rather than editing it: what is not valid here is refused when it starts.
# Where a site's data are is not in here: only the site knows.
"""

MARKER = """\
This folder is empty on purpose. FLARE builds only its own components for a job without `app/custom/`; any file
here makes it accept fedshift's, in the simulator and where the submitter has the right "byoc". The code itself
is the installed fedshift. Sites that name fedshift in their `class_allow_list` take the job without this folder:
`fedshift job --production` writes it so.
"""
CARRIED = """\
The source of fedshift {identity}, for sites that have what it depends on but not fedshift itself.
FLARE runs the code of a job only where the submitter has the right "byoc". An installed fedshift is used in its place,
and must be the same.
"""


def hosts(job: JobSpec) -> dict[str, tuple[str, ...]]:
    """FLARE client → its sites, in the job's order."""
    everyone, count = job.task.everyone, job.federation.hosts
    if count is None:
        return {site: (site,) for site in everyone}
    if job.federation.shares:
        return {f"host_{number}": share for number, share in enumerate(job.federation.shares, 1)}
    # Every count-th site to the same host, so that the sites drawn for a round are spread over the hosts.
    return {f"host_{number + 1}": everyone[number::count] for number in range(count)}


# --- writing and reading --------------------------------------------------------------------------------


def write_job(job: JobSpec, folder: Path, *, production: bool = False, with_code: bool = False) -> Path:
    """Write a job folder, completely or not at all. An older job of that name is replaced. Returns ``folder``.

    Args:
        job: the job.
        folder: the job folder itself, such as ``jobs/fedfa_prostate``.
        production: leave out the marker that lets a bare simulator build fedshift's components.
        with_code: add fedshift's source, for parties where it is not installed.

    Raises:
        ConfigError: the folder holds something other than a job, the job is a centralised reference, or the options
            contradict each other.
    """
    from fedshift.methods import method_set  # brings torch, which reading a job can do without

    method_set.require_federation(job)
    if production and with_code:
        raise ConfigError("options-clash", "--production is for sites that take no code: leave out that or --with-code")
    if production and job.federation.hosts is not None:
        raise ConfigError("options-clash", "a provisioned client is one site: use --set federation.hosts=null")
    if folder.exists() and not (folder / SPEC).is_file():
        raise ConfigError("output-exists", f"{folder} is there and is no fedshift job: give another --name or --out")
    return write_folder(
        folder,
        meta=meta(job),
        server=server_config(),
        client=client_config(masks=job.federation.encryption == "masks"),
        spec=HEADER + _yaml(job),
        production=production,
        with_code=with_code,
    )


def write_folder(
    folder: Path,
    *,
    meta: dict[str, Any],
    server: dict[str, Any],
    client: dict[str, Any],
    spec: str,
    production: bool,
    with_code: bool = False,
    beside: Mapping[str, Path] = MappingProxyType({}),
) -> Path:
    """Write the files of a job, completely or not at all; ``spec`` is the text of its ``fedshift.yaml``.

    ``beside``: further files, by where they go beside that.
    """
    partial = folder.parent / f".{folder.name}.partial-{uuid.uuid4().hex[:8]}"
    config = partial / APP / "config"
    config.mkdir(parents=True)
    try:
        _write_json(partial / "meta.json", meta)
        _write_json(config / "config_fed_server.json", server)
        _write_json(config / "config_fed_client.json", client)
        (config / FILE_NAME).write_text(spec, encoding="utf-8")
        for place, file in beside.items():
            (config / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, config / place)
        if not production:
            custom = partial / APP / "custom"
            custom.mkdir()
            text = CARRIED.format(identity=own_identity()) if with_code else MARKER
            (custom / "README.md").write_text(text, encoding="utf-8")
            for package in own_packages() if with_code else ():
                for source in package.rglob("*.py"):  # the files that the source hash covers
                    target = custom / package.name / source.relative_to(package)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, target)
        if folder.exists():
            former = partial.with_name(partial.name + ".former")
            folder.rename(former)
            partial.rename(folder)
            shutil.rmtree(former)
        else:
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def share_out(job: JobSpec, folder: Path, target: Path, *, shares: tuple[tuple[str, ...], ...]) -> JobSpec:
    """Copy a job folder, with all its files, and divide its sites among hosts, which work for their sites in turn.

    The results are the same, bit for bit.
    """
    shared = job.model_copy(
        update={"federation": job.federation.model_copy(update={"hosts": len(shares), "shares": shares})}
    )
    shutil.copytree(folder, target)
    path = target / "meta.json"
    _write_json(path, json.loads(path.read_text(encoding="utf-8")) | meta(shared))
    (target / SPEC).write_text(HEADER + _yaml(shared), encoding="utf-8")
    return shared


def _yaml(job: JobSpec) -> str:
    return yaml.safe_dump(job.dump(), sort_keys=False, allow_unicode=True, width=110)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_job_folder(folder: Path) -> JobSpec:
    """Read the job of a job folder.

    Raises:
        ConfigError: no job is there, or an invalid one.
    """
    if not (folder / SPEC).is_file():
        raise ConfigError("no-job", f"{folder} is no fedshift job (it has no {SPEC}): 'fedshift job' writes one")
    raw = read_yaml(folder / SPEC)
    if KEY in raw:
        raise ConfigError(
            "wrong-job", f"{folder} asks for scores of models and trains nothing: run it with 'fedshift run {folder}'"
        )
    if "survey" in raw:
        raise ConfigError(
            "wrong-job", f"{folder} asks for a survey and trains nothing: run it with 'fedshift survey {folder}'"
        )
    return read_job(folder / SPEC)


# --- FLARE's files of a job -----------------------------------------------------------------------------


def meta(job: JobSpec) -> dict[str, Any]:
    """``meta.json``. It names the sites, so that the simulator needs no ``-n`` and ``-c``."""
    return {
        "name": job.name,
        "resource_spec": {},
        "min_clients": job.federation.hosts or job.federation.min_clients(len(job.task.sites)),
        "deploy_map": {APP: ["server", *hosts(job)]},
    }


def server_config() -> dict[str, Any]:
    """``config_fed_server.json``. Clients ask for tasks ten times a second; arrays travel inside messages."""
    return {
        "format_version": 2,
        "server": {"task_request_interval": 0.1},
        "np_download_chunk_size": 0,
        "workflows": [
            {
                "id": "fedshift",
                "path": "fedshift.flare.workflow.FedshiftWorkflow",
                "args": {"aggregator_id": "aggregator"},
            }
        ],
        "components": [
            {"id": "aggregator", "path": "fedshift.flare.aggregator.FedshiftAggregator", "args": {}},
        ],
    }


def client_config(*, masks: bool = False) -> dict[str, Any]:
    """``config_fed_client.json``; with ``masks``, sites answer one task more."""
    unmask = [codec.UNMASK] if masks else []
    return {
        "format_version": 2,
        "np_download_chunk_size": 0,
        "executors": [
            {
                "tasks": [codec.STATISTICS, codec.TRAIN, *unmask, codec.VALIDATE],
                "executor": {"path": "fedshift.flare.executor.FedshiftExecutor", "args": {}},
            }
        ],
        "components": [],
    }
