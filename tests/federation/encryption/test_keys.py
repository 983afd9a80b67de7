"""Ciphertexts of a hostile site: what the server lets through can be added to the others', and nothing else ends it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tenseal

from fedshift.federation.encryption.keys import Keys

NUMBERS = 4096
DEGREE, PRIMES, SCALE = 8192, 2, 2.0**40


class Parties:
    """Keys with and without the secret, and a ciphertext of an honest site."""

    def __init__(self) -> None:
        context: Any = tenseal.context(
            tenseal.SCHEME_TYPE.CKKS, DEGREE, -1, [60, 40, 40], tenseal.ENCRYPTION_TYPE.SYMMETRIC
        )
        context.global_scale = SCALE
        data = context.seal_context().data
        self.levels = [struct.pack("<4Q", *ids) for ids in (data.first_parms_id(), data.last_parms_id())]
        self.site = Keys(context.serialize(save_secret_key=True), where="site")
        self.server = Keys(context.serialize(), where="server")
        self.good = self.site.encrypt(np.linspace(-1, 1, NUMBERS))

    def refusal(self, content: bytes | np.ndarray) -> str:
        """Why the server refuses a ciphertext; if it doesn't, the sum with an honest one must be decryptable."""
        sent = content if isinstance(content, np.ndarray) else np.frombuffer(bytearray(content), np.uint8)
        try:
            self.server.check(sent, NUMBERS)
        except ValueError as error:
            return str(error)
        for order in ((self.good, sent), (sent, self.good)):
            total = self.site.decrypt(self.server.add(order, NUMBERS), NUMBERS)
            assert total.shape == (NUMBERS,) and np.isfinite(total).all()
        return ""


@pytest.fixture(scope="module")
def parties() -> Parties:
    return Parties()


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def message(ciphertexts: Sequence[bytes], *, sizes: Sequence[int] = (NUMBERS,), scale: float = SCALE) -> bytes:
    """TenSEAL's message of a vector."""
    named = b"".join(map(varint, sizes))
    inside = b"".join(b"\x12" + varint(len(ciphertext)) + ciphertext for ciphertext in ciphertexts)
    return b"\x0a" + varint(len(named)) + named + inside + b"\x19" + struct.pack("<d", scale)


def seal(content: bytes, *, size: int | None = None) -> bytes:
    """SEAL's header of version 4.3 before content that is not compressed."""
    return struct.pack("<HBBBBHQ", 0xA15E, 16, 4, 3, 0, 0, len(content) + 16 if size is None else size) + content


def ciphertext(
    level: bytes,
    *,
    ntt: int = 1,
    polynomials: int = 2,
    degree: int = DEGREE,
    primes: int = PRIMES,
    scale: float = SCALE,
    factor: int = 1,
    numbers: int = 2 * DEGREE * PRIMES,
    declared: int | None = None,
    value: int = 7,
) -> bytes:
    """SEAL's ciphertext, whose coefficients are all the same."""
    coefficients = np.full(numbers, value, "<u8").tobytes()
    counted = struct.pack("<Q", numbers if declared is None else declared) + coefficients
    facts = struct.pack("<BQQQdQ", ntt, polynomials, degree, primes, scale, factor)
    return seal(level + facts + seal(counted))


def test_what_the_tests_write_is_what_seal_reads(parties: Parties) -> None:
    """Else the refusals below would say nothing."""
    assert parties.refusal(message([ciphertext(parties.levels[0])])) == ""
    assert parties.refusal(parties.good) == ""


def test_a_ciphertext_in_another_representation_would_end_the_sum_of_all_sites(parties: Parties) -> None:
    """SEAL loads it, and adds it to no other."""
    other = message([ciphertext(parties.levels[0], ntt=0)])
    assert "no fresh ciphertext" in parties.refusal(other)


@pytest.mark.parametrize(
    "changes",
    [
        {"polynomials": 3, "numbers": 3 * DEGREE * PRIMES},
        {"polynomials": 1, "numbers": DEGREE * PRIMES},
        {"polynomials": 2**60},
        {"degree": 2**40},
        {"primes": 1},
        {"numbers": 3},
        {"declared": 2**60},
        {"declared": 2**64 - 1},
        {"scale": float("nan")},
        {"scale": float("inf")},
        {"scale": 2.0**39},
        {"scale": -SCALE},
        {"factor": 0},
        {"factor": 5},
        {"value": 2**63},
        {"value": 0},
    ],
    ids=str,
)
def test_a_ciphertext_with_other_facts_is_refused(parties: Parties, changes: dict[str, Any]) -> None:
    reason = parties.refusal(message([ciphertext(parties.levels[0], **changes)]))
    assert reason.startswith(("is no ", "has ")) and "\n" not in reason and len(reason) < 200


def test_a_ciphertext_of_another_level_is_refused(parties: Parties) -> None:
    assert parties.refusal(message([ciphertext(parties.levels[1], primes=1, numbers=2 * DEGREE)]))
    assert parties.refusal(message([ciphertext(bytes(32))]))


def test_only_one_ciphertext_of_the_size_that_is_due_is_given_to_tenseal(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TenSEAL would load them all before anybody could count them, each up to a thousand times its size."""

    def load(*args: object) -> None:
        raise AssertionError("TenSEAL was given it")

    one = ciphertext(parties.levels[0])
    contents = {
        "two": message([one, one]),
        "none": message([]),
        "many small": message([b"\x28\xb5\x2f\xfd" * 4] * 1000),
        "size in two parts": message([one], sizes=(NUMBERS // 2, NUMBERS // 2)),
        "other size": message([one], sizes=(NUMBERS - 1,)),
        "huge size": message([one], sizes=(2**32 - 1,)),
        "other scale": message([one], scale=float("nan")),
        "more behind it": message([one]) + b"\x0a\x01\x05",
        "more before it": b"\x0a\x01\x05" + message([one]),
        "an unknown field": message([one])[:-9] + b"\x22\x01x" + message([one])[-9:],
        "longer than there is": message([one]).replace(varint(len(one)), varint(len(one) + 1), 1),
        "length of no end": message([one])[:5] + b"\xff" * 12 + message([one])[5:],
        "truncated": message([one])[:-20],
        "empty": b"",
        "three bytes": b"\x0a\x02\x80",
        "too large": message([one + bytes(2 * len(one))]),
    }
    monkeypatch.setattr("tenseal.ckks_vector_from", load)
    for name, content in contents.items():
        reason = parties.refusal(content)
        assert reason.startswith(("is no ciphertext", "has ")), name


def test_no_damage_ends_the_process_or_the_sum(parties: Parties) -> None:
    """Of what SEAL has compressed, and of what is not compressed, where every bit of the facts can be reached."""
    rng = np.random.default_rng(0)
    plain = np.frombuffer(message([ciphertext(parties.levels[0])]), np.uint8)
    refused = 0
    for number in range(120):
        broken = (parties.good if number % 2 else plain).copy()
        match number % 3:
            case 0:
                broken[rng.integers(0, 130)] ^= 1 << rng.integers(8)
            case 1:
                broken[rng.integers(0, len(broken), 3)] ^= 0x55
            case _:
                start = rng.integers(5, 400)
                broken = np.delete(broken, np.s_[start : start + rng.integers(1, 9)])
        refused += bool(parties.refusal(broken))
    assert refused > 70  # a changed coefficient is a coefficient
