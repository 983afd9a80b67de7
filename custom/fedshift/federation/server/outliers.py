"""Compare the updates of a round with each other, before they are combined."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from fedshift.federation.refusals import FEWEST_TO_COMPARE
from fedshift.federation.server.update_check import Change, Rejected
from fedshift.methods.base import ArraySpec

PARAMETERS = "weights"
"""Name for the change of the parameters in `medians`, beside the names of methods."""
BUFFERS = "buffers"
"""Name for the change of the floating buffers (running statistics) in `medians`."""


class Measured(Protocol):
    """An update that passed `fedshift.federation.server.update_check.check_update`."""

    site: str
    n_samples: int
    n_steps: int
    change: Change

    @property
    def arrays(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Method to its arrays by name."""
        ...


def medians(updates: Sequence[Measured], earlier: Mapping[str, float]) -> dict[str, float]:
    """The reference sizes for `outliers`: by name the largest median of this and the ``earlier`` rounds.

    The largest is kept because sites that have fitted their data hardly move any more: one difficult batch may then
    move a site far beyond the median of its round. Fewer than three updates change nothing.
    """
    if len(updates) < FEWEST_TO_COMPARE:
        return dict(earlier)
    sizes = [
        {PARAMETERS: change.parameters, BUFFERS: change.buffers, **change.arrays}
        for change in (update.change for update in updates)
    ]
    current = {name: float(statistics.median(size[name] for size in sizes)) for name in sizes[0]}
    return {**earlier, **{name: max(size, earlier.get(name, 0.0)) for name, size in current.items()}}


def outliers(
    updates: Sequence[Measured],
    *,
    usual: Mapping[str, float],
    specs: Mapping[str, Mapping[str, ArraySpec]],
    max_norm_ratio: float | None,
    max_sample_ratio: float | None,
) -> Iterator[tuple[str, Rejected]]:
    """Find sites whose updates are much larger or smaller than those of this round and earlier ones, and why.

    With fewer than three updates there is no majority, so nothing is compared. Anything with a reference size of 0 is
    not compared either. A site that made more steps than the median may move that many times further.

    Args:
        updates: a round's updates, which have passed their check.
        usual: the result of `medians` for them.
        specs: arrays by method; only those with ``ArraySpec.alike`` are compared.
        max_norm_ratio: of a norm to its reference size, and of a statistic to the round's median or back; None: any.
        max_sample_ratio: of a sample count to the median; None: any.
    """
    if len(updates) < FEWEST_TO_COMPARE:
        return
    samples = statistics.median(update.n_samples for update in updates)
    steps = max(1.0, statistics.median(update.n_steps for update in updates))
    methods = list(updates[0].change.arrays)
    middle = {
        (method, name): np.median([update.arrays[method][name] for update in updates], axis=0)
        for method, named in specs.items()
        for name, spec in named.items()
        if spec.alike == "elements" and method in methods and name in updates[0].arrays[method]
    }

    def fault(update: Measured) -> Rejected | None:
        if max_sample_ratio is not None and update.n_samples > max_sample_ratio * samples:
            return Rejected(
                "n_samples",
                f"is {update.n_samples}, more than {max_sample_ratio:g} times the sites' median of {samples:g}; if "
                "that is right, raise federation.max_sample_ratio",
            )
        if max_norm_ratio is None:
            return None
        advice = "; if that is right, raise federation.max_norm_ratio"
        allowed = max_norm_ratio * max(1.0, update.n_steps / steps)
        for name, change in ((PARAMETERS, update.change.parameters), (BUFFERS, update.change.buffers)):
            if usual[name] > 0 and not change <= allowed * usual[name]:
                return Rejected(
                    name,
                    f"moved by {change:.3g} in this round, the largest median of a round so far is {usual[name]:.3g} "
                    f"and {allowed:g} times that is allowed{advice}",
                )
        for method in methods:
            norm, size = update.change.arrays[method], usual[method]
            if size > 0 and not norm <= max_norm_ratio * size:
                return Rejected(
                    method,
                    f"sent arrays of norm {norm:.3g}, the largest median of a round so far is {size:.3g} and "
                    f"{max_norm_ratio:g} times that is allowed{advice}",
                )
        for (method, name), median in middle.items():
            array = update.arrays[method][name]
            out = (array > max_norm_ratio * median) | (array * max_norm_ratio < median)
            if out.any():
                return Rejected(
                    f"{method}/{name}",
                    f"holds {array[out][0]:.3g}, the sites' median is {median[out][0]:.3g} and {max_norm_ratio:g} "
                    f"times more or less is allowed{advice}",
                )
        return None

    for update in updates:
        rejected = fault(update)
        if rejected is not None:
            yield update.site, rejected
