"""docs/security.md names no test file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APPENDIX = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").partition("## Which tests show it\n")[2]


def test_every_promise_has_tests_that_are_there() -> None:
    rows = [line for line in APPENDIX.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows) > 10
    for row in rows:
        files = re.findall(r"`([\w/*]+\.py)`", row)
        assert files and all(any((ROOT / "tests").glob(file)) for file in files), row
