"""Pickles of arrays and plain values are read; whatever else they ask for is refused and not run."""

from __future__ import annotations

import io
import os
import pickle
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from errors import raises
from picklefiles import calling, python2_pickle

from data_prep.pickles import read_pickle
from fedshift.schema.errors import DataError

PLAIN: dict[str, Any] = {
    "data": [1, -2.5, True, None, "text", b"bytes", b"", 1 << 70, ("a", ("b",)), {3, 4}, frozenset({"x"})],
    "inner": {7: "seven", "deep": [[[]]]},
}
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def read(content: bytes) -> Any:
    return read_pickle(io.BytesIO(content), "a.pkl")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_come_back(protocol: int) -> None:
    assert read(pickle.dumps(PLAIN, protocol)) == PLAIN


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", ["bool", "uint8", "<i4", ">i8", "float32", ">f8", "complex64", "S3", "<U4"])
def test_arrays_come_back(protocol: int, kind: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    for one in (array, np.asfortranarray(array), array[:0], array[0, 0, 1:2].reshape(())):
        back = read(pickle.dumps(one, protocol))
        assert type(back) is np.ndarray and back.dtype.newbyteorder("=") == one.dtype.newbyteorder("=")
        np.testing.assert_array_equal(back, one)
    scalar = read(pickle.dumps(array[1, 2, 3], protocol))
    assert scalar == array[1, 2, 3] and scalar.dtype == array[1, 2, 3].dtype
    assert read(pickle.dumps(array.dtype, protocol)) == array.dtype


def test_arrays_of_objects_hold_such_values() -> None:
    array = np.empty((2, 2), object)
    array[0] = ["amazon/mug/frame_0001.jpg", np.arange(3)]
    array[1] = [None, [1, {b"key": np.float32(2)}]]
    back = read(pickle.dumps(array))
    assert type(back) is np.ndarray and back.shape == (2, 2) and back[0, 0] == "amazon/mug/frame_0001.jpg"
    np.testing.assert_array_equal(back[0, 1], np.arange(3))
    assert type(back[0, 1]) is np.ndarray and back[1, 1] == [1, {"key": 2.0}]


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_names_of_any_numpy(module: str) -> None:
    here = pickle.dumps(np.arange(4.0), 2)
    there = re.sub(rb"numpy\._?core\.multiarray", module.encode(), here)
    assert module.encode() in there
    np.testing.assert_array_equal(read(there), np.arange(4.0))


def test_what_python_2_wrote() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(2, 128)
    back = read(python2_pickle({b"data": pixels, b"labels": [3, 9], b"filenames": [b"caf\xe9.png"], "t": 1.5}))
    assert list(back) == ["data", "labels", "filenames", "t"]
    assert back["labels"] == [3, 9] and back["filenames"] == ["café.png"]
    np.testing.assert_array_equal(back["data"], pixels)


def test_keys_that_are_bytes_become_text() -> None:
    assert read(pickle.dumps({b"labels": {b"x": b"y"}})) == {"labels": {"x": b"y"}}


def test_one_thing_in_many_places_is_read_once() -> None:
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    back = read(pickle.dumps(value))
    assert back[0] is back[1]


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    ("module", "name", "args"),
    [
        ("os", "system", ["touch {mark}"]),
        ("posix", "system", ["touch {mark}"]),
        ("builtins", "exec", ["open({mark!r}, 'w')"]),
        ("builtins", "open", ["{mark}", "w"]),
        ("builtins", "getattr", [{}, "clear"]),
        ("numpy", "load", ["{mark}"]),
        ("numpy.core.multiarray", "fromfile", ["{mark}"]),
        ("numpy", "ndarray.tofile", ["{mark}"]),
        ("data_prep.pickles", "os.system", ["touch {mark}"]),
        ("torch.serialization", "load", ["{mark}"]),
        ("collections", "OrderedDict", []),
    ],
)
def test_other_names_are_refused_and_nothing_is_run(
    module: str, name: str, args: list[Any], protocol: int, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    filled = [arg.format(mark=str(mark)) if isinstance(arg, str) else arg for arg in args]
    with raises("pickle-refused", naming=("a.pkl", f"{module}.{name}")) as raised:
        read(calling(module, name, *filled, protocol=protocol))
    assert not mark.exists() and "\n" not in str(raised.value)


def test_what_pickles_of_objects_do_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "mark"),)

    array = np.empty(1, object)
    array[0] = Evil()
    mkdir = f"{os.name}.mkdir"
    for value, name in (
        (Evil(), mkdir),
        ([Evil()], mkdir),
        ({"k": Evil()}, mkdir),
        (array, mkdir),
        (OrderedDict(a=1), "collections.OrderedDict"),
    ):
        with pytest.raises(DataError, match=rf"asks for {name}"):
            read(pickle.dumps(value))
    assert not (tmp_path / "mark").exists()


FIELDS = np.zeros(2, [("a", "u1"), ("b", "f4")])
RECONSTRUCT = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02",
        b"not a pickle",
        pickle.dumps(PLAIN)[:-20],
        python2_pickle({b"data": np.arange(9)})[:-9],
        pickle.dumps(FIELDS),
        pickle.dumps(np.array(["2020-01-01"], "M8[D]")),
        RECONSTRUCT + b".",  # a function, not a value
        RECONSTRUCT + b"(K\0K\1tR.",  # of another class
        RECONSTRUCT + b"}U\x08__code__K\1sb.",  # a function's attributes
        RECONSTRUCT + b"(N}U\x08__code__K\1sbtb.",
        RECONSTRUCT + b"}U\x04markK\1sb0K\1.",  # that would stay behind, beside a plain value
        b"\x80\x02c_codecs\nencode\nN}U\x04markK\1s\x86b0K\1.",
        b"\x80\x02c_codecs\nencode\nN}U\x09_functionK\1s\x86b0K\1.",
        b"\x80\x02cbuiltins\nset\n}U\x04markK\1sb0K\1.",
        python2_pickle(np.arange(4, dtype=np.uint8)).replace(b"J\x04\0\0\0", b"J\x05\0\0\0"),  # reaches too far
        python2_pickle(np.arange(4, dtype=np.uint8)).replace(b"J\x04\0\0\0", b"J\xff\xff\xff\xff"),
        python2_pickle(np.arange(4, dtype=np.uint8)).replace(b"u1", b"O8"),  # bytes as addresses
        python2_pickle(np.arange(4, dtype=np.uint8)).replace(b"u1", b"V1"),
        python2_pickle(np.arange(4, dtype=np.uint8)).replace(b"T\x01\0\0\0|NNN", b"T\x01\0\0\0|](K\1eNN"),
        calling("_codecs", "encode", "x", "zlib"),
        calling("builtins", "bytes", 1 << 40),
        b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".",  # deeper than Python goes
        b"\x80\x02]q\0h\0a.",  # a list that holds itself
        b"\x80\x02Pid\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x05\x97.",
        b"\x80\x02r\xff\xff\xff\xff.",
    ],
)
def test_what_is_damaged_or_made_up_gets_a_sentence(content: bytes) -> None:
    with raises("file-damaged", naming="a.pkl"):
        read(content)
