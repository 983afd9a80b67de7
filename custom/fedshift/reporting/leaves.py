"""What leaves a site: the tables in ``docs/what-leaves-a-site.md``, made from what the guard accepts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from torch import nn

from fedshift.federation.resolve import resolve
from fedshift.methods import method_set
from fedshift.methods.base import ArraySpec
from fedshift.methods.method_set import MethodSet
from fedshift.schema.compression import pack, packed_keys
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.tasks.kinds import build_task

ALWAYS = (
    ("sample count, step count", "2 integers", "every round", "how many training slices or images the site has"),
    ("validation scores, training loss, seconds", "a few numbers", "every round", "how good the model is at the site"),
    (
        "validation and test scores",
        "a few numbers",
        "at the end",
        "how good the last and the best model are at the site, and its own model where it has one",
    ),
    (
        "spread of test scores over cases: number, mean, deviation, 5 quantiles, interval",
        "10 numbers a score",
        "at the end",
        "how evenly the models serve the site's cases; below ten cases number and mean only",
    ),
    (
        "test scores of single cases, without ids",
        "a number a case and score",
        "at the end, if the site's policy has `case_scores: true`",
        "for how many cases the models fail, and how badly",
    ),
    (
        "calibration; of classifiers the confusion matrix; of segmentation how many volumes came out empty",
        "46 and classes x classes numbers",
        "at the end",
        "how sure the models are, how many test images the site has of each class, and which are confused",
    ),
    (
        "gradient norm",
        "a number",
        "at the end, if the job has `evaluation.gradient_norm`",
        "how far the model is from what is best for the site",
    ),
    (
        "counts of each split, kind, split rule, manifest fingerprint, whether voxel sizes are unknown",
        "7 values",
        "every answer",
        "size of the data set, that it has not changed, and whether distances in mm mean anything",
    ),
    (
        "device's model, precision, threads",
        "3 values",
        "every answer",
        "on what kind of machine the site computes",
    ),
    ("fedshift version and source hash", "2 strings", "every answer", "which software runs"),
    (
        "answer to `show_stats ID client`",
        "a few words",
        "when a coordinator asks",
        "what the site works on and since when; the loss and the seconds of its last answer once more",
    ),
    ("kind of error", "a word", "when a task fails", "that the site could not do it; the sentence stays in its log"),
)
PACKED = """\
Sizes are those of a job with `federation.weights_as: fp32`, the default. With `bf16` or `int8` a trained array of two
or more dimensions leaves as its change against what the site received, with what was left out of earlier answers, in 2
bytes a number, or in 1 and 4 for each index of its first axis. A reader who knows what the site received learns the
same as from the array itself, to fewer digits. What is left out stays in the site's state."""
MANY = 12
HEADER = "| what | shape | bytes | when | what a reader of it learns |\n|---|---|---|---|---|"
HEADER_UP = "| what | shape | bytes | when | kind | what a reader of it learns |\n|---|---|---|---|---|---|"
DIGITS = {
    "schema": 1,
    "name": "digits",
    "task": {
        "name": "digits",
        "kind": "classification",
        "dataset": "digits",
        "sites": ["mnist", "mnistm", "svhn", "usps"],
        "classes": [str(digit) for digit in range(10)],
        "data": {"size": 32, "channels": 3},
        "network": {"name": "digits_cnn"},
        "loss": "ce",
        "optimizer": {"name": "sgd", "lr": 0.01},
        "schedule": {"rounds": 1, "batch_size": 32},
    },
    "methods": {},
    "federation": {"min_sites": 4},
}
"""For methods that segmentation cannot have: FRAug's network for digits, ten classes."""


def leaves_page() -> str:
    """Markdown: what leaves with every job, then with each method of the list."""
    parts = ["## Every job\n", "| what | shape | when | what a reader of it learns |\n|---|---|---|---|"]
    parts += [f"| {' | '.join(row)} |" for row in ALWAYS]
    parts += ["", PACKED]
    parts += [leaves_section(name, reference_job(name)) for name in method_set.available()]
    return "\n".join(parts) + "\n"


def reference_job(name: str) -> JobSpec:
    """The job whose shapes the page shows: prostate, with SGD if it must be; else digits."""
    for options in ([], ["optimizer.name=sgd"]):
        try:
            return resolve("prostate", name, options=options)
        except ConfigError:
            continue
    loaded = method_set.load({name: {}})
    named = {method.name: method.config.model_dump(mode="json") for method in loaded}
    return JobSpec.parse({**DIGITS, "methods": named}, where="digits")


def leaves_section(name: str, job: JobSpec) -> str:
    """One method's part of the page, with the shapes that it has in a job."""
    methods = MethodSet(job, build_task(job).network())
    if methods.pooled is not None and methods.pooled.name == name:
        return f"\n## {name}\n\nNo federation: it trains where all images are."
    up, down = methods.up[name], methods.down[name]
    parts = [f"\n## {name}\n", network_line(methods.net, methods.withheld, job)]
    parts += ["", HEADER_UP, *_rows(up, kinds=True)] if up else ["", "Nothing more."]
    if down:
        parts += ["\nThe server sends to every site, with the network:\n", HEADER, *_rows(down)]
    return "\n".join(parts)


def network_line(net: nn.Module, withheld: frozenset[str], job: JobSpec) -> str:
    """How much of the network goes up every round."""
    state = {key: value.numpy() for key, value in net.state_dict().items()}
    sent = {key: value for key, value in state.items() if key not in withheld}
    weights_as = job.federation.weights_as
    packed = packed_keys(sent, dict(net.named_parameters()), weights_as)
    size = sum(pack(value, weights_as).nbytes if key in packed else value.nbytes for key, value in sent.items())
    what = f"{job.task.network.name} of task {job.task.name}"
    if not sent:
        return f"The network ({what}) stays at the site."
    stays = f"; {len(state) - len(sent)} tensors stay at the site" if withheld else ""
    how = f"; {len(packed)} of them as changes in {weights_as}" if packed else ""
    return f"Every round the network after local training ({what}): {len(sent)} tensors, {size} bytes{how}{stays}."


def _rows(specs: Mapping[str, ArraySpec], *, kinds: bool = False) -> Iterator[str]:
    """A row an array; arrays like each other in all but name and shape, as many as the network has tensors, in one.

    ``kinds``: with the kind that a site's policy goes by.
    """
    grouped: dict[tuple[str, str, str], list[tuple[str, ArraySpec]]] = {}
    for name, spec in specs.items():
        grouped.setdefault((spec.when, spec.reveals, spec.dtype), []).append((name, spec))
    for (when, reveals, dtype), members in grouped.items():
        often = "once" if when == "once" else "every round"
        often += f" | {members[0][1].kind}" if kinds else ""
        if len(members) > MANY:
            total = sum(_bytes(spec) for _, spec in members)
            names = f"`{members[0][0]}` … `{members[-1][0]}`"
            yield f"| {names} | {len(members)} arrays, {dtype} | {total} | {often} | {reveals} |"
            continue
        for name, spec in members:
            shape = "x".join(str(size) for size in spec.shape) or "a number"
            size = " x ".join([str(_bytes(spec)), *(size for size in spec.shape if isinstance(size, str))])
            yield f"| `{name}` | {shape} {dtype} | {size} | {often} | {reveals} |"


def _bytes(spec: ArraySpec) -> int:
    """Without the sizes that are words."""
    sizes = [size for size in spec.shape if isinstance(size, int)]
    return int(np.prod(sizes, dtype=int)) * np.dtype(spec.dtype).itemsize
