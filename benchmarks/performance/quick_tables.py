"""How long the papers' tables take at the quick scale, two cells side by side, by what a step takes on this machine.

    FEDSHIFT_DATA=ROOT python -m benchmarks.performance.quick_tables

Steps are measured as ``fedshift compare --dry-run`` does, and a cell's methods cost what
``benchmarks/results/method_cost.json`` says. Nothing is trained. Where data are missing below ROOT, sites are taken to
have what a spec says of them.
"""

from __future__ import annotations

import json
import tempfile
from math import prod
from pathlib import Path

from benchmarks import frame
from fedshift_bench import runner
from fedshift_bench.cells import Cell, make_cells
from fedshift_bench.estimate import Estimator
from fedshift_bench.spec import read_spec
from fedshift_bench.store import Store

BENCHMARKS = Path(__file__).resolve().parents[1]
SCALE = "quick"
SIDE_BY_SIDE = 2


def main() -> None:
    costs = json.loads((BENCHMARKS / "results" / "method_cost.json").read_text(encoding="utf-8"))["methods"]
    ratios = {name: told["time_ratio"] for name, told in costs.items()}
    tables = {}
    with tempfile.TemporaryDirectory() as scratch:
        store = Store(Path(scratch))
        for path in sorted((BENCHMARKS / "papers").glob("*.yaml")):
            spec, _ = read_spec(path, SCALE)
            estimator = Estimator(store.folder, device="cpu", samples=spec.samples)
            jobs = runner.make_queue(make_cells(spec, folder=path.parent), store, estimator)
            seconds = [job.estimate.seconds * slower(job.cell, ratios) for job in jobs]
            tables[path.stem] = {
                "runs": len(jobs),
                "minutes": round(max(sum(seconds) / SIDE_BY_SIDE, *seconds) / 60, 1),
                "without_data": sum(job.estimate.is_assumed for job in jobs),
            }
            print(path.stem, tables[path.stem], flush=True)
    content = {
        "what": f"estimated minutes of a table at scale {SCALE}, {SIDE_BY_SIDE} runs at a time",
        "tables": tables,
    }
    frame.write_measured("quick_tables", content)


def slower(cell: Cell, ratios: dict[str, float]) -> float:
    """Times a step of FedAvg."""
    return prod(max(ratios[method], 1.0) for method in cell.plan.job.methods)


if __name__ == "__main__":
    main()
