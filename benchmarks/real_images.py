"""Classification on real images by the papers' protocols: campaigns of methods and seeds, one table each.

The data are downloads of your own, prepared below one root with ``fedshift data prepare`` (Office-Caltech 10 with
``--split papers``). Then, for all campaigns or those named::

    python benchmarks/real_images.py --data ROOT --work WORK [--parallel 4] [office_fedfa digits …]
    python benchmarks/real_images.py --table

Every run is a process of its own, in which all sites train in turn (the same weights as under FLARE, see
tests/flare/test_same_numbers.py), or with ``--flare`` a job in FLARE's simulator. What a run gives is added to
``benchmarks/results/real_images/<campaign>.json``; a run that is there is not done again. The tables beside are made
from these files only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaigns import CAMPAIGNS, Campaign, Cell

OUT = Path(__file__).parent / "results" / "real_images"
FINAL = ("best", "last")
MOST = 8
"""Sites that have a column of their own."""


@dataclass(frozen=True)
class Run:
    """One cell of a campaign with one seed."""

    campaign: str
    cell: Cell
    seed: int

    @property
    def name(self) -> str:
        """Also the run's folder."""
        words = f"{self.campaign} {self.cell.name} seed{self.seed}"
        return "_".join(re.findall(r"[A-Za-z0-9_-]+", words))

    @property
    def arguments(self) -> list[str]:
        """Of ``fedshift job``."""
        of, cell = CAMPAIGNS[self.campaign], self.cell
        options = [*of.options, *cell.options]
        return [
            *(cell.methods, of.task, "--name", self.name, "--seed", str(self.seed)),
            *(("--protocol", of.protocol) if of.protocol else ()),
            *(("--sites", ",".join(of.sites)) if of.sites else ()),
            *(("--set", *options) if options else ()),
        ]

    @property
    def command(self) -> str:
        """That makes its job; it says all that is needed to repeat it."""
        return shlex.join(["fedshift", "job", *self.arguments])


def main() -> int:
    """Run what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"of {', '.join(CAMPAIGNS)} (default: all)")
    parser.add_argument("--data", type=Path, help="root of the prepared data")
    parser.add_argument("--work", type=Path, help="folder for jobs and runs")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--seeds", type=int, nargs="+", help="only these seeds")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after so many")
    parser.add_argument("--flare", action="store_true", help="in FLARE's simulator")
    parser.add_argument("--table", action="store_true", help="only make the tables from what is there")
    args = parser.parse_args()
    chosen = args.campaigns or list(CAMPAIGNS)
    unknown = sorted({*chosen} - {*CAMPAIGNS})
    if unknown:
        parser.error(f"there is no campaign {unknown[0]}: choose of {', '.join(CAMPAIGNS)}")
    if not args.table and (args.data is None or args.work is None):
        parser.error("name --data and --work, or --table")
    failures = 0
    if not args.table:
        os.environ["FEDSHIFT_DATA"] = str(args.data.absolute())
        failures = run_all(chosen, args)
    for name in chosen:
        write_table(name, args.out)
    return 1 if failures else 0


def run_all(chosen: list[str], args: argparse.Namespace) -> int:
    """Every run that is not there yet, seed by seed, so that an early end leaves whole tables. Number of failures."""
    waiting = sorted(
        (run for name in chosen for run in missing(name, args.out, args.seeds)), key=lambda run: (run.seed, -cost(run))
    )
    end, failures = time.monotonic() + 60 * args.minutes, 0
    with ThreadPoolExecutor(args.parallel) as pool:
        futures = {pool.submit(one, run, args.work, flare=args.flare, end=end): run for run in waiting}
        for number, future in enumerate(as_completed(futures), 1):
            run = futures[future]
            try:
                record = future.result()
            except Exception as error:  # the others' results are worth hours
                record = f"failed: {type(error).__name__}: {error}"
            if isinstance(record, str):
                failures += 1
                print(f"{number}/{len(waiting)} {run.name}: {record}", flush=True)
                continue
            add(run.campaign, record, args.out)
            print(f"{number}/{len(waiting)} {run.name}: {record['best_mean']:.1f}, {record['seconds']} s", flush=True)
    return failures


def cost(run: Run) -> int:
    """Longest first, or the last one keeps everybody waiting."""
    return CAMPAIGNS[run.campaign].cost


def missing(name: str, out: Path, seeds: list[int] | None) -> Iterator[Run]:
    """Runs of a campaign without a record."""
    done = {record["command"] for record in read(name, out)}
    for cell in CAMPAIGNS[name].cells:
        for seed in seeds or CAMPAIGNS[name].seeds:
            run = Run(name, cell, seed)
            if run.command not in done:
                yield run


def one(run: Run, work: Path, *, flare: bool, end: float) -> dict[str, Any] | str:
    """A run's record, or why there is none."""
    if time.monotonic() > end:
        return "no time left"
    folder = work / run.campaign / run.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job = [sys.executable, "-m", "fedshift.cli", "job", *run.arguments, "--out", str(folder)]
    go = [sys.executable, "-m", "fedshift.cli", "run", str(folder / run.name), "--workspace", str(folder / "run")]
    if not flare:
        go.append("--in-process")
    started = time.monotonic()
    for command in (job, go):
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        if done.returncode:
            return f"failed: {done.stderr.strip()[-600:]}"
    results = folder / "run" / ("server/simulate_job" if flare else "") / "results.json"
    record = summary(json.loads(results.read_text(encoding="utf-8")))
    shutil.rmtree(folder)
    return {
        "cell": run.cell.name,
        "seed": run.seed,
        "command": run.command,
        "way": "FLARE simulator" if flare else "in process",
        "seconds": round(time.monotonic() - started),
        **record,
    }


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """What of a run's ``results.json`` is kept: final scores, the curve, the data, versions."""
    final, metric = results["final"], results["job"]["metric"]
    best, last = ({s: 100 * v["test"][metric] for s, v in final[w]["sites"].items() if "test" in v} for w in FINAL)
    out_best, out_last = ({s: 100 * v["all"][metric] for s, v in final[w]["held_out"].items()} for w in FINAL)
    curve = [
        round(100 * statistics.fmean(scored), 2) if scored else None
        for scored in (
            [site["val"][metric] for site in record["sites"].values() if site["val"]] for record in results["rounds"]
        )
    ]
    return {
        "selected_round": results["selected"]["round"],
        "rounds": results["job"]["rounds"],
        "best": rounded(best),
        "last": rounded(last),
        "best_mean": round(statistics.fmean(best.values()), 2),
        "last_mean": round(statistics.fmean(last.values()), 2),
        "held_out_best": rounded(out_best),
        "held_out_last": rounded(out_last),
        "personal": bool(final["personal"]),
        "validation": curve,
        "images": {site: record["n"] for site, record in results["data"].items()},
        "initial_weights": results["job"].get("initial_weights", "from scratch"),
        "precision": results["job"]["precision"],
        "versions": results["versions"],
    }


