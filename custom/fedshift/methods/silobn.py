"""SiloBN: batch norms' running statistics stay at the site; their scale and shift are averaged like everything else.

Andreux et al., "Siloed Federated Learning for Multi-centric Histopathology Datasets", MICCAI 2020 workshop DCL. With S
the running statistics of batch norms (mean, variance, batch counter)::

    w[k] ← Σ_i c_i w_i[k]    k not in S        (c from the method that combines)
    w_i[k] stays at site i   k in S

A site trains and is evaluated with its own S, so that what a network measures of a site's images never leaves it. A
site that has never trained re-estimates S: it passes its own un-augmented images, without labels, through the network
(AdaBN, Li et al., "Revisiting Batch Normalization for Practical Domain Adaptation", 2017); `results.final.newcomers`
lists such sites.

FedAvg with ``fedavg.buffers=local`` is the same, bit for bit, where batch norms have all of a network's buffers; SiloBN
also goes with other rules of the server. FedBN keeps scale and shift at the site too.

Deviation: none is known. Layers are found by type; code of others looks for "bn" in a key (FL-MedSegBench,
arXiv:2603.11659, which spells the method SioBN).

Read: the paper's abstract, and FL-MedSegBench's code. The paper's text was not at hand: that a new site re-estimates
all batches' statistics with equal weight for every image is this package's way, as in FedBN.

When: sites differ in scale, contrast or colour, one set of weights should serve all, and statistics should not leave.
"""

from __future__ import annotations

from torch import nn

from fedshift.methods import base
from fedshift.methods.shared.norms import norm_keys, re_estimate
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict


class Config(Strict):
    """No options."""


class Client(base.Client[Config]):
    """Keeps running statistics at the site."""

    needs = (base.Rule("norms that are trained"),)
    clashes = (base.Rule("may keep norms, and not the rest, at the site", "decides which values of norms stay there"),)

    def check(self, job: JobSpec, net: nn.Module) -> None:
        if not self.personal(net):
            raise ConfigError(
                "method-needs",
                f"method silobn: keeps batch norms' running statistics at a site, and network {job.task.network.name} "
                "has none: choose a network with batch norm, or leave silobn out",
            )

    def personal(self, net: nn.Module) -> frozenset[str]:
        return norm_keys(net, "batch") & {name for name, _ in net.named_buffers()}

    def newcomer(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        re_estimate(ctx.run.net, data, ctx.run)
