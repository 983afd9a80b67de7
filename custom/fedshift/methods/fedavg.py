"""FedAvg: average the sites' models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017. The server
replaces its model by the weighted mean of the sites' models::

    w ← Σ_k c_k w_k,    c_k = n_k / Σ n   (weights: samples)   or   1 / K   (weights: uniform)

Deviation from the paper: integer batch counters are not averaged; the server takes the largest.

When: the baseline. The FedFA and FedBN papers average uniformly, FedRDN and the original by sample count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from fedshift.methods import base
from fedshift.methods.shared.aggregation import average, site_fractions
from fedshift.methods.shared.norms import re_estimate
from fedshift.schema.messages import Weights
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of FedAvg.

    ``weights``: ``samples`` is c_k = n_k / Σ n, ``uniform`` 1 / K. ``buffers``: running statistics are averaged, or
    with ``local`` stay at the site, which evaluates the model with its own; a site that has never trained first
    computes them from its training images.
    """

    weights: Literal["samples", "uniform"] = "samples"
    buffers: Literal["average", "local"] = "average"


class Client(base.Client[Config]):
    """Plain local training."""

    idle = (
        base.Rule(
            "buffers",
            "network {case.job.task.network.name} has no running statistics",
            lambda case: next(case.net.buffers(), None) is None,
        ),
    )

    def personal(self, net: nn.Module) -> frozenset[str]:
        return frozenset(name for name, _ in net.named_buffers()) if self.config.buffers == "local" else frozenset()

    def newcomer(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        if self.config.buffers == "local":
            re_estimate(ctx.run.net, data, ctx.run)


class Server(base.Server[Config]):
    """Weighted mean of the sites' models."""

    owns = frozenset({"combine"})

    def factor(self, n_samples: int) -> int:
        return 1 if self.config.weights == "uniform" else n_samples

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        return average(weights, updates, site_fractions(updates, self.config.weights))
