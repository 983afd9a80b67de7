"""Where a site's processes of jobs run: whether the queue, the containers or the cluster of its settings are there."""

from __future__ import annotations

import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedshift.cli.checks.remark import LIMIT, Remark
from fedshift.data.locate import SITE_FILE, read_settings
from fedshift.schema.errors import FedshiftError

if TYPE_CHECKING:
    from fedshift.flare.kit import Kit
    from fedshift.schema.launcher import Docker, Kubernetes, Slurm

ABOUT = "launcher"
SLURM = ("sbatch", "squeue", "sacct", "scancel")
OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO


def about_launcher(kit: Kit) -> Iterator[Remark]:
    """Nothing for a site whose processes of jobs run beside its own."""
    try:
        launcher = read_settings(kit.local).launcher
    except FedshiftError:
        return  # the check of the data says so
    if launcher is None:
        return
    if launcher.slurm is not None:
        yield from _about_slurm(kit, launcher.slurm)
    elif launcher.docker is not None:
        yield from _about_docker(launcher.docker)
    elif launcher.k8s is not None:
        yield from _about_kubernetes(kit, launcher.k8s)


def _about_slurm(kit: Kit, settings: Slurm) -> Iterator[Remark]:
    missing = [name for name in SLURM if shutil.which(name) is None]
    if missing:
        text = f"{', '.join(missing)} missing from the PATH: install Slurm's commands on this machine (slurm-client)"
        yield Remark("error", ABOUT, text)
        return
    ready = True
    for remark in (*_about_shared_kit(kit), *_about_cluster(settings)):
        ready &= remark.level != "error"
        yield remark
    if ready:
        how = f"by {settings.host}:{settings.port}" if settings.connection == "network" else "by files in the kit"
        yield Remark("ok", ABOUT, f"Slurm: controller and accounting answer; nodes reach this site {how}")


def _about_shared_kit(kit: Kit) -> Iterator[Remark]:
    """What NVFlare asks of the folder, and nodes need."""
    folder = kit.folder.absolute()
    if folder.resolve() != folder:
        yield Remark("error", ABOUT, f"{folder} leads to {folder.resolve()}: name the kit so, in every command")
    if folder.stat().st_mode & OTHER_USERS:
        yield Remark(
            "error", ABOUT, f"{folder} is open to other users, which Slurm's launcher refuses: chmod 700 {folder}"
        )
    if str(folder).startswith(("/tmp/", "/var/tmp/", "/dev/shm/")):
        text = f"{folder} is in a folder that every node has for itself: move the kit to a file system that nodes share"
        yield Remark("warning", ABOUT, text)


def _about_cluster(settings: Slurm) -> Iterator[Remark]:
    answer = _ask("squeue", "-h", "--me")
    if answer is not None:
        text = f"Slurm's controller does not answer ({answer}): see 'scontrol ping' and slurm.conf, or ask the cluster"
        yield Remark("error", ABOUT, text)
        return
    answer = _ask("sacct", "-X", "-n", "--starttime=now", "--format=JobIDRaw")
    if answer is not None:
        text = (
            f"Slurm keeps no accounts ({answer}), and without them nobody can say how a process ended: ask the cluster "
            "for slurmdbd, or take part by mailbox, with a step as a job of the queue"
        )
        yield Remark("error", ABOUT, text)
    wanted = [f"--{name}={value}" for name, value in _choices(settings).items()]
    answer = _ask("sbatch", "--test-only", "--nodes=1", *wanted, "--wrap=true")
    if answer is not None:
        text = f"Slurm would not take a job of these settings ({answer}): correct launcher.slurm in {SITE_FILE}"
        yield Remark("error", ABOUT, text)


def _choices(settings: Slurm) -> dict[str, object]:
    names = ("partition", "account", "qos", "constraint", "reservation", "time")
    chosen: dict[str, object] = {name: getattr(settings, name) for name in names}
    chosen["gres"] = None if settings.gpus is None else f"gpu:{settings.gpus}"
    chosen["cpus-per-task"] = settings.cpus
    chosen["mem"] = None if settings.memory_gb is None else f"{settings.memory_gb * 1024}M"
    return {name: value for name, value in chosen.items() if value is not None}


def _about_docker(settings: Docker) -> Iterator[Remark]:
    program = settings.program
    if shutil.which(program) is None:
        yield Remark(
            "error", ABOUT, f"{program} is missing from the PATH: install it, or choose another launcher.docker.program"
        )
        return
    answer = _ask(program, "version")
    if answer is not None:
        text = f"{program} does not answer ({answer}): start it, and let this user use it (see the security page first)"
        yield Remark("error", ABOUT, text)
        return
    if _ask(program, "image", "inspect", settings.image) is not None:
        text = f"the image {settings.image} is not on this machine, and no job fetches it: {program} pull, or load it"
        yield Remark("error", ABOUT, text)
        return
    yield Remark("ok", ABOUT, f"{program} answers and has {settings.image}")


def _about_kubernetes(kit: Kit, settings: Kubernetes) -> Iterator[Remark]:
    if Path(settings.kit_path) != kit.folder.absolute():
        text = (
            f"Pods see the kit at {settings.kit_path}, here it is {kit.folder.absolute()}: run this where it is there"
        )
        yield Remark("note", ABOUT, text)
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        text = "kubectl is missing from the PATH, so the cluster was not asked: run this where it is"
        yield Remark("note", ABOUT, text)
        return
    for what, name in (("namespace", settings.namespace), *(("pvc", claim) for claim in _claims(settings))):
        answer = _ask(
            kubectl, "get", what, name, f"--namespace={settings.namespace}", f"--request-timeout={LIMIT:.0f}s"
        )
        if answer is not None:
            text = f"{what} {name} cannot be seen ({answer}): make it, or correct launcher.k8s in {SITE_FILE}"
            yield Remark("error", ABOUT, text)
            return
    yield Remark("ok", ABOUT, f"Kubernetes: namespace {settings.namespace} has the claims of kit and data")


def _claims(settings: Kubernetes) -> tuple[str, ...]:
    return (settings.kit_claim, *settings.data_claims)


def _ask(*command: str) -> str | None:
    """Why a command has failed, in one line; None if it has not."""
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {LIMIT:g} s"
    except OSError as error:
        return str(error.strerror)
    if result.returncode == 0:
        return None
    return (result.stderr.strip() or result.stdout.strip()).partition("\n")[0] or f"exit code {result.returncode}"
