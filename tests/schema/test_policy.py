"""A head of a ledger is a number and a hash, and nothing else passes for one."""

from __future__ import annotations

from typing import Any

import pytest

from fedshift.schema.errors import ConfigError
from fedshift.schema.policy import LedgerHead

HASH = "0a" * 32


def test_a_head_comes_back_as_it_was() -> None:
    head = LedgerHead(number=3, hash=HASH)
    assert LedgerHead.parse(head.model_dump(), where="head") == head


@pytest.mark.parametrize(
    "raw",
    [
        {"number": 0, "hash": HASH},
        {"number": 2**60, "hash": HASH},
        {"number": 1, "hash": HASH.upper()},
        {"number": 1, "hash": HASH[:-1]},
        {"number": 1},
        {"number": 1, "hash": HASH, "site": "HK"},
        [1, HASH],
    ],
)
def test_what_is_no_head_is_refused(raw: Any) -> None:
    with pytest.raises(ConfigError, match=r"^head: "):
        LedgerHead.parse(raw, where="head")
