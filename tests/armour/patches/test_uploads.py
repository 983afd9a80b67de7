"""What comes to the server as an upload of a console, through NVFlare's own receiver of streams."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.streamers.file_streamer import (
    KEY_DATA,
    KEY_DATA_SIZE,
    KEY_EOF,
    KEY_FILE_SIZE,
    FileStreamer,
    _ChunkConsumerFactory,
)
from nvflare.private.stream_runner import HeaderKey, ObjectStreamer

from flare_armour import patches
from flare_armour.patches import uploads

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
    monkeypatch.setattr(uploads, "LARGEST", 25)
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
    for number in range(uploads.MOST_OPEN - 1):
        server.gets(f"{number}", 0)
    server.gets("first", 1)
    assert server.files == uploads.MOST_OPEN and not server.found
    server.gets("one more", 0)
    assert server.files == uploads.MOST_OPEN and server.found == [None]
    assert server.gets("0", 1) == ReturnCode.BAD_REQUEST_DATA, "the most silent"
    assert server.gets("first", 2, last=True) == ReturnCode.OK and server.found[-1] == 3 * PIECE
