"""What the server halves make of sums: updates of which nobody knows more than their sum over the sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedshift.federation.encryption.shared import Segment
from fedshift.schema.messages import Arrays, Weights


@dataclass
class SummedUpdate:
    """A `SiteUpdate` that stands for the sum or mean over sites. Only sums over all of them are meaningful."""

    site: str = ""
    n_samples: int = 1
    n_steps: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    scaled: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    arrays: Mapping[str, Arrays] = field(default_factory=dict)


def summed_updates(
    sums: Mapping[Segment, np.ndarray], *, factors: int, n_sites: int, clear: Weights
) -> list[SummedUpdate]:
    """Updates for the server halves: as many as sites, each with the mean network; their arrays add up to the sums.

    Args:
        sums: of each tensor over the sites, float64; the network's with each site's factor.
        factors: the sum of the sites' factors.
        n_sites: the number of sites.
        clear: tensors of the network that are not in ``sums``.
    """
    mean: Weights = {}
    for segment, total in sums.items():
        if segment.origin == "network":
            # A variance of 0 may become slightly negative where a sum is approximate.
            value = np.maximum(total, 0) if segment.name.endswith("running_var") else total
            mean[segment.name] = np.asarray(value / factors, segment.dtype)
    common = SummedUpdate(weights={**mean, **clear})
    updates = []
    for number in range(n_sites):
        # Only the sum of the arrays is known: assign it to the first site and 0 to the others.
        share: dict[str, Arrays] = {}
        for segment, total in sums.items():
            if segment.origin == "sent":
                share.setdefault(segment.method, {})[segment.name] = total if number == 0 else np.zeros_like(total)
        updates.append(replace(common, arrays=share))
    return updates
