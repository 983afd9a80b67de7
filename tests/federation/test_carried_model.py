"""A model as a job carries it: the same model, and no other than the job names."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from errors import raises
from validations import blob_models

from fedshift.federation.carried_model import Source, pack_model, read_carried, sha256_of, unpack_model
from fedshift.federation.model_files import read_model_file


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return blob_models(tmp_path_factory.mktemp("models"), "old")["old"]


def unpacked(path: Path, sha256: str) -> tuple[dict[str, Any], Source]:
    return unpack_model(path, *read_carried(path, sha256=sha256))


def repacked(source: Path, target: Path, **changes: bytes | None) -> str:
    """The carried model with other parts; returns its hash."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            content = changes.get(name, old.read(name)) if name in changes else old.read(name)
            if content is not None:
                new.writestr(name, content)
    return sha256_of(target)


def test_it_is_the_same_model(model: Path, tmp_path: Path) -> None:
    sha = pack_model(model, tmp_path / "old.npz")
    content, source = unpacked(tmp_path / "old.npz", sha)
    known = read_model_file(model)
    assert (source.file, source.sha256) == ("old.pt", sha256_of(model))
    assert list(content["weights"]) == list(known["weights"])
    assert all(torch.equal(value, known["weights"][key]) for key, value in content["weights"].items())
    assert content.keys() == known.keys() and content["job"] == known["job"]
    assert pack_model(model, tmp_path / "again.npz") == sha, "the same bytes whenever it is packed"


def test_another_file_than_the_job_names_is_refused(model: Path, tmp_path: Path) -> None:
    pack_model(model, tmp_path / "old.npz")
    with raises("file-damaged", naming="another old.npz"):
        unpacked(tmp_path / "old.npz", "0" * 64)
    with raises("file-missing"):
        unpacked(tmp_path / "none.npz", "0" * 64)


def test_nothing_is_unpickled(model: Path, tmp_path: Path) -> None:
    pack_model(model, tmp_path / "old.npz")
    with zipfile.ZipFile(tmp_path / "old.npz") as file:
        name = next(each for each in file.namelist() if each.endswith(".npy"))
    for content in (pickle.dumps([1]), _objects()):
        sha = repacked(tmp_path / "old.npz", tmp_path / "odd.npz", **{name: content})
        with raises("file-damaged"):
            unpacked(tmp_path / "odd.npz", sha)


def _objects() -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([{}], dtype=object), allow_pickle=True)
    return stream.getvalue()


def test_an_array_takes_no_more_memory_than_the_file_has_bytes(model: Path, tmp_path: Path) -> None:
    pack_model(model, tmp_path / "old.npz")
    with zipfile.ZipFile(tmp_path / "old.npz") as file:
        name = next(each for each in file.namelist() if each.endswith(".npy"))
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(stream, header)
    sha = repacked(tmp_path / "old.npz", tmp_path / "odd.npz", **{name: stream.getvalue() + bytes(64)})
    with raises("file-damaged"):
        unpacked(tmp_path / "odd.npz", sha)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", "{}" + " " * 10**6)
    with raises("file-damaged", naming="compressed"):
        unpacked(tmp_path / "bomb.npz", sha256_of(tmp_path / "bomb.npz"))


def test_a_model_that_does_not_fit_its_own_job_is_refused(model: Path, tmp_path: Path) -> None:
    pack_model(model, tmp_path / "old.npz")
    with zipfile.ZipFile(tmp_path / "old.npz") as file:
        name = next(each for each in file.namelist() if each.endswith(".npy"))
    sha = repacked(tmp_path / "old.npz", tmp_path / "odd.npz", **{name: None})
    with raises("file-damaged", naming="is missing"):
        unpacked(tmp_path / "odd.npz", sha)
    sha = repacked(tmp_path / "old.npz", tmp_path / "odd.npz", **{"header.json": b'{"model": 1}'})
    with raises("file-damaged", naming="its header"):
        unpacked(tmp_path / "odd.npz", sha)
