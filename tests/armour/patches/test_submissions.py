"""What a console uploads, and the archives of jobs."""

from __future__ import annotations

import io
import struct
import tracemalloc
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

from fedshift.flare.export import write_job
from flare_armour import log_limits, patches
from flare_armour.log_limits import OnceAMinute
from flare_armour.patches import submissions
from flare_armour.patches.submissions import LARGEST, LARGEST_TEXT, LONGEST, MOST_CONTENTS, MOST_FILES, fault

patches.install()
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


def test_one_that_is_too_large_is_ended_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "LARGEST", 25)
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


submissions.ARCHIVES.install()
MB = 1_000_000


def packed(files: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", kind, compresslevel=1) as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return archive.getvalue()


def declaring(size: int, number: int = 1) -> bytes:
    """An archive of ten bytes in each file, of which it says that they are ``size``."""
    archive = packed({f"job/app/custom/{number}": b"0123456789" for number in range(number)}, zipfile.ZIP_STORED)
    found = archive.find(b"PK\1\2")
    while found >= 0:
        archive = archive[: found + 24] + struct.pack("<I", size) + archive[found + 28 :]
        found = archive.find(b"PK\1\2", found + 4)
    return archive


REFUSED = {
    "what it declares in one file": (declaring(LARGEST + 1), "200 MB when it is unpacked, allowed are 200"),
    "what it declares in all files": (declaring(50 * MB, 10), "500 MB when it is unpacked"),
    "settings to be read into memory": (packed({"job/meta.json": b" " * (LARGEST_TEXT + 1)}), "meta.json' has 2000001"),
    "many files": (packed({f"job/{number}": b"" for number in range(MOST_FILES + 1)}), "has 5001 files"),
    "above its folder": (packed({"job/../../x": b""}), "outside its folder"),
    "an absolute name": (packed({"/x": b""}), "outside its folder"),
    "a backslash": (packed({"job/..\\x": b""}), "a name that no file of a job has"),
    "a control character": (packed({"job/\x1b[2J": b""}), "a name that no file of a job has"),
    "a long name": (packed({"x" * (LONGEST + 1): b""}), "a name that no file of a job has"),
    "another way to pack": (packed({"job/x": b"x"}, zipfile.ZIP_LZMA), "another way than by deflate"),
    "no archive": (b"PK but no archive", "no archive that can be read"),
    "nothing": (b"", "no archive that can be read"),
}
refused = pytest.mark.parametrize(("archive", "said"), REFUSED.values(), ids=REFUSED)


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
    archive: bytes, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_limits.REFUSALS, "_often", OnceAMinute())
    (tmp_path / "job.zip").write_bytes(archive)
    console = Console(tmp_path / "job.zip")
    JobCommandModule().submit_job(console, ["submit_job", "job"])
    assert not console.went_on
    (error,) = console.errors
    (record,) = caplog.records
    assert said in error and record.getMessage() == f"'lead@hub.org' has submitted a job that is refused: {error}"


@refused
@pytest.mark.parametrize("module", [job_def_manager, app_deployer, training_cmds])
def test_it_is_not_unpacked(module: Any, archive: bytes, said: str, tmp_path: Path) -> None:
    """Whoever has brought it: a copy of an earlier job (``clone_job``), a store that was there before."""
    with pytest.raises(ValueError, match=said.replace("'", ".")):
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


def test_what_unpacks_to_much_takes_no_memory_before_it_is_refused() -> None:
    archive = packed({f"job/app/custom/{number}": bytes(50 * MB) for number in range(5)})
    assert len(archive) < 2 * MB
    tracemalloc.start()
    assert "250 MB when it is unpacked" in str(fault(archive))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 * len(archive)


def test_a_file_that_brings_more_than_it_declares_ends_there(tmp_path: Path) -> None:
    """Deflated: 1 MB that says it is ten bytes."""
    archive = packed({"job/app/custom/x": bytes(MB)})
    where = archive.find(b"PK\1\2")
    archive = archive[: where + 24] + struct.pack("<I", 10) + archive[where + 28 :]
    assert fault(archive) is None
    with pytest.raises(zipfile.BadZipFile):
        app_deployer.unzip_all_from_bytes(archive, str(tmp_path))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 10


def test_a_long_table_of_contents_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = packed({f"job/{number:0100}": b"" for number in range(100)}, zipfile.ZIP_STORED)
    monkeypatch.setattr(submissions, "MOST_CONTENTS", 5000)
    assert "table of contents of more than 5000 bytes" in str(fault(archive))
    monkeypatch.setattr(submissions, "MOST_CONTENTS", MOST_CONTENTS)
    assert fault(archive) is None


def test_of_two_files_with_one_name_neither_is_taken() -> None:
    archive = packed({"job/a": b"1", "job/b": b"2"}).replace(b"job/b", b"job/a")
    assert fault(archive) == "the job has two files with one name"
