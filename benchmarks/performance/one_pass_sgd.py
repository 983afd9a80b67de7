"""SGD that goes over large parameters once, beside torch's own, which goes over them once for each term.

    python -m benchmarks.performance.one_pass_sgd

Processor seconds of an optimiser step alone and of a whole training step, one thread, of tasks that train by SGD, with
the tasks' own batches and losses on noise that lies ready. Both optimisers run in turn from the same weights, and the
weights that they end with are compared bit by bit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import frame
from fedshift.federation.footprint import noise
from fedshift.federation.resolve import resolve
from fedshift.schema.task import Precision
from fedshift.tasks import optimizers
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import autocast, prepare

CPU = torch.device("cpu")
TASKS = {  # the task and its protocol
    "Office-Caltech 10, the papers' AlexNet, 32 pictures of 256x256": ("office_caltech", "fedrdn"),
    "digits, CNN, 64 pictures of 32x32": ("digits", None),
}
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
KINDS = {"torch": torch.optim.SGD, "fedshift": optimizers.SGD}


class Training:
    """A network with its optimiser and a batch."""

    def __init__(self, kind: type[torch.optim.SGD], name: str, precision: Precision) -> None:
        """Make all of it from the task's seed."""
        task_name, protocol = TASKS[name]
        job = resolve(task_name, "fedavg", protocol=protocol, options=[f"schedule.precision={precision}"])
        spec = job.task.optimizer
        assert spec.name == "sgd" and not spec.nesterov
        self.settings = {"lr": spec.lr, "momentum": spec.momentum, "weight_decay": spec.weight_decay}
        self.precision = precision
        self.task = build_task(job)
        torch.manual_seed(0)
        self.net = prepare(self.task.network(), precision, CPU).train()
        self.optimizer = kind(self.net.parameters(), **self.settings)
        torch.manual_seed(0)
        self.x, self.y = noise(self.net, self.task, job.task.schedule.batch_size)
        self.step()

    def step(self) -> None:
        """A training step."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.manual_seed(0)  # dropout
        with autocast(self.precision, CPU):
            logits = self.net(self.x)
        self.task.loss(logits, self.y).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def main() -> None:
    args = frame.parser(__doc__, steps=5, repeats=5).parse_args()
    torch.set_num_threads(1)
    tasks = {
        name: {precision: measured(name, precision, args.steps, args.repeats) for precision in PRECISIONS}
        for name in TASKS
    }
    content = {"what": "processor seconds, one thread; torch over fedshift", "steps": args.steps, "tasks": tasks}
    print(json.dumps(content, indent=1))
    frame.write_measured("one_pass_sgd", content)


def measured(name: str, precision: Precision, steps: int, repeats: int) -> dict[str, Any]:
    """A task with both optimisers: a training step, and the optimiser's part of it."""
    trainings = {kind: Training(optimizer, name, precision) for kind, optimizer in KINDS.items()}
    whole = frame.in_turn({kind: timed(training.step, steps) for kind, training in trainings.items()}, repeats)
    alone = frame.in_turn(
        {kind: timed(training.optimizer.step, steps) for kind, training in trainings.items()}, repeats
    )
    pairs = zip(*(training.net.parameters() for training in trainings.values()), strict=True)
    return {
        **trainings["torch"].settings,
        "same_bits": all(torch.equal(ours, theirs) for ours, theirs in pairs),
        "seconds_a_training_step": whole,
        "seconds_of_the_optimiser": alone,
        "times_as_fast": {
            "training step": frame.ratios(whole["torch"], whole["fedshift"]),
            "optimiser": frame.ratios(alone["torch"], alone["fedshift"]),
        },
    }


def timed(call: Callable[[], object], times: int) -> Callable[[], float]:
    """Processor seconds of a call."""

    def seconds() -> float:
        started = time.process_time()
        for _ in range(times):
            call()
        return (time.process_time() - started) / times

    return seconds


if __name__ == "__main__":
    main()
