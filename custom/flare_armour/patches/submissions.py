"""What a console uploads is bounded and does not stay, and a job is no larger than a job may be.

NVFlare 2.9: a console's upload has no limit, and stays in the server's temporary folder. A job's archive is opened,
read and unpacked without a limit of its own.
Cost: whoever has a console can fill the server's disk and memory, and every submitted job stays on the disk twice.
Instead: an upload may have as many bytes as a job. `MOST_OPEN` may be incomplete; the most silent one is ended where
another needs its place. A file is deleted when its command is done, and when it is not complete. When a job is
submitted, and each time that one is unpacked, at the server and at sites, its table of contents is looked at: it has
`MOST_CONTENTS` bytes and `MOST_FILES` names that lead nowhere else, and declares `LARGEST` bytes in all, `LARGEST_TEXT`
in each file outside its code. Python stops where a file has brought what it has declared.
Fixed in NVFlare when: the size of an upload and of a job is a setting that ``JobMetaValidator`` and
``unzip_all_from_bytes`` look at, and ``submit_job`` removes the file.
"""

from __future__ import annotations

import importlib
import io
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.shareable import ReturnCode
from nvflare.apis.streaming import StreamContextKey

from flare_armour.log_limits import REFUSALS
from flare_armour.patch import Patch, find

LARGEST = 200_000_000
"""Bytes of an upload, and of a job."""
MOST_OPEN = 8
"""Incomplete uploads, of all consoles together."""
MOST_CONTENTS = 1024 * 1024
"""Bytes of an archive's table of contents."""
MOST_FILES = 5000
"""Files and folders. A job with all of a project's code in it has some hundred."""
LARGEST_TEXT = 2_000_000
"""Bytes of a file outside the job's code: settings, which are read into memory and parsed."""
LONGEST = 300
"""Characters of a file's name."""
CODE = "custom"
"""Folder of a job's code."""

STREAMER = "nvflare.app_common.streamers.file_streamer"
CONSUMER = f"{STREAMER}:_ChunkConsumer"
RUNNER = "nvflare.private.stream_runner"
COMMANDS = "nvflare.private.fed.server.job_cmds"
UNZIP = "nvflare.fuel.utils.zip_utils:unzip_all_from_bytes"
UNPACKS = (
    "nvflare.apis.impl.job_def_manager",
    "nvflare.private.fed.utils.app_deployer",
    "nvflare.private.fed.client.training_cmds",
)
"""Modules that unpack jobs. What they call has been looked up when they were imported."""


def bound_uploads() -> None:
    """Replace how a file is received, and delete it when NVFlare gives its receiver back."""
    consumer, factory = find(CONSUMER), find(f"{STREAMER}:_ChunkConsumerFactory")
    data_key = find(f"{STREAMER}:KEY_DATA")
    original_init, original_consume, original_finalize = consumer.__init__, consumer.consume, consumer.finalize
    uploads = _Uploads()

    def init(self: Any, stream_ctx: Any, dest_dir: str) -> None:
        original_init(self, stream_ctx, dest_dir)
        uploads.begin(self)

    def consume(self: Any, shareable: Any, stream_ctx: Any, fl_ctx: Any) -> Any:
        for other in uploads.more(self, stream_ctx, len(shareable.get(data_key) or b"")):
            other[StreamContextKey.END_STREAM](ReturnCode.TASK_ABORTED, fl_ctx)
        goes_on, answer = original_consume(self, shareable, stream_ctx, fl_ctx)
        self.armour_complete = not goes_on
        return goes_on, answer

    def finalize(self: Any, stream_ctx: Any, fl_ctx: Any) -> None:
        original_finalize(self, stream_ctx, fl_ctx)
        uploads.end(self)
        if not getattr(self, "armour_complete", False):
            _delete(self)  # before the command that would take it

    consumer.__init__, consumer.consume, consumer.finalize = init, consume, finalize
    factory.return_consumer = lambda self, consumer, stream_ctx, fl_ctx: _delete(consumer)


class _Uploads:
    """Those that are incomplete: when the latest piece came, and NVFlare's context of the stream."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Any, tuple[float, Any]] = {}

    def begin(self, upload: Any) -> None:
        with self._lock:
            self._open[upload] = time.monotonic(), None

    def more(self, upload: Any, stream_ctx: Any, size: int) -> list[Any]:
        """Note a piece before it is written; returns the contexts of uploads that have to end for this one.

        Raises:
            ValueError: the upload would become too large. NVFlare then ends it.
        """
        if upload.received_size + size > LARGEST:
            raise ValueError(f"an upload has more than {LARGEST} bytes")
        with self._lock:
            self._open[upload] = time.monotonic(), stream_ctx
            by_age = sorted(self._open.values(), key=lambda upload: upload[0])
        return [context for _, context in by_age[:-MOST_OPEN] if context is not None]

    def end(self, upload: Any) -> None:
        with self._lock:
            self._open.pop(upload, None)


def _delete(upload: Any) -> None:
    Path(upload.file.name).unlink(missing_ok=True)


def bound_archives() -> None:
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
        REFUSALS.add(str(conn.get_prop(properties.USER_NAME)), "jobs", f"has submitted a job that is refused: {wrong}")
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
        name = repr(file.filename[:100])
        if len(file.filename) > LONGEST or not file.filename.isprintable() or "\\" in file.filename:
            return f"the job has a file with a name that no file of a job has, {name}"
        if file.filename.startswith("/") or ".." in parts:
            return f"the job has the file {name}, which is outside its folder"
        if file.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return f"the job's file {name} is packed in another way than by deflate"
        if CODE not in parts[:-1] and file.file_size > LARGEST_TEXT:
            return f"the job's file {name} has {file.file_size} bytes, allowed are {LARGEST_TEXT}"
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


UPLOADS = Patch(
    name="uploads",
    kind="protects",
    apply=bound_uploads,
    without="whoever has a console can fill the server's disk",
    replaces={
        f"{CONSUMER}.__init__": "106a533d3655",
        f"{CONSUMER}.consume": "34967c1dd252",
        f"{CONSUMER}.finalize": "fdc06e5ba5cb",
        f"{STREAMER}:_ChunkConsumerFactory": "938ea7a579f6",
        # Not replaced: what ends an upload.
        f"{RUNNER}:_ConsumerInfo.stream_done": "04dea8fd7b23",
        f"{RUNNER}:ObjectStreamer._handle_request": "2800d0bd86fc",
    },
)
ARCHIVES = Patch(
    name="job_archives",
    kind="protects",
    apply=bound_archives,
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
