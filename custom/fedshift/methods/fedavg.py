"""FedAvg: average the sites' models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017::

    w ← Σ_k c_k w_k,    c_k = n_k / Σ n   (weights: samples)   or   1 / K   (weights: uniform)

Choices: the FedFA and FedBN papers average uniformly, FedRDN and the original by sample count; ``weights``
decides. Batch-norm running statistics are averaged like parameters (``buffers: average``) or stay at each
site, which then scores the model with its own (``buffers: local``; a site that has never trained measures its images
first). Integer batch counters are not averaged.
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
    """Options of FedAvg."""

    weights: Literal["samples", "uniform"] = "samples"
    buffers: Literal["average", "local"] = "average"


class Client(base.Client[Config]):
    """Plain local training."""

    def personal(self, net: nn.Module) -> frozenset[str]:
        """All buffers with ``buffers: local``, else nothing."""
        return frozenset(name for name, _ in net.named_buffers()) if self.config.buffers == "local" else frozenset()

    def newcomer(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Running statistics of the site's own images, where no others come from outside."""
        if self.config.buffers == "local":
            re_estimate(ctx.run.net, data, ctx.run)


class Server(base.Server[Config]):
    """The weighted mean."""

    owns = frozenset({"combine"})

    def factor(self, n_samples: int) -> int:
        """n_k or 1."""
        return 1 if self.config.weights == "uniform" else n_samples

    def combine(self, weights: Weights, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> Weights:
        """Σ_k c_k w_k, tensor by tensor."""
        return average(weights, updates, site_fractions(updates, self.config.weights))
