"""Arrays come out of a message as they went in, and others are empty."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.utils import fobs

from fedshift.flare import codec  # noqa: F401  applies the patches
from flare_armour.patches import numpy_arrays, spooled_answers

ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "number": np.asarray(3.5),
    "counter": np.asarray(7, np.int64),
    "nothing": np.empty((0, 4), np.float32),
    "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "flags": np.array([True, False]),
    "names": np.array(["BIDMC", "HK"]),
    "bytes": np.frombuffer(b"\x00\xff", np.uint8),
    "big end first": np.array([1, 2], ">i4"),
    "special": np.array([np.nan, -0.0, np.inf, 5e-324]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_keeps_type_shape_and_bits(name: str) -> None:
    array = ARRAYS[name]
    found = numpy_arrays.unpack(numpy_arrays.pack(array))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable


def test_importing_the_codec_applies_it() -> None:
    array, flare, headers = ARRAYS["matrix"], NumpyArrayDecomposer(), numpy_arrays._read_header
    packed = flare.native_decompose(array)
    headers.cache_clear()
    np.testing.assert_array_equal(flare.native_recompose(packed), array)
    assert headers.cache_info().misses == 1


@pytest.mark.parametrize("name", ARRAYS)
def test_flare_reads_what_we_packed_and_we_what_flare_packed(name: str) -> None:
    """A server's process may get an answer before it has loaded the job."""
    array, file = ARRAYS[name], io.BytesIO()
    np.save(file, array)
    for found in (
        numpy_arrays.unpack(file.getvalue()),
        np.load(io.BytesIO(numpy_arrays.pack(array)), allow_pickle=False),
    ):
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("data", [b"", b"no array", numpy_arrays.pack(np.zeros(3))[:-1]])
def test_what_nobody_packed_is_an_empty_array(data: bytes) -> None:
    found = numpy_arrays.unpack(data)
    assert (found.size, found.dtype) == (0, np.uint8)


@pytest.mark.parametrize(
    "header", [((2, 3), False, np.dtype("f4")), ((-1,), False, np.dtype("f4")), ((1,), False, np.dtype("O"))]
)
def test_an_array_with_another_header_than_ours_is_empty(header: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_arrays.numpy_file, "read_array_header_1_0", lambda file: header)
    numpy_arrays._read_header.cache_clear()
    found = numpy_arrays.unpack(numpy_arrays.pack(np.zeros(1)))
    numpy_arrays._read_header.cache_clear()
    assert (found.size, found.dtype) == (0, np.uint8)


def test_python_objects_are_not_sent() -> None:
    with pytest.raises(TypeError, match="object"):
        numpy_arrays.pack(np.array([None, "x"], object))


def test_what_is_shared_is_packed_once() -> None:
    array = np.arange(6, dtype=np.float32)
    message = {"DXO": {"data": {"weights": DXO(DataKind.WEIGHTS, data={"conv": array})}}}
    assert numpy_arrays.pack(array) is not numpy_arrays.pack(array)
    numpy_arrays.share(message, clients=3)
    packed = numpy_arrays.pack(array)
    assert numpy_arrays.pack(array) is packed
    assert numpy_arrays.pack(array) is packed
    assert numpy_arrays.pack(array) is not packed, "all have got it: nothing is kept for a fourth"
    np.testing.assert_array_equal(numpy_arrays.unpack(packed), array)
    numpy_arrays.share(message, clients=3)
    packed = numpy_arrays.pack(array)
    numpy_arrays.share({}, clients=3)
    assert numpy_arrays.pack(array) is not packed, "it is forgotten with the next message"
    assert numpy_arrays.pack(array) is not numpy_arrays.pack(array)


LARGE = numpy_arrays.APART // 4


@pytest.mark.parametrize("array", [np.arange(LARGE, dtype=np.float32).reshape(2, -1), np.zeros(LARGE, np.int64)])
def test_what_is_laid_out_is_sent_from_where_it_lies(array: np.ndarray) -> None:
    laid = numpy_arrays.laid_out(array)
    assert (laid.dtype, laid.shape, laid.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not np.shares_memory(laid, array) and laid.flags.writeable
    assert numpy_arrays.laid_out(laid) is laid, "once is enough"
    view = laid.view()
    view.flags.writeable = False  # as in a task
    packed = numpy_arrays.pack(view)
    assert isinstance(packed, memoryview) and packed.readonly
    assert bytes(packed) == numpy_arrays.pack(array) and np.shares_memory(np.frombuffer(packed, np.uint8), laid)
    laid[...] = 5
    assert (numpy_arrays.unpack(bytes(packed)) == 5).all()


def test_a_part_or_another_shape_of_what_is_laid_out_is_packed_anew() -> None:
    laid = numpy_arrays.laid_out(np.arange(2 * LARGE, dtype=np.float32).reshape(2, -1))
    for other in (laid[:1], laid[:, ::2], laid.T, laid.reshape(-1), laid.view(np.int32)):
        found = numpy_arrays.unpack(numpy_arrays.pack(other))
        assert (found.dtype, found.shape, found.tobytes()) == (other.dtype, other.shape, other.tobytes())


@pytest.mark.parametrize("name", ARRAYS)
def test_small_arrays_stay_where_they_are(name: str) -> None:
    assert numpy_arrays.laid_out(ARRAYS[name]) is ARRAYS[name]


def test_flare_carries_what_is_laid_out() -> None:
    """As it is sent: in pieces, which are not copied into one block."""
    arrays = {"conv": numpy_arrays.laid_out(np.random.default_rng(0).normal(size=(300, 301)).astype(np.float32))}
    fobs.register(NumpyArrayDecomposer)
    found = fobs.loads(fobs.dumps(arrays))
    np.testing.assert_array_equal(found["conv"], arrays["conv"])


def test_a_server_reads_arrays_where_they_lie_in_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = bytes(numpy_arrays.pack(np.arange(6, dtype=np.float32)))
    assert not np.shares_memory(numpy_arrays.unpack(packed), np.frombuffer(packed, np.uint8)), "a site's it may change"
    monkeypatch.setattr(spooled_answers, "_folder", tmp_path)
    found = numpy_arrays.unpack(packed)
    assert np.shares_memory(found, np.frombuffer(packed, np.uint8)) and not found.flags.writeable
