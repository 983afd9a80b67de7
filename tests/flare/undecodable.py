"""Answers that nobody can decode, as any site may send them."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Mapping

import msgpack
import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs.lobs import MARKER_MAIN


def framed(body: object) -> bytes:
    """Msgpack in NVFlare's frame."""
    packed = body if isinstance(body, bytes) else msgpack.packb(body)
    return struct.pack(">BBQ", MARKER_MAIN, 0, len(packed)) + packed


def good() -> bytes:
    """An answer that can be decoded."""
    return bytes(fobs.dumps(DXO(DataKind.WEIGHTS, data={"w": np.arange(6, dtype=np.float32)}).to_shareable()))


def undecodable() -> Mapping[str, bytes]:
    """Answers that NVFlare cannot decode: what is wrong with each, and its bytes."""
    array, whole = _npy(np.arange(6, dtype=np.float32)), good()
    body = whole[struct.calcsize(">BBQ") :]
    assert msgpack.packb(array) in body
    headers = {
        "an array's header that does not end": _headed("{'descr':("),
        "an array's header of brackets": _headed("(" * 5000),
        "an array's header that is long": _headed("{" * 65535),
        "an array of a huge shape": _headed(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**22},)}}"),
        "an array of objects": _headed("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + bytes(8),
        "an array of huge items": _headed("{'descr': '<U2000000000', 'fortran_order': False, 'shape': (1,)}"),
    }
    typed = {"__fobs_type__": "subprocess.Popen", "__fobs_data__": {"data": {}}, "__fobs_dc__": "x"}
    generic = "nvflare.fuel.utils.fobs.decomposer.DataClassDecomposer"
    return {
        "junk": b"junk" * 100,
        "a pickle": pickle.dumps({"w": 1}),
        "nothing": b"",
        "no object": framed(None),
        "a list": framed([1, 2]),
        "deep": framed(b"\x81\xa1k" * 5000 + b"\xc0"),
        "deep but for its reader": framed(b"\x91" * 900 + b"\xc0"),
        "cut": whole[:-3],
        "declared longer than it is": struct.pack(">BBQ", MARKER_MAIN, 0, 1 << 62) + b"x" * 10,
        "a list declared longer than it is": framed(b"\xdd\x7f\xff\xff\xff"),
        "an unlisted type": framed(typed),
        "an unlisted type of a listed kind": framed({**typed, "__fobs_type__": "os.PathLike", "__fobs_dc__": generic}),
        "a type that is a list": framed({**typed, "__fobs_type__": ["x"]}),
        "no data": framed({"__fobs_type__": "numpy.ndarray"}),
        **{name: framed(body.replace(msgpack.packb(array), msgpack.packb(bad))) for name, bad in headers.items()},
    }


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _headed(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
