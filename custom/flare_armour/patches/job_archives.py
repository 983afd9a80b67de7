"""A job is as large as a job may be wherever its archive is opened, and what is wrong with it is said before that.

NVFlare 2.9: opens, reads and unpacks a job's archive without a limit of its own.
Cost: a job can take all memory of the server.
Instead: when a job is submitted, and each time that one is unpacked, at the server and at sites, its table of contents
is looked at: it has `MOST_CONTENTS` bytes and `MOST_FILES` names that lead nowhere else, and declares `LARGEST` bytes
in all, `LARGEST_TEXT` in each file outside its code. Python stops where a file has brought what it has declared.
Fixed in NVFlare when: the size of a job is a setting that ``JobMetaValidator`` and ``unzip_all_from_bytes`` look at.
"""

from __future__ import annotations

import importlib
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flare_armour.patches.patch import Patch, find
from flare_armour.patches.refusals import REFUSALS
from flare_armour.patches.uploads import LARGEST

MOST_CONTENTS = 1024 * 1024
"""Bytes of an archive's table of contents."""
MOST_FILES = 5000
"""Files and folders. A job with the whole of fedshift in it has about 500."""
LARGEST_TEXT = 2_000_000
"""Bytes of a file outside the job's code: settings, which are read into memory and parsed."""
LONGEST = 300
"""Characters of a file's name."""
CODE = "custom"
"""Folder of a job's code."""

COMMANDS = "nvflare.private.fed.server.job_cmds"
UNZIP = "nvflare.fuel.utils.zip_utils:unzip_all_from_bytes"
UNPACKS = (
    "nvflare.apis.impl.job_def_manager",
    "nvflare.private.fed.utils.app_deployer",
    "nvflare.private.fed.client.training_cmds",
)
"""Modules that unpack jobs. What they call has been looked up when they were imported."""
PATCH = Patch(
    name="job_archives",
    without="a job can take all memory of the server",
    replaces={
        f"{COMMANDS}:JobCommandModule.submit_job": "2c478055f51d",
        UNZIP: "efb186a9adb1",
        # Not replaced: what reads an archive.
        "nvflare.apis.impl.job_def_manager:SimpleJobDefManager._load_job_data_from_store": "3a3f59b2b861",
        "nvflare.private.fed.utils.app_deployer:AppDeployer.deploy": "d8f1e621dc20",
        "nvflare.private.fed.client.training_cmds:DeployProcessor.process": "4f24d3c44723",
        "nvflare.private.fed.server.job_meta_validator:JobMetaValidator.validate": "0ba13aec56c4",
    },
)


def apply() -> None:
    """Look at an archive before a job is submitted, and before it is unpacked."""
    commands, unzip = find(f"{COMMANDS}:JobCommandModule"), find(UNZIP)
    submit = commands.submit_job
    properties = find("nvflare.fuel.hci.server.constants:ConnProps")
    meta, status = find("nvflare.fuel.hci.proto:make_meta"), find("nvflare.fuel.hci.proto:MetaStatusValue")

    def submit_job(self: Any, conn: Any, args: list[str]) -> None:
        archive = conn.get_prop(properties.FILE_LOCATION)
        wrong = fault(Path(archive)) if archive else None
        if wrong is None:
            submit(self, conn, args)
            return
        REFUSALS.tell(str(conn.get_prop(properties.USER_NAME)), "jobs", f"has submitted a job that is refused: {wrong}")
        conn.append_error(wrong, meta=meta(status.INVALID_JOB_DEFINITION, wrong))

    def unpack(zip_data: bytes, output_dir_name: str) -> None:
        wrong = fault(zip_data)
        if wrong is not None:
            raise ValueError(wrong)
        unzip(zip_data, output_dir_name)

    commands.submit_job = submit_job
    for name in UNPACKS:
        module: Any = importlib.import_module(name)
        module.unzip_all_from_bytes = unpack


def fault(archive: Path | bytes) -> str | None:
    """Why a job's archive, a file or its bytes, must not be unpacked, or None. Nothing of its files is read.

    Whoever sends an archive may send anything in place of bytes; only a `Path`, which nobody sends, is opened.
    """
    try:
        with _Contents(archive) as opened, zipfile.ZipFile(opened) as packed:
            return _fault(packed.infolist())
    except _TooLongError:
        return f"the job's archive has a table of contents of more than {MOST_CONTENTS} bytes"
    except (zipfile.BadZipFile, NotImplementedError, TypeError, ValueError, OSError, EOFError, RuntimeError):
        return "the job is no archive that can be read"


def _fault(files: Sequence[zipfile.ZipInfo]) -> str | None:
    if len(files) > MOST_FILES:
        return f"the job has {len(files)} files, allowed are {MOST_FILES}"
    size = sum(file.file_size for file in files)
    if size > LARGEST:
        return f"the job has {size / 1e6:.0f} MB when it is unpacked, allowed are {LARGEST / 1e6:.0f}"
    for file in files:
        parts = file.filename.split("/")
        said = repr(file.filename[:100])
        if len(file.filename) > LONGEST or not file.filename.isprintable() or "\\" in file.filename:
            return f"the job has a file with a name that no file of a job has, {said}"
        if file.filename.startswith("/") or ".." in parts:
            return f"the job has the file {said}, which is outside its folder"
        if file.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return f"the job's file {said} is packed in another way than by deflate"
        if CODE not in parts[:-1] and file.file_size > LARGEST_TEXT:
            return f"the job's file {said} has {file.file_size} bytes, allowed are {LARGEST_TEXT}"
    names = [file.filename for file in files]
    return "the job has two files with one name" if len(set(names)) < len(names) else None


class _TooLongError(Exception):
    """More is to be read at once than a table of contents may have."""


class _Contents(io.BufferedReader):
    """An archive, of which `zipfile` reads the table of contents at once."""

    def __init__(self, archive: Path | bytes) -> None:
        """Open a file, or bytes."""
        super().__init__(io.FileIO(archive) if isinstance(archive, Path) else io.BytesIO(archive))

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as `zipfile` does: with a size, or to the end, where it looks for the end of the table."""
        if size is not None and size > MOST_CONTENTS:
            raise _TooLongError
        return super().read(size)
