"""What a process that trains pays for torch's compiler, which torch's optimisers import at their first call.

    python -m benchmarks.performance.optimizers

A fresh process imports what a site trains with, and makes one step of Adam: with torch's class, and with that of
`fedshift.tasks.optimizers`. Processor seconds and largest memory of the whole process, in turn.
"""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.performance import record

CODE = """
import json, resource, sys, time
import torch
import fedshift.federation.site.site
from fedshift.tasks import optimizers
parameter = torch.nn.Parameter(torch.zeros(10))
optimizer = {of}.Adam([parameter], lr=0.1)
parameter.sum().backward()
optimizer.step()
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([time.process_time(), memory / 1e6]))
"""
REPEATS = 5
KINDS = {"torch": "torch.optim", "fedshift": "optimizers"}


def main() -> None:
    """Measure and write the figures."""
    load = record.load()
    told: dict[str, list[list[float]]] = {name: [] for name in KINDS}
    for _ in range(REPEATS):
        for name, module in KINDS.items():
            command = [sys.executable, "-c", CODE.format(of=module)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            told[name].append(json.loads(done.stdout))
    figures = {
        name: {"cpu_seconds": record.spread([one[0] for one in ones]), "memory_mb": record.spread([m for _, m in ones])}
        for name, ones in told.items()
    }
    ratios = {
        what: round(figures["torch"][what]["median"] / figures["fedshift"][what]["median"], 3)
        for what in ("cpu_seconds", "memory_mb")
    }
    content = {
        "what": "a process that imports what a site trains with and makes one step of Adam; torch over fedshift",
        **figures,
        "ratios": ratios,
    }
    print(record.write("optimizers", content, load=load), ratios)


if __name__ == "__main__":
    main()
