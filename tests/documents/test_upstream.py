"""docs/upstream.md: every reproduction prints what the document says. If one no longer does, its patch can go."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.hooks import guard

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "upstream.md"
ARMOUR = DOCUMENT.parents[1] / "custom" / "flare_armour"
BLOCK = re.compile(r"^## (.+?)$.*?^```python$(.+?)^```$.*?^```text$(.+?)^```$", re.M | re.S)
TEXT = DOCUMENT.read_text(encoding="utf-8")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="one of the reproductions forks"),
]


@pytest.mark.parametrize(
    ("code", "seen"),
    [found.group(2, 3) for found in BLOCK.finditer(TEXT)],
    ids=[found[1] for found in BLOCK.finditer(TEXT)],
)
def test_a_reproduction_prints_what_the_document_says(code: str, seen: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False, cwd=tmp_path, timeout=500
    )
    assert result.stdout.strip() == seen.strip(), result.stderr


def test_every_patch_is_in_the_document() -> None:
    """By a section or a row of its own, or in the table that is made of those that protect."""
    matches = re.findall(r"\[(\w+)\]\(\.\./custom/(flare_armour/\w+(?:/\w+)?\.py)\)", TEXT)
    assert all((ARMOUR.parent / path).is_file() for _, path in matches)
    named = {name for name, _ in matches}
    protects = {part.strip("`") for part, _ in guard.TABLES["<!-- what protects -->"][1]()}
    modules = {path: path.read_text(encoding="utf-8") for path in ARMOUR.rglob("*.py")}
    patches = {name for text in modules.values() for name in re.findall(r"\bPatch\(\s*name=\"(\w+)\"", text)}
    assert (named - {"pieces"}) | protects == patches
