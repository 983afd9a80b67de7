"""What a round by mailbox costs when no site trains: six sites, a model of 4 MB, a folder on this disk.

    python -m benchmarks.performance.mailbox

Compared in one run are the coordinator in one process, which checks, stores, sums and saves and writes no message; and
the coordinator and six sites by mailbox, whose steps are made in turn in one process. Then the same with the demo's job
and data, whose sites train, in one process as `fedshift run --in-process` runs them and by mailbox. Then: a step of a
process of its own that finds nothing to do; many rounds of a small model, with the files and the memory after the first
and the last of them; and what a model of 1 GB takes beside itself, to be written and to be read, in processes of their
own.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from benchmarks import frame
from benchmarks.performance.flare_overhead import ROOT, coordinator, environment, idle_job
from data_prep.phantom import make_phantom
from fedshift.federation.in_process import run_in_process
from fedshift.flare.export import read_job_folder
from fedshift.mailbox.content import Answer, decode_answer, encode_answer
from fedshift.mailbox.coordinator_party import JOB_FILE, CoordinatorParty
from fedshift.mailbox.letter import TRAIN, Task
from fedshift.mailbox.party import make_party
from fedshift.mailbox.pieces import Sealed, open_body, seal
from fedshift.mailbox.site_party import SiteParty
from fedshift.schema.files import write_private
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, Update

SERVER = "localhost"
PROJECT = ROOT / "deploy" / "project.yml"
LARGE = 10**9
"""Bytes of the large model."""


class IdleSite(SiteParty):
    """A site that sends back the weights that it got."""

    def _work(self, task: Task, broadcast: Broadcast, *, run: str) -> Answer:
        if task != TRAIN:
            return super()._work(task, broadcast, run=run)
        self._site = self._site or self._open_site(run)
        info = self._site.info()
        metrics = {"train_loss": 0.0, "seconds": 0.0}
        update = Update(self.party.name, broadcast.round, info.n_train, 1, weights=broadcast.weights, metrics=metrics)
        return Answer(update, info)


class Parties:
    """A coordinator and six sites, in a folder of their own."""

    def __init__(
        self, job: JobSpec, folder: Path, kits: Path, data: Path, *, party: type[SiteParty] = IdleSite
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "mail").mkdir(parents=True)
        self.folder = folder
        for name in (SERVER, *job.task.sites):
            kit = folder / f"{name}_kit"
            shutil.copytree(kits / name / "startup", kit / "startup")
            (kit / "local").mkdir()
            (kit / "local" / "fedshift.yaml").write_text(f"data: {{prostate: {data / name}}}\n", encoding="utf-8")
            named = {"job": job, "run": secrets.token_hex(16)} if name == SERVER else {"job": None, "run": ""}
            make_party(folder / name, project=PROJECT, kit=kit, mail=folder / "mail", **named)  # type: ignore[arg-type]
            if name == SERVER:
                write_private(folder / name / JOB_FILE, job.model_dump_json(by_alias=True).encode())
        self.coordinator = CoordinatorParty(folder / SERVER)
        self.sites = [party(folder / name) for name in job.task.sites]

    def turn(self) -> bool:
        """A step of everyone; whether the coordinator has ended the run."""
        for site in self.sites:
            site.step()
        return self.coordinator.step().done

    def files(self) -> int:
        """How many files there are, with those of the parties' own folders."""
        return sum(path.is_file() for path in self.folder.rglob("*"))


def main() -> None:
    args = frame.parser(__doc__, rounds=12, repeats=5, many=500, demo=3).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        kits = provision(folder / "provisioned")
        make_phantom(folder / "share" / "fedshift" / "phantom", cases=3, matrices=(96,))
        data = folder / "share" / "fedshift" / "phantom" / "prostate"
        job = idle_job(args.rounds)
        measures = {
            "coordinator in one process": lambda: coordinator(job, folder),
            "mailbox, steps in one process": lambda: a_round(Parties(job, folder / "mailbox", kits, data), args.rounds),
        }
        rounds = frame.in_turn(measures, args.repeats)
        content = {
            "what": "a round of six sites that do not train, a U-Net of 12 features (4.4 MB, 136 arrays), files synced",
            "rounds": args.rounds,
            "seconds_a_round": rounds,
            "mailbox_to_one_process": frame.ratios(
                rounds["mailbox, steps in one process"], rounds["coordinator in one process"]
            ),
            "demo": demo(folder, kits, args.demo, args.repeats),
            "seconds_of_a_process_that_waits": frame.spread([waiting_step(folder) for _ in range(args.repeats)]),
            "many_rounds": many_rounds(args.many, folder, kits, data),
            "peak_of_a_large_model_in_models": large(folder),
        }
    print(json.dumps(content, indent=1))
    frame.write_measured("mailbox", content)


def provision(folder: Path) -> Path:
    """The kits of the project in ``deploy/``."""
    folder.mkdir()
    words = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(PROJECT), "-w", str(folder), "--force"]
    home = os.environ | {"HOME": str(folder)}
    subprocess.run(words, cwd=folder, env=home, check=True, capture_output=True)
    return folder / "fedshift_prostate" / "prod_00"


