"""Keys for CKKS: encrypt, add and decrypt with TenSEAL."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedshift.federation.refusals import ENCRYPTION
from fedshift.schema.errors import ConfigError

HEADER = 4096
"""Bytes that a ciphertext may have beyond its coefficients."""
REFUSED = (ValueError, RuntimeError, IndexError, OverflowError, MemoryError, TypeError)
"""What TenSEAL's binding makes of the errors of the C++ code that reads ciphertexts."""


class Keys:
    """A TenSEAL context: what one party of a project can do with ciphertexts."""

    def __init__(self, content: bytes, *, where: str) -> None:
        """Load a context that FLARE's provisioning wrote: a ``*_context.tenseal``, which errors name as ``where``.

        Raises:
            ConfigError: TenSEAL is not installed, or the content is not a CKKS context.
        """
        self._ts = _tenseal()
        try:
            self._context: Any = self._ts.context_from(content)
            self._scale = float(self._context.global_scale)
            data = self._context.seal_context().data
            self.slots = int(data.key_context_data().parms().poly_modulus_degree()) // 2
            self._parameters = list(data.first_parms_id())
            n_primes = int(data.first_context_data().chain_index()) + 1
            self._most = 2 * 2 * self.slots * n_primes * 8 + HEADER
        except (ValueError, RuntimeError) as error:
            raise ConfigError(
                "wrong-keys",
                f"{where} cannot be used ({str(error).splitlines()[0]}): provision the project with FLARE's HEBuilder "
                "and scheme CKKS",
            ) from None

    @property
    def can_decrypt(self) -> bool:
        """Whether the context has the secret key."""
        return bool(self._context.has_secret_key())

    def encrypt(self, values: np.ndarray) -> np.ndarray:
        """Encrypt at most ``slots`` numbers, float64, into the bytes of one ciphertext, uint8."""
        vector = self._ts.ckks_vector(self._context, values.tolist())
        return np.frombuffer(bytearray(vector.serialize()), np.uint8)  # a writable copy

    def decrypt(self, ciphertext: np.ndarray, size: int) -> np.ndarray:
        """Decrypt the ``size`` numbers of a ciphertext, float64; ValueError if it is none of this context."""
        return np.array(self._read(ciphertext, size).decrypt(), np.float64)

    def add(self, ciphertexts: Iterable[np.ndarray], size: int) -> np.ndarray:
        """Add ciphertexts of ``size`` numbers each, in order; ValueError if one is none of this context."""
        total: Any = None
        for ciphertext in ciphertexts:
            vector = self._read(ciphertext, size)
            total = vector if total is None else total.add_(vector)
        return np.frombuffer(bytearray(total.serialize()), np.uint8)

    def check(self, ciphertext: np.ndarray, size: int) -> None:
        """Check that a ciphertext can be added to others; ValueError if not, and why."""
        self._read(ciphertext, size)

    def _read(self, ciphertext: np.ndarray, size: int) -> Any:
        if type(ciphertext) is not np.ndarray or ciphertext.dtype != np.uint8 or ciphertext.ndim != 1:
            raise ValueError("is no row of bytes")
        if len(ciphertext) > self._most:
            raise ValueError(f"has {len(ciphertext)} bytes, a ciphertext of this project's keys at most {self._most}")
        content = ciphertext.tobytes()
        if not self._is_ciphertext(content, size):
            raise ValueError(f"is no ciphertext of this project's keys with {size} numbers")
        try:
            vector = self._ts.ckks_vector_from(self._context, content)
            parts = vector.ciphertext()
            facts = [(list(p.parms_id()), p.scale, p.size(), p.is_ntt_form(), p.is_transparent()) for p in parts]
        except REFUSED as error:
            words = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"is no ciphertext of this project's keys ({words})") from None
        if vector.size() != size or facts != [(self._parameters, self._scale, 2, True, False)]:
            raise ValueError(f"is no fresh ciphertext or sum of {size} numbers")
        return vector

    def _is_ciphertext(self, content: bytes, size: int) -> bool:
        """Whether the outer form is that of one ciphertext of ``size`` numbers, as TenSEAL writes it.

        TenSEAL reads as many ciphertexts as a message names, each of which may be unpacked into megabytes, and
        believes the sizes that it names beside them. So nothing but this is given to it: the sizes (protobuf field 1,
        packed), one ciphertext (field 2) and its scale (field 3).
        """
        count = _varint(size)
        start = b"\x0a" + _varint(len(count)) + count + b"\x12"
        end = b"\x19" + struct.pack("<d", self._scale)
        rest = content[len(start) : len(content) - len(end)]
        whole = any(rest[:width] == _varint(len(rest) - width) for width in range(1, min(6, len(rest))))
        return whole and content.startswith(start) and content.endswith(end)


def _varint(number: int) -> bytes:
    """A whole number as protobuf writes it."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError:
        raise ConfigError(
            "not-installed",
            f"{ENCRYPTION} needs TenSEAL, which is not installed here: pip install 'fedshift[he]' at the server and at "
            "every site",
        ) from None
    return tenseal
