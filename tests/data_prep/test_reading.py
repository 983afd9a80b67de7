"""What of a download may not be read, breaks off, or is no text: one sentence that names the file or folder."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cifarfiles import write_cifar
from digitfiles import write_mnist
from errors import raises
from forbidding import forbid
from picturefiles import TREE, write_tree

from data_prep import cifar10, digits, emnist
from data_prep.cifar10 import FOLDER
from data_prep.trees import Tree, find_pictures
from fedshift.data.downloads import read_file, reason
from fedshift.schema.errors import DataError


class _Broken(io.BytesIO):
    """The disk fails after the first bytes."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and 0 <= size <= 4:
            return super().read(size)
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def break_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former, content = Path.open, path.read_bytes()

    def opened(tried: Path, *args: Any, **options: Any) -> Any:
        return _Broken(content) if tried == path else former(tried, *args, **options)

    monkeypatch.setattr(Path, "open", opened)


def leaf(folder: Path) -> Path:
    path = folder / "all_data_0.json"
    path.write_text('{"users": ["a"], "user_data": {"a": {"x": [], "y": []}}}', encoding="utf-8")
    return path


def labels_of_mnistm(folder: Path) -> Path:
    for part in ("train", "test"):
        (folder / f"mnist_m_{part}_labels.txt").write_text("00000000.png 5\n", encoding="utf-8")
    return folder / "mnist_m_train_labels.txt"


def list_beside_a_tree(folder: Path) -> Path:
    write_tree(folder, TREE.sites, TREE.classes)
    (folder / "list.txt").write_text("here/cup/0.png\n", encoding="utf-8")
    return folder / "list.txt"


READ: list[tuple[Callable[[Path], Path], Callable[[Path], object]]] = [
    (leaf, lambda folder: emnist.plan(folder, writers=1)),
    (labels_of_mnistm, lambda folder: digits.plan(folder, sites=["mnistm"])),
    (list_beside_a_tree, lambda folder: Tree(folder, TREE).open("list.txt").read()),
]


FORBIDDEN: list[tuple[Callable[[Path], Path], Callable[[Path], object]]] = [
    *READ,
    (lambda folder: write_cifar(folder) / FOLDER / "data_batch_2", cifar10.plan),
    (lambda folder: write_mnist(folder / "MNIST" / "raw").parent, lambda folder: digits.plan(folder, sites=["mnist"])),
    (lambda folder: write_tree(folder, TREE.sites, TREE.classes) / "there" / "pen", lambda f: find_pictures(f, TREE)),
]
NAMES = ["leaf", "mnistm", "list", "a batch", "a folder of files", "a folder of a tree"]


def refusal(path: Path, reason: str) -> str:
    return f"{path} cannot be read ({reason}): check that its disk is mounted and that you may read it"


@pytest.mark.parametrize(
    ("prevent", "reason", "write", "read"),
    [
        *((break_off, "Input/output error", *case) for case in READ),
        *((forbid, "Permission denied", *case) for case in FORBIDDEN),
    ],
    ids=[f"broken {name}" for name in NAMES[:3]] + [f"forbidden {name}" for name in NAMES],
)
def test_what_cannot_be_read_is_named(
    prevent: Callable[[Path, pytest.MonkeyPatch], None],
    reason: str,
    write: Callable[[Path], Path],
    read: Callable[[Path], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk fails half way, or the file or folder may not be read."""
    path = write(tmp_path)
    prevent(path, monkeypatch)
    with pytest.raises(DataError) as raised:
        read(tmp_path)
    assert str(raised.value) == refusal(path, reason)


@pytest.mark.parametrize(("write", "read"), READ[:2], ids=["leaf", "mnistm"])
def test_bytes_that_are_no_text_half_way_are_said(
    write: Callable[[Path], Path], read: Callable[[Path], object], tmp_path: Path
) -> None:
    path = write(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:10] + b"\xff\xfe" + content[10:])
    with pytest.raises(
        DataError, match=r"is not (text in UTF-8|in the form of LEAF's FEMNIST \('utf-8' codec can't)"
    ) as raised:
        read(tmp_path)
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


def test_a_whole_file_is_read_and_an_absent_one_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x00\xff")
    assert read_file(tmp_path / "a") == b"\x00\xff"
    with raises("file-missing", naming="b"):
        read_file(tmp_path / "b")


def test_what_a_library_says_is_a_line() -> None:
    assert reason(ValueError("bad\n  header")) == "bad header"
    assert len(reason(ValueError("x " * 100)).split()) == 12
    assert reason(EOFError()) == "EOFError"