def a_round(parties: Parties, rounds: int) -> float:
    """Seconds of a training round, from the first request of one to that of the last."""
    began = 0.0
    while not parties.turn():
        state = json.loads((parties.folder / SERVER / "state.json").read_bytes())
        at = state["asked"][-1]
        if at["task"] == TRAIN and at["round"] == 1:
            began = began or time.monotonic()
        elif at["task"] != TRAIN and began:
            return (time.monotonic() - began) / rounds
    raise SystemExit("the run was over before it was measured")


def demo(folder: Path, kits: Path, rounds: int, repeats: int) -> dict[str, Any]:
    """The demo's job with its sites' training, shortened to some rounds: seconds a round, and the ratio."""
    make_phantom(folder / "demo")
    raw = read_job_folder(ROOT / "jobs" / "fedfa_prostate").dump()
    raw["task"]["schedule"]["rounds"] = rounds
    job = JobSpec.parse(raw, where="demo")
    data = folder / "demo" / "prostate"

    def in_one_process() -> float:
        shutil.rmtree(folder / "one", ignore_errors=True)
        sites = {site: data / site for site in job.task.sites}
        results = run_in_process(job, sites, folder / "one", device="cpu").results
        return sum(record.seconds for record in results.rounds) / rounds

    measures = {
        "in one process": in_one_process,
        "mailbox, steps in one process": lambda: a_round(
            Parties(job, folder / "demo_mailbox", kits, data, party=SiteParty), rounds
        ),
    }
    seconds = frame.in_turn(measures, repeats)
    names = list(measures)
    return {
        "rounds": rounds,
        "seconds_a_round": seconds,
        "mailbox_to_one_process": frame.ratios(seconds[names[1]], seconds[names[0]]),
    }


def waiting_step(folder: Path) -> float:
    """Seconds of a command at a site that has nothing to do, with its interpreter."""
    began = time.monotonic()
    words = [sys.executable, "-m", "fedshift.cli", "mailbox", "step", str(folder / "mailbox" / "HK")]
    code = subprocess.run(words, env=environment(folder), check=False, capture_output=True).returncode
    if code not in (0, 3):
        raise SystemExit("a step failed")
    return time.monotonic() - began


def many_rounds(number: int, folder: Path, kits: Path, data: Path) -> dict[str, object]:
    """Files, megabytes and seconds over many rounds of a small model."""
    raw = idle_job(number).dump()
    raw["task"]["network"]["options"]["features"] = 4
    parties = Parties(JobSpec.parse(raw, where="idle"), folder / "many", kits, data)
    samples: dict[int, tuple[int, float, float]] = {}
    process = psutil.Process()
    while not parties.turn():
        at = json.loads((parties.folder / SERVER / "state.json").read_bytes())["asked"][-1]
        if at["task"] == TRAIN and at["round"] in (number // 10, number // 5, number - number // 10, number):
            samples[at["round"]] = parties.files(), process.memory_info().rss / 1e6, time.monotonic()
    (first, second, third, last) = sorted(samples)
    return {
        "rounds": number,
        "files": {str(r): samples[r][0] for r in (first, last)},
        "megabytes": {str(r): round(samples[r][1]) for r in (first, last)},
        "seconds_a_round": {
            f"{a} to {b}": round((samples[b][2] - samples[a][2]) / (b - a), 4)
            for a, b in ((first, second), (third, last))
        },
    }


def large(folder: Path) -> dict[str, float]:
    """Peak memory of a process above what it had with the model in it (to write) or without (to read)."""
    words = [sys.executable, "-m", "benchmarks.performance.mailbox"]
    ends = {}
    for which in ("write", "read"):
        result = subprocess.run(
            [*words, which, str(folder)], env=environment(folder), check=True, capture_output=True, encoding="utf-8"
        )
        ends[which] = round(float(result.stdout.split()[-1]), 2)
    return ends


def large_end(which: str, folder: Path) -> None:
    """One end of `large`."""
    outbox = folder / "large"
    if which == "write":
        weights = {f"layer{n}": np.ones(LARGE // 40, np.float32) for n in range(10)}
        before = memory()
        sealed = seal(encode_answer(Answer(Update("HK", 1, 1, 1, weights=weights))), outbox, b"large")
        (folder / "sealed.json").write_text(sealed.model_dump_json())
    else:
        sealed = Sealed.model_validate_json((folder / "sealed.json").read_text())
        before = memory()
        content = open_body(sealed.body, bytes.fromhex(sealed.key), b"large", mail=outbox, scratch=folder / "opened")
        answer = decode_answer(content).content
        assert isinstance(answer, Update)
        assert all(float(array.sum()) == array.size for array in answer.weights.values())
    print((memory() - before) / LARGE)


def memory() -> float:
    """Largest bytes of this process so far (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("write", "read"):
        large_end(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
