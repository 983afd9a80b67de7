"""A training step in bf16 with features in channels last, contiguous, and as fedshift has them.

    python -m benchmarks.performance.layout [--name layout_epyc]

Networks that normalise in different ways, with the batch, loss and optimiser of their task: 16 slices of prostate, two
volumes of hippocampus, or 32 pictures of PACS. The images are noise that lies ready; one thread, all ways in turn. In
the first two ways, MONAI's ``UpCat`` and torch's instance norm are as they come, without
`fedshift.tasks.monai_networks` and `fedshift.tasks.layers`. Times are the processor's, which other
work on the machine changes little.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import frame
from benchmarks.performance.made_volumes import AS_MEASURED
from benchmarks.performance.plain_step import plain_step
from benchmarks.performance.step_3d import seconds
from fedshift.federation.footprint import noise
from fedshift.federation.resolve import resolve
from fedshift.federation.site import local_training
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import keep_freed_memory, prepare

CPU = torch.device("cpu")
LAST, CONTIGUOUS, OURS = "channels last", "contiguous", "fedshift"
NETWORKS: dict[str, tuple[str, str | None, tuple[str, ...]]] = {  # the task, its protocol, and what else differs
    "FedFA's U-Net, batch norm, 96x96": ("prostate", "quick", ()),
    "BasicUNet, instance norm, 128x128": ("prostate", None, ()),
    "DynUNet, instance norm, 128x128": ("prostate", None, ("network.name=monai.DynUNet", "network.options={}")),
    "BasicUNet, instance norm, 40x56x40": ("hippocampus", None, AS_MEASURED),
    "BasicUNet, batch norm, 40x56x40": (
        "hippocampus",
        None,
        (*AS_MEASURED, "network.options.norm=batch"),
    ),
    "SegResNet, group norm, 128x128": ("prostate", None, ("network.name=monai.SegResNet", "network.options={}")),
    "ResNet-18, group norm, 96x96": ("pacs", None, ("network.options={norm: group}",)),
}


def main() -> None:
    parser = frame.parser(__doc__, steps=3, repeats=5)
    parser.add_argument("--name", default="layout", help="of the results file; another one for another processor")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory(CPU)
    content: dict[str, Any] = {
        "what": "processor seconds of a training step in bf16, a batch of the task, one thread",
        "steps": args.steps,
        "networks": {name: measured(name, args.steps, args.repeats) for name in NETWORKS},
    }
    print(json.dumps(content, indent=1))
    frame.write_measured(args.name, content)


def measured(name: str, steps: int, repeats: int) -> dict[str, Any]:
    """A network in all ways, and how many times as fast as in channels last it is."""
    measures = {way: partial(seconds, training_step(name, way), steps) for way in (LAST, CONTIGUOUS, OURS)}
    for measure in measures.values():
        measure()  # the first pass of a shape prepares convolutions
    times = frame.in_turn(measures, repeats)
    return {
        "seconds_a_step": times,
        "times_as_fast_as_channels_last": {way: frame.ratios(times[LAST], times[way]) for way in (CONTIGUOUS, OURS)},
    }


def training_step(name: str, way: str) -> Callable[[], None]:
    """A step of a network in one of the ways."""
    task_name, protocol, options = NETWORKS[name]
    job = resolve(task_name, "fedavg", protocol=protocol, options=["schedule.precision=bf16", *options])
    task = build_task(job)
    net = task.network()
    x, y = noise(net, task, job.task.schedule.batch_size)
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    if way == OURS:
        prepare(net, "bf16", CPU)
    else:
        net.to(memory_format=last if way == LAST else torch.contiguous_format)  # type: ignore[call-overload]
        for module in net.modules():
            if getattr(module, "is_pad", False):
                module._forward_pre_hooks.clear()
    net.train()
    optimizer = local_training.make_optimizer(net, job.task.optimizer)
    x = x.contiguous(memory_format=last) if way == LAST else x
    return plain_step(task, net, optimizer, x, y)


if __name__ == "__main__":
    main()
