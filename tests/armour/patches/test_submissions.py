"""What a console uploads, and the archives of jobs."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import small_image_job
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl import job_def_manager
from nvflare.apis.shareable import Shareable
from nvflare.app_common.streamers.file_streamer import (
    KEY_DATA,
    KEY_DATA_SIZE,
    KEY_EOF,
    KEY_FILE_SIZE,
    FileStreamer,
    _ChunkConsumerFactory,
)
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.private.fed.client import training_cmds
from nvflare.private.fed.server.job_cmds import JobCommandModule
from nvflare.private.fed.utils import app_deployer
from nvflare.private.stream_runner import HeaderKey, ObjectStreamer

from armour.conftest import Lower
from fedshift.flare.export import write_job
from flare_armour.patches import submissions
from flare_armour.patches.submissions import LARGEST_TEXT, fault

submissions.PATCH.install()
PIECE = b"0123456789"


class Server:
    """The part of a server that takes uploads, with a command that notes what it finds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: list[bytes | None] = []
        self._streamer = ObjectStreamer(SimpleNamespace(register_aux_message_handler=lambda **named: None))
        factory = _ChunkConsumerFactory(str(folder))
        self._streamer.register_stream_processing("hci.upload", "*", factory, self._command)

    def _command(self, stream_ctx: Any, fl_ctx: FLContext) -> str:
        path = Path(FileStreamer.get_file_location(stream_ctx))
        self.found.append(path.read_bytes() if path.is_file() else None)
        return "done"

    def gets(self, name: str, number: int, *, last: bool = False, declared: int = 30) -> str:
        """One piece of an upload; returns the code of the answer."""
        piece = Shareable()
        piece[KEY_DATA], piece[KEY_DATA_SIZE], piece[KEY_EOF] = PIECE, len(PIECE), last
        headers = {HeaderKey.TX_ID: name, HeaderKey.SEQ: number, HeaderKey.TOPIC: "x", HeaderKey.CHANNEL: "hci.upload"}
        for key, value in {**headers, HeaderKey.CTX: {KEY_FILE_SIZE: declared}}.items():
            piece.set_header(key, value)
        return str(self._streamer._handle_request("", piece, FLContext()).get_return_code())

    @property
    def files(self) -> int:
        return len(list(self.folder.iterdir()))


def test_an_upload_is_given_to_its_command_and_does_not_stay(tmp_path: Path) -> None:
    server = Server(tmp_path)
    codes = [server.gets("job", number, last=number == 2) for number in range(3)]
    assert codes == [ReturnCode.OK] * 3
    assert server.found == [3 * PIECE] and server.files == 0


def test_one_that_is_too_large_is_ended_and_deleted(tmp_path: Path, lower: Lower) -> None:
    lower(submissions, LARGEST=25)
    server = Server(tmp_path)
    assert [server.gets("job", number, declared=20) for number in range(2)] == [ReturnCode.OK] * 2
    assert server.gets("job", 2) == ReturnCode.EXECUTION_EXCEPTION
    assert server.found == [None] and server.files == 0, "though it then had as many bytes as declared"
    assert server.gets("job", 3) == ReturnCode.BAD_REQUEST_DATA, "it is over"


