"""The page of methods: each method's docstring and options, and a link to its file, its test and a job."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from fedshift.methods import method_set
from fedshift.methods.shared import search
from fedshift.schema.settings import settings

ROOT = Path(__file__).resolve().parents[2]
LISTED: set[str] = set()
"""Methods that a section of the page has taken."""


def entries(*names: str) -> str:
    """A table of methods with their ideas, and an entry for each."""
    LISTED.update(names)
    ideas = [f"| [{name}](#{name}) | {_idea(name)} |" for name in names]
    return "\n".join(["| method | idea |", "|---|---|", *ideas, "", *map(_entry, names)])


def the_rest() -> str:
    """What no section before has listed, so that a new method is on the page without a line being edited."""
    rest = [name for name in method_set.available() if name not in LISTED]
    return f"## Others\n\n{entries(*rest)}" if rest else ""


def cost() -> str:
    """What a step and a round of each method cost, beside FedAvg."""
    measured = json.loads((ROOT / "benchmarks" / "results" / "method_cost.json").read_text(encoding="utf-8"))
    lines = [
        f"`{measured['command']}`: {measured['what']}.\n",
        "| method | task | time of a step | bytes up a round | bytes down a round | bytes up once |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, row in measured["methods"].items():
        shares = [f"{row[key]:g} x" if row["bytes_down"] else "none" for key in ("up_ratio", "down_ratio")]
        cells = (f"`{name}`", row["task"], f"{row['time_ratio']:.2f} x", *shares, row["bytes_once"])
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _idea(name: str) -> str:
    first = (method_set.find(name).__doc__ or "").strip().splitlines()[0]
    idea = first.partition(": ")[2] or first
    return idea.removesuffix(".")


def _entry(name: str) -> str:
    module = method_set.find(name)
    _, _, text = (module.__doc__ or "").strip().partition("\n")
    lines = [f"### {name}\n", f"{_idea(name)[0].upper()}{_idea(name)[1:]}.\n", "\n".join(markdown(text))]
    drawn = search.space(module)
    rows = [
        f"| `{name}.{setting.key}` | {setting.type} | `{setting.default}` | {setting.meaning} |"
        for setting in settings(module.Config)
    ]
    if rows:
        lines += ["\n| option | values | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"]
    if drawn:
        options = ", ".join(f"`{option}` {where}" for option, where in drawn.items())
        lines.append(f"`fedshift compare` draws settings from: {options}.\n")
    return "\n".join([*lines, f"{_links(name)}\n"])


def _links(name: str) -> str:
    """A method's file and test, and a committed job with it or the command that makes one."""
    links = [f"[file](../custom/fedshift/methods/{name}.py)", f"[test](../tests/methods/test_{name}.py)"]
    if name in method_set.pooled_references():
        return " · ".join([*links, f"`fedshift pooled {name} prostate`"])
    jobs = (path for path in sorted((ROOT / "jobs").glob("*/app/config/fedshift.yaml")) if name in _methods(path))
    job = min(jobs, key=lambda path: (len(_methods(path)), f"{name}_prostate" not in str(path)), default=None)
    if job is not None:
        links.append(f"[job](../{job.relative_to(ROOT).as_posix()})")
    return " · ".join(links)


@cache
def _methods(job: Path) -> list[str]:
    return list(yaml.safe_load(job.read_text(encoding="utf-8"))["methods"])


def markdown(docstring: str) -> Iterator[str]:
    """A docstring's text as Markdown: blocks after ``::`` are fenced, lists indented by four, code in one backtick."""
    lines = textwrap.dedent(docstring).splitlines()
    block: list[str] = []
    shift, starts, in_list = "", False, False
    for line in [*lines, "end"]:
        depth = len(line) - len(line.lstrip())
        if block or starts:
            if not line.strip() or depth >= (4 if not in_list else 6):
                block.append(line)
                continue
            yield from textwrap.indent(
                f"```text\n{textwrap.dedent(chr(10).join(block)).strip(chr(10))}\n```\n", shift
            ).splitlines()
            block, starts = [], False
        if line == "end":
            break
        if line.strip():
            in_list = line.startswith("- ") or (in_list and depth >= 2)
        shift = "    " if in_list else ""
        starts = line.endswith("::")
        text = _inline(line.strip() if in_list and not line.startswith("- ") else line)
        yield (f"    {text}" if in_list and not line.startswith("- ") else text) if line.strip() else ""
        if starts:
            yield ""


def _inline(line: str) -> str:
    line = re.sub(r"::$", ":", line).replace("``", "`")
    parts = line.split("`")  # what is between backticks stays
    parts[::2] = [part.replace("<", "&lt;").replace("*", "\\*") for part in parts[::2]]
    line = "`".join(parts)
    return re.sub(r"^((?:Deviations|Variants|Choices|Read|When|Order|Options)[^.:]*):", r"**\1**:", line)
