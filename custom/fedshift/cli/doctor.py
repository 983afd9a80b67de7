"""``fedshift doctor``: what a site's engineer runs first, on any machine, with a kit or without one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.checks.remark import Remark, any_error, show, within
from fedshift.cli.display import console
from fedshift.schema.errors import FedshiftError

if TYPE_CHECKING:
    from fedshift.flare.kit import Kit
    from fedshift.schema.job import JobSpec

SERVER_LIMIT = 10.0
"""Seconds for the server, whose name may have several addresses."""
LAUNCHER_LIMIT = 20.0
"""Seconds for a queue or a cluster, which is asked several things."""
IMPORT_LIMIT = 60.0
"""Seconds for what imports PyTorch first, which takes long from a slow disk."""


def add_arguments(doctor: Any) -> None:
    doctor.description = (
        "Check the machine, and with a KIT the way to the server, certificates, permissions and data. Every line is "
        "ok, or a sentence that says how to mend it. The exit code is 1 if something is wrong, and 0 with warnings. "
        "Nothing is written."
    )
    doctor.add_argument(
        "kit",
        type=Path,
        nargs="?",
        metavar="KIT",
        help="of a site, the server or a console (default: the machine only)",
    )
    doctor.add_argument("--job", type=Path, metavar="JOB_FOLDER", help="a job that is to run here: whether it has room")
    doctor.add_argument("--json", action="store_true", help="everything as JSON, for other programs")
    doctor.set_defaults(func=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    if args.json:
        remarks = list(_remarks(args.kit, args.job))
        content = {
            "wrong": any_error(remarks),
            "warnings": sum(remark.level == "warning" for remark in remarks),
            "checks": [vars(remark) for remark in remarks],
        }
        print(json.dumps(content, indent=1))
    else:
        remarks = show(_remarks(args.kit, args.job))
        console.print(_conclusion(remarks), style="red" if any_error(remarks) else "green")
    return int(any_error(remarks))


def _conclusion(remarks: list[Remark]) -> str:
    from fedshift.reporting.report.wording import counted

    wrong, odd = (sum(remark.level == level for remark in remarks) for level in ("error", "warning"))
    if wrong:
        return f"{counted(wrong, 'error')}, {counted(odd, 'warning')}"
    return f"nothing is wrong, {counted(odd, 'warning')}" if odd else "nothing is wrong"


def _remarks(folder: Path | None, job_folder: Path | None) -> Iterator[Remark]:
    """Every check with a limit to its time, those of the machine first."""
    from fedshift.cli.checks.machine import about_disk, about_gpu, about_memory, about_packages, about_software

    kits: list[Kit] = []
    jobs: list[JobSpec] = []
    yield from within("software", about_software, limit=IMPORT_LIMIT)
    yield from within("packages", about_packages)
    yield from within("GPU", about_gpu, limit=IMPORT_LIMIT)
    yield from within("memory", about_memory)
    if folder is not None:
        yield from within("kit", partial(_open, folder, kits), limit=IMPORT_LIMIT)
    kit = kits[0] if kits else None
    yield from within("disk", lambda: about_disk(*_folders(folder, kit)))
    if kit is not None:
        yield from _about_kit(kit)
    elif folder is None:
        yield from within("data", _about_data_here, limit=_data_limit())
    if job_folder is not None:
        yield from within("job", partial(_read_job, job_folder, jobs), limit=IMPORT_LIMIT)
    for job in jobs:
        yield from _about_job(kit, job)


def _open(folder: Path, kits: list[Kit]) -> Iterator[Remark]:
    """Add the kit in a folder to ``kits``."""
    from fedshift.flare.kit import open_kit

    kits.append(open_kit(folder, console=True))
    yield from ()


def _read_job(folder: Path, jobs: list[JobSpec]) -> Iterator[Remark]:
    """Add the job in a folder to ``jobs`` if it trains."""
    from fedshift.flare.export import read_job_folder

    try:
        jobs.append(read_job_folder(folder))
    except FedshiftError as error:
        if error.code != "wrong-job":
            raise
        yield Remark("note", "job", f"memory is not estimated: {error}")


def _data_limit() -> float:
    from fedshift.cli.checks.data import DATA_LIMIT
    from fedshift.cli.checks.remark import LIMIT

    return DATA_LIMIT + LIMIT


def _folders(folder: Path | None, kit: Kit | None) -> tuple[Path, ...]:
    """Where a party works, and where its data lie, as far as that is known."""
    from fedshift.data.locate import data_home, read_settings

    if kit is None:
        return (folder or Path.cwd(), data_home())
    if kit.role != "site":
        return (kit.folder,)
    try:
        named = read_settings(kit.local).data
    except FedshiftError:
        named = {}
    return (kit.folder, *map(Path, named.values()))


def _about_kit(kit: Kit) -> Iterator[Remark]:
    from fedshift.cli.checks import kit as about
    from fedshift.cli.checks.data import about_data, in_short
    from fedshift.cli.checks.launcher import about_launcher
    from fedshift.cli.checks.machine import about_device, about_start
    from fedshift.cli.checks.server import about_name, about_port

    yield from within("software", about_start)
    if kit.role != "console":  # which has no settings of ours
        yield from within("settings", partial(about.about_settings, kit))
    yield from within("permissions", partial(about.about_permissions, kit))
    yield from within("certificate", partial(about.about_certificate, kit))
    if kit.role == "server":
        yield from within("port", partial(about_port, kit))
    else:
        yield from within("name", partial(about_name, kit))
        yield from _about_server(kit)
    if kit.role == "site":
        yield from within("launcher", partial(about_launcher, kit), limit=LAUNCHER_LIMIT)
        yield from within("packages", partial(about.about_listed_packages, kit))
        yield from within("device", partial(about_device, kit.local), limit=IMPORT_LIMIT)
        yield from within("data", partial(about_data, kit, in_short), limit=_data_limit())


def _about_server(kit: Kit) -> Iterator[Remark]:
    from fedshift.cli.checks.server import about_clock, about_proxy, ask_server
    from fedshift.flare.kit import key_fault

    dates: list[datetime | None] = []

    def ask() -> Iterator[Remark]:
        answer = ask_server(kit)
        dates.append(answer.date)
        yield from answer.remarks

    yield from within("proxy", partial(about_proxy, kit))
    if key_fault(kit) is None:  # without its key a party is not answered
        yield from within("server", ask, limit=SERVER_LIMIT)
    yield from within("clock", partial(about_clock, kit, dates[0] if dates else None))


def _about_data_here() -> Iterator[Remark]:
    """Without a kit: the prepared sites in the folder that $FEDSHIFT_DATA names, or in the default one."""
    import os

    from fedshift.cli.checks.data import DATA_LIMIT, in_short
    from fedshift.data.locate import DATA, data_home
    from fedshift.data.site_check import prepared_sites

    root = Path(os.environ.get(DATA) or data_home())
    sites = prepared_sites(root) if root.is_dir() else []
    if not sites:
        yield Remark("note", "data", f"no prepared site in {root}: name a KIT, or see 'fedshift data prepare --help'")
    for site in sites:
        remarks = list(in_short(site, limit=DATA_LIMIT / len(sites)))
        yield from remarks or [Remark("ok", "data", f"{site} passes its check")]


def _about_job(kit: Kit | None, job: JobSpec) -> Iterator[Remark]:
    from fedshift.cli.checks.job import JOB_LIMIT, about_job, about_job_memory

    remarks = list(within("job", partial(about_job, kit, job)))
    yield from remarks
    if not any_error(remarks):
        yield from within("job memory", partial(about_job_memory, kit, job), limit=JOB_LIMIT)
