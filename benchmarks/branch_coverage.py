"""The time that the tests take and the branches that they cover.

    make coverage
    python -m benchmarks.branch_coverage --checkout OTHER --out benchmarks/results/tests/before.json -- --dist loadfile

What follows ``--`` goes to pytest, which runs in three processes. ``--checkout`` is another clone of this repository
whose tests are measured with the packages of this Python. Counted are the lines and branches of ``custom/`` and
``data_prep/`` that the tests reach in their own processes, not those reached in processes that tests start.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MEASURE = ("-n", "3", "--cov=custom", "--cov=data_prep", "--cov-branch", "--cov-report=")


def measure(checkout: Path, options: list[str]) -> dict[str, Any]:
    """Run the tests of a checkout. Ends the process if they do not run to their end."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        command = ["python", "-m", "pytest", *MEASURE, *options]
        started = time.monotonic()
        paths = os.pathsep.join([str(checkout / "custom"), str(checkout)])
        result = subprocess.run(
            [sys.executable, *command[1:], f"--cov-report=json:{report}"],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": paths, "COVERAGE_FILE": str(Path(folder) / "data")},
            stdout=subprocess.PIPE,
            encoding="utf-8",
            check=False,
        )
        seconds = time.monotonic() - started
        if result.returncode not in (0, 1):  # 1: some tests failed, which the file counts
            raise SystemExit(f"{result.stdout[-5000:]}\nthe tests of {checkout} did not run: nothing is written")
        if result.returncode:
            print("\n".join(line for line in result.stdout.splitlines() if line.startswith("FAILED")))
        totals = json.loads(report.read_text(encoding="utf-8"))["totals"]
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|skipped)", result.stdout.splitlines()[-1])}
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=checkout, stdout=subprocess.PIPE, encoding="utf-8", check=True
    )
    return {
        "commit": commit.stdout.strip(),
        "command": shlex.join(command),
        "seconds": round(seconds),
        "cores": os.cpu_count(),
        "tests": counts,
        "branches": {"covered": totals["covered_branches"], "total": totals["num_branches"]},
        "lines": {"covered": totals["covered_lines"], "total": totals["num_statements"]},
    }


def main() -> None:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="a clone of this repository; this one by default")
    parser.add_argument("options", nargs="*", help="options of pytest, after --")
    args = parser.parse_args()
    record = measure(args.checkout.resolve(), args.options)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    branches = record["branches"]
    print(f"{record['seconds']} s, {branches['covered']} of {branches['total']} branches: {args.out}")


if __name__ == "__main__":
    main()
