"""Jobs on the sites of `fedshift_testing.sites` that train in a second or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from fedshift.federation.resolve import resolve
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec

SHAPES = Path(__file__).parent / "shapes.yaml"
"""The task of the pictures."""
SMALL = (
    "data.matrix=32",
    "network.options.features=4",
    "schedule.batch_size=8",
    "schedule.local_epochs=1",
    "schedule.rounds=2",
    "schedule.precision=fp32",
)
"""Options that make the short protocol of the prostate task fit the sites of `make_site`."""


def latest(*options: str) -> tuple[str, ...]:
    """Of several options with one path the last, as `resolve` refuses them; another network discards options before it.

    For tests that change a few of the options that a job has by default.
    """
    kept: dict[str, str] = {}
    for option in options:
        path = option.partition("=")[0]
        if path in ("network.name", "network.options"):
            kept = {other: text for other, text in kept.items() if not other.startswith("network.options")}
        kept[path] = option
    return tuple(kept.values())


def small_image_job(methods: str, *options: str, sites: Sequence[str] = ("A", "B", "C"), seed: int = 0) -> JobSpec:
    """A job on the sites of `make_image_site` that trains in a second."""
    return resolve(str(SHAPES), methods, sites=sites, options=latest(*options), seed=seed)


def small_job(methods: str, *options: str, sites: Sequence[str] = ("BIDMC", "HK", "UCL"), seed: int = 0) -> JobSpec:
    """A job on the sites of `make_site` that trains in a second or two."""
    return resolve("prostate", methods, protocol="quick", sites=sites, options=latest(*SMALL, *options), seed=seed)


KINDS = MappingProxyType({"segmentation": small_job, "classification": small_image_job})
"""Kind of task -> what makes a job of it."""
ROUNDS: Mapping[str, int] = {"segmentation": 2, "classification": 3}
SMALLER: Mapping[str, tuple[str, ...]] = {"segmentation": (), "classification": ("network.options.width=2",)}


@cache
def job_for(names: str, kind: str, options: tuple[str, ...] = ()) -> JobSpec:
    """A small job with these methods, with SGD if they require it.

    ``options`` come after those that make it small, and replace them.
    """
    small = (f"schedule.rounds={ROUNDS[kind]}", *SMALLER[kind])
    try:
        return KINDS[kind](names, *small, *options)
    except ConfigError as error:
        if error.code != "method-needs" or "optimizer.name=sgd" not in str(error):
            raise
        sgd = ("optimizer.name=sgd", "optimizer.lr=0.02", "optimizer.weight_decay=0")
        return KINDS[kind](names, *small, *sgd, *options)
