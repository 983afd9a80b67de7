"""How large the house is, and how long its ways are: one table, before and after.

    python -m benchmarks.house --tree OTHER --out benchmarks/results/house/before.json --test-minutes 9
    python -m benchmarks.house --out benchmarks/results/house/after.json --test-minutes 8
    python -m benchmarks.house

The last prints the table of both. ``--tree`` is another clone or worktree, which is measured with this script and the
installed packages of this Python.

**Sizes.** Lines of Python; code is what is left of them without blank lines, comments and docstrings. Words are what
stands between white space.

**Assertions** are ``assert`` statements and ``pytest.raises(match=…)``. One compares a sentence if a literal in it has
four alphabetic words or more. Monkeypatches are calls of pytest's ``monkeypatch``, of ``mock.patch``, and of the
fixture ``lower`` of the armour's tests. A private reach is an import or an attribute of a name with one leading
underscore, but for ``self._name`` and ``cls._name``. Of identifiers, the places are counted that define one:
assignments, parameters, functions and classes.

**Ways.** A run of one round of two sites in one process, a prediction by the command line and a report by the command
line are traced, each the second time, when all is imported. The first call of each function of the packages is a step.
A *place* is a step in another module than the step before, a *climb* one into a higher layer (`LAYERS`; satellites are
above the core), a *return* one into a module that has been visited. ``all`` counts every function. ``trunk`` leaves out
what one skips in reading along: functions with fewer than `SHORT` lines of code, and the folders of plain data and of
the command line (`SKIPPED`), whose modules are small and called from everywhere.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "house"
LAYERS = ("schema", "data", "tasks", "methods", "federation", "inference", "reporting", "flare", "cli")
SHORT, SKIPPED = 7, ("schema", "cli")
DOCUMENTS = ("docs/**/*.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/*.md")
DIALECT = ("found", "one", "of", "own", "told", "tell", "mend", "beside", "Telling")
WORD = re.compile(r"(?:(?<=\s)|^)[A-Za-z]+[.,:;!?]?(?=\s|$)")
JOB = (
    *("data.matrix=32", "network.options.features=4", "schedule.rounds=1", "schedule.local_epochs=1"),
    *("schedule.batch_size=8", "schedule.precision=fp32"),
)
Step = tuple[str, str, int]
"""Module, function, and its lines of code."""


def size(files: Iterable[Path]) -> dict[str, int]:
    """Files, lines and lines of code."""
    texts = [file.read_text(encoding="utf-8") for file in files]
    return {"files": len(texts), "lines": sum(len(t.splitlines()) for t in texts), "code": sum(map(code_lines, texts))}


def code_lines(text: str) -> int:
    """Lines with a token that is neither a comment nor a docstring."""
    nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in nothing:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def nodes(files: Iterable[Path]) -> Iterator[ast.AST]:
    """All nodes of the syntax trees of some files."""
    for file in files:
        yield from ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def is_sentence(node: ast.AST) -> bool:
    """Whether a literal in it has four words or more."""
    texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return any(len(WORD.findall(text)) >= 4 for text in texts)


def is_private(name: str) -> bool:
    """Whether the name has one leading underscore."""
    return name.startswith("_") and not name.startswith("__")


def assertions(files: Iterable[Path], packages: tuple[str, ...]) -> dict[str, int]:
    """Assertions, and what ties tests to the inside of the packages."""
    counts: Counter[str] = Counter(assertions=0, sentences=0, monkeypatches=0, private_reaches=0)
    for node in nodes(files):
        if isinstance(node, ast.Assert):
            counts.update(assertions=1, sentences=is_sentence(node.test))
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            for match in (keyword.value for keyword in node.keywords if keyword.arg == "match"):
                counts.update(assertions=1, sentences=is_sentence(match))
            counts["monkeypatches"] += called.startswith("monkeypatch.") or called in ("patch", "mock.patch", "lower")
            counts["monkeypatches"] += called.startswith(("patch.", "mock.patch."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in packages:
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            counts["private_reaches"] += any(map(is_private, names))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            counts["private_reaches"] += ast.unparse(node.value) not in ("self", "cls")
    return dict(counts)


def identifiers(files: Iterable[Path]) -> dict[str, int]:
    """How often each name of `DIALECT` is defined."""
    counts = Counter(dict.fromkeys(DIALECT, 0))
    for node in nodes(files):
        name = getattr(node, "id", None) if isinstance(getattr(node, "ctx", None), ast.Store) else None
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name
        if name in DIALECT:
            counts[name] += 1
    return dict(counts)


def measure(tree: Path) -> dict[str, Any]:
    """Everything about a tree but how long its tests take."""
    packages = {folder.name: folder for folder in sorted((tree / "custom").iterdir()) if folder.is_dir()}
    tests = sorted((tree / "tests").rglob("*.py"))
    ours = [*sorted((tree / "custom").rglob("*.py")), *sorted((tree / "data_prep").rglob("*.py"))]
    core = [folder for folder in sorted((tree / "custom" / "fedshift").iterdir()) if (folder / "__init__.py").is_file()]
    words = [len(file.read_text(encoding="utf-8").split()) for name in DOCUMENTS for file in sorted(tree.glob(name))]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, encoding="utf-8", check=True)
    return {
        "commit": commit.stdout.strip(),
        "packages": {name: size(sorted(folder.rglob("*.py"))) for name, folder in packages.items()},
        "core": {folder.name: size(sorted(folder.rglob("*.py"))) for folder in core},
        "around": {name: size(sorted((tree / name).rglob("*.py"))) for name in ("data_prep", "benchmarks", "tests")},
        "tests": assertions(tests, (*packages, "data_prep")),
        "documents": {"files": len(words), "words": sum(words)},
        "identifiers": identifiers(ours),
        "ways": ways(tree),
    }


def ways(tree: Path) -> dict[str, Any]:
    """Places, climbs and returns of each way, traced in a process that imports the tree's packages."""
    environ = {**os.environ, "PYTHONPATH": f"{tree / 'custom'}{os.pathsep}{tree}", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", __file__, "--trace", folder, "--tree", str(tree)]
        subprocess.run(command, env=environ, cwd=folder, stdout=subprocess.DEVNULL, check=True)
        steps: dict[str, list[Step]] = json.loads((Path(folder) / "steps.json").read_text(encoding="utf-8"))
    trunk = {way: [step for step in path if is_trunk(step)] for way, path in steps.items()}
    return {way: {"trunk": walk(trunk[way]), "all": walk(steps[way])} for way in steps}


def is_trunk(step: Step) -> bool:
    """Whether one who reads along would read the function."""
    module, _, lines = step
    return lines >= SHORT and module.split("/")[1] not in SKIPPED


def walk(steps: list[Step]) -> dict[str, int]:
    """Places, climbs, returns, and modules in all."""
    modules = [step[0] for step in steps]
    visited, places, climbs, returns = set(modules[:1]), 0, 0, 0
    for before, module in pairwise(modules):
        if module != before:
            places, climbs = places + 1, climbs + (layer(module) > layer(before))
            returns += module in visited
            visited.add(module)
    return {"places": places, "climbs": climbs, "returns": returns, "modules": len(visited)}


def layer(module: str) -> int:
    """The height of a module; what lies in the core beside its folders is lowest."""
    package, folder = module.split("/")[:2]
    return len(LAYERS) if package != "fedshift" else LAYERS.index(folder) if folder in LAYERS else -1


def steps_of(action: Callable[[], object], root: str) -> list[Step]:
    """The first call of each function below a folder, in order; modules and classes that are executed are none."""
    steps: list[Step] = []
    visited = set()

    def enter(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in visited or not code.co_filename.startswith(root):
            return
        visited.add(code)
        if code.co_flags & 1:  # CO_OPTIMIZED, which bodies of modules and classes are not
            lines = len({line for _, _, line in code.co_lines() if line})
            steps.append((code.co_filename.removeprefix(root), code.co_qualname, lines))

    sys.setprofile(enter)
    try:
        action()
    finally:
        sys.setprofile(None)
    return steps


def trace(tree: Path, folder: Path) -> None:
    """Write the steps of each way to ``folder/steps.json``. All imports come from ``PYTHONPATH``."""
    from fedshift.cli import main as fedshift
    from fedshift.federation.in_process import run_in_process
    from fedshift.federation.resolve import resolve

    root, sites = f"{tree / 'custom'}{os.sep}", ("HK", "UCL")
    phantom = ["data", "phantom", "--out", str(folder / "phantom"), "--sites", ",".join(sites), "--cases", "4"]
    assert fedshift([*phantom, "--matrix", "32"]) == 0
    data = {site: folder / "phantom" / "prostate" / site for site in sites}
    job = resolve("prostate", "fedavg", protocol="quick", sites=sites, options=JOB, seed=0)
    scan = next(file for file in sorted((data["HK"] / "volumes").iterdir()) if "mask" not in file.name)
    steps: dict[str, list[Step]] = {}
    for turn in ("1", "2"):
        run, out, page = folder / f"run{turn}", str(folder / f"out{turn}"), str(folder / f"page{turn}.html")
        predict = ["predict", str(run / "last_global_model.pt"), str(scan), "--out", out]
        steps["round"] = steps_of(lambda run=run: run_in_process(job, data, run), root)  # type: ignore[misc]
        steps["predict"] = steps_of(lambda words=predict: fedshift(words), root)  # type: ignore[misc]
        report = ["report", str(run), "--out", page]
        steps["report"] = steps_of(lambda words=report: fedshift(words), root)  # type: ignore[misc]
    (folder / "steps.json").write_text(json.dumps(steps), encoding="utf-8")


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a record by their path."""
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from flat(inner, f"{name} {key}".strip())


def show() -> None:
    """Print the table of both records."""
    from rich.console import Console
    from rich.table import Table

    files = [RESULTS / name for name in ("before.json", "after.json")]
    before, after = ({} if not f.is_file() else dict(flat(json.loads(f.read_text(encoding="utf-8")))) for f in files)
    table = Table("", "before", "after", "change", title="The house")
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        numbers = isinstance(old, int | float) and isinstance(new, int | float) and old
        change = f"{100 * (new / old - 1):+.0f} %" if numbers else ""
        table.add_row(name, *("" if value is None else str(value)[:12] for value in (old, new)), change)
    Console().print(table)


def main() -> None:
    """Measure a tree, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="JSON file; without it the table of the committed files is printed")
    parser.add_argument("--tree", type=Path, default=ROOT, help="a checkout of this repository; this one by default")
    parser.add_argument("--test-minutes", type=float, help="of `make test`, as it was measured")
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    tree = args.tree.resolve()
    if args.trace is not None:
        trace(tree, args.trace)
    elif args.out is None:
        show()
    else:
        record = measure(tree) | {"minutes of make test": args.test_minutes}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
