"""Any ``threshold`` shares rebuild a secret; fewer fit every secret."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedshift.federation.encryption.masks.primitives import PRIME, SHARE_BYTES, Rebuilder, split

SECRET = bytes(range(224, 256))


def coefficients(count: int) -> list[int]:
    rng = np.random.default_rng(3)
    return [int.from_bytes(rng.bytes(48), "big") % PRIME for _ in range(count)]


def test_the_modulus_is_the_smallest_prime_above_all_secrets() -> None:
    def is_prime(number: int) -> bool:  # Miller and Rabin, with bases enough for chance to be no matter
        odd, twos = number - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in range(2, 60):
            value = pow(base, odd, number)
            if value not in (1, number - 1) and all(
                (value := value * value % number) != number - 1 for _ in range(twos - 1)
            ):
                return False
        return True

    assert [n for n in range(2**256, PRIME + 1) if is_prime(n)] == [PRIME]


@pytest.mark.parametrize(("n", "threshold"), [(2, 2), (3, 2), (5, 4), (6, 4)])
@pytest.mark.parametrize("secret", [SECRET, bytes(32), b"\xff" * 32])
def test_any_shares_enough_rebuild_the_secret(n: int, threshold: int, secret: bytes) -> None:
    shares = split(secret, coefficients(threshold - 1), range(1, n + 1))
    assert {len(share) for share in shares} == {SHARE_BYTES}
    for points in combinations(range(1, n + 1), threshold):
        assert Rebuilder(points).secret([shares[x - 1] for x in points]) == secret


def test_fewer_shares_fit_every_secret() -> None:
    """With one share less, each other secret has a polynomial through the same shares."""
    shares = split(SECRET, coefficients(2), (1, 2, 3, 4))
    for other in (bytes(32), b"\x01" * 32):
        at, wanted = (1, 2), int.from_bytes(other, "big")
        # The polynomial through (0, other), (1, share 1), (2, share 2) has degree 2, as an honest one.
        first, second = (int.from_bytes(shares[x - 1], "big") for x in at)
        half = pow(2, -1, PRIME)
        square = (second - 2 * first + wanted) * half % PRIME
        linear = (first - wanted - square) % PRIME
        assert split(other, (linear, square), at) == shares[:2]
    assert Rebuilder((1, 2, 3)).secret(shares[:3]) == SECRET


def test_shares_of_different_secrets_rebuild_neither() -> None:
    shares = split(SECRET, coefficients(1), (1, 2))
    with pytest.raises(ValueError, match="no shares"):
        Rebuilder((1, 2)).secret([(PRIME - 1).to_bytes(SHARE_BYTES, "big"), bytes(SHARE_BYTES)])
    assert Rebuilder((1, 2)).secret([shares[0], bytes(SHARE_BYTES)]) != SECRET


def test_nonsense_is_not_split() -> None:
    for secret, points in ((b"short", (1, 2)), (SECRET, (0, 1)), (SECRET, (1, 1))):
        with pytest.raises(ValueError, match="32 bytes"):
            split(secret, coefficients(1), points)
