"""Marks are filled (`marks`), and links that leave ``docs/`` lead to pages of the site too.

On a code host a link such as ``../deploy/RUNBOOK.md`` opens the file. In the site that file becomes a page: Markdown
as it is, anything else as its text. What such a page links to comes along.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from marks import filled

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"(^```.*?^```$)", flags=re.DOTALL | re.MULTILINE)
PICTURES = {"pictures/leaderboard.svg": "<!-- make: leaderboard.picture -->"}
LANGUAGES = {".json": "json", ".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to and what that links to."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    known = set(waiting)
    while waiting:
        page = waiting.pop()
        for _, target in (
            _links(filled((ROOT / page).read_text(encoding="utf-8")), page) if page.endswith(".md") else ()
        ):
            if target is not None and not target.startswith("docs/") and target not in {*known, "README.md"}:
                known.add(target)
                waiting.append(target)
                files.append(File.generated(config, _in_site(target), content=_content(target)))
    for name, mark in PICTURES.items():
        files.append(File.generated(config, name, content=filled(mark)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill marks, and point links where the files are in the site; a link to a bare folder becomes its words."""
    page_path = page.file.src_uri
    source = f"docs/{page_path}" if page.file.generated_by is None else page_path
    if not (ROOT / source).is_file():  # the text of a file that is no Markdown
        return markdown
    parts = FENCE.split(filled(markdown))
    for number in range(0, len(parts), 2):
        parts[number] = _rewritten(parts[number], page_path, source)
    return "".join(parts)


def _rewritten(text: str, page_path: str, source: str) -> str:
    for written, target in _links(text, source):
        if target is None:
            text = re.sub(rf"\[([^\]]*)\]\({re.escape(written)}\)", r"\1", text)
        elif not (source.startswith("docs/") and target.startswith("docs/")):
            moved = posixpath.relpath(_in_site(target), posixpath.dirname(page_path) or ".")
            text = re.sub(rf"(?<=\]\(){re.escape(written)}(?=[)#])", moved, text)
    return text


def _links(text: str, page: str) -> list[tuple[str, str | None]]:
    """What is written in each link out of a page to a file, and the file from the root; None for a bare folder."""
    links = []
    for written, _ in dict.fromkeys(LINK.findall(FENCE.sub("", text))):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), written))
        if (ROOT / target).is_dir():
            target = f"{target}/README.md" if (ROOT / target / "README.md").is_file() else None
        links.append((written, target))
    return links


def _in_site(target: str) -> str:
    """Where a file of the repository is among the pages."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target == "README.md":
        return "index.md"
    return target if target.endswith(".md") else f"{target}.md"


def _content(target: str) -> str:
    text = (ROOT / target).read_text(encoding="utf-8")
    if target.endswith(".md"):
        return text
    language = LANGUAGES.get(Path(target).suffix, "text")
    return f"---\nsearch: {{exclude: true}}\n---\n# {target}\n\n````{language}\n{text}````\n"
