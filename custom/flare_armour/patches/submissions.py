"""What a console uploads is bounded and does not stay, and a job is no larger than a job may be.

NVFlare 2.9: a console's upload has no limit, and stays in the server's temporary folder. A job's archive is opened,
read and unpacked without a limit of its own.
Cost: whoever has a console can fill the server's disk and memory, and every submitted job stays on the disk twice.
Instead: an upload may have as many bytes as a job. `MOST_OPEN` may be incomplete; the most silent one is ended where
another needs its place. A file is deleted when its command is done, and when it is not complete. When a job is
submitted, and each time that one is unpacked, at the server and at sites, its table of contents is looked at: it has
`MOST_CONTENTS` bytes and `MOST_FILES` names that lead nowhere else, and declares `LARGEST` bytes in all, `LARGEST_TEXT`
in each file outside its code that is none of arrays. Python stops where a file has brought what it has declared.
Fixed in NVFlare when: the size of an upload and of a job is a setting that ``JobMetaValidator`` and
``unzip_all_from_bytes`` look at, and ``submit_job`` removes the file.
"""

from __future__ import annotations

import io
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.shareable import ReturnCode
from nvflare.apis.streaming import StreamContextKey
from nvflare.app_common.streamers.file_streamer import KEY_DATA, _ChunkConsumerFactory
from nvflare.fuel.hci.proto import MetaStatusValue, make_meta
from nvflare.fuel.hci.server.constants import ConnProps

from flare_armour.log_limits import REFUSALS
from flare_armour.patch import Patch

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
ARRAYS = ".npz"
"""How the names of files of arrays end, which NVFlare does not open."""
LONGEST = 300
"""Characters of a file's name."""
CODE = "custom"
"""Folder of a job's code."""

STREAMER = "nvflare.app_common.streamers.file_streamer"
RUNNER = "nvflare.private.stream_runner"
UNZIP = "unzip_all_from_bytes"


def _delete(upload: Any) -> None:
    Path(upload.file.name).unlink(missing_ok=True)


def delete_when_done() -> None:
    """Delete an upload when NVFlare gives its receiver back, after its command."""
    _ChunkConsumerFactory.return_consumer = lambda self, consumer, stream_ctx, fl_ctx: _delete(consumer)


PATCH = Patch(
    name="submissions",
    kind="protects",
    without="whoever has a console can fill the server's disk, and a job can take all its memory",
    also=delete_when_done,
    sources={
        f"{STREAMER}:_ChunkConsumerFactory": "938ea7a579f6",
        # What ends an upload, and what reads an archive.
        f"{RUNNER}:_ConsumerInfo.stream_done": "04dea8fd7b23",
        f"{RUNNER}:ObjectStreamer._handle_request": "2800d0bd86fc",
        "nvflare.apis.impl.job_def_manager:SimpleJobDefManager._load_job_data_from_store": "3a3f59b2b861",
        "nvflare.private.fed.utils.app_deployer:AppDeployer.deploy": "d8f1e621dc20",
        "nvflare.private.fed.client.training_cmds:DeployProcessor.process": "4f24d3c44723",
        "nvflare.private.fed.server.job_meta_validator:JobMetaValidator.validate": "0ba13aec56c4",
    },
)


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


_UPLOADS = _Uploads()


@PATCH.replaces(f"{STREAMER}:_ChunkConsumer.__init__", "106a533d3655")
def _begin(original: Callable[..., None], self: Any, stream_ctx: Any, dest_dir: str) -> None:
    original(self, stream_ctx, dest_dir)
    _UPLOADS.begin(self)


@PATCH.replaces(f"{STREAMER}:_ChunkConsumer.consume", "34967c1dd252")
def _consume(original: Callable[..., Any], self: Any, shareable: Any, stream_ctx: Any, fl_ctx: Any) -> Any:
    for other in _UPLOADS.more(self, stream_ctx, len(shareable.get(KEY_DATA) or b"")):
        other[StreamContextKey.END_STREAM](ReturnCode.TASK_ABORTED, fl_ctx)
    goes_on, answer = original(self, shareable, stream_ctx, fl_ctx)
    self.armour_complete = not goes_on
    return goes_on, answer


@PATCH.replaces(f"{STREAMER}:_ChunkConsumer.finalize", "fdc06e5ba5cb")
def _finalize(original: Callable[..., None], self: Any, stream_ctx: Any, fl_ctx: Any) -> None:
    original(self, stream_ctx, fl_ctx)
    _UPLOADS.end(self)
    if not getattr(self, "armour_complete", False):
        _delete(self)  # before the command that would take it


@PATCH.replaces("nvflare.private.fed.server.job_cmds:JobCommandModule.submit_job", "2c478055f51d")
def _submit_job(submit: Callable[..., None], self: Any, conn: Any, args: list[str]) -> None:
    archive = conn.get_prop(ConnProps.FILE_LOCATION)
    wrong = fault(Path(archive)) if archive else None
    if wrong is None:
        submit(self, conn, args)
        return
    REFUSALS.add(str(conn.get_prop(ConnProps.USER_NAME)), "jobs", f"has submitted a job that is refused: {wrong}")
    conn.append_error(wrong, meta=make_meta(MetaStatusValue.INVALID_JOB_DEFINITION, wrong))


@PATCH.replaces(f"nvflare.apis.impl.job_def_manager:{UNZIP}", "efb186a9adb1")
@PATCH.replaces(f"nvflare.private.fed.utils.app_deployer:{UNZIP}", "efb186a9adb1")
@PATCH.replaces(f"nvflare.private.fed.client.training_cmds:{UNZIP}", "efb186a9adb1")
def _unpack(unzip: Callable[..., None], zip_data: bytes, output_dir_name: str) -> None:
    wrong = fault(zip_data)
    if wrong is not None:
        raise ValueError(wrong)
    unzip(zip_data, output_dir_name)


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
        is_text = CODE not in parts[:-1] and not file.filename.endswith(ARRAYS)
        if is_text and file.file_size > LARGEST_TEXT:
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
