"""The reference of error codes, found in the source: each FedshiftError and finding with a literal code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def table(root: str = str(ROOT)) -> str:
    """Every code, the parts of the package that raise it, and its sentences with placeholders in capitals."""
    by_code: dict[str, tuple[set[str], set[str]]] = {}
    for area, code, sentence in raised(Path(root)):
        areas, sentences = by_code.setdefault(code, (set(), set()))
        areas.add(area)
        sentences.add(sentence)
    if not by_code:
        return "No error has a code."
    lines = ["| code | where | what it says |", "|---|---|---|"]
    for code, (areas, sentences) in sorted(by_code.items()):
        cell = "<br>".join(_escaped(sentence) for sentence in sorted(sentences) if sentence)
        lines.append(f"| `{code}` | {', '.join(sorted(areas))} | {cell} |")
    return "\n".join(lines)


def error_classes(trees: dict[Path, ast.Module]) -> set[str]:
    """The names of FedshiftError and of all that are made from it and take a code first."""
    names = {"FedshiftError"}
    nodes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    classes = [c for c in nodes if all(_takes_code(d) for d in c.body if isinstance(d, ast.FunctionDef))]
    while more := {c.name for c in classes if {_name(base) for base in c.bases} & names} - names:
        names |= more
    return names


def _takes_code(method: ast.FunctionDef) -> bool:
    return method.name != "__init__" or [part.arg for part in method.args.args[1:2]] == ["code"]


def raised(root: Path) -> Iterator[tuple[str, str, str]]:
    """Area, code and sentence of every error and finding that is made with a code in a checkout's packages."""
    files = [path for folder in ("custom", "data_prep") for path in sorted((root / folder).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    names = error_classes(trees)
    for path, tree in trees.items():
        assigned = _assigned(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) in {*names, "Finding"}:
                code, *parts = node.args[_name(node.func) == "Finding" :] or [ast.Constant(None)]
                if parts and isinstance(code, ast.Constant) and isinstance(code.value, str):
                    yield _area(path.relative_to(root)), code.value, _words(parts, assigned)


def _assigned(tree: ast.Module) -> dict[str, list[tuple[int, ast.expr]]]:
    """Name -> what it is given in a module, with the lines."""
    values: dict[str, list[tuple[int, ast.expr]]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values.setdefault(node.targets[0].id, []).append((node.lineno, node.value))
    return values


def _words(parts: list[ast.expr], assigned: dict[str, list[tuple[int, ast.expr]]]) -> str:
    """The sentence; of a file's fault, which are its path, what is wrong, and the mend."""
    sentences = [_sentence(_resolved(part, assigned)) for part in parts]
    if len(parts) < 3:
        return sentences[0]
    return f"PATH {sentences[1]}: {sentences[2]}" if sentences[1] and sentences[2] else ""


def _resolved(node: ast.expr, assigned: dict[str, list[tuple[int, ast.expr]]]) -> ast.expr:
    """What a local name was given last above its use."""
    above = [entry for entry in assigned.get(_name(node), []) if entry[0] < node.lineno]
    return max(above, key=lambda entry: entry[0])[1] if isinstance(node, ast.Name) and above else node


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
