"""What leaves a site: the table in ``docs/what-leaves-a-site.md``, made from what the guard accepts."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from fedshift import methods
from fedshift.methods.base import ArraySpec

ALWAYS = (
    ("network weights and buffers", "as the network", "every round", "the model after local training"),
    ("sample count, step count", "2 integers", "every round", "how many training slices or images the site has"),
    ("validation scores, training loss, seconds", "a few numbers", "every round", "how good the model is at the site"),
    (
        "validation and test scores",
        "a few numbers",
        "at the end",
        "how good the last and the best model are at the site",
    ),
    (
        "counts of each split, kind, split rule, manifest fingerprint",
        "6 values",
        "every answer",
        "size of the data set, and that it has not changed",
    ),
    ("fedshift version and source hash", "2 strings", "every answer", "which software runs"),
    ("kind of error", "a word", "when a task fails", "that the site could not do it; the sentence stays in its log"),
)
HEADER = "| what | shape | when | what a reader of it learns |\n|---|---|---|---|"


def leaves_tables(net: nn.Module) -> str:
    """Markdown: one table for every job, then for each method what it sends more and what all sites get to see.

    ``net`` decides the number and size of per-stage arrays; the repository's table uses the default U-Net.
    """
    parts = ["## Every job\n", HEADER, *(f"| {' | '.join(row)} |" for row in ALWAYS)]
    for name in methods.available():
        method = methods.load({name: {}})[-1] if name != methods.DEFAULT_COMBINE else methods.load({})[0]
        rows = list(_rows(method.client().up(net)))
        parts.append(f"\n## {name}\n")
        parts.extend([HEADER, *rows] if rows else ["Nothing more."])
        shown = list(_rows(method.server().down(net)))
        if shown:
            parts.extend(["\nThe server sends to every site:\n", HEADER, *shown])
    return "\n".join(parts) + "\n"


def _rows(specs: dict[str, ArraySpec]) -> Iterator[str]:
    for name, spec in specs.items():
        shape = "x".join("sites" if size is None else str(size) for size in spec.shape)
        when = "once" if spec.when == "once" else "every round"
        yield f"| `{name}` | {shape} {spec.dtype} | {when} | {spec.reveals} |"
