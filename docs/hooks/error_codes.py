"""The reference of error codes, found in the package's source: each raise of a FedshiftError with a literal code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def table(root: str = str(ROOT)) -> str:
    """Every code, the parts of the package that raise it, and its sentences with placeholders in capitals."""
    by_code: dict[str, tuple[set[str], set[str]]] = {}
    for area, code, sentence in found(Path(root)):
        areas, sentences = by_code.setdefault(code, (set(), set()))
        areas.add(area)
        sentences.add(sentence)
    if not by_code:
        return "No error has a code."
    lines = ["| code | where | what it says |", "|---|---|---|"]
    for code, (areas, sentences) in sorted(by_code.items()):
        said = "<br>".join(_escaped(sentence) for sentence in sorted(sentences) if sentence)
        lines.append(f"| `{code}` | {', '.join(sorted(areas))} | {said} |")
    return "\n".join(lines)


def error_classes(trees: dict[Path, ast.Module]) -> set[str]:
    """The names of FedshiftError and of all that are made from it and take what it takes."""
    names = {"FedshiftError"}
    nodes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    classes = [c for c in nodes if not any(isinstance(d, ast.FunctionDef) and d.name == "__init__" for d in c.body)]
    while more := {c.name for c in classes if {_name(base) for base in c.bases} & names} - names:
        names |= more
    return names


def found(root: Path) -> Iterator[tuple[str, str, str]]:
    """Area, code and sentence of every error that is made with a code in a checkout's packages."""
    files = [path for folder in ("custom", "data_prep") for path in sorted((root / folder).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    names = error_classes(trees)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) in names and len(node.args) >= 2:
                code = node.args[0]
                if isinstance(code, ast.Constant) and isinstance(code.value, str):
                    yield _area(path.relative_to(root)), code.value, _sentence(node.args[1])


def _area(path: Path) -> str:
    """The folder of a module in its package, or the package."""
    package, *folders = path.parts[path.parts[0] == "custom" :]
    return folders[0] if package == "fedshift" and len(folders) > 1 else package


def _sentence(node: ast.expr) -> str:
    """A message with what stands in braces in capitals; empty if it is made elsewhere."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_sentence(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        words = re.findall(r"[A-Za-z][A-Za-z_]*", ast.unparse(node.value))
        return (words[-1] if words else "VALUE").upper()
    if isinstance(node, ast.BinOp):
        return _sentence(node.left) + _sentence(node.right)
    return ""


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _escaped(sentence: str) -> str:
    return " ".join(sentence.split()).replace("|", "&#124;").replace("<", "&lt;").replace("*", "\\*")
