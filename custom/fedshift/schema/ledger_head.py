"""The head of a site's privacy ledger, as the server knows it: how many releases, and the hash of the last."""

from __future__ import annotations

from pydantic import Field

from fedshift.schema.strict import Strict

LEDGER_FILE = "privacy_ledger.jsonl"
"""Of a site, in its kit's ``local``."""


class LedgerHead(Strict):
    """Where a ledger ends, or ended when it was last seen. Nothing about patients follows from it.

    Attributes:
        number: of releases.
        hash: SHA-256 of the last one's line, hexadecimal.
    """

    number: int = Field(ge=1, le=2**53)
    hash: str = Field(pattern="^[0-9a-f]{64}$")
