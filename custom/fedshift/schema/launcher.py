"""Where a site's processes of jobs run, if not on the machine of the site itself: ``launcher`` of its settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import Strict

Kind = Literal["process", "slurm", "docker", "k8s"]
KINDS: tuple[Kind, ...] = get_args(Kind)

DNS_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
"""Of Kubernetes' objects."""


def _one_word(text: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise ValueError("must be one word: take out the blanks")
    return text


def _absolute(text: str) -> str:
    if not PurePosixPath(text).is_absolute() or ".." in PurePosixPath(text).parts or not text.isprintable():
        raise ValueError("must be an absolute path without '..'")
    return text


def _quoted(value: object) -> object:
    """YAML reads 4:00:00 without quotes as a number, to base 60."""
    if isinstance(value, int):
        raise ValueError('must be in quotes, such as "4:00:00" for four hours or "2-00:00:00" for two days')
    return value


Word = Annotated[str, AfterValidator(_one_word)]
Folder = Annotated[str, AfterValidator(_absolute)]
DnsName = Annotated[str, Field(pattern=DNS_NAME, max_length=253)]
Port = Annotated[int, Field(strict=True, ge=1024, le=65535)]
Count = Annotated[int, Field(strict=True, ge=1)]
Hours = Annotated[float, Field(gt=0)]


class Slurm(Strict):
    """``sbatch`` starts each job's process on a node that sees the kit and the data at the same paths.

    ``connection``: How the process talks with the site: ``network``, or ``files`` in the kit where nodes cannot reach
    the site's machine. ``host``: By which name nodes reach the site's machine; only with connection: network.
    ``port``: On which the site then listens, with certificates on both sides. ``partition``: Slurm's.
    ``account``: Slurm's. ``qos``: Slurm's. ``constraint``: Slurm's, such as the type of GPU. ``reservation``: Slurm's.
    ``time``: The longest that a process may run, in quotes. ``gpus``: Their number (``--gres=gpu:…``).
    ``cpus``: Processor cores of a process. ``memory_gb``: Its memory. ``wait_hours``: A process that has waited longer
    in the queue is given up. ``python``: The Python on the nodes, or a script that starts it in a container; the
    site's own if none is named. ``setup``: Lines of shell before it, such as ``module load cuda``.
    """

    connection: Literal["network", "files"] = "network"
    host: Word | None = None
    port: Port = 8102
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Word | None = None
    reservation: Word | None = None
    time: Annotated[Word, BeforeValidator(_quoted)] | None = None
    gpus: Count | None = None
    cpus: Count | None = None
    memory_gb: Count | None = None
    wait_hours: Hours = 24.0
    python: Folder | None = None
    setup: str = ""

    @model_validator(mode="after")
    def _reachable(self) -> Slurm:
        if self.connection == "files" and self.host is not None:
            raise ValueError("host is for connection: network; leave it out with connection: files")
        if self.connection == "network" and self.host is None:
            raise ValueError(
                "host is missing: the name by which the nodes reach the site's machine; or connection: files if they "
                "cannot"
            )
        return self


class Docker(Strict):
    """``docker run`` (or ``podman run``) starts each job's process in a container of the site's machine.

    ``image``: It has fedshift in the site's version, such as what ``deploy/Dockerfile`` makes. ``program``: Which
    command. ``gpus``: ``all``, or a number. ``cpus``: Processor cores. ``memory_gb``: Memory. ``shared_memory_gb``:
    Size of ``/dev/shm``. ``environment``: Variables of the process.
    """

    image: Word
    program: Literal["docker", "podman"] = "docker"
    gpus: Count | Literal["all"] | None = None
    cpus: Count | None = None
    memory_gb: Count | None = None
    shared_memory_gb: Count = 2
    environment: dict[str, str] = {}


class Kubernetes(Strict):
    """Each job's process is a Pod, and the site itself a Deployment: ``fedshift site manifests`` writes what it needs.

    ``image``: It has fedshift, as ``deploy/Dockerfile`` makes it. ``kit_claim``: The claim of the volume that holds the
    kit, which all Pods can write. ``kit_path``: Where Pods see the kit. ``data_claims``: Claim → where Pods see it, to
    read only. ``namespace``: Of all objects. ``port``: On which the site listens for its Pods. ``user``: User and group
    of the processes. ``gpus``: Number. ``gpu_resource``: What the cluster calls them. ``cpus``: Processor cores.
    ``memory_gb``: Memory of a job's process. ``wait_hours``: A Pod that has waited longer for a node is given up.
    ``pull_secrets``: Names of secrets for the image's registry. ``environment``: Variables of the process.
    """

    image: Word
    kit_claim: DnsName
    kit_path: Folder
    data_claims: dict[DnsName, Folder] = {}
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)] = "default"
    port: Port = 8102
    user: Annotated[int, Field(strict=True, ge=1)] = 10001
    gpus: Count | None = None
    gpu_resource: Word = "nvidia.com/gpu"
    cpus: Count = 2
    memory_gb: Count = 8
    wait_hours: Hours = 24.0
    pull_secrets: tuple[DnsName, ...] = ()
    environment: dict[str, str] = {}


class Launcher(Strict):
    """Options of one launcher; without any, processes of jobs run beside the site's own.

    ``slurm``: A queue. ``docker``: Containers of the site's machine. ``k8s``: Pods.
    """

    slurm: Slurm | None = None
    docker: Docker | None = None
    k8s: Kubernetes | None = None

    @model_validator(mode="after")
    def _require_single(self) -> Launcher:
        named = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError(f"must name one of {', '.join(type(self).model_fields)}, not {len(named)}")
        return self

    @property
    def kind(self) -> Kind:
        return "slurm" if self.slurm else "docker" if self.docker else "k8s"


def parse_launcher(kind: Kind, options: dict[str, object]) -> Launcher | None:
    """The settings of a launcher from its options; None for ``process``, which has none.

    Raises:
        ConfigError: an unknown option, a missing one, or a bad value.
    """
    where = f"--launcher {kind}"
    if kind == "process":
        if options:
            first = min(options)
            raise ConfigError("unknown-key", f"{where} has no options: name another launcher, or leave out {first!r}")
        return None
    return Launcher.parse({kind: options}, where=where)


def launcher_options(texts: Sequence[str]) -> dict[str, object]:
    """``OPTION=VALUE`` from the command line; a value is a number, true, false or an object as in JSON, or text.

    Raises:
        ConfigError: one has another form, or an option is named twice.
    """
    options: dict[str, object] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ConfigError("option-form", f"--set takes OPTION=VALUE, such as partition=gpu, not {text!r}")
        if name in options:
            raise ConfigError("option-form", f"--set names {name!r} twice: name it once")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options