def rounded(scores: dict[str, float]) -> dict[str, float]:
    """To hundredths of a percent."""
    return {site: round(value, 2) for site, value in scores.items()}


def read(name: str, out: Path) -> list[dict[str, Any]]:
    """A campaign's records."""
    path = out / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else []


def add(name: str, record: dict[str, Any], out: Path) -> None:
    """Put a record into its campaign's file."""
    out.mkdir(parents=True, exist_ok=True)
    runs = [*read(name, out), record]
    order = [cell.name for cell in CAMPAIGNS[name].cells]
    runs.sort(key=lambda r: (order.index(r["cell"]) if r["cell"] in order else len(order), r["seed"]))
    beside = out / f"{name}.json.partial"
    lines = ",\n".join(json.dumps(run) for run in runs)
    beside.write_text(f'{{"campaign": {json.dumps(name)}, "runs": [\n{lines}\n]}}\n', encoding="utf-8")
    beside.replace(out / f"{name}.json")


def write_table(name: str, out: Path) -> None:
    """``<campaign>.md``: mean and standard deviation over seeds, beside the paper's figure."""
    of: Campaign = CAMPAIGNS[name]
    cells = {cell.name: cell for cell in of.cells}
    runs = [
        run
        for run in read(name, out)
        if run["cell"] in cells and run["command"] == Run(name, cells[run["cell"]], run["seed"]).command
    ]
    if not runs:
        return
    common = [site for site in runs[0]["best"] if all(site in run["best"] for run in runs)]
    sites = common if len(common) <= MOST else []
    out_of_domain = [s for s in runs[0]["held_out_best"] if all(s in run["held_out_best"] for run in runs)]
    heads = [*sites, "mean", "last round", *(f"{site}, held out | last round" for site in out_of_domain), "paper"]
    lines = [
        f"# {name}\n",
        f"{of.what}\n",
        "Test accuracy in percent of the round with the best mean validation accuracy (the last where sites are "
        "drawn), mean ± standard deviation over seeds. Paper: the mean in the paper's table, at its full scale.\n",
        f"| | seeds | {' | '.join(heads)} |",
        "|---|---|" + "---|" * " | ".join(heads).count(" | ") + "---|",
    ]
    for cell in of.cells:
        mine = [run for run in runs if run["cell"] == cell.name]
        if not mine:
            continue
        columns = [[run["best"][site] for run in mine] for site in sites]
        columns += [[run[key] for run in mine] for key in ("best_mean", "last_mean")]
        columns += [[run[f"held_out_{w}"][site] for run in mine] for site in out_of_domain for w in FINAL]
        paper = "" if cell.paper is None else f"{cell.paper}"
        lines.append(f"| {cell.name} | {len(mine)} | " + " | ".join(map(spread, columns)) + f" | {paper} |")
    n = runs[0]["images"]
    lines += [
        "",
        images_line(n),
        f"Weights: {runs[0]['initial_weights']}. Torch {runs[0]['versions']['torch']}, {runs[0]['precision']}.",
        *(f"\n{text}" for text in (of.outcome, of.differences) if text),
        "\nThe mean is over sites, each counting as much.",
        "\n```",
        f"fedshift data prepare {of.prepare}",
        *(run["command"] for run in runs),
        "```",
    ]
    (out / f"{name}.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def images_line(n: dict[str, dict[str, int]]) -> str:
    """How many images there were."""
    if len(n) > MOST:
        whole = "/".join(str(sum(v[split] for v in n.values())) for split in ("train", "val", "test"))
        return f"{len(n)} sites with {whole} images (train/val/test) together."
    each = ", ".join(f"{site} {v['train']}/{v['val']}/{v['test']}" for site, v in n.items())
    return f"Images (train/val/test): {each}."


def spread(values: list[float]) -> str:
    """Mean ± standard deviation."""
    mean = f"{statistics.fmean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


if __name__ == "__main__":
    sys.exit(main())
