"""The machine: versions, disk, memory and GPUs."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fedshift.cli.checks.remark import LIMIT, Remark
from fedshift.data.locate import SITE_FILE, read_settings
from fedshift.federation.memory import GIGA
from fedshift.schema.identity import own_identity
from fedshift.tasks.machine import cores, free_memory

LITTLE_SPACE = 5e9
"""Bytes: states of a few jobs and their logs."""
LITTLE_MEMORY = 2e9
"""Bytes: a process with torch and MONAI, and a small network."""


def about_software() -> Iterator[Remark]:
    """The versions, of which a federation compares fedshift's."""
    import torch

    devices = f"{torch.cuda.device_count()} GPU(s)" if torch.cuda.is_available() else "no GPU"
    text = f"fedshift {own_identity()}, NVFlare {metadata.version('nvflare')}, torch {torch.__version__} ({devices}), "
    yield Remark("ok", "software", text + f"Python {platform.python_version()}")


def about_start() -> Iterator[Remark]:
    """A kit's scripts run whatever Python comes first on the PATH."""
    python = shutil.which("python3")
    if python is None or Path(python).parent.resolve() != (Path(sys.prefix) / "bin").resolve():
        runs = python or "no Python at all"
        text = f"the kit's scripts will run {runs}, not {sys.executable}: put its folder first on the PATH"
        yield Remark("warning", "software", text)


def about_packages() -> Iterator[Remark]:
    """Python and the installed packages against the ranges that fedshift declares; of extras those that are there."""
    try:
        declared = metadata.metadata("fedshift")
    except metadata.PackageNotFoundError:
        yield Remark("note", "packages", "not checked: fedshift is not installed here, so its ranges are not known")
        return
    wrong = False
    if not SpecifierSet(declared["Requires-Python"] or "").contains(platform.python_version(), prereleases=True):
        wrong = True
        text = f"Python {platform.python_version()} is not {declared['Requires-Python']}: install with another Python"
        yield Remark("error", "packages", text)
    ranges = list(map(Requirement, declared.get_all("Requires-Dist") or ()))
    for need in ranges:
        of_extra = need.marker is not None and not need.marker.evaluate({"extra": ""})
        mend = f"pip install '{need.name}{need.specifier}'"
        try:
            have = metadata.version(need.name)
        except metadata.PackageNotFoundError:
            if not of_extra:
                wrong = True
                yield Remark("error", "packages", f"{need.name} is missing: {mend}")
            continue
        if not need.specifier.contains(have, prereleases=True):
            wrong = True
            text = f"{need.name} {have} is outside of {need.specifier}: {mend}"
            yield Remark("warning" if of_extra else "error", "packages", text)
    if not wrong:
        yield Remark("ok", "packages", f"Python and {len(ranges)} ranges of fedshift {declared['Version']} are met")


def about_disk(*folders: Path) -> Iterator[Remark]:
    """Room where a party works, the first of the folders, and where its data lie; each disk once."""
    devices: set[int] = set()
    for folder in folders:
        if not folder.is_dir() or folder.stat().st_dev in devices:
            continue
        what = f"in {folder}" if devices else "for jobs and logs"
        devices.add(folder.stat().st_dev)
        free = shutil.disk_usage(folder).free
        if free > LITTLE_SPACE:
            yield Remark("ok", "disk", f"{free / GIGA:.0f} GB free {what}")
        else:
            text = f"{free / GIGA:.1f} GB free {what}: delete folders of jobs that have ended, or move to a larger disk"
            yield Remark("warning", "disk", text)


def about_memory() -> Iterator[Remark]:
    free = free_memory()
    if free < LITTLE_MEMORY:
        yield Remark("warning", "memory", f"{free / GIGA:.1f} GB free: end other programs, or use a larger machine")
    else:
        yield Remark("ok", "memory", f"{free / GIGA:.0f} GB free, {cores()} processor core(s)")


def about_gpu() -> Iterator[Remark]:
    """GPUs that the driver knows, and whether PyTorch can use them."""
    import torch

    gpus = _by_driver()
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(number)
            driver = next((driver for _, driver in gpus), "")
            driver_note = f", driver {driver}" if driver else ""
            text = f"{torch.cuda.get_device_name(number)}{driver_note}, {free / GIGA:.0f} of {total / GIGA:.0f} GB free"
            yield Remark("ok" if free > total / 2 else "warning", "GPU", text + _other_processes(free, total))
    elif gpus and torch.version.cuda is None:
        text = f"{gpus[0][0]} is there, and this build of PyTorch is for processors: install one for CUDA"
        yield Remark("warning", "GPU", text)
    elif gpus:
        text = (
            f"{gpus[0][0]} with driver {gpus[0][1]} cannot be used by PyTorch for CUDA {torch.version.cuda}: update "
            "the driver, or see $CUDA_VISIBLE_DEVICES and the container's options"
        )
        yield Remark("warning", "GPU", text)
    else:
        yield Remark("ok", "GPU", f"none: jobs run on {cores()} processor core(s)")


def _other_processes(free: int, total: int) -> str:
    return "" if free > total / 2 else ": another program uses it, see 'nvidia-smi'"


def _by_driver() -> list[tuple[str, str]]:
    """Name and driver of each GPU that NVIDIA's own tool shows."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    asked = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(asked, capture_output=True, encoding="utf-8", timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [line.split(",") for line in result.stdout.splitlines() if result.returncode == 0]
    return [(row[0].strip(), row[-1].strip()) for row in rows]


def about_device(local: Path) -> Iterator[Remark]:
    """The device that a site's settings name."""
    from fedshift.schema.errors import FedshiftError
    from fedshift.tasks.device import choose_devices

    try:
        settings = read_settings(local)
    except FedshiftError:
        return  # `about_data` says so
    try:
        choose_devices(settings.device, settings.devices)
    except FedshiftError as error:
        yield Remark("error", "device", f"{local / SITE_FILE}: {error}")
