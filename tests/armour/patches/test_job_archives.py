"""A job's archive where NVFlare opens it: when it is submitted, at the server, and at a site."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import small_image_job
from nvflare.apis.impl import job_def_manager
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.private.fed.client import training_cmds
from nvflare.private.fed.server.job_cmds import JobCommandModule
from nvflare.private.fed.utils import app_deployer

from fedshift.flare.export import write_job
from flare_armour import patches
from flare_armour.once_a_minute import OnceAMinute
from flare_armour.patches import job_archives, refusals
from flare_armour.patches.job_archives import LARGEST_TEXT, fault

patches.install(patches.ARCHIVES)


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


def lower(bounds: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bounds.items():
        monkeypatch.setattr(job_archives, name, value)


@refused
def test_it_is_refused_when_it_is_submitted(
    archive: bytes,
    bounds: dict[str, int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if bounds:
        assert fault(archive) is None
    lower(bounds, monkeypatch)
    monkeypatch.setattr(refusals.REFUSALS, "_told", OnceAMinute())
    (tmp_path / "job.zip").write_bytes(archive)
    console = Console(tmp_path / "job.zip")
    JobCommandModule().submit_job(console, ["submit_job", "job"])
    assert not console.went_on
    (error,) = console.errors
    (record,) = caplog.records
    assert record.getMessage().startswith("'lead@hub.org' ") and error in record.getMessage()


@refused
@pytest.mark.parametrize("module", [job_def_manager, app_deployer, training_cmds])
def test_it_is_not_unpacked(
    module: Any, archive: bytes, bounds: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has brought it: a copy of an earlier job (``clone_job``), a store that was there before."""
    lower(bounds, monkeypatch)
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
