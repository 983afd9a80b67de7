"""Smaller messages: network weights as bfloat16 or 8-bit integers (``federation.weights_as``).

Only the network's trainable float32 arrays of two or more dimensions are packed: kernels and matrices, nearly all of
its bytes. Biases, normalisation layers, running statistics and counters are sent unchanged.

Downwards, the server packs the weights but keeps its own in full precision, so that rounding errors do not accumulate.
Upwards, a site packs its change d_r in round r relative to the received weights, plus the rounding error of its
earlier updates (error feedback: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019)::

    s_r = pack(d_r + e_{r−1}),    e_r = d_r + e_{r−1} − s_r

so the sum of what it sent over all rounds is the sum of its changes, up to the last e.

``int8`` is symmetric, with one scale for each index of the first axis (a convolution's output channel)::

    scale = max |x| / 127,    code = round(x / scale),    x ≈ code · scale

The scale is rounded up to 17 significant bits: its product with a code then has at most 24, so it is exact in float32,
and packing an unpacked array gives the same codes again. The same holds for ``bf16``. The model that sites score is
therefore, bit for bit, the one in the model file, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

WeightsAs = Literal["fp32", "bf16", "int8"]
"""Number format of weights in messages."""

CODES: dict[str, np.dtype] = {"bf16": np.dtype(np.uint16), "int8": np.dtype(np.int8)}
"""Storage type of the codes; bf16 is the upper 16 bits of a float32."""
MOST = 127
"""Largest int8 code."""
SPARE = 7
"""Low bits of a float32 scale that are zero: as many as MOST has."""
SMALLEST = np.float32(np.finfo(np.float32).tiny)
"""Smaller scales would be subnormal; such a channel is packed as zeros."""


@dataclass(frozen=True)
class Packed:
    """A packed float32 array: ``codes`` of the same shape and, for int8, a float32 ``scale`` for each first index.

    The constructor validates, so that a malformed array from a message never gets further.
    """

    codes: np.ndarray
    scale: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for codes or scales that `unpack` could not handle."""
        if type(self.codes) is not np.ndarray or self.codes.dtype not in CODES.values():
            raise ValueError(f"is {_kind(self.codes)}, not codes of {' or '.join(map(str, CODES.values()))}")
        if self.codes.ndim < 2:
            raise ValueError(f"has codes of shape {self.codes.shape}, and only two dimensions or more are packed")
        if self.codes.dtype == CODES["bf16"]:
            if self.scale is not None:
                raise ValueError("has a scale, and bf16 has none")
            return
        if type(self.scale) is not np.ndarray or self.scale.dtype != np.float32:
            raise ValueError(f"has {_kind(self.scale)} for a scale, not an array of float32")
        if self.scale.shape != self.codes.shape[:1]:
            raise ValueError(f"has a scale of shape {self.scale.shape}, expected {self.codes.shape[:1]}")
        if not np.isfinite(self.scale).all() or (self.scale < 0).any():
            raise ValueError("has a scale that is negative, NaN or infinity")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        """Bytes in a message, without framing."""
        return self.codes.nbytes + (0 if self.scale is None else self.scale.nbytes)

    def unpack(self) -> np.ndarray:
        """The float32 array; bf16 codes may decode to infinity or NaN."""
        if self.scale is None:
            return (self.codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
        with np.errstate(over="ignore"):
            array: np.ndarray = self.codes.astype(np.float32) * _by_first(self.scale, self.codes.ndim)
        return array


def pack(array: np.ndarray, weights_as: WeightsAs) -> Packed:
    """Pack a float32 array of two or more dimensions, rounding halves to even.

    Raises:
        ValueError: it holds NaN or infinity.
    """
    if not np.isfinite(array).all():
        raise ValueError("NaN or infinity cannot be packed")
    values = np.ascontiguousarray(array, np.float32)
    if weights_as == "bf16":
        bits = values.view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        return Packed(((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(CODES["bf16"]))
    largest = np.abs(values).max(axis=tuple(range(1, values.ndim)), initial=0)
    scale = (largest / np.float32(MOST)).astype(np.float32)
    up = np.uint32((1 << SPARE) - 1)
    scale = ((scale.view(np.uint32) + up) & ~up).view(np.float32)
    scale = np.where(scale < SMALLEST, np.float32(0), scale)
    divisor = np.where(scale > 0, scale, np.float32(np.inf))  # a channel of zeros stays one
    codes = np.rint(values / _by_first(divisor, values.ndim)).astype(CODES["int8"])
    return Packed(codes, scale)


def packed_keys(weights: Mapping[str, np.ndarray], trainable: Iterable[str], weights_as: WeightsAs) -> frozenset[str]:
    """Keys of the network's arrays that are packed; ``trainable`` are the keys of its parameters."""
    if weights_as == "fp32":
        return frozenset()
    named = {key: weights[key] for key in trainable if key in weights}
    return frozenset(key for key, value in named.items() if value.ndim >= 2 and value.dtype == np.float32)


def feed_back(
    change: Mapping[str, np.ndarray], residual: Mapping[str, np.ndarray], weights_as: WeightsAs
) -> tuple[dict[str, Packed], dict[str, np.ndarray]]:
    """Pack a site's change with error feedback; return the packed change and the new residual.

    Args:
        change: trained minus received weights, float32, by key.
        residual: rounding error of the previous update; empty before the first.
        weights_as: number format of the packed arrays.
    """
    packed, remainder = {}, {}
    for key, value in change.items():
        wanted = value + residual[key] if key in residual else value
        packed[key] = pack(wanted, weights_as)
        remainder[key] = wanted - packed[key].unpack()
    return packed, remainder


def _by_first(scale: np.ndarray, ndim: int) -> np.ndarray:
    return scale.reshape(-1, *(1,) * (ndim - 1))


def _kind(value: object) -> str:
    return f"an array of {value.dtype}" if type(value) is np.ndarray else f"a {type(value).__name__}"