def test_one_that_has_other_bytes_than_declared_is_deleted(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.gets("job", 0, last=True)
    assert server.found == [None] and server.files == 0


def test_many_incomplete_ones_end_the_most_silent(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.gets("first", 0)
    for number in range(submissions.MOST_OPEN - 1):
        server.gets(f"{number}", 0)
    server.gets("first", 1)
    assert server.files == submissions.MOST_OPEN and not server.found
    server.gets("one more", 0)
    assert server.files == submissions.MOST_OPEN and server.found == [None]
    assert server.gets("0", 1) == ReturnCode.BAD_REQUEST_DATA, "the most silent"
    assert server.gets("first", 2, last=True) == ReturnCode.OK and server.found[-1] == 3 * PIECE


def packed(files: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", kind, compresslevel=1) as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return archive.getvalue()


ONE = {"job/app/custom/x": b"x" * 21}
REFUSED: dict[str, tuple[bytes, dict[str, int]]] = {
    "its size": (packed(ONE), {"LARGEST": 20}),
    "the size of all files": (packed({f"job/app/custom/{number}": b"x" * 7 for number in range(3)}), {"LARGEST": 20}),
    "settings": (packed({"job/meta.json": b" " * 21}), {"LARGEST_TEXT": 20}),
    "many files": (packed({f"job/{number}": b"" for number in range(5)}), {"MOST_FILES": 4}),
    "a long table of contents": (packed({f"job/{number:0100}": b"" for number in range(5)}), {"MOST_CONTENTS": 500}),
    "two files with one name": (packed({"job/a": b"1", "job/b": b"2"}).replace(b"job/b", b"job/a"), {}),
    "above its folder": (packed({"job/../x": b""}), {}),
    "an absolute name": (packed({"/x": b""}), {}),
    "a backslash": (packed({"job/a\\x": b""}), {}),
    "a control character": (packed({"job/\x07": b""}), {}),
    "a long name": (packed({"job/name": b""}), {"LONGEST": 7}),
    "another way to pack": (packed({"job/x": b"x"}, zipfile.ZIP_LZMA), {}),
    "no archive": (b"no archive", {}),
    "nothing": (b"", {}),
}
"""What is wrong -> the archive, and the bounds that are lowered for it."""
refused = pytest.mark.parametrize(("archive", "bounds"), REFUSED.values(), ids=REFUSED)


class Console:
    """A connection of a coordinator who has uploaded a file."""

    def __init__(self, file: Path) -> None:
        self._props = {ConnProps.FILE_LOCATION: str(file), ConnProps.USER_NAME: "lead@hub.org"}
        self.errors = list[str]()
        self.app_ctx = SimpleNamespace(new_context=self._submits)
        self.went_on = False

    def _submits(self) -> Any:
        self.went_on = True
        raise RuntimeError("NVFlare goes on to read the job")

    def get_prop(self, name: str, default: object = None) -> object:
        return self._props.get(name, default)

    def append_error(self, text: str, **_: object) -> None:
        self.errors.append(text)


@refused
def test_it_is_refused_when_it_is_submitted(
    archive: bytes,
    bounds: dict[str, int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    lower: Lower,
) -> None:
    if bounds:
        assert fault(archive) is None
    lower(submissions, **bounds)
    (tmp_path / "job.zip").write_bytes(archive)
    console = Console(tmp_path / "job.zip")
    JobCommandModule().submit_job(console, ["submit_job", "job"])
    assert not console.went_on
    (error,) = console.errors
    (record,) = caplog.records
    assert record.getMessage().startswith("'lead@hub.org' ") and error in record.getMessage()


@refused
@pytest.mark.parametrize("module", [job_def_manager, app_deployer, training_cmds])
def test_it_is_not_unpacked(module: Any, archive: bytes, bounds: dict[str, int], tmp_path: Path, lower: Lower) -> None:
    """Whoever has brought it: a copy of an earlier job (``clone_job``), a store that was there before."""
    lower(submissions, **bounds)
    with pytest.raises(ValueError):
        module.unzip_all_from_bytes(archive, str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("with_code", [False, True])
def test_a_job_of_ours_is_taken(with_code: bool, tmp_path: Path) -> None:
    job = tmp_path / "job"
    write_job(small_image_job("fedavg"), job, production=not with_code)
    files = {str(path.relative_to(tmp_path)): path.read_bytes() for path in job.rglob("*") if path.is_file()}
    files["job/app/custom/model.bin"] = bytes(LARGEST_TEXT + 1)
    archive = packed(files)
    assert fault(archive) is None
    app_deployer.unzip_all_from_bytes(archive, str(tmp_path))
    assert (tmp_path / "job" / "app" / "custom" / "model.bin").stat().st_size == LARGEST_TEXT + 1
    (tmp_path / "job.zip").write_bytes(archive)
    console = Console(tmp_path / "job.zip")
    JobCommandModule().submit_job(console, ["submit_job", "job"])
    assert console.went_on


def test_a_file_that_brings_more_than_it_declares_ends_there(tmp_path: Path) -> None:
    archive = packed({"job/app/custom/x": bytes(100)})
    where = archive.find(b"PK\1\2")
    archive = archive[: where + 24] + struct.pack("<I", 10) + archive[where + 28 :]
    assert fault(archive) is None
    with pytest.raises(zipfile.BadZipFile):
        app_deployer.unzip_all_from_bytes(archive, str(tmp_path))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 10
